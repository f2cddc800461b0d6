package replay

import (
	"cmp"
	"slices"

	"unoom/internal/alloc"
)

// Bounds of learning: so many choices, and so many events replayed in all.
const (
	mostLessons  = 5000
	lessonEvents = 50_000_000
)

// learnAges finds out which blocks of the start are older than others.
//
// Since torch 2.12 the older of two equal blocks is taken, and a recording that
// begins mid-run does not tell ages. But each choice between equal blocks does:
// the trace is replayed until it chooses another block than the simulation does,
// that block is made older, and the replay begins anew.
func (c *Case) learnAges(r *Result) {
	if len(r.Start.Segments) == 0 {
		return
	}
	run := &checking{Case: c, result: &Result{Torch: r.Torch, Tie: r.Tie, Start: r.Start}}
	if run.begin(r.Start) != nil || run.sim.Tie() == alloc.TieByAddress {
		return
	}
	r.ByAge = true
	order := newAges(c, r.Start, run.sim.Tie())
	order.apply()
	for spent := 0; r.AgesLearned < mostLessons && spent < lessonEvents; r.AgesLearned++ {
		at := run.replayUntil(r.Start, len(c.ops))
		if at < 0 {
			break
		}
		d := run.oracle.differ
		spent += 2 * int(c.ops[at].at)
		if d.Want.Action != d.Got.Action || d.Want.Addr == d.Got.Addr {
			break
		}
		run.replayUntil(r.Start, at)
		size, older, ok := run.sim.AgeAt(d.Want.Addr)
		other, younger, also := run.sim.AgeAt(d.Got.Addr)
		if !ok || !also || size != other || !order.older(older, younger) {
			break
		}
		order.apply()
	}
}

// replayUntil replays from the start up to an op, or to the first that differs,
// which it returns; -1 if none does.
func (c *checking) replayUntil(s *Start, end int) int {
	if c.begin(s) != nil {
		return -1
	}
	for at := range end {
		c.step(at)
		if c.oracle.differ != nil {
			return at
		}
	}
	return -1
}

// ages is what is known of the order in which the segments, or the blocks, of a
// start were made.
type ages struct {
	start  *Start
	blocks bool // by block, not by segment
	n      int
	// first is the rank of each item where nothing is known: of equal blocks that
	// are free together the oldest is handed out first.
	first []int
	// after has, for each item, those that are known to be younger.
	after map[int][]int
	// item is the item of each age, from 1.
	item []int
}

func newAges(c *Case, s *Start, tie alloc.TieBreak) *ages {
	a := &ages{start: s, blocks: tie == alloc.TieByCounter, after: map[int][]int{}}
	type extent struct {
		from, to uint64
		used     int32 // event in which it is first handed out
	}
	var items []extent
	for i := range s.Segments {
		seg := &s.Segments[i]
		at := seg.Addr
		if !a.blocks {
			items = append(items, extent{at, at + uint64(seg.Size()), Always})
			continue
		}
		for j := range seg.Blocks {
			items = append(items, extent{at, at + uint64(seg.Blocks[j].Size), Always})
			at += uint64(seg.Blocks[j].Size)
		}
	}
	a.n = len(items)
	for i := range c.all {
		t := &c.all[i]
		if t.born == never {
			continue
		}
		at, found := slices.BinarySearchFunc(items, t.addr, func(x extent, addr uint64) int { return cmp.Compare(x.from, addr) })
		if !found {
			at--
		}
		if at >= 0 && t.addr < items[at].to {
			items[at].used = min(items[at].used, t.born)
		}
	}
	order := make([]int, a.n)
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(x, y int) int { return cmp.Compare(items[x].used, items[y].used) })
	a.first = make([]int, a.n)
	for rank, x := range order {
		a.first[x] = rank
	}
	return a
}

// older notes that the item of one age is older than that of another, and
// reports whether that is new and contradicts nothing.
func (a *ages) older(old, young uint64) bool {
	if old == 0 || young == 0 || old > uint64(a.n) || young > uint64(a.n) || old == young {
		return false
	}
	x, y := a.item[old-1], a.item[young-1]
	if slices.Contains(a.after[x], y) || a.reaches(y, x) {
		return false
	}
	a.after[x] = append(a.after[x], y)
	return true
}

// reaches reports whether x is known to be older than y.
func (a *ages) reaches(x, y int) bool {
	seen := map[int]bool{x: true}
	for queue := []int{x}; len(queue) > 0; queue = queue[1:] {
		for _, next := range a.after[queue[0]] {
			if next == y {
				return true
			}
			if !seen[next] {
				seen[next] = true
				queue = append(queue, next)
			}
		}
	}
	return false
}

// apply gives every item an age: in the order of first use, but for what is
// known.
func (a *ages) apply() {
	waits := make([]int, a.n)
	for _, list := range a.after {
		for _, y := range list {
			waits[y]++
		}
	}
	byFirst := func(x, y int) int { return cmp.Compare(a.first[x], a.first[y]) }
	ready := make([]int, 0, a.n)
	for i := range waits {
		if waits[i] == 0 {
			ready = append(ready, i)
		}
	}
	slices.SortFunc(ready, byFirst)
	a.item = a.item[:0]
	for len(ready) > 0 {
		x := ready[0]
		ready = ready[1:]
		a.item = append(a.item, x)
		for _, y := range a.after[x] {
			if waits[y]--; waits[y] == 0 {
				i, _ := slices.BinarySearchFunc(ready, y, byFirst)
				ready = slices.Insert(ready, i, y)
			}
		}
	}
	age := make([]uint64, a.n)
	for i, x := range a.item {
		age[x] = uint64(i) + 1
	}
	next := 0
	for i := range a.start.Segments {
		s := &a.start.Segments[i]
		if !a.blocks {
			s.Age = age[next]
			next++
			continue
		}
		for j := range s.Blocks {
			s.Blocks[j].Age = age[next]
			next++
		}
		s.Age = s.Blocks[0].Age
	}
}
