package replay

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"unoom/internal/alloc"
)

// A Trial is one setting of a sweep.
type Trial struct {
	// Conf is the string for PYTORCH_ALLOC_CONF, "" for the defaults.
	Conf     string
	Recorded bool // the settings of the recording
	*Answer
}

// Sweep serves the trace under the settings that are worth trying with a
// version of torch, and ranks them: those under which the fewest requests fail,
// then those with the smallest peak of reserved memory, then those that ask the
// driver least, then the simplest. All begin from an empty allocator.
//
// Settings that had to free the cache to go on fill the card whatever they do:
// among them the number of such retries, each of which stops the GPU, counts
// before the peak.
func (c *Case) Sweep(r *Result, q Question) []Trial {
	q.Fresh = true
	blocks := make([]alloc.Block, len(c.all))
	recorded := q
	recorded.Settings = c.Settings
	trials := []Trial{{Conf: c.Settings.Conf(), Recorded: true, Answer: c.WhatIfIn(blocks, r, recorded)}}
	for _, conf := range SweepConfs(q.Torch) {
		set, err := alloc.ParseConf(conf, q.Torch, alloc.Defaults())
		if err != nil || set.Normal() == c.Settings.Normal() {
			continue // not of this version, or the recorded one again
		}
		trial := q
		trial.Settings = set
		trials = append(trials, Trial{Conf: conf, Answer: c.WhatIfIn(blocks, r, trial)})
	}
	slices.SortStableFunc(trials, func(a, b Trial) int {
		return cmp.Or(
			cmp.Compare(a.StartOOMs+a.OOMs, b.StartOOMs+b.OOMs),
			cmp.Compare(a.pressure(), b.pressure()),
			cmp.Compare(a.Stats.NumAllocRetries, b.Stats.NumAllocRetries),
			cmp.Compare(a.Peaks.Reserved, b.Peaks.Reserved),
			cmp.Compare(a.Stats.NumDeviceAlloc+a.Stats.NumDeviceFree, b.Stats.NumDeviceAlloc+b.Stats.NumDeviceFree),
			cmp.Compare(len(a.Conf), len(b.Conf)),
		)
	})
	return trials
}

// Simplest returns the trial to recommend from a ranked sweep: of those that are
// as good as the first, within a percent of its peak, the recorded one, or
// else the one with the fewest options.
func Simplest(ranked []Trial) Trial {
	best := ranked[0]
	options := func(t *Trial) int {
		switch {
		case t.Recorded:
			return -1
		case t.Conf == "":
			return 0
		}
		return 1 + strings.Count(t.Conf, ",")
	}
	for i := range ranked {
		t := &ranked[i]
		if t.StartOOMs+t.OOMs == ranked[0].StartOOMs+ranked[0].OOMs &&
			t.Stats.NumAllocRetries <= ranked[0].Stats.NumAllocRetries &&
			float64(t.pressure()) <= 1.01*float64(ranked[0].pressure()) && options(t) < options(&best) {
			best = *t
		}
	}
	return best
}

// pressure is how much of the card a setting fills: all of it, if it had to free
// the cache.
func (t *Trial) pressure() int64 {
	if t.Stats.NumAllocRetries > 0 {
		return max(t.Capacity, t.Peaks.Reserved)
	}
	return t.Peaks.Reserved
}

// SweepConfs lists the settings that a sweep tries: each remedy for
// fragmentation that a version knows, alone and with the one it goes well with.
func SweepConfs(v alloc.Version) []string {
	confs := []string{"", "expandable_segments:True"}
	for _, d := range []int{4, 8, 16} {
		confs = append(confs,
			fmt.Sprintf("roundup_power2_divisions:%d", d),
			fmt.Sprintf("expandable_segments:True,roundup_power2_divisions:%d", d))
	}
	for _, mib := range []int{32, 64, 128, 256, 512, 1024} {
		confs = append(confs, fmt.Sprintf("max_split_size_mb:%d", mib))
	}
	for _, mib := range []int{64, 256} {
		confs = append(confs, fmt.Sprintf("max_split_size_mb:%d,max_non_split_rounding_mb:%d", mib, mib))
	}
	for _, mib := range []int{12, 64, 256} {
		confs = append(confs, fmt.Sprintf("large_segment_size_mb:%d", mib))
	}
	confs = append(confs, "expandable_segments:True,large_segment_size_mb:12")
	known := confs[:0]
	for _, conf := range confs {
		if _, err := alloc.ParseConf(conf, v, alloc.Defaults()); err == nil {
			known = append(known, conf)
		}
	}
	return known
}
