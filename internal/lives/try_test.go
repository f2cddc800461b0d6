package lives

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"unoom/internal/alloc"
	"unoom/internal/snapshot"
	"unoom/internal/units"
)

func TestTry(t *testing.T) {
	files, _ := filepath.Glob("../../../shared/corpus/snapshots/*.pickle")
	for _, f := range files {
		data, _ := os.ReadFile(f)
		s, err := snapshot.Read(bytes.NewReader(data), int64(len(data)))
		if err != nil {
			t.Fatal(err)
		}
		for d := range s.Traces {
			h := Of(s, d, alloc.Defaults())
			if h.EndReserved == 0 {
				continue
			}
			k := h.KindsAfter(h.Peak.Event)
			fmt.Printf("%s dev %d: peak %d at %d of %d, reserved %d; phase %s; steps %d by %q ooms %d ckpt %v compiled %v\n", filepath.Base(f), d, h.Peak.Allocated, h.Peak.Event, len(h.Events), h.PeakReserved, h.PhaseAt(h.Peak.Event), len(h.Steps.Ends), h.Steps.By, len(h.OOMs), h.Checkpointing, h.Compiled)
			for i, b := range k {
				if b > 0 {
					fmt.Printf("    %-16s %s\n", Kind(i), units.Bytes(b))
				}
			}
			var ph [8]int
			for _, p := range h.phases {
				ph[p]++
			}
			fmt.Println("    phases", ph, h.Steps.Ends[:min(8, len(h.Steps.Ends))])
		}
	}
}
