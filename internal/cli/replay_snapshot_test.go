package cli

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
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
	c := alloc.Config{Torch: alloc.Version{Major: 2, Minor: 10}}
	if kind == "oom" {
		c.Capacity = 4600 << 20
	}
	s := replay.Record(c, func(a *alloc.Allocator) {
		replay.Training(a, func() bool { return a.Stats().All.Allocation.Allocated < 1500 })
	})
	events := s.Traces[0].Events
	switch kind {
	case "ring":
		events = events[len(events)/2:]
	case "made-up":
		for i := range events {
			events[i].Addr += 77
		}
	}
	for i := range events {
		events[i].TimeUs = 1_700_000_000_000_000 + 10*int64(i)
	}
	s.Traces = []snapshot.Trace{{Events: events, Timed: true}, {Device: 1}}
	return s
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
