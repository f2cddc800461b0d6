package main

import (
	"fmt"
	"runtime"
	"strconv"
	"syscall"
	"time"

	"unoom/internal/alloc"
	"unoom/internal/replay"
)

// compareReplay measures the allocator on recordings of a simulated training of
// a transformer whose sequence length varies, on one core: comparing every
// event of a trace, and serving its requests under other settings.
func compareReplay(string, int64) error {
	fmt.Println("replay: million events per second of one core (goal 10, and flat), best of 5")
	fmt.Println("  events         check   what-if   what-if, expandable")
	for _, n := range []int{1e5, 1e6, 1e7} {
		out, err := again("replay", strconv.Itoa(n))
		if err != nil {
			return err
		}
		fmt.Println("  " + out)
	}
	return nil
}

// replayOnce measures one size.
func replayOnce(size string) error {
	n, err := strconv.Atoi(size)
	if err != nil {
		return err
	}
	runtime.GOMAXPROCS(1)
	config := alloc.Config{Torch: alloc.Version{Major: 2, Minor: 9}, Capacity: 80 << 30}
	s := replay.Record(config, func(a *alloc.Allocator) {
		replay.Training(a, func() bool { return a.Stats().All.Allocation.Allocated < int64(n/3) })
	})
	c := replay.Cases(s)[0]
	var r *replay.Result
	check := fastest(len(c.Events), func() { r = c.CheckAs(config.Torch, alloc.TieByVersion) })
	if !r.Reproducible || r.Mismatches() > 0 {
		return fmt.Errorf("%d events: %d mismatches", len(c.Events), r.Mismatches())
	}
	q := replay.Question{Torch: config.Torch, Settings: alloc.Defaults(), Capacity: config.Capacity, Fresh: true}
	plain := fastest(len(c.Events), func() { c.WhatIf(r, q) })
	q.Settings.ExpandableSegments = true
	expandable := fastest(len(c.Events), func() { c.WhatIf(r, q) })
	fmt.Printf("%-10s  %8.1f  %8.1f  %12.1f", strconv.Itoa(len(c.Events)), check, plain, expandable)
	return nil
}

// fastest returns the million events per second of the best of five runs, by
// the processor's time: on a machine that is shared the clock measures others.
func fastest(events int, run func()) float64 {
	best := time.Duration(1<<63 - 1)
	for range 5 {
		runtime.GC() // of the run before
		start := processorTime()
		run()
		best = min(best, processorTime()-start)
	}
	return float64(events) / best.Seconds() / 1e6
}

func processorTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
