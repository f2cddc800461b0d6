package lives

import (
	"cmp"
	"slices"

	"unoom/internal/alloc"
)

// A Growth is a place from which more is held after each step than before it.
type Growth struct {
	Place
	Kind  Kind
	Stack uint32
	// Held is what was held at the end of each step, oldest first.
	Held []int64
	// Steps is between how many of them it grew; PerStep by how much, on average.
	Steps   int
	PerStep int64
	// Forever says that it is the count of what was never freed that grows: no
	// steps were recognised, so that the points of Held are evenly spaced events.
	Forever bool
}

// Bounds of what counts as growth.
const (
	growthPoints = 64 // at most so many ends of steps are looked at
	growthWindow = 16 // points where there are no steps
	growthLeast  = 1 << 20
	growthShare  = 0.75 // of the steps in which it must grow
	growthEvents = 500  // without steps, a trace must have that many
)

// Growing returns the places whose living bytes rise from step to step, the
// fastest first. The first step is left out: in it optimizers make their state
// and libraries their workspaces.
func (h *History) Growing() []Growth {
	points, forever := h.growthPoints()
	if len(points) < 4 {
		return nil
	}
	type key struct {
		Place
		kind Kind
	}
	byPlace := map[key]*Growth{}
	places := map[uint32]Place{}
	for i := range h.Tensors {
		t := &h.Tensors[i]
		if t.Born == Before || forever && t.Freed != Never {
			continue
		}
		from, _ := slices.BinarySearch(points, t.Born)
		to, _ := slices.BinarySearch(points, t.Freed)
		if from >= to {
			continue // it lives at the end of no step
		}
		p, known := places[t.Stack]
		if !known {
			p = h.PlaceOf(t.Stack)
			places[t.Stack] = p
		}
		k := key{Place: p}
		if p == (Place{}) {
			if forever {
				continue // all that is still alive at the end, of whatever kind
			}
			k.kind = t.Kind
		}
		g := byPlace[k]
		if g == nil {
			g = &Growth{Place: p, Kind: t.Kind, Stack: t.Stack, Held: make([]int64, len(points)), Forever: forever}
			byPlace[k] = g
		}
		for j := from; j < to; j++ {
			g.Held[j] += t.Bytes
		}
	}
	var list []Growth
	for _, g := range byPlace {
		rises, falls := 0, 0
		for j := 1; j < len(points); j++ {
			switch {
			case g.Held[j] > g.Held[j-1]:
				rises++
			case g.Held[j] < g.Held[j-1]:
				falls++
			}
		}
		grown := g.Held[len(points)-1] - g.Held[0]
		n := len(points) - 1
		if float64(rises) < growthShare*float64(n) || falls > n/8 || grown < growthLeast {
			continue
		}
		g.Steps, g.PerStep = rises, grown/int64(n)
		list = append(list, *g)
	}
	slices.SortFunc(list, func(a, b Growth) int {
		return cmp.Or(cmp.Compare(b.PerStep, a.PerStep), cmp.Compare(a.String(), b.String()))
	})
	return list
}

// growthPoints returns the events at which to compare.
func (h *History) growthPoints() (points []int32, forever bool) {
	ends := h.Steps.Ends
	if len(ends) >= 5 {
		ends = ends[1:] // the first step
		for i := range min(len(ends), growthPoints) {
			points = append(points, ends[i*len(ends)/min(len(ends), growthPoints)])
		}
		return points, false
	}
	if len(h.Events) < growthEvents || !h.churns() {
		return nil, false
	}
	for i := 1; i <= growthWindow; i++ {
		points = append(points, int32(i*len(h.Events)/growthWindow)-1)
	}
	return points, true
}

// churns reports whether most of what is allocated all through the trace is
// freed again: work, and not the loading of a model.
func (h *History) churns() bool {
	var made, freed [growthWindow]int
	for i := range h.Events {
		w := i * growthWindow / len(h.Events)
		switch h.Events[i].Action {
		case alloc.Alloc:
			made[w]++
		case alloc.FreeRequested:
			freed[w]++
		}
	}
	busy := 0
	for w := range made {
		if made[w] > 0 && 2*freed[w] > made[w] {
			busy++
		}
	}
	return busy >= growthWindow*3/4
}
