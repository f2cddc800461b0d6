package alloc

import (
	"cmp"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// TestFreeSetKeepsTheOrder holds the set against a sorted slice. Few sizes make
// the bins crowded.
func TestFreeSetKeepsTheOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a := New(Config{})
		set := &a.shelves[0].free
		sizes := rapid.SampledFrom([]int64{1, 2, 40, 1 << 12, 1 << 30}).Draw(t, "distinct")
		var want []int32
		key := func(id int32) (int64, uint64) { return a.blocks[id].size, a.tieOf(&a.blocks[id]) }
		order := func(x, y int32) int {
			sx, tx := key(x)
			sy, ty := key(y)
			return cmp.Or(cmp.Compare(sx, sy), cmp.Compare(tx, ty))
		}
		for step := range rapid.IntRange(1, 300).Draw(t, "steps") {
			if len(want) == 0 || rapid.IntRange(0, 2).Draw(t, "op") > 0 {
				id := a.newBlock()
				a.blocks[id] = block{
					addr: uint64(rapid.IntRange(0, 1<<20).Draw(t, "addr"))<<20 + uint64(step)*unit, mapped: true,
					size: (1 + rapid.Int64Range(0, sizes-1).Draw(t, "size")) * unit,
				}
				set.insert(a, id)
				i, _ := slices.BinarySearchFunc(want, id, order)
				want = slices.Insert(want, i, id)
			} else {
				i := rapid.IntRange(0, len(want)-1).Draw(t, "which")
				set.remove(a, want[i])
				want = slices.Delete(want, i, i+1)
			}
			if got := set.appendTo(a, nil); !slices.Equal(got, want) || set.n != len(want) {
				t.Fatalf("%v, want %v", got, want)
			}
			ask := (1 + rapid.Int64Range(0, sizes).Draw(t, "ask")) * unit
			i := slices.IndexFunc(want, func(id int32) bool { return a.blocks[id].size >= ask })
			got := set.lower(a, ask)
			if i < 0 && got != 0 || i >= 0 && got != want[i] {
				t.Fatalf("lower(%d) is %d, want the %d. of %v", ask, got, i, want)
			}
			for i, id := range want {
				next, before := int32(0), int32(0)
				if i+1 < len(want) {
					next = want[i+1]
				}
				if i > 0 {
					before = want[i-1]
				}
				if got := set.next(a, id); got != next {
					t.Fatalf("next of %d is %d, want %d", id, got, next)
				}
				if got := set.before(a, id); got != before {
					t.Fatalf("before %d is %d, want %d", id, got, before)
				}
			}
			if len(want) > 0 && set.before(a, 0) != want[len(want)-1] {
				t.Fatal("the last is another")
			}
		}
		set.reset()
		a.chunks.reset()
		if set.n != 0 || set.lower(a, unit) != 0 || len(set.appendTo(a, nil)) != 0 {
			t.Fatal("not empty after reset")
		}
	})
}
