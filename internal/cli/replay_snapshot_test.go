package cli

import (
	"bytes"
	"cmp"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"unoom/internal/alloc"
	"unoom/internal/replay"
	"unoom/internal/snapshot"
	"unoom/internal/snapshot/snapshottest"
)

// snapshotFile TARGET KIND writes the memory snapshot of a simulated run:
// "training" from an empty allocator, "ring" the end of it, "oom" on a card that
// is too small, "made-up" with addresses that no allocator hands out.
func snapshotFile(ts *testscript.TestScript, _ bool, args []string) {
	s := simulated(args[1])
	var b bytes.Buffer
	ts.Check(snapshottest.Write(&b, snapshottest.Of(s), snapshottest.Python4))
	ts.Check(os.WriteFile(ts.MkAbs(args[0]), b.Bytes(), 0o644))
}

func simulated(kind string) *snapshot.Snapshot {
	const mib = 1 << 20
	var events []alloc.Event
	c := alloc.Config{Torch: alloc.Version{Major: 2, Minor: 10}, Record: func(e alloc.Event) {
		e.TimeUs = 1_700_000_000_000_000 + 10*int64(len(events))
		events = append(events, e)
	}}
	if kind == "oom" {
		c.Capacity = 4600 * mib
	}
	a := alloc.New(c)
	replay.Training(a, func() bool { return len(events) < 5000 })
	s := &snapshot.Snapshot{
		Segments: segmentsOf(a),
		Settings: &snapshot.Settings{MaxSplitSize: -1},
	}
	switch kind {
	case "ring":
		events = events[3000:]
	case "made-up":
		for i := range events {
			events[i].Addr += 77
		}
	}
	s.Traces = []snapshot.Trace{{Events: events, Timed: true}, {Device: 1}}
	return s
}

// segmentsOf reads the final state off a simulation.
func segmentsOf(a *alloc.Allocator) []snapshot.Segment {
	var pieces []alloc.Piece
	a.Walk(func(p alloc.Piece) { pieces = append(pieces, p) })
	slices.SortFunc(pieces, func(a, b alloc.Piece) int { return cmp.Compare(a.Addr, b.Addr) })
	var out []snapshot.Segment
	for _, p := range pieces {
		if p.First {
			out = append(out, snapshot.Segment{Address: p.Addr, Stream: p.Stream, Small: p.Small})
		}
		s := &out[len(out)-1]
		s.Total += p.Size
		if p.State == alloc.Active {
			s.Allocated += p.Size
			s.Active += p.Size
			s.Requested += p.Requested
		}
		s.Blocks = append(s.Blocks, snapshot.Block{Address: p.Addr, Size: p.Size, Requested: p.Requested, State: snapshot.State(p.State)})
	}
	return out
}

// TestReplayCheckOfTheCorpus holds `unoom replay --check --json` against the
// results of an independent simulator, to the byte.
func TestReplayCheckOfTheCorpus(t *testing.T) {
	const corpus = "../../../shared/corpus/snapshots"
	data, err := os.ReadFile(filepath.Join(corpus, "expected.json"))
	if err != nil {
		t.Skipf("the corpus of real snapshots is not beside the checkout: %v", err)
	}
	type device struct {
		Events, OOMs, Segments, Blocks int
		Mismatches                     *int
		PeakAllocated                  *int64 `json:"peak_allocated_bytes"`
		PeakReserved                   *int64 `json:"peak_reserved_bytes"`
		PeakActive                     *int64 `json:"peak_active_bytes"`
		StartAllocated                 *int64 `json:"start_allocated_bytes"`
		StartReserved                  *int64 `json:"start_reserved_bytes"`
		FinalAllocated                 int64  `json:"final_allocated_bytes"`
		FinalReserved                  int64  `json:"final_reserved_bytes"`
		FinalActive                    int64  `json:"final_active_bytes"`
		Deduced                        int    `json:"start_blocks_deduced"`
		InDoubt                        int    `json:"start_blocks_in_doubt"`
	}
	var want struct {
		Files map[string]struct {
			Replayable bool
			Events     int
			Mismatches *int
			Devices    []device
		}
	}
	if err := json.Unmarshal(data, &want); err != nil {
		t.Fatal(err)
	}
	for name, w := range want.Files {
		t.Run(name, func(t *testing.T) {
			var out, errs bytes.Buffer
			status := Main([]string{"replay", "--check", "--json", filepath.Join(corpus, name)},
				Streams{Out: &out, Err: &errs, Getenv: func(string) string { return "" }})
			var got struct {
				Data struct {
					Events     int
					Mismatches *int
					Reproduced bool
					Devices    []device
				}
			}
			if err := json.Unmarshal(out.Bytes(), &got); err != nil {
				t.Fatalf("%v\n%s", err, &errs)
			}
			wantStatus := exitDone
			if !w.Replayable {
				wantStatus = exitNo
			}
			if status != wantStatus || got.Data.Events != w.Events || got.Data.Reproduced != w.Replayable {
				t.Errorf("status %d, %d events, reproduced %v", status, got.Data.Events, got.Data.Reproduced)
			}
			gotJSON, _ := json.Marshal(got.Data.Devices)
			wantJSON, _ := json.Marshal(w.Devices)
			if !bytes.Equal(gotJSON, wantJSON) {
				t.Errorf("got  %s\nwant %s", gotJSON, wantJSON)
			}
			if (got.Data.Mismatches == nil) != (w.Mismatches == nil) {
				t.Errorf("mismatches %v, want %v", got.Data.Mismatches, w.Mismatches)
			}
		})
	}
}
