package replay

import (
	"testing"

	"pgregory.net/rapid"

	"unoom/internal/alloc"
)

// TestMemoryAddsUp holds what the driver gave, and the sizes of blocks, against
// the simulation that made the recording, after every event.
func TestMemoryAddsUp(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := record(t, false)
		begin := 0
		if len(r.events) > 0 && r.config.Torch.Before(alloc.Version{Major: 2, Minor: 12}) {
			begin = rapid.IntRange(0, len(r.events)-1).Draw(t, "begin")
		}
		c := r.snapshot(begin)
		c.KeepBytes = true
		got := c.CheckAs(r.config.Torch, alloc.TieByVersion)
		if got.Start.InDoubt > 0 || got.Mismatches() > 0 {
			t.Skip()
		}
		memory := c.Memory()
		var final int64
		for i, m := range memory {
			if m.Bytes <= 0 || m.Born >= m.Freed {
				t.Fatalf("%+v", m)
			}
			if m.Freed == Always {
				final += m.Bytes
			}
			for _, n := range memory[i+1:] {
				if n.Addr < m.Addr+uint64(m.Bytes) && n.Born < m.Freed && m.Born < n.Freed {
					t.Fatalf("%+v and %+v overlap", m, n)
				}
			}
		}
		if final != got.Stats.All.ReservedBytes.Current {
			t.Errorf("%d bytes at the end, want %d", final, got.Stats.All.ReservedBytes.Current)
		}
		allocated, freedSize := got.Begin.Allocated, map[int32]int64{}
		for i := range c.all {
			x := &c.all[i]
			if x.freed == never {
				continue
			}
			if freedSize[x.freed] = got.BlockBytes(int(x.born)); x.born == never {
				freedSize[x.freed] = got.BlockBytes(int(x.freed))
			}
		}
		for i := range c.Events {
			switch c.Events[i].Action {
			case alloc.Alloc:
				allocated += got.BlockBytes(i)
			case alloc.FreeRequested:
				allocated -= freedSize[int32(i)]
			}
		}
		if want := got.Stats.All.AllocatedBytes.Current; allocated != want {
			t.Errorf("the blocks add up to %d, want %d", allocated, want)
		}
	})
}
