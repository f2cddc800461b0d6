package plan

import (
	"math"

	"unoom/internal/units"
)

// Why has the numbers behind a plan: what people ask about the six remedies,
// answered for this run.
type Why struct {
	// Fixed is what the card holds whatever the batch; Sample and Token what one
	// more sample, or token of a sample, in a micro-batch adds at the peak. An
	// image has no tokens.
	Fixed, Sample, Token units.Bytes
	// Micro is the plan's micro-batch, Other half of it, or twice where it is
	// one; MicroTime and OtherTime are the times of a sample at each.
	Micro, Other         int
	MicroTime, OtherTime float64
	// Accumulation is the plan's. Padded says that batches have padding, so that
	// the mean of the means is not the mean over all tokens. BatchNorm says that
	// the model normalises over the micro-batch.
	Accumulation int
	Padded       bool
	BatchNorm    bool
	MultiRank    bool
	// Recompute is what recomputing every layer saves and costs here; an image
	// network has no layers that a framework would recompute.
	RecomputeSaves    units.Bytes
	RecomputeSlowdown float64
	// Rate is the advice where the effective batch changes.
	Rate *Rate
}

// A Rate says how the learning rate goes with the effective batch.
type Rate struct {
	OldBatch, NewBatch int
	Linear, Sqrt       float64 // factors
	// Adaptive says that the optimizer scales its steps (Adam and its kin), for
	// which the square root is the usual rule; else the linear one.
	Adaptive bool
}

// Explain returns the numbers behind the recommended plan, or behind the present
// setting where there is none.
func (r *Result) Explain() Why {
	p := r.planner
	c := r.Present.Choice
	if len(r.Plans) > 0 {
		c = r.Plans[0].Choice
	}
	w := Why{Micro: c.Micro, Accumulation: c.Accumulation, Padded: p.req.Workload.Padded, MultiRank: c.Data > 1}
	more, other := c, c
	more.Micro = c.Micro * 2
	// The quick answers give the slope: a difference of two peaks with the allocator
	// may jump by a segment.
	a, b := p.ask(&c).total, p.ask(&more).total
	w.Sample = units.Bytes((b - a) / float64(c.Micro))
	if p.space.shape.image == nil {
		w.Token = w.Sample / units.Bytes(max(c.Seq, 1))
	}
	w.Fixed = units.Bytes(a - float64(w.Sample)*float64(c.Micro))
	per := func(c *Choice) float64 { return p.space.time(c) / float64(c.Batch()) }
	w.MicroTime = per(&c)
	w.Other = max(1, c.Micro/2)
	if c.Micro == 1 {
		w.Other = 2
	}
	other.Micro = w.Other
	other.Accumulation = max(1, c.Accumulation*c.Micro/other.Micro)
	w.OtherTime = per(&other)

	none, full := c, c
	none.Recompute, none.Layers = RecomputeNone, 0
	full.Recompute, full.Layers = RecomputeFull, p.space.layersOfRank(&c)
	none.OffloadActivations, full.OffloadActivations = false, false
	w.RecomputeSaves = units.Bytes(p.ask(&none).total - p.ask(&full).total)
	w.RecomputeSlowdown = p.space.time(&full) / p.space.time(&none)
	if old := r.Present.Choice.Batch(); old != r.Batch {
		ratio := float64(r.Batch) / float64(old)
		w.Rate = &Rate{OldBatch: old, NewBatch: r.Batch, Linear: ratio, Sqrt: math.Sqrt(ratio), Adaptive: c.Optimizer != SGD && c.Optimizer != Momentum}
	}
	w.BatchNorm = p.space.batchNorm()
	return w
}
