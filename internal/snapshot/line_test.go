package snapshot_test

import (
	"bytes"
	"math"
	"testing"

	"unoom/internal/alloc"
	"unoom/internal/snapshot"
	"unoom/internal/snapshot/snapshottest"
)

// A frame of libpython without debug information: seen in a file of torch 2.7.
func TestAFrameMayHaveNoLine(t *testing.T) {
	stack := snapshottest.List{snapshottest.Dict{"name", "_PyEval_EvalFrameDefault", "filename", "??", "line", uint64(math.MaxUint64)}}
	event := snapshottest.Event(alloc.Event{Action: alloc.Alloc, Addr: 512, Size: 1}, stack, "")
	var b bytes.Buffer
	top := snapshottest.Dict{"segments", snapshottest.List{}, "device_traces", snapshottest.List{snapshottest.List{event}}}
	if err := snapshottest.Write(&b, top, snapshottest.Python4); err != nil {
		t.Fatal(err)
	}
	s, err := snapshot.Read(&b, int64(b.Len()))
	if err != nil {
		t.Fatal(err)
	}
	if f := s.Stack(s.Traces[0].Events[0].Stack); len(f) != 1 || f[0].Line != 0 {
		t.Errorf("%+v", f)
	}
}
