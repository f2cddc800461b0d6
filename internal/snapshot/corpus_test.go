package snapshot

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unsafe"

	"unoom/internal/alloc"
)

const corpus = "../../../shared/corpus/snapshots"

// corpusFile reads a real snapshot, or skips where the corpus is not there.
func corpusFile(t testing.TB, name string) []byte {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(corpus, name))
	if err != nil {
		t.Skipf("real snapshots are not here: %v", err)
	}
	return data
}

func TestAnEventTakes48Bytes(t *testing.T) {
	if unsafe.Sizeof(alloc.Event{}) != eventBytes {
		t.Errorf("an event takes %d bytes", unsafe.Sizeof(alloc.Event{}))
	}
}

// The counts and sums of every real snapshot are those that an independent
// reader found.
func TestRealSnapshots(t *testing.T) {
	var expected struct {
		Files map[string]struct {
			Torch            string
			Events, Segments int
			Blocks           int
			Devices          []struct {
				Events         int
				ByAction       map[string]int `json:"events_by_action"`
				ByState        map[string]int `json:"blocks_by_state"`
				Segments       int
				Blocks         int
				FinalReserved  int64 `json:"final_reserved_bytes"`
				FinalAllocated int64 `json:"final_allocated_bytes"`
				FinalActive    int64 `json:"final_active_bytes"`
			}
		}
	}
	if err := json.Unmarshal(corpusFile(t, "expected.json"), &expected); err != nil {
		t.Fatal(err)
	}
	actions := map[alloc.Action]string{
		alloc.Alloc: "alloc", alloc.FreeRequested: "free_requested", alloc.FreeCompleted: "free_completed",
		alloc.SegmentAlloc: "segment_alloc", alloc.SegmentFree: "segment_free", alloc.SegmentMap: "segment_map",
		alloc.SegmentUnmap: "segment_unmap", alloc.OOM: "oom", alloc.Snapshot: "snapshot",
	}
	states := map[State]string{Active: "active_allocated", PendingFree: "active_pending_free", Inactive: "inactive"}
	for name, want := range expected.Files {
		t.Run(name, func(t *testing.T) {
			data := corpusFile(t, name)
			s, err := Read(bytes.NewReader(data), int64(len(data)))
			if err != nil {
				t.Fatal(err)
			}
			t.Logf("torch %s (expected %s), %d stacks, %d frames, warnings %v", s.Torch, want.Torch, s.Stacks(), s.Frames(), s.Warnings)
			if len(s.Traces) != len(want.Devices) {
				t.Fatalf("%d devices, want %d", len(s.Traces), len(want.Devices))
			}
			for i, d := range want.Devices {
				byAction, byState := map[string]int{}, map[string]int{}
				for _, e := range s.Traces[i].Events {
					byAction[actions[e.Action]]++
				}
				segments, blocks := 0, 0
				var reserved, allocated, active int64
				for _, seg := range s.Segments {
					if int(seg.Device) != i {
						continue
					}
					segments++
					reserved += seg.Total
					allocated += seg.Allocated
					active += seg.Active
					blocks += len(seg.Blocks)
					for _, b := range seg.Blocks {
						byState[states[b.State]]++
					}
				}
				if len(s.Traces[i].Events) != d.Events || !same(byAction, d.ByAction) {
					t.Errorf("device %d: %d events %v; want %d %v", i, len(s.Traces[i].Events), byAction, d.Events, d.ByAction)
				}
				if segments != d.Segments || blocks != d.Blocks || !same(byState, d.ByState) {
					t.Errorf("device %d: %d segments, %d blocks %v; want %d, %d, %v", i, segments, blocks, byState, d.Segments, d.Blocks, d.ByState)
				}
				if reserved != d.FinalReserved || allocated != d.FinalAllocated || active != d.FinalActive {
					t.Errorf("device %d: reserved, allocated, active %d, %d, %d; want %d, %d, %d", i,
						reserved, allocated, active, d.FinalReserved, d.FinalAllocated, d.FinalActive)
				}
			}
			if made := strings.HasPrefix(want.Torch, "generated"); made != (len(s.Warnings) > 0) {
				t.Errorf("warnings %v; want some only for the file that no allocator wrote", s.Warnings)
			} else if !made && !strings.Contains(want.Torch, s.Torch.Oldest.String()) && !strings.Contains(want.Torch, s.Torch.Newest.String()) {
				t.Errorf("torch %s, want %s", s.Torch, want.Torch)
			}
		})
	}
}

func same(a, b map[string]int) bool {
	if len(a) != len(b) {
		return false
	}
	for k, n := range a {
		if b[k] != n {
			return false
		}
	}
	return true
}
