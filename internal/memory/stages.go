package memory

import (
	"slices"
	"strconv"

	"unoom/internal/units"
	"unoom/internal/workload"
)

// A Stage is what one rank of a pipeline needs.
type Stage struct {
	Rank      int64 // 0 is the first
	Allocated units.Bytes
}

// stagesOf are the pipeline ranks that can differ in what they need: the first
// holds the embedding and the most micro-batches, the second is the fullest of
// those in the middle, the last holds the head and the loss. Layers that are
// divided by hand make every rank its own case.
func stagesOf(w *workload.Workload) []int64 {
	p := w.Parallel.Pipeline
	if p <= 1 || w.Parallel.Rank != "" && w.Parallel.Rank != "max" {
		return nil
	}
	if w.Has("pipeline-model-parallel-layout") || w.Has("hybrid-layer-pattern") {
		all := make([]int64, p)
		for i := range all {
			all[i] = int64(i)
		}
		return all
	}
	return slices.Compact([]int64{0, min(1, p-1), p - 1})
}

// fullest plays the stages that can differ and returns the workload of the one
// that needs most, and what each needs, the fullest first. Without a pipeline,
// or where a rank is asked for, it is w itself.
func fullest(w *workload.Workload, lib library) (*workload.Workload, []Stage) {
	var list []Stage
	for _, rank := range stagesOf(w) {
		peak, err := peakOf(onStage(w, rank), lib)
		if err != nil {
			return w, nil // what cannot be played says so when it is
		}
		list = append(list, Stage{rank, units.Bytes(peak.allocated)})
	}
	if len(list) == 0 {
		return w, nil
	}
	slices.SortStableFunc(list, func(a, b Stage) int { return int(min(max(b.Allocated-a.Allocated, -1), 1)) })
	return onStage(w, list[0].Rank), list
}

// onStage is the workload with one pipeline rank asked for.
func onStage(w *workload.Workload, rank int64) *workload.Workload {
	c := w.Clone()
	c.Parallel.Rank = strconv.FormatInt(rank, 10)
	return c
}
