package replay

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"unoom/internal/snapshot"
)

// corpus is the folder of real snapshots, which lies beside a checkout.
const corpus = "../../../shared/corpus/snapshots"

type expectation struct {
	Files map[string]struct {
		Replayable               bool
		Events, Segments, Blocks int
		Mismatches               *int
		OOMs                     int
		Devices                  []struct {
			Device, Events, OOMs int
			Replayed             bool
			Mismatches           *int
			BlocksByState        map[string]int `json:"blocks_by_state"`
			FinalReserved        int64          `json:"final_reserved_bytes"`
			FinalAllocated       int64          `json:"final_allocated_bytes"`
			FinalActive          int64          `json:"final_active_bytes"`
			StartReserved        *int64         `json:"start_reserved_bytes"`
			StartAllocated       *int64         `json:"start_allocated_bytes"`
			PeakReserved         *int64         `json:"peak_reserved_bytes"`
			PeakAllocated        *int64         `json:"peak_allocated_bytes"`
			PeakActive           *int64         `json:"peak_active_bytes"`
			Deduced              int            `json:"start_blocks_deduced"`
			InDoubt              int            `json:"start_blocks_in_doubt"`
		}
	}
}

func readCorpus(t testing.TB) expectation {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(corpus, "expected.json"))
	if err != nil {
		t.Skipf("the corpus of real snapshots is not beside the checkout: %v", err)
	}
	var e expectation
	if err := json.Unmarshal(data, &e); err != nil {
		t.Fatal(err)
	}
	return e
}

func readSnapshot(t testing.TB, name string) *snapshot.Snapshot {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(corpus, name))
	if err != nil {
		t.Fatal(err)
	}
	s, err := snapshot.Read(bytes.NewReader(data), int64(len(data)))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestEveryEventOfTheCorpusIsReproduced(t *testing.T) {
	for name, want := range readCorpus(t).Files {
		t.Run(name, func(t *testing.T) {
			cases := Cases(readSnapshot(t, name))
			if len(cases) != len(want.Devices) {
				t.Fatalf("%d devices, want %d", len(cases), len(want.Devices))
			}
			for d, c := range cases {
				w := want.Devices[d]
				r := c.Check()
				if len(c.Events) != w.Events {
					t.Errorf("device %d: %d events, want %d", d, len(c.Events), w.Events)
				}
				if r.Reproducible != want.Replayable {
					t.Errorf("device %d: reproducible %v, want %v: %v", d, r.Reproducible, want.Replayable, r.Why)
				}
				if !r.Reproducible || !want.Replayable {
					continue
				}
				if r.Mismatches() > 0 || r.Checked != w.Events {
					t.Errorf("device %d: %d mismatches in %d of %d events", d, r.Mismatches(), r.Checked, w.Events)
					for _, x := range r.Differences[:min(3, len(r.Differences))] {
						t.Errorf("  %+v", x)
					}
					for _, x := range r.Misfits[:min(3, len(r.Misfits))] {
						t.Errorf("  %+v", x)
					}
				}
				for _, n := range []struct {
					what      string
					got, want int64
				}{
					{"ooms", int64(r.OOMs), int64(w.OOMs)},
					{"deduced", int64(r.Start.Deduced), int64(w.Deduced)},
					{"in doubt", int64(r.Start.InDoubt), int64(w.InDoubt)},
					{"start reserved", r.Begin.Reserved, *w.StartReserved},
					{"start allocated", r.Begin.Allocated, *w.StartAllocated},
					{"peak reserved", r.Peaks.Reserved, *w.PeakReserved},
					{"peak allocated", r.Peaks.Allocated, *w.PeakAllocated},
					{"peak active", r.Peaks.Active, *w.PeakActive},
					{"final reserved", r.Stats.All.ReservedBytes.Current, w.FinalReserved},
					{"final allocated", r.Stats.All.AllocatedBytes.Current, w.FinalAllocated},
					{"final active", r.Stats.All.ActiveBytes.Current, w.FinalActive},
					{"active blocks", int64(r.Blocks[snapshot.Active]), int64(w.BlocksByState["active_allocated"])},
				} {
					if n.got != n.want {
						t.Errorf("device %d: %s: %d, want %d", d, n.what, n.got, n.want)
					}
				}
			}
		})
	}
}
