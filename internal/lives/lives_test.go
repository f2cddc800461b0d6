package lives

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"unoom/internal/alloc"
	"unoom/internal/snapshot"
	"unoom/internal/snapshot/snapshottest"
)

const mib = 1 << 20

func historyOf(t testing.TB, v any) *History {
	t.Helper()
	var b bytes.Buffer
	if err := snapshottest.Write(&b, v, snapshottest.Python4); err != nil {
		t.Fatal(err)
	}
	s, err := snapshot.Read(bytes.NewReader(b.Bytes()), int64(b.Len()))
	if err != nil {
		t.Fatal(err)
	}
	return Of(s, 0, alloc.Defaults())
}

func training() snapshottest.Training {
	return snapshottest.Training{Layers: 3, Steps: 6, Activation: 8 * mib, Weight: 4 * mib}
}

// kinds sums up what lives after an event, in MiB.
func kinds(h *History, event int32) map[string]int64 {
	sums := map[string]int64{}
	for k, b := range h.KindsAfter(event) {
		if b >= mib {
			sums[Kind(k).String()] = b / mib
		}
	}
	return sums
}

func TestKindsOfATraining(t *testing.T) {
	run := training()
	weights, states := int64(3*5), int64(3*10)
	for name, native := range map[string]bool{"python stacks": false, "all stacks": true} {
		t.Run(name, func(t *testing.T) {
			run.Native = native
			h := historyOf(t, run.Run().Snapshot())
			got := kinds(h, h.Steps.Ends[3])
			// Between two steps the gradients are still there; zero_grad comes next.
			want := map[string]int64{"weights": weights, "optimizer_state": states, "gradients": 15}
			if !cmp.Equal(got, want) {
				t.Errorf("after a step: %s", cmp.Diff(want, got))
			}
			peak := kinds(h, h.Peak.Event)
			if peak["activations"] < 3*14 || peak["weights"] != weights || peak["optimizer_state"] != states || peak["unknown"]+peak["held"] > 0 {
				t.Errorf("at the peak: %v", peak)
			}
			if p := h.PhaseAt(h.Peak.Event); p != PhaseBackward && p != PhaseLoss {
				t.Errorf("the peak is in %q", p)
			}
		})
	}
}

func TestKindsOfARecordingThatBeganInTheMiddle(t *testing.T) {
	run := training()
	run.Forget = 3
	h := historyOf(t, run.Run().Snapshot())
	if h.Events[0].Action == alloc.SegmentAlloc {
		t.Fatal("the recording begins with an empty allocator")
	}
	got := kinds(h, h.Steps.Ends[len(h.Steps.Ends)-1])
	if want := (map[string]int64{"weights": 15, "optimizer_state": 30, "gradients": 15}); !cmp.Equal(got, want) {
		t.Error(cmp.Diff(want, got))
	}
}

// Without frames of what lives from before, sizes tell weights from state.
func TestKindsBySize(t *testing.T) {
	run := training()
	run.Forget = 3
	v := run.Run().Snapshot()
	for _, seg := range v.Get("segments").(snapshottest.List) {
		for _, b := range seg.(snapshottest.Dict).Get("blocks").(snapshottest.List) {
			b.(snapshottest.Dict).Set("frames", snapshottest.List{})
		}
	}
	// The last zero_grad did not happen yet: gradients live at the end.
	trace := v.Get("device_traces").(snapshottest.List)[0].(snapshottest.Lazy)
	_ = trace
	h := historyOf(t, v)
	got := kinds(h, h.Steps.Ends[0])
	if got["weights"]+got["optimizer_state"]+got["held"] != 45 {
		t.Errorf("%v", got)
	}
}

func TestSteps(t *testing.T) {
	run := training()
	v := run.Run().Snapshot()
	h := historyOf(t, v)
	if h.Steps.By != "optimizer" || len(h.Steps.Ends) != 6 {
		t.Errorf("%d steps by %q, want 6 by the optimizer's ranges", len(h.Steps.Ends), h.Steps.By)
	}
	v.Set("external_annotations", snapshottest.List{})
	h = historyOf(t, v)
	if h.Steps.By != "calls" || len(h.Steps.Ends) < 5 {
		t.Errorf("%d steps by %q, want 5 or more by the optimizer's calls", len(h.Steps.Ends), h.Steps.By)
	}
	v = withoutStacks(t, run.Run())
	h = historyOf(t, v)
	if h.Steps.By != "pattern" || h.Steps.Whole() < 3 {
		t.Errorf("%d steps by %q, want 3 or more by the pattern", h.Steps.Whole(), h.Steps.By)
	}
	var profiler snapshottest.List
	for i := range 6 {
		at := h.Events[len(h.Events)*i/6].TimeUs
		profiler = append(profiler, snapshottest.Dict{"stage", "END", "name", "ProfilerStep#1", "device", 0, "time_us", at})
	}
	v.Set("external_annotations", profiler)
	if h = historyOf(t, v); h.Steps.By != "profiler" || len(h.Steps.Ends) != 6 {
		t.Errorf("%d steps by %q, want 6 by the profiler", len(h.Steps.Ends), h.Steps.By)
	}
}

// withoutStacks is the recording of a run with context=None.
func withoutStacks(t *testing.T, r *snapshottest.Run) snapshottest.Dict {
	v := r.Snapshot()
	trace := v.Get("device_traces").(snapshottest.List)[0].(snapshottest.Lazy)
	bare := snapshottest.List{}
	for i := range trace.N {
		bare = append(bare, trace.At(i).(snapshottest.Dict).Without("frames"))
	}
	v.Set("device_traces", snapshottest.List{bare})
	v.Set("external_annotations", snapshottest.List{})
	for _, seg := range v.Get("segments").(snapshottest.List) {
		for _, b := range seg.(snapshottest.Dict).Get("blocks").(snapshottest.List) {
			b.(snapshottest.Dict).Set("frames", snapshottest.List{})
		}
	}
	return v
}

func TestGrowth(t *testing.T) {
	run := training()
	run.Steps, run.Leak = 10, 2*mib
	h := historyOf(t, run.Run().Snapshot())
	growing := h.Growing()
	if len(growing) != 1 || growing[0].String() != "train.py:44 train" || growing[0].PerStep != 2*mib || growing[0].Forever {
		t.Errorf("%+v", growing)
	}
	run.Leak = 0
	if g := historyOf(t, run.Run().Snapshot()).Growing(); len(g) > 0 {
		t.Errorf("a run without a leak grows: %+v", g)
	}
}

// Without stacks nothing tells the layers of one step from steps but that what a
// layer takes does not come back after it; and what is alive at the end is no leak.
func TestLayersAreNoSteps(t *testing.T) {
	run := snapshottest.NewRun(0, alloc.Defaults())
	var kept []alloc.Block
	for range 40 {
		for tensor := range int64(20) {
			b, _ := run.Alloc((1 + tensor) * mib)
			if tensor%2 == 0 {
				kept = append(kept, b)
			} else {
				run.Free(b)
			}
		}
	}
	for i := len(kept) - 1; i >= len(kept)/2; i-- {
		run.Free(kept[i])
	}
	h := historyOf(t, withoutStacks(t, run))
	if n := h.Steps.Whole(); n > 0 {
		t.Errorf("%d steps", n)
	}
	if g := h.Growing(); len(g) > 0 {
		t.Errorf("grows: %+v", g)
	}
}

// Where no steps are seen, loading a model must not look like a leak.
func TestLoadingIsNoGrowth(t *testing.T) {
	run := training()
	run.Layers, run.Steps = 600, 0
	if g := historyOf(t, run.Run().Snapshot()).Growing(); len(g) > 0 {
		t.Errorf("%+v", g)
	}
}

func TestPlaces(t *testing.T) {
	frame := func(name, file string, line int) snapshot.Frame {
		return snapshot.Frame{Name: name, File: file, Line: line}
	}
	const site = "/opt/venv/lib/python3.12/site-packages/"
	for _, c := range []struct {
		name  string
		stack []snapshot.Frame
		want  string
	}{
		{"the user's model", []snapshot.Frame{
			frame("linear", site+"torch/nn/functional.py", 5), frame("forward", "/me/model.py", 7),
			frame("_call_impl", site+"torch/nn/modules/module.py", 9), frame("main", "/me/train.py", 3),
		}, "model.py:7 forward"},
		{"a library's model under a trainer", []snapshot.Frame{
			frame("forward", site+"transformers/models/llama/modeling_llama.py", 70),
			frame("_call_impl", site+"torch/nn/modules/module.py", 9),
			frame("training_step", site+"transformers/trainer.py", 900), frame("main", "/me/train.py", 3),
		}, "modeling_llama.py:70 forward"},
		{"the user's call within a helper of a library", []snapshot.Frame{
			frame("einsum", site+"einops/_backends.py", 291), frame("attention", "/me/model.py", 20),
			frame("forward", "/me/model.py", 31), frame("_call_impl", site+"torch/nn/modules/module.py", 9), frame("main", "/me/train.py", 3),
		}, "model.py:20 attention"},
		{"an optimizer", []snapshot.Frame{
			frame("_init_group", site+"torch/optim/adamw.py", 1), frame("step", site+"torch/optim/adamw.py", 2), frame("main", "/me/train.py", 30),
		}, "train.py:30 main"},
		{"an operation in C++", []snapshot.Frame{
			frame("at::_ops::empty::call()", "??", 0), frame("at::_ops::bmm::call(at::Tensor const&)", "??", 0), frame("f", "/me/m.py", 2),
		}, "m.py:2 f (bmm)"},
		{"a backward in C++", []snapshot.Frame{
			frame("at::_ops::mm::call()", "??", 0), frame("torch::autograd::generated::MmBackward0::apply(x)", "??", 0),
			frame("torch::autograd::Engine::thread_main(y)", "??", 0),
		}, "(MmBackward0)"},
		{"Windows", []snapshot.Frame{
			frame("copy", `C:\Users\me\AppData\Roaming\uv\python\cpython-3.10-windows\lib\copy.py`, 1), frame("f", `C:\work\a.py`, 2),
		}, "a.py:2 f"},
		{"nothing but torch", []snapshot.Frame{frame("f", site+"torch/x.py", 4)}, "x.py:4 f"},
		{"nothing", nil, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			e := snapshottest.Event(alloc.Event{Action: alloc.Alloc, Addr: 512, Size: 1}, snapshottest.Frames(c.stack), "")
			h := historyOf(t, snapshottest.Dict{"segments", snapshottest.List{}, "device_traces", snapshottest.List{snapshottest.List{e, e}}})
			if got := h.PlaceOf(h.Events[0].Stack).String(); got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}

func TestLabels(t *testing.T) {
	run := training()
	r := snapshottest.NewRun(0, alloc.Defaults())
	_ = run
	r.Range("my range", true)
	_, _ = r.Alloc(3 * mib)
	r.Range("inner", true)
	_, _ = r.Alloc(5 * mib)
	r.Range("inner", false)
	r.Range("my range", false)
	r.Range("Optimizer.step#SGD.step", true)
	_, _ = r.Alloc(2 * mib)
	h := historyOf(t, r.Snapshot())
	want := []Label{{"inner", 5 * mib, 1}, {"my range", 3 * mib, 1}, {"", 2 * mib, 1}}
	if got := h.LabelsAfter(int32(len(h.Events)) - 1); !cmp.Equal(got, want) {
		t.Error(cmp.Diff(want, got))
	}
}

// The sums agree with the allocator's own, whatever happens.
func TestSumsAgree(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := snapshottest.NewRun(0, alloc.Defaults())
		var live []alloc.Block
		cut := rapid.IntRange(0, 60).Draw(t, "cut")
		for i := range 60 {
			if i == cut {
				r.Forget()
			}
			if len(live) == 0 || rapid.Bool().Draw(t, "alloc") {
				b, _ := r.Alloc(rapid.Int64Range(1, 30*mib).Draw(t, "size"))
				live = append(live, b)
				continue
			}
			j := rapid.IntRange(0, len(live)-1).Draw(t, "which")
			r.Free(live[j])
			live = append(live[:j], live[j+1:]...)
		}
		var b bytes.Buffer
		if err := snapshottest.Write(&b, r.Snapshot(), snapshottest.CPP); err != nil {
			t.Fatal(err)
		}
		s, err := snapshot.Read(&b, -1)
		if err != nil {
			t.Fatal(err)
		}
		h := Of(s, 0, alloc.Defaults())
		var final int64
		for _, seg := range s.Segments {
			final += seg.Allocated
		}
		allocated, reserved := h.Timeline()
		end, endReserved := h.Start, h.StartReserved
		if n := len(allocated); n > 0 {
			end, endReserved = allocated[n-1], reserved[n-1]
		}
		if h.End != final || end != final || endReserved != h.EndReserved || h.StartReserved < 0 {
			t.Fatalf("end %d, timeline %d, want %d; reserved %d, timeline %d", h.End, end, final, h.EndReserved, endReserved)
		}
		lines := h.KindTimeline()
		for i := range allocated {
			var sum int64
			for k := range lines {
				sum += lines[k][i]
			}
			if sum != allocated[i] || allocated[i] > h.Peak.Allocated {
				t.Fatalf("event %d: kinds sum to %d, allocated %d, peak %d", i, sum, allocated[i], h.Peak.Allocated)
			}
		}
		if at := h.At(h.Peak.Event); at != h.Peak {
			t.Fatalf("%+v, want %+v", at, h.Peak)
		}
		var held int64
		for _, x := range h.HoldersAfter(h.Peak.Event) {
			held += x.Bytes
		}
		if held != h.Peak.Allocated {
			t.Fatalf("holders hold %d, the peak is %d", held, h.Peak.Allocated)
		}
	})
}

// Peaks of real snapshots lie within unsplit tails of what torch counts.
func TestPeaksOfRealSnapshots(t *testing.T) {
	dir := "../../../shared/corpus/snapshots"
	data, err := os.ReadFile(filepath.Join(dir, "expected.json"))
	if err != nil {
		t.Skipf("real snapshots are not here: %v", err)
	}
	var expected struct {
		Files map[string]struct {
			Devices []struct {
				Peak     *int64 `json:"peak_allocated_bytes"`
				Reserved *int64 `json:"peak_reserved_bytes"`
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
			if want.Peak == nil {
				continue
			}
			h := Of(s, d, alloc.Defaults())
			if short := *want.Peak - h.Peak.Allocated; short < 0 || float64(short) > 0.005*float64(*want.Peak) {
				t.Errorf("%s device %d: peak %d, want %d", name, d, h.Peak.Allocated, *want.Peak)
			}
			if h.PeakReserved != *want.Reserved {
				t.Errorf("%s device %d: reserved %d, want %d", name, d, h.PeakReserved, *want.Reserved)
			}
		}
	}
}

// profile_plot names every file "none"; the module's name is what there is.
func TestPlacesOfAProfile(t *testing.T) {
	frames := snapshottest.List{snapshottest.Dict{"filename", "none", "line", 0, "name", "nn.Module: Linear_0"}}
	e := snapshottest.Dict{"action", "alloc", "addr", 1 << 33, "size", 4 * mib, "stream", 0, "frames", frames}
	h := historyOf(t, snapshottest.Dict{"segments", snapshottest.List{}, "device_traces", snapshottest.List{snapshottest.List{e, e}}})
	if holders := h.HoldersAfter(1); len(holders) != 1 || holders[0].String() != "nn.Module: Linear_0" {
		t.Errorf("%+v", holders)
	}
}
