package alloc

import (
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// Two allocators of one fingerprint that get the same requests from then on give
// the same addresses.
func TestFingerprintTellsWhatFollows(t *testing.T) {
	same := 0
	rapid.Check(t, func(t *rapid.T) {
		conf := Config{Torch: rapid.SampledFrom([]Version{{2, 4}, {2, 12}, {2, 13}}).Draw(t, "torch")}
		conf.Settings.ExpandableSegments = rapid.Bool().Draw(t, "expandable")
		sizes := rapid.SampledFrom([]int64{512, 3 << 10, 700 << 10, 3 << 20, 12 << 20})
		a := New(conf)
		held := []Block{}
		step := func(a *Allocator, held []Block, size int64, free int) ([]Block, uint64) {
			if free < len(held) {
				addr := a.Addr(held[free])
				a.Free(held[free])
				return slices.Delete(held, free, free+1), addr
			}
			b, err := a.Malloc(size, 0)
			if err != nil {
				t.Fatal(err)
			}
			return append(held, b), a.Addr(b)
		}
		for range rapid.IntRange(1, 40).Draw(t, "before") {
			held, _ = step(a, held, sizes.Draw(t, "size"), rapid.IntRange(0, 12).Draw(t, "free"))
		}
		// One goes round: a few requests, freed again. Often it is back where it was.
		var c Checkpoint
		a.Save(&c)
		before, ok := a.Fingerprint()
		if !ok {
			t.Fatal("nothing is under way")
		}
		var round []Block
		for range rapid.IntRange(1, 4).Draw(t, "round") {
			round, _ = step(a, round, sizes.Draw(t, "size"), len(round))
		}
		for len(round) > 0 {
			round, _ = step(a, round, 0, rapid.IntRange(0, len(round)-1).Draw(t, "back"))
		}
		if after, _ := a.Fingerprint(); after != before {
			return
		}
		same++
		var rest [][2]int64
		for range 30 {
			rest = append(rest, [2]int64{sizes.Draw(t, "size"), int64(rapid.IntRange(0, 12).Draw(t, "free"))})
		}
		follow := func() (addrs []uint64) {
			held := slices.Clone(held)
			for _, r := range rest {
				var addr uint64
				held, addr = step(a, held, r[0], int(r[1]))
				addrs = append(addrs, addr)
			}
			return append(addrs, uint64(a.ReservedBytes()))
		}
		device := *a.device.(*card)
		got := follow()
		a.Load(&c)
		*a.device.(*card) = device
		if want := follow(); !slices.Equal(got, want) {
			t.Errorf("addresses %v, without the round %v", got, want)
		}
	})
	if same == 0 {
		t.Error("no round came back to where it began")
	}
	t.Logf("%d came round", same)
}
