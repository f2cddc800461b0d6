package snapshot_test

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"fmt"
	"hash/crc32"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/google/go-cmp/cmp"

	"unoom/internal/alloc"
	"unoom/internal/snapshot"
	. "unoom/internal/snapshot/snapshottest"
)

func write(t testing.TB, v any, style Style) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := Write(&b, v, style); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func read(t testing.TB, data []byte) *snapshot.Snapshot {
	t.Helper()
	s, err := snapshot.Read(bytes.NewReader(data), int64(len(data)))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// flat is everything in a snapshot as text, for comparison.
func flat(t testing.TB, s *snapshot.Snapshot) string {
	return string(write(t, Of(s), JSON))
}

// small is a snapshot with one of everything.
func small() Dict {
	stack := Share(List{
		Share(FrameOf(snapshot.Frame{Name: "forward", File: "/train/model.py", Line: 12})),
		Share(FrameOf(snapshot.Frame{Name: "主循环", File: "/train/train.py", Line: 400})),
	})
	event := func(a alloc.Action, addr uint64, size, at int64) Dict {
		return Event(alloc.Event{Action: a, Addr: addr, Size: size, TimeUs: at, Stream: 0x7f00_0000_1000}, stack, "epoch 1")
	}
	bare := event(alloc.SegmentFree, 0x7f5c00200000, 2<<20, 1_700_000_000_000_009)
	bare = bare.Without("frames") // no stack was recorded
	back := append(event(alloc.Alloc, 0x7f5c00000200, 700, 1_700_000_000_000_010), "forward_frames", List{"a.py:1", "b.py:2"})
	back.Set("compile_context", "Torch-Compiled Region: 0/1")
	back = append(back, "pool_id", Tuple{0, 7})
	return Dict{
		"segments", List{Dict{
			"device", 0, "address", uint64(0x7f5c00000000), "total_size", 2 << 20, "allocated_size", 1024,
			"active_size", 1536, "requested_size", 1400, "stream", 0, "segment_type", Interned("small"),
			"segment_pool_id", Tuple{0, 7}, "is_expandable", true,
			"blocks", List{
				Dict{"address", uint64(0x7f5c00000000), "size", 512, "requested_size", 500, "state", "active_pending_free", "frames", stack},
				Dict{"address", uint64(0x7f5c00000200), "size", 1024, "requested_size", 900, "state", "active_allocated", "frames", List{}},
				Dict{"address", uint64(0x7f5c00000600), "size", 2<<20 - 1536, "requested_size", 0, "state", "inactive", "frames", List{}},
			},
			"frames", stack,
		}},
		"device_traces", List{
			List{
				event(alloc.SegmentAlloc, 0x7f5c00000000, 2<<20, 1_700_000_000_000_000),
				event(alloc.Alloc, 0x7f5c00000000, 500, 1_700_000_000_000_001), bare, back,
				event(alloc.OOM, 123456789, 80<<30, 1_700_000_000_000_011),
			},
			List{},
		},
		"allocator_settings", Settings(snapshot.Settings{
			Conf: "max_split_size_mb:128", MaxSplitSize: 128 << 20, GCThreshold: 0.8, Roundup: [16]int64{3: 4},
		}),
		"external_annotations", List{
			Dict{"stage", "START", "name", "## forward ##", "device", 0, "time_us", 1_700_000_000_000_000},
			Dict{"stage", "END", "name", "## forward ##", "device", 0, "time_us", 1_700_000_000_000_020},
		},
	}
}

func TestEverythingInASnapshotIsRead(t *testing.T) {
	s := read(t, write(t, small(), Python4))
	seg := s.Segments[0]
	if seg.Total != 2<<20 || seg.Requested != 1400 || !seg.Small || !seg.Expandable || s.Pool(seg.Pool) != (snapshot.PoolID{0, 7}) {
		t.Errorf("segment %+v", seg)
	}
	if got := s.Stack(seg.Stack); len(got) != 2 || got[1].String() != "/train/train.py:400:主循环" {
		t.Errorf("stack %v", got)
	}
	if b := seg.Blocks[0]; b.State != snapshot.PendingFree || b.Size != 512 || b.Requested != 500 || b.Stack != seg.Stack {
		t.Errorf("block %+v", b)
	}
	events := s.Traces[0].Events
	want := alloc.Event{Action: alloc.OOM, Addr: 123456789, Size: 80 << 30, Stream: 0x7f00_0000_1000, TimeUs: 1_700_000_000_000_011}
	if got := events[4]; got.Action != want.Action || got.Addr != want.Addr || got.Size != want.Size || got.Stream != want.Stream || got.TimeUs != want.TimeUs {
		t.Errorf("event %+v, want %+v", got, want)
	}
	if events[2].Stack != 0 || events[1].Stack != seg.Stack {
		t.Errorf("stacks of events: %d, %d", events[2].Stack, events[1].Stack)
	}
	if m := s.Meta(events[3].Meta); m.Compile != "Torch-Compiled Region: 0/1" || m.User != "epoch 1" {
		t.Errorf("meta %+v", m)
	}
	if m := s.Meta(events[1].Meta); m.Compile != "" {
		t.Errorf("no compile context is %q", m.Compile)
	}
	if s.Pool(events[3].Pool) != (snapshot.PoolID{0, 7}) || events[1].Pool != 0 {
		t.Errorf("pools %d %d", events[3].Pool, events[1].Pool)
	}
	if f := s.Traces[0].Forward; f == nil || f[0] != 0 || s.Stack(f[3])[1].Name != "b.py:2" {
		t.Errorf("forward stacks %v", f)
	}
	if len(s.Traces) != 2 || len(s.Traces[1].Events) != 0 || !s.Traces[0].Timed {
		t.Errorf("traces %+v", s.Traces)
	}
	set := s.Settings
	if set == nil || set.Conf != "max_split_size_mb:128" || set.MaxSplitSize != 128<<20 || set.GCThreshold != 0.8 || set.Roundup[3] != 4 {
		t.Errorf("settings %+v", set)
	}
	if a := s.Annotations; len(a) != 2 || a[0].Name != "## forward ##" || !a[0].Start || a[1].Start || a[1].TimeUs != 1_700_000_000_000_020 {
		t.Errorf("annotations %+v", a)
	}
	if len(s.Warnings) > 0 {
		t.Errorf("warnings %v", s.Warnings)
	}
	if s.Torch.Oldest != (snapshot.Version{Major: 2, Minor: 12}) {
		t.Errorf("torch %s", s.Torch)
	}
}

// forms are all ways to write a snapshot down.
func forms(t testing.TB, v any) map[string][]byte {
	all := map[string][]byte{
		"protocol 2":          write(t, v, Python2),
		"protocol 4":          write(t, v, Python4),
		"protocol 5":          write(t, v, Python5),
		"C++":                 write(t, v, CPP),
		"JSON":                write(t, v, JSON),
		"inside user's dicts": write(t, Dict{"rank", 3, "data", List{Tuple{"x", v}}}, Python4),
	}
	var gz bytes.Buffer
	z := gzip.NewWriter(&gz)
	z.Write(all["protocol 4"])
	z.Close()
	all["gzip"] = gz.Bytes()
	for _, method := range []uint16{zip.Store, zip.Deflate} {
		var b bytes.Buffer
		z := zip.NewWriter(&b)
		head := &zip.FileHeader{Name: "snapshot.pickle", Method: method}
		data := all["protocol 4"]
		if method == zip.Store { // as Python's zipfile: the sizes come first
			head.CRC32, head.CompressedSize64, head.UncompressedSize64 = crc32.ChecksumIEEE(data), uint64(len(data)), uint64(len(data))
			w, _ := z.CreateRaw(head)
			w.Write(data)
		} else {
			w, _ := z.CreateHeader(head)
			w.Write(data)
		}
		z.Close()
		all[fmt.Sprintf("zip method %d", method)] = b.Bytes()
	}
	var mac, folder bytes.Buffer
	archive := tar.NewWriter(&folder)
	zipped := zip.NewWriter(&mac)
	for _, entry := range []struct{ name, data string }{{"run/", ""}, {"run/._snapshot.pickle", "attributes"}, {"run/snapshot.pickle", string(all["protocol 4"])}} {
		w, _ := zipped.CreateRaw(&zip.FileHeader{Name: entry.name, CompressedSize64: uint64(len(entry.data)), UncompressedSize64: uint64(len(entry.data))})
		io.WriteString(w, entry.data)
		if entry.data != "attributes" {
			archive.WriteHeader(&tar.Header{Name: entry.name, Mode: 0o644, Size: int64(len(entry.data))})
			io.WriteString(archive, entry.data)
		}
	}
	zipped.Close()
	archive.Close()
	all["zip of a Mac"], all["tar"] = mac.Bytes(), folder.Bytes()
	padded := append(bytes.Clone(all["protocol 4"]), 0, 0)
	all["HTML"] = []byte("<!DOCTYPE html>\n<script>\nimport {add_local_files} from \"https://example.org/MemoryViz.js\"\n" +
		`const local_files = [{"name": "snapshot.pickle", "base64": "` + base64.StdEncoding.EncodeToString(padded) + `"}]` +
		"\nadd_local_files(local_files, 'Active Memory Timeline')\n</script>")
	return all
}

func TestAllFormsReadTheSame(t *testing.T) {
	want := flat(t, read(t, write(t, small(), Python4)))
	for name, data := range forms(t, small()) {
		t.Run(name, func(t *testing.T) {
			if got := flat(t, read(t, data)); got != want {
				t.Error(cmp.Diff(want, got))
			}
			if !snapshot.Looks(data[:min(len(data), 4096)]) {
				t.Error("does not look like a snapshot")
			}
			s, err := snapshot.Read(iotest.OneByteReader(bytes.NewReader(data)), -1)
			if err != nil {
				t.Fatal(err)
			}
			if flat(t, s) != want {
				t.Error("in pieces it reads as something else")
			}
		})
	}
}

func TestRealSnapshotsSurviveEveryForm(t *testing.T) {
	files, _ := filepath.Glob("../../../shared/corpus/snapshots/*.pickle")
	if len(files) == 0 {
		t.Skip("real snapshots are not here")
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		original := read(t, data)
		s := read(t, write(t, Of(original), Python4)) // with ids in the order of Of
		if len(data) < 1<<19 && flat(t, s) != flat(t, original) {
			t.Errorf("%s: written and read again it is something else", filepath.Base(file))
		}
		for _, style := range []Style{Python2, CPP, JSON} {
			if style == JSON && len(data) > 1<<20 {
				continue // which shares nothing, and becomes huge
			}
			again := read(t, write(t, Of(s), style))
			if !reflect.DeepEqual(again.Segments, s.Segments) || !reflect.DeepEqual(again.Traces, s.Traces) ||
				!reflect.DeepEqual(again.Settings == nil, s.Settings == nil) || !reflect.DeepEqual(again.Annotations, s.Annotations) {
				t.Errorf("%s: style %d reads as something else", filepath.Base(file), style)
			}
			for id := range uint32(s.Stacks()) {
				if !reflect.DeepEqual(again.Stack(id), s.Stack(id)) {
					t.Fatalf("%s: style %d: stack %d is another", filepath.Base(file), style, id)
				}
			}
		}
	}
}

func TestOldForms(t *testing.T) {
	frames := List{Dict{"filename", "a.py", "name", "f", "line", 3}}
	segment := func(blocks ...any) Dict {
		return Dict{"device", 1, "address", 1 << 33, "total_size", 2 << 20, "allocated_size", 512, "active_size", 512,
			"stream", 0, "segment_type", "small", "blocks", List(blocks)}
	}
	t.Run("a list of segments of torch 1.13", func(t *testing.T) {
		s := read(t, write(t, List{segment(
			Dict{"size", 512, "state", "active_allocated", "history", List{
				Dict{"addr", 1 << 33, "real_size", 500, "frames", frames},
				Dict{"addr", 1 << 33, "real_size", 300, "frames", List{}},
			}},
			Dict{"size", 2<<20 - 512, "state", "inactive"},
		)}, CPP))
		b := s.Segments[0].Blocks
		if len(b) != 2 || b[0].Requested != 500 || s.Stack(b[0].Stack)[0].Name != "f" || b[1].Address != 1<<33+512 || b[1].Requested != -1 {
			t.Errorf("blocks %+v", b)
		}
		if s.Traces != nil || s.Settings != nil || s.Segments[0].Device != 1 || s.Segments[0].Requested != -1 {
			t.Errorf("%+v", s)
		}
		if s.Torch.String() != "1.12-2.0" {
			t.Errorf("torch %s", s.Torch)
		}
	})
	t.Run("texts instead of frames", func(t *testing.T) {
		s := read(t, write(t, List{segment(Dict{"size", 2 << 20, "state", "active_allocated", "history", List{
			Dict{"addr", 1 << 33, "real_size", 500, "cpp_frames", List{"at::empty", "main"}},
		}})}, Python2))
		if got := s.Stack(s.Segments[0].Blocks[0].Stack); len(got) != 2 || got[0].String() != "at::empty" {
			t.Errorf("stack %v", got)
		}
	})
	t.Run("traces without times", func(t *testing.T) {
		e := Dict{"action", "alloc", "addr", 1 << 33, "size", 500, "stream", 0, "frames", frames}
		s := read(t, write(t, Dict{"segments", List{}, "device_traces", List{List{e}}}, Python4))
		if s.Traces[0].Timed || !s.Traces[0].Ring() {
			t.Errorf("%+v", s.Traces)
		}
	})
	t.Run("categories of profile_plot", func(t *testing.T) {
		e := Dict{"action", "alloc", "addr", 1 << 33, "size", 500, "stream", 0, "category", "parameter"}
		s := read(t, write(t, Dict{"segments", List{}, "device_traces", List{List{e, e}}}, Python4))
		if c := s.Traces[0].Category; c == nil || s.Text(c[0]) != "parameter" {
			t.Errorf("%v", c)
		}
	})
}

func TestWhatIsUnknownIsNamed(t *testing.T) {
	v := small()
	v = append(v, "gizmos", List{1, 2})
	traces := v.Get("device_traces").(List)
	odd := append(Event(alloc.Event{Action: alloc.Alloc, Addr: 1, Size: 2}, nil, ""), "colour", "red")
	odd.Set("action", "teleport")
	note := Event(alloc.Event{Action: alloc.Alloc, Addr: 1, Size: 0}, nil, "packed")
	note.Set("action", "annotate")
	traces[0] = append(traces[0].(List), note, odd, odd)
	s := read(t, write(t, v, Python4))
	var all []string
	for _, w := range s.Warnings {
		all = append(all, w.Code+" "+w.Where+" "+w.Msg)
	}
	text := strings.Join(all, "\n")
	for _, want := range []string{`"gizmos"`, `"colour"`, `"teleport", 2 times`} {
		if !strings.Contains(text, want) {
			t.Errorf("%s is not in the warnings:\n%s", want, text)
		}
	}
	if strings.Contains(text, "annotate") {
		t.Errorf("a known action is warned of:\n%s", text)
	}
	if events := s.Traces[0].Events; events[len(events)-1].Action != alloc.Unknown {
		t.Errorf("an unknown action is taken for %d", events[len(events)-1].Action)
	}
}

func TestMistakes(t *testing.T) {
	whole := write(t, small(), Python4)
	bad := small()
	bad.Get("device_traces").(List)[0].(List)[1].(Dict).Set("size", "large")
	var torchZip, otherZip bytes.Buffer
	z := zip.NewWriter(&torchZip)
	w, _ := z.Create("archive/data.pkl")
	w.Write([]byte("\x80\x02}q\x00."))
	z.Close()
	z = zip.NewWriter(&otherZip)
	w, _ = z.Create("readme.txt")
	w.Write([]byte("hello"))
	z.Close()
	var gz bytes.Buffer
	g := gzip.NewWriter(&gz)
	g.Write(whole)
	g.Close()
	deep := whole
	for range 6 {
		var b bytes.Buffer
		g := gzip.NewWriter(&b)
		g.Write(deep)
		g.Close()
		deep = b.Bytes()
	}
	for _, c := range []struct {
		name string
		data []byte
		want snapshot.Mistake
		msg  string
	}{
		{"nothing", nil, snapshot.Empty, "empty"},
		{"a cut file", whole[:len(whole)/2], snapshot.CutOff, "end of the file"},
		{"a cut gzip", gz.Bytes()[:gz.Len()/2], snapshot.CutOff, "ends"},
		{"a checkpoint", torchZip.Bytes(), snapshot.Checkpoint, "torch.save"},
		{"an old checkpoint", []byte("\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19.\x80\x02M\xe9\x03."), snapshot.Checkpoint, "torch.save"},
		{"a pickled state dict", []byte("\x80\x02ccollections\nOrderedDict\nq\x00)R."), snapshot.Checkpoint, "OrderedDict"},
		{"numpy in a pickle", []byte("\x80\x02cnumpy.core.multiarray\n_reconstruct\n."), snapshot.RicherPickle, "numpy"},
		{"code in a pickle", []byte("\x80\x04\x8c\x02os\x8c\x06system\x93\x8c\x02id\x85R."), snapshot.RicherPickle, "os.system"},
		{"protocol 0", []byte("(dp0\n."), snapshot.TextPickle, "protocol"},
		{"protocol 1", []byte("}q\x00(X\x01\x00\x00\x00a"), snapshot.TextPickle, "protocol"},
		{"another pickle", write(t, Dict{"loss", 1.5}, Python4), snapshot.NotASnapshot, "not a memory snapshot"},
		{"another JSON", []byte(`{"loss": 1.5}`), snapshot.NotASnapshot, "not a memory snapshot"},
		{"broken JSON", []byte(`{"segments": [}`), snapshot.Damaged, "byte 15"},
		{"cut JSON", []byte(`{"segments": [`), snapshot.CutOff, "ends"},
		{"a Chrome trace", []byte(`{"schemaVersion": 1, "traceEvents": []}`), snapshot.ProfilerTrace, ""},
		{"a memory timeline", []byte(`[[1, 2], [[0, 1], [0, 2]]]`), snapshot.MemoryTimeline, ""},
		{"a raw memory timeline", []byte(`[[-1, 1, 512, 0], [12, 2, 512, 1], [13, 4, -512, 1]]`), snapshot.MemoryTimeline, ""},
		{"a page without data", []byte("<html><img src='data:image/png;base64,AAAA'></html>"), snapshot.PlotOnly, ""},
		{"another zip", otherZip.Bytes(), snapshot.SeveralFiles, "readme.txt"},
		{"xz", []byte("\xfd7zXZ\x00\x00\x04"), snapshot.SeveralFiles, "packed with xz"},
		{"a zip without files", []byte("PK\x03\x04" + strings.Repeat("\x00", 22) + "\x02\x00\x00\x00a/PK\x05\x06" + strings.Repeat("\x00", 30)), snapshot.Empty, "no files"},
		{"SQLite", []byte("SQLite format 3\x00abc"), snapshot.SQLite, ""},
		{"text", []byte("Traceback (most recent call last):"), snapshot.NotASnapshot, "not a pickle"},
		{"a size that is a text", write(t, bad, Python4), snapshot.Damaged, "size is not a whole number"},
		{"too many containers", deep, snapshot.TooDeepContents, "containers"},
		{"a bomb", []byte("\x80\x04" + strings.Repeat("]\x94", 4<<20) + "."), snapshot.Bomb, "memory"},
		{"segments that are a number", write(t, Dict{"segments", 3}, Python4), snapshot.Damaged, "segments"},
		{"traces that are a number", write(t, Dict{"device_traces", 3}, Python4), snapshot.Damaged, "device_traces"},
		{"a trace that is a number", write(t, Dict{"device_traces", List{List{}, 3}}, Python4), snapshot.Damaged, "device_traces[1]"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := snapshot.Read(bytes.NewReader(c.data), int64(len(c.data)))
			if err == nil {
				t.Fatal("read")
			}
			if got := snapshot.MistakeOf(err); got != c.want || !strings.Contains(err.Error(), c.msg) {
				t.Errorf("%s: %v; want %s with %q", got, err, c.want, c.msg)
			}
		})
	}
}

func TestWhatLooksLikeASnapshot(t *testing.T) {
	for text, want := range map[string]bool{
		"[rank0]: torch.OutOfMemoryError: CUDA out of memory.": false,
		`{"level": "error", "msg": "CUDA out of memory"}`:      false,
		`[{"device": 0, "segment_type": "small"}]`:             true,
		"<html>oops</html>":        false,
		"":                         false,
		"\x80\x04cos\n":            true,
		"cos\nsystem\n(S'id'\ntR.": true,
		"(dp0\nS'a'\n":             true,
		"checkpoint\nloaded\n\n":   false,
		"}q\x00(X\x08\x00\x00\x00": true,
	} {
		if got := snapshot.Looks([]byte(text)); got != want {
			t.Errorf("Looks(%q) = %v", text, got)
		}
	}
}

// Whatever order and sharing the dicts have, a trace reads the same.
func TestSharedAndReorderedEntries(t *testing.T) {
	e := func(n int) *Shared {
		return Share(Event(alloc.Event{Action: alloc.Alloc, Addr: uint64(n), Size: int64(n)}, nil, ""))
	}
	a, b, c := e(1), e(2), e(3)
	s := read(t, write(t, Dict{"segments", List{}, "device_traces", List{List{a, b, c}, List{c, a}, List{a}}}, Python4))
	var got [][]int64
	for _, tr := range s.Traces {
		var sizes []int64
		for _, e := range tr.Events {
			sizes = append(sizes, e.Size)
		}
		got = append(got, sizes)
	}
	if want := [][]int64{{1, 2, 3}, {3, 1}, {1}}; !cmp.Equal(got, want) {
		t.Errorf("got %v", got)
	}
}

// A stack of more than one batch is one stack.
func TestDeepStacks(t *testing.T) {
	var frames []snapshot.Frame
	for i := range 3500 {
		frames = append(frames, snapshot.Frame{Name: "recurse", File: "deep.py", Line: i % 2000})
	}
	for _, style := range []Style{Python4, CPP, JSON} {
		s := read(t, write(t, Dict{"device_traces", List{List{Event(alloc.Event{Action: alloc.Alloc}, Frames(frames), "")}}}, style))
		if got := s.Stack(s.Traces[0].Events[0].Stack); !cmp.Equal(got, frames) {
			t.Errorf("style %d: %d frames", style, len(got))
		}
	}
}

// A large snapshot is read in a fraction of its own size, also from C++ with its
// one batch for everything.
func TestMemoryStaysBelowTheFile(t *testing.T) {
	for _, style := range []Style{Python4, CPP} {
		var b bytes.Buffer
		events, err := Large(&b, 12e6, style)
		if err != nil {
			t.Fatal(err)
		}
		runtime.GC()
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		s := read(t, b.Bytes())
		runtime.GC()
		runtime.ReadMemStats(&after)
		if len(s.Traces[0].Events) != events {
			t.Errorf("%d events of %d", len(s.Traces[0].Events), events)
		}
		total, live := after.TotalAlloc-before.TotalAlloc, after.HeapAlloc-before.HeapAlloc
		t.Logf("style %d: %d MB: %d MB allocated in all, %d MB kept", style, b.Len()/1e6, total/1e6, live/1e6)
		if total > uint64(b.Len())*3/2 || live > uint64(b.Len())/2 {
			t.Errorf("style %d: %d bytes allocated for %d", style, total, b.Len())
		}
		runtime.KeepAlive(s)
	}
}

func FuzzRead(f *testing.F) {
	for _, data := range forms(f, small()) {
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		s, err := snapshot.Read(bytes.NewReader(data), int64(len(data)))
		if err != nil {
			_ = err.Error()
			return
		}
		_ = flat(t, s)
	})
}

// Random damage never makes the reader panic.
func TestDamage(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	for _, data := range forms(t, small()) {
		for range 300 {
			broken := bytes.Clone(data)
			for range 1 + rng.IntN(4) {
				broken[rng.IntN(len(broken))] = byte(rng.IntN(256))
			}
			if s, err := snapshot.Read(bytes.NewReader(broken), int64(len(broken))); err == nil {
				_ = flat(t, s)
			}
		}
	}
}

func TestBzip2(t *testing.T) {
	// {"segments": [], "device_traces": []}
	const packed = "QlpoOTFBWSZTWVJQSmIAABGbgFAEABAACq6jHQogADFA00MjJiDUZGgaDTQRjgN6IDFArbVM34W6uxOI165+b4u5IpwoSCkoJTEA"
	data, err := base64.StdEncoding.DecodeString(packed)
	if err != nil {
		t.Fatal(err)
	}
	if s := read(t, data); s.Form.Container != "bzip2+json" || s.Traces == nil {
		t.Errorf("%+v", s)
	}
}

func TestSnapshotsOfSeveralRanks(t *testing.T) {
	s := read(t, write(t, Dict{"rank0", small(), "rank1", small()}, Python4))
	if len(s.Warnings) != 1 || s.Warnings[0].Code != "several_snapshots" || !strings.Contains(s.Warnings[0].Msg, "2 snapshots") {
		t.Errorf("%+v", s.Warnings)
	}
}
