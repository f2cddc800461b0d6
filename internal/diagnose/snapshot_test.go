package diagnose

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"unoom/internal/lives"
	"unoom/internal/remedy"
	"unoom/internal/snapshot"
	"unoom/internal/snapshot/snapshottest"
	"unoom/internal/units"
)

const mib = 1 << 20

func heldOf(t *testing.T, v any, given Given) *Held {
	t.Helper()
	var b bytes.Buffer
	if err := snapshottest.Write(&b, v, snapshottest.Python4); err != nil {
		t.Fatal(err)
	}
	s, err := snapshot.Read(&b, -1)
	if err != nil {
		t.Fatal(err)
	}
	return Snapshot(s, -1, given)
}

// checkHeld holds an explanation to its invariants.
func checkHeld(t *testing.T, h *Held) {
	t.Helper()
	if h.Account != nil {
		var sum units.Bytes
		for _, p := range h.Account.Parts {
			sum += p.Bytes
			if p.Bytes < 0 {
				t.Errorf("a part of the account is negative: %+v", p)
			}
		}
		if sum != h.Account.Capacity {
			t.Errorf("the parts sum to %d, the account to %d", sum, h.Account.Capacity)
		}
	}
	confidence := 0.0
	for _, c := range h.Causes {
		confidence += c.Confidence
		if len(c.Evidence) == 0 {
			t.Errorf("%s without evidence", c.Label)
		}
		for _, e := range c.Evidence {
			if e.ID == "snapshot.sign." {
				t.Errorf("%s: empty evidence", c.Label)
			}
		}
	}
	if confidence > 1 {
		t.Errorf("confidences sum to %f", confidence)
	}
	if p := h.Pieces; p.Whole+p.Stuck != p.Cached || p.Largest > p.Cached {
		t.Errorf("pieces %+v", p)
	}
	var held int64
	for _, x := range h.History.HoldersAfter(h.Moment.Event) {
		held += x.Bytes
	}
	var kinds int64
	for _, b := range h.Kinds {
		kinds += b
	}
	if held != kinds || units.Bytes(held) > h.Moment.Allocated {
		t.Errorf("holders hold %d, kinds %d, allocated is %d", held, kinds, h.Moment.Allocated)
	}
	for _, a := range h.Advise() {
		if a.Saves != nil && a.Saves.High < a.Saves.Low {
			t.Errorf("%s saves %v", a.Code, a.Saves)
		}
	}
}

func TestRealSnapshotsAreExplained(t *testing.T) {
	dir := "../../../shared/corpus/snapshots"
	data, err := os.ReadFile(filepath.Join(dir, "expected.json"))
	if err != nil {
		t.Skipf("real snapshots are not here: %v", err)
	}
	var expected struct {
		Files map[string]struct {
			Devices []struct {
				Events        int
				PeakAllocated *int64 `json:"peak_allocated_bytes"`
				PeakReserved  *int64 `json:"peak_reserved_bytes"`
				OOMs          int
			}
		}
	}
	if err := json.Unmarshal(data, &expected); err != nil {
		t.Fatal(err)
	}
	for name, file := range expected.Files {
		f, err := os.Open(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		s, err := snapshot.Read(f, -1)
		f.Close()
		if err != nil {
			t.Fatal(err)
		}
		for d, want := range file.Devices {
			h := Snapshot(s, d, Given{})
			if h.Empty() {
				if want.Events > 0 {
					t.Errorf("%s device %d is empty", name, d)
				}
				continue
			}
			checkHeld(t, h)
			if (want.OOMs > 0) != h.IsOOM() {
				t.Errorf("%s device %d: is_oom %v, %d requests failed", name, d, h.IsOOM(), want.OOMs)
			}
			if want.PeakAllocated != nil && (!h.Exact || int64(h.PeakAllocated) != *want.PeakAllocated || int64(h.PeakReserved) != *want.PeakReserved) {
				t.Errorf("%s device %d: peaks %d, %d (exact %v); want %d, %d", name, d, h.PeakAllocated, h.PeakReserved, h.Exact, *want.PeakAllocated, *want.PeakReserved)
			}
		}
	}
}

func TestCausesOfSimulatedFailures(t *testing.T) {
	usual := snapshottest.Training{Layers: 4, Steps: 8, Activation: 24 * mib, Weight: 16 * mib, Native: true}
	small := usual
	small.Capacity = 300 * mib
	leak := usual
	leak.Steps, leak.Leak, leak.Capacity = 60, 20*mib, 900*mib
	wide := usual
	wide.Activation, wide.Weight, wide.Capacity = 90*mib, 2*mib, 700*mib
	for _, c := range []struct {
		name string
		v    any
		want []remedy.Cause // the first is one of these
	}{
		{"pieces", snapshottest.Pieces().Snapshot(), []remedy.Cause{remedy.Fragmentation}},
		{"a leak", leak.Run().Snapshot(), []remedy.Cause{remedy.LeakStateGrowth, remedy.LeakGraphRetained}},
		{"a card too small for the state", small.Run().Snapshot(), []remedy.Cause{remedy.TrainStateTooLarge, remedy.OptimizerState, remedy.ActivationsNoCheckpointing, remedy.BatchTooLarge}},
		{"large activations", wide.Run().Snapshot(), []remedy.Cause{remedy.ActivationsNoCheckpointing, remedy.BatchTooLarge}},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := heldOf(t, c.v, Given{})
			checkHeld(t, h)
			if !h.IsOOM() || len(h.Causes) == 0 {
				t.Fatalf("verdict %s, causes %v", h.Verdict, h.Causes)
			}
			first := h.Causes[0].Label
			for _, w := range c.want {
				if first == w {
					return
				}
			}
			t.Errorf("first cause %s, want one of %v\n%+v\nslack %v of %v, %+v", first, c.want, h.Causes, *h.Slack, h.Account, h.Pieces)
		})
	}
}

// Settings are advised by what the replay proved.
func TestAdviceIsReplayed(t *testing.T) {
	h := heldOf(t, snapshottest.Pieces().Snapshot(), Given{})
	found := false
	for _, a := range h.Advise() {
		switch a.Code {
		case "allocator.expandable_segments":
			found = true
			if a.Sufficient == nil || !*a.Sufficient {
				t.Error("the replay serves the request, the advice does not say so")
			}
		case "allocator.max_split_size":
			t.Error("replayed, max_split_size serves nothing, but it is advised")
		}
	}
	if !found {
		t.Error("expandable segments are not advised")
	}
}

func TestWhatLiesOutside(t *testing.T) {
	h := heldOf(t, snapshottest.Pieces().Snapshot(), Given{Capacity: 1024 * mib})
	if got := h.Account.Of("outside_or_other"); got != 512*mib {
		t.Errorf("%s lies outside, want 512 MiB", got)
	}
	checkHeld(t, h)
}

func TestWhatChangedBetweenTwo(t *testing.T) {
	run := snapshottest.Training{Layers: 3, Steps: 3, Activation: 8 * mib, Weight: 4 * mib}
	a := heldOf(t, run.Run().Snapshot(), Given{})
	run.Activation *= 2
	b := heldOf(t, run.Run().Snapshot(), Given{})
	c := Compare(a, b)
	for _, k := range c.Kinds {
		if k.Kind == lives.Weights && k.Before != k.After {
			t.Errorf("the weights changed: %+v", k)
		}
		if k.Kind == lives.Activations && (k.After < 2*k.Before-mib || k.After > 2*k.Before+mib) {
			t.Errorf("activations %+v", k)
		}
	}
	if len(c.Holders) == 0 || c.Holders[0].Kind != lives.Activations || c.Holders[0].By() <= 0 {
		t.Errorf("%+v", c.Holders)
	}
	if same := Compare(a, a); len(same.Holders) > 0 {
		t.Errorf("a snapshot differs from itself: %+v", same.Holders)
	}
}

// A request larger than what is known is not larger than the card: others may
// hold the rest of it.
func TestRequestBeyondWhatIsKnown(t *testing.T) {
	run := snapshottest.Training{Layers: 4, Steps: 3, Activation: 8 * mib, Weight: 4 * mib, Capacity: 48 * mib}
	v := run.Run().Snapshot()
	trace := v.Get("device_traces").(snapshottest.List)[0].(snapshottest.Lazy)
	events := snapshottest.List{}
	for i := range trace.N {
		events = append(events, trace.At(i))
	}
	events[len(events)-1].(snapshottest.Dict).Set("size", 200<<20)
	v.Set("device_traces", snapshottest.List{events})
	for capacity, want := range map[units.Bytes]string{0: "snapshot.sign.request_beyond_known", 100 * units.MiB: "snapshot.sign.request_beyond"} {
		h := heldOf(t, v, Given{Capacity: capacity})
		if h.Request == nil || len(h.Causes) == 0 || h.Causes[0].Label != remedy.InputTooLarge || h.Causes[0].Evidence[0].ID != want {
			t.Errorf("capacity %s: %+v", capacity, h.Causes)
		}
	}
}

func TestWhoseFilesTheStacksShow(t *testing.T) {
	frame := func(file string) snapshottest.List {
		return snapshottest.List{snapshottest.Dict{"filename", file, "line", 1, "name", "train"}}
	}
	event := func(file string) snapshottest.Dict {
		return snapshottest.Dict{"action", "alloc", "addr", 1 << 33, "size", 4 * mib, "stream", 0, "frames", frame(file)}
	}
	for _, c := range []struct {
		files     []string
		devices   int
		framework remedy.Framework
		world     int
	}{
		{[]string{"/home/me/train.py"}, 1, remedy.PyTorch, 1},
		{[]string{"/home/me/train.py"}, 8, remedy.PyTorch, 0},
		{[]string{"/v/torch/nn/parallel/distributed.py"}, 1, remedy.PyTorch, 0},
		{[]string{`C:\v\Lib\site-packages\transformers\trainer.py`, `C:\v\llamafactory\train\tuner.py`}, 1, "llamafactory", 1},
		{[]string{"/v/ultralytics/engine/trainer.py"}, 1, "ultralytics", 1},
		{[]string{"/v/accelerate/accelerator.py", "/v/transformers/trainer.py"}, 1, remedy.HFTrainer, 1},
	} {
		traces := snapshottest.List{snapshottest.List{}}
		for _, file := range c.files {
			traces[0] = append(traces[0].(snapshottest.List), event(file))
		}
		for len(traces) < c.devices {
			traces = append(traces, snapshottest.List{})
		}
		h := heldOf(t, snapshottest.Dict{"segments", snapshottest.List{}, "device_traces", traces}, Given{})
		if sit := h.Situation; sit.Framework != c.framework || sit.WorldSize != c.world {
			t.Errorf("%v on %d: %s, %d GPUs; want %s, %d", c.files, c.devices, sit.Framework, sit.WorldSize, c.framework, c.world)
		}
	}
}

// Where nearly everything is cached, the few bytes in use are no reason to change
// a training.
func TestALittleInALargeCacheIsNoCause(t *testing.T) {
	run := snapshottest.Training{Layers: 4, Steps: 3, Activation: 64 * mib, Weight: mib}
	v := run.Run().Snapshot()
	v.Set("device_traces", snapshottest.List{})
	if h := heldOf(t, v, Given{}); len(h.Causes) > 0 && h.Causes[0].Label != remedy.Fragmentation {
		t.Errorf("%s of %s: %+v", h.Moment.Allocated, h.Moment.Reserved, h.Causes)
	}
}
