package export

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/google/pprof/profile"

	"unoom/internal/alloc"
	"unoom/internal/lives"
	"unoom/internal/snapshot"
	"unoom/internal/snapshot/snapshottest"
)

const mib = 1 << 20

// model is a snapshot of three tensors: one that stays, one that dies, one that
// lived before; and a request that failed.
func model(t *testing.T) *lives.History {
	t.Helper()
	frame := func(name, file string, line int) snapshottest.Dict {
		return snapshottest.FrameOf(snapshot.Frame{Name: name, File: file, Line: line})
	}
	main := frame("main", "/home/user/train.py", 9)
	forward := snapshottest.List{frame("at::empty_cuda", "??", 0), frame("forward", "/home/user/model.py", 31), main}
	load := snapshottest.List{frame("load", "/home/user/model.py", 5), main}
	e := func(action alloc.Action, addr uint64, size int64, us int64, stack any) snapshottest.Dict {
		return snapshottest.Event(alloc.Event{Action: action, Addr: addr, Size: size, TimeUs: us}, stack, "")
	}
	const base = 0x7f0000000000
	block := func(addr uint64, size int64, state string) snapshottest.Dict {
		return snapshottest.Dict{"address", addr, "size", size, "requested_size", size, "state", state, "frames", snapshottest.List{}}
	}
	segment := snapshottest.Dict{
		"device", 0, "address", uint64(base), "total_size", 20 * mib, "allocated_size", 6 * mib, "active_size", 6 * mib, "requested_size", 6 * mib,
		"stream", 0, "segment_type", "large", "segment_pool_id", snapshottest.Tuple{0, 0}, "is_expandable", false, "frames", snapshottest.List{},
		"blocks", snapshottest.List{
			block(base, 2*mib, "active_allocated"), block(base+2*mib, 4*mib, "active_allocated"), block(base+6*mib, 14*mib, "inactive"),
		},
	}
	top := snapshottest.Dict{
		"segments", snapshottest.List{segment},
		"device_traces", snapshottest.List{snapshottest.List{
			e(alloc.Alloc, base+2*mib, 4*mib, 1000, load),
			e(alloc.Alloc, base+6*mib, 8*mib, 1100, forward),
			e(alloc.OOM, 12345, 30*mib, 1150, forward),
			e(alloc.FreeRequested, base+6*mib, 8*mib, 1200, nil),
			e(alloc.FreeCompleted, base+6*mib, 8*mib, 1200, nil),
		}},
		"external_annotations", snapshottest.List{
			snapshottest.Dict{"stage", "START", "name", "step \"one\"", "device", 0, "time_us", int64(1000)},
			snapshottest.Dict{"stage", "END", "name", "step \"one\"", "device", 0, "time_us", int64(1200)},
		},
	}
	var b bytes.Buffer
	if err := snapshottest.Write(&b, top, snapshottest.Python4); err != nil {
		t.Fatal(err)
	}
	s, err := snapshot.Read(&b, int64(b.Len()))
	if err != nil {
		t.Fatal(err)
	}
	return lives.Of(s, 0, alloc.Defaults())
}

func atPeak(t *testing.T) []View {
	h := model(t)
	return []View{{History: h, Moment: h.Peak.Event}}
}

func TestPprofHasThePeakByStack(t *testing.T) {
	var b bytes.Buffer
	if err := WritePprof(&b, atPeak(t)); err != nil {
		t.Fatal(err)
	}
	p, err := profile.ParseData(b.Bytes())
	if err != nil {
		t.Fatal(err)
	}
	if p.DefaultSampleType != "inuse_space" {
		t.Errorf("the default is %s", p.DefaultSampleType)
	}
	var inuse, allocated int64
	for _, s := range p.Sample {
		allocated += s.Value[1]
		inuse += s.Value[3]
		if len(s.Location) == 3 && s.Location[0].Line[0].Function.Name != "at::empty_cuda" {
			t.Errorf("the innermost frame is %s", s.Location[0].Line[0].Function.Name)
		}
	}
	if inuse != 14*mib || allocated != 12*mib {
		t.Errorf("%d in use, %d allocated", inuse, allocated)
	}
}

func TestGoToolPprofOpensTheProfile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "peak.pb.gz")
	var b bytes.Buffer
	if err := WritePprof(&b, atPeak(t)); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, b.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command("go", "tool", "pprof", "-top", "-cum", file).CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, want := range []string{"Type: inuse_space", "main", "forward", "(no stack recorded"} {
		if !strings.Contains(string(out), want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
}

func TestSpeedscopeFollowsItsSchema(t *testing.T) {
	var b bytes.Buffer
	if err := WriteSpeedscope(&b, "snapshot.pickle", atPeak(t)); err != nil {
		t.Fatal(err)
	}
	var f struct {
		Schema string `json:"$schema"`
		Shared struct {
			Frames []struct {
				Name, File string
				Line       int
			}
		}
		Profiles []struct {
			Type, Unit           string
			StartValue, EndValue int64
			Samples              [][]int
			Weights              []int64
		}
	}
	if err := json.Unmarshal(b.Bytes(), &f); err != nil {
		t.Fatal(err)
	}
	p := f.Profiles[0]
	if f.Schema != "https://www.speedscope.app/file-format-schema.json" || p.Type != "sampled" || p.Unit != "bytes" || len(p.Samples) != len(p.Weights) {
		t.Errorf("%s", &b)
	}
	var sum int64
	for i, w := range p.Weights {
		sum += w
		for _, id := range p.Samples[i] {
			if id < 0 || id >= len(f.Shared.Frames) {
				t.Errorf("frame %d of %d", id, len(f.Shared.Frames))
			}
		}
	}
	if sum != 14*mib || p.EndValue != sum {
		t.Errorf("the weights add up to %d, to %d", sum, p.EndValue)
	}
	if first := f.Shared.Frames[p.Samples[0][0]].Name; first != "main" {
		t.Errorf("the outermost frame is %s", first)
	}
}

func TestPerfettoCountsAndMarks(t *testing.T) {
	var b bytes.Buffer
	if err := WritePerfetto(&b, atPeak(t)); err != nil {
		t.Fatal(err)
	}
	var f struct {
		TraceEvents []struct {
			Ph, Name string
			TS       int64
			Args     struct{ Bytes int64 }
		}
	}
	if err := json.Unmarshal(b.Bytes(), &f); err != nil {
		t.Fatalf("%v\n%s", err, &b)
	}
	last := map[string]int64{}
	count := map[string]int{}
	oom := false
	for _, e := range f.TraceEvents {
		count[e.Ph]++
		if e.Ph == "C" {
			last[e.Name] = e.Args.Bytes
		}
		oom = oom || e.Ph == "i" && e.TS == 1150 && e.Name == "out of memory: 30.00 MiB"
	}
	if last["allocated"] != 6*mib || last["reserved"] != 20*mib || !oom {
		t.Errorf("%v, oom %v", last, oom)
	}
	if count["b"] != 3 || count["e"] != 3 || count["B"] != 1 || count["E"] != 1 {
		t.Errorf("%v", count)
	}
}

func TestCSVHasALineForEachEvent(t *testing.T) {
	var b bytes.Buffer
	if err := WriteCSV(&b, atPeak(t)); err != nil {
		t.Fatal(err)
	}
	rows, err := csv.NewReader(&b).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	column := map[string]int{}
	for i, name := range rows[0] {
		column[name] = i
	}
	var allocated []string
	for _, r := range rows[1:] {
		allocated = append(allocated, r[column["allocated_bytes"]])
	}
	want := []int{6 * mib, 14 * mib, 14 * mib, 6 * mib, 6 * mib}
	for i, w := range want {
		if i >= len(allocated) || allocated[i] != strconv.Itoa(w) {
			t.Fatalf("allocated %v, want %v", allocated, want)
		}
	}
	if r := rows[2]; r[column["action"]] != "alloc" || !strings.HasPrefix(r[column["place"]], "model.py:31 forward") || r[column["reserved_bytes"]] != strconv.Itoa(20*mib) {
		t.Errorf("%v", r)
	}
}

func TestExactSizesTakeTheirPlace(t *testing.T) {
	v := atPeak(t)
	v[0].Bytes = func(x *lives.Tensor) int64 { return x.Bytes + 512 }
	var b bytes.Buffer
	if err := WriteSpeedscope(&b, "x", v); err != nil {
		t.Fatal(err)
	}
	if want := `"endValue":` + strconv.Itoa(14*mib+3*512); !strings.Contains(b.String(), want) {
		t.Errorf("no %s in %s", want, &b)
	}
}

func TestFormatOf(t *testing.T) {
	for name, want := range map[string]Format{
		"a.html": HTML, "A.HTM": HTML, "peak.pb.gz": Pprof, "x.pprof": Pprof, "x.speedscope.json": Speedscope,
		"x.perfetto.json": Perfetto, "x.trace.json": Perfetto, "x.csv": CSV, "x.json": "", "x": "",
	} {
		if got, ok := FormatOf(name); got != want || ok != (want != "") {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
}
