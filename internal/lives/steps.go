package lives

import (
	"cmp"
	"math"
	"slices"
	"strings"

	"unoom/internal/alloc"
)

// Steps are the steps of a training run, as far as the trace shows them.
type Steps struct {
	// Ends are the events after which a step has ended, oldest first. Between two
	// of them lies a whole step; before the first and after the last may lie parts
	// of one.
	Ends []int32
	// By says what shows them: "profiler" (ProfilerStep ranges), "optimizer"
	// (ranges of the optimizer), "calls" (the optimizer's stacks) or "pattern"
	// (the same requests over and over); "" if nothing does.
	By string
}

// Whole returns the number of whole steps.
func (s Steps) Whole() int { return max(0, len(s.Ends)-1) }

func (h *History) findSteps() {
	for _, try := range []func() Steps{h.profilerSteps, h.optimizerSteps, h.callSteps, h.patternSteps} {
		if s := try(); len(s.Ends) >= 2 || len(s.Ends) == 1 && s.By != "pattern" {
			if len(h.Steps.Ends) < len(s.Ends) {
				h.Steps = s
			}
			if len(s.Ends) >= 2 {
				return
			}
		}
	}
}

// eventAt returns the last event up to a time, Before if there is none.
func (h *History) eventAt(us int64) int32 {
	i, _ := slices.BinarySearchFunc(h.Events, us+1, func(e alloc.Event, us int64) int { return cmp.Compare(e.TimeUs, us) })
	return int32(i) - 1
}

// endsAt turns times into events within the trace.
func (h *History) endsAt(times []int64) []int32 {
	slices.Sort(times)
	var ends []int32
	for _, us := range times {
		if i := h.eventAt(us); i >= 0 && (len(ends) == 0 || ends[len(ends)-1] < i) {
			ends = append(ends, i)
		}
	}
	return ends
}

func (h *History) timed() bool {
	return h.Device < len(h.Snapshot.Traces) && h.Snapshot.Traces[h.Device].Timed
}

func (h *History) profilerSteps() Steps {
	if !h.timed() {
		return Steps{}
	}
	var times []int64
	for _, a := range h.Snapshot.Annotations {
		if !a.Start && strings.HasPrefix(a.Name, "ProfilerStep#") {
			times = append(times, a.TimeUs)
		}
	}
	return Steps{h.endsAt(times), "profiler"}
}

// optimizerSteps takes the ends of the ranges that torch.optim itself records.
// Several optimizers, or several calls, may belong to one step: only ends with
// requests of a forward between them count.
func (h *History) optimizerSteps() Steps {
	if !h.timed() {
		return Steps{}
	}
	var times []int64
	for _, a := range h.Snapshot.Annotations {
		if !a.Start && strings.HasPrefix(a.Name, "Optimizer.step#") {
			times = append(times, a.TimeUs)
		}
	}
	var ends []int32
	for _, i := range h.endsAt(times) {
		if n := len(ends); n > 0 && !h.computes(ends[n-1]+1, i) {
			ends[n-1] = i
			continue
		}
		ends = append(ends, i)
	}
	return Steps{ends, "optimizer"}
}

// callSteps finds where an optimizer's requests end and a forward begins.
func (h *History) callSteps() Steps {
	var ends []int32
	stepped := false
	for i := range h.Events {
		switch {
		case h.phases[i] == PhaseOptimizer:
			stepped = stepped || h.Events[i].Action == alloc.Alloc
		case stepped && h.Events[i].Action == alloc.Alloc && h.phases[i] == PhaseForward:
			ends = append(ends, int32(i)-1)
			stepped = false
		}
	}
	if stepped && len(h.Events) > 0 && len(ends) > 0 {
		ends = append(ends, int32(len(h.Events))-1)
	}
	return Steps{ends, "calls"}
}

// The pattern search: the least share of requests that must come again one
// period later, how many periods are tried, and the fewest requests of a step.
const (
	patternShare = 0.8
	patternTries = 48
	patternLeast = 16
)

// patternSteps finds the period after which the same requests come again. The
// steps end where the least is allocated.
func (h *History) patternSteps() Steps {
	var at []int32
	var what []uint64
	for i := range h.Events {
		if e := &h.Events[i]; e.Action == alloc.Alloc {
			at = append(at, int32(i))
			what = append(what, uint64(e.Size)*0x9e3779b97f4a7c15^uint64(e.Stack)*0xbf58476d1ce4e5b9)
		}
	}
	period := periodOf(what)
	if period == 0 {
		return Steps{}
	}
	// Where within the period least is allocated, in the middle of the trace.
	allocated, _ := h.Timeline()
	sums := make([]float64, period)
	counts := make([]int, period)
	for i, e := range at {
		before := h.Start
		if e > 0 {
			before = allocated[e-1]
		}
		sums[i%period] += float64(before)
		counts[i%period]++
	}
	phase, least := 0, -1.0
	for i := range sums {
		if mean := sums[i] / float64(max(counts[i], 1)); least < 0 || mean < least {
			phase, least = i, mean
		}
	}
	var ends []int32
	for i := phase; i < len(at); i += period {
		if at[i] > 0 {
			ends = append(ends, at[i]-1)
		}
	}
	if !returns(allocated, ends) {
		return Steps{} // the layers of one step repeat as well
	}
	return Steps{ends, "pattern"}
}

// returnShare is the most that a step may leave behind of what it rose by.
const returnShare = 0.25

// returns reports whether most of what is allocated between two ends is freed by
// the second: a step gives back what it took; a layer keeps it for the backward
// or, there, frees what another one took.
func returns(allocated []int64, ends []int32) bool {
	var left []float64
	for i := 1; i < len(ends); i++ {
		from, to := allocated[ends[i-1]], allocated[ends[i]]
		most := slices.Max(allocated[ends[i-1] : ends[i]+1])
		if rise := most - min(from, to); rise > 0 {
			left = append(left, math.Abs(float64(to-from))/float64(rise))
		}
	}
	slices.Sort(left)
	return len(left) == 0 || left[len(left)/2] <= returnShare
}

// periodOf returns the shortest distance at which nearly everything repeats, 0
// for none.
func periodOf(what []uint64) int {
	if len(what) < 3*patternLeast {
		return 0
	}
	// Rare requests vote for the distance to their next occurrence.
	votes, last := map[int]int{}, map[uint64]int{}
	for i, w := range what {
		if j, ok := last[w]; ok && i-j >= patternLeast {
			votes[i-j]++
		}
		last[w] = i
	}
	gaps := make([]int, 0, len(votes))
	for g := range votes {
		gaps = append(gaps, g)
	}
	slices.SortFunc(gaps, func(a, b int) int { return cmp.Or(cmp.Compare(votes[b], votes[a]), cmp.Compare(a, b)) })
	best, bestShare := 0, patternShare
	for _, g := range gaps[:min(len(gaps), patternTries)] {
		if 2*g >= len(what) {
			continue
		}
		// The beginning is left out: it loads, and its first step is another.
		from, same := max(g, len(what)/3), 0
		for i := from; i < len(what); i++ {
			if what[i] == what[i-g] {
				same++
			}
		}
		share := float64(same) / float64(len(what)-from)
		// A multiple of the period repeats as well; layers repeat, but less.
		if share > bestShare+0.02 || best > 0 && g < best && share >= bestShare-0.005 {
			best, bestShare = g, max(share, bestShare)
		}
	}
	return best
}
