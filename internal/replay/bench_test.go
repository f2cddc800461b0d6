package replay

import (
	"fmt"
	"syscall"
	"testing"

	"unoom/internal/alloc"
)

// training is a recording of so many events of a transformer in training.
func training(events int) *Case {
	c := alloc.Config{Torch: alloc.Version{Major: 2, Minor: 9}, Capacity: 80 << 30}
	return Cases(Record(c, func(a *alloc.Allocator) {
		Training(a, func() bool { return a.Stats().All.Allocation.Allocated < int64(events/3) })
	}))[0]
}

func BenchmarkReplay(b *testing.B) {
	for _, n := range []int{1e5, 1e6, 1e7} {
		c := training(n)
		q := Question{Torch: alloc.Version{Major: 2, Minor: 9}, Settings: alloc.Defaults(), Capacity: 80 << 30}
		var r *Result
		b.Run(fmt.Sprintf("check/events=%d", n), func(b *testing.B) {
			start(b)
			for b.Loop() {
				if r = c.CheckAs(q.Torch, alloc.TieByVersion); r.Mismatches() > 0 || !r.Reproducible {
					b.Fatalf("%d mismatches %v", r.Mismatches(), r.Why)
				}
			}
			report(b, len(c.Events))
		})
		blocks := make([]alloc.Block, len(c.all))
		for _, expandable := range []bool{false, true} {
			q.Settings.ExpandableSegments = expandable
			b.Run(fmt.Sprintf("whatif/events=%d/expandable=%v", n, expandable), func(b *testing.B) {
				start(b)
				for b.Loop() {
					c.WhatIfIn(blocks, r, q)
				}
				report(b, len(c.Events))
			})
		}
		b.Run(fmt.Sprintf("number/events=%d", n), func(b *testing.B) {
			start(b)
			for b.Loop() {
				d := &Case{Events: c.Events, Segments: c.Segments, Settings: c.Settings, pools: c.pools}
				d.number()
			}
			report(b, len(c.Events))
		})
	}
}

// cpu returns the processor time of this process so far: on a machine that is
// shared, the clock measures the others.
func cpu() float64 {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return float64(u.Utime.Nano()+u.Stime.Nano()) / 1e9
}

var started float64

func start(b *testing.B) { b.ResetTimer(); started = cpu() }

func report(b *testing.B, events int) {
	b.ReportMetric(float64(events)*float64(b.N)/(cpu()-started), "events/cpu-s")
}
