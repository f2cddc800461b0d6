package diagnose

import (
	"cmp"
	"math"
	"slices"

	"unoom/internal/lives"
	"unoom/internal/remedy"
	"unoom/internal/units"
)

// ballot collects points for causes, as rank does for the rules of logs.
type ballot struct {
	points   map[remedy.Cause]float64
	evidence map[remedy.Cause][]Sentence
}

func (b *ballot) vote(c remedy.Cause, points float64, id string, args ...any) {
	b.points[c] += points
	if points > 0 {
		b.evidence[c] = append(b.evidence[c], Sentence{ID: "snapshot.sign." + id, Args: args})
	}
}

func (b *ballot) count() []Cause {
	sum := math.Exp(otherPoints)
	for c := range b.evidence {
		sum += math.Exp(b.points[c])
	}
	var list []Cause
	for c, e := range b.evidence {
		if confidence := math.Exp(b.points[c]) / sum; confidence >= 0.01 {
			list = append(list, Cause{Label: c, Confidence: confidence, Evidence: e})
		}
	}
	slices.SortFunc(list, func(a, b Cause) int {
		return cmp.Or(cmp.Compare(b.Confidence, a.Confidence), cmp.Compare(a.Label, b.Label))
	})
	return list[:min(len(list), maxCauses)]
}

// Shares from which on a kind is said to make the peak.
const (
	stateShare      = 0.6  // weights, gradients and optimizer state
	activationShare = 0.35 // activations and temporaries
	growthShare     = 0.05 // what has grown in the trace
	heldShare       = 0.2  // what is allocated of the reserved memory
	piecesShare     = 0.05 // reserved but unallocated
	tightShare      = 0.05 // what must be left for a request not to be the last straw
)

// causes ranks why a request failed or, where none did, what makes the peak.
// cardKnown says that the account ends with the size of the card.
func (h *Held) causes(cardKnown bool) []Cause {
	b := &ballot{map[remedy.Cause]float64{}, map[remedy.Cause][]Sentence{}}
	allocated := float64(max(h.Moment.Allocated, 1))
	part := func(kinds ...lives.Kind) (units.Bytes, float64) {
		var sum int64
		for _, k := range kinds {
			sum += h.Kinds[k]
		}
		return units.Bytes(sum), float64(sum) / allocated
	}
	// A request that would just have fitted in one piece is the last straw: the
	// next one would have failed.
	short := h.Slack == nil || h.Account == nil || float64(*h.Slack) < tightShare*float64(h.Account.Capacity)
	if h.Request != nil {
		h.requestVotes(b, cardKnown)
	}
	// Of a run that did not fail only a training is judged: what makes the peak of
	// an inference is what it is for.
	// Where nearly all is cached, what little is held is not worth a change.
	held := float64(h.Moment.Allocated) > heldShare*float64(h.Moment.Reserved)
	if h.Request == nil && h.History.Training() && held || h.Request != nil && short {
		if bytes, share := part(lives.Weights, lives.Gradients, lives.OptimizerState, lives.Held); share > stateShare {
			// What only stays may be anything: it counts by half.
			_, held := part(lives.Held)
			b.vote(remedy.TrainStateTooLarge, 1+2*share-held, "state", bytes, percent(bytes, h.Moment.Allocated))
		}
		if bytes, share := part(lives.OptimizerState); share > activationShare {
			b.vote(remedy.OptimizerState, 0.5+2*share, "optimizer_state", bytes, percent(bytes, h.Moment.Allocated))
		}
		if bytes, share := part(lives.Activations, lives.Temporaries); share > activationShare {
			b.vote(remedy.BatchTooLarge, 1+2*share, "activations", bytes, percent(bytes, h.Moment.Allocated))
			if !h.History.Checkpointing && h.Kinds[lives.Activations] > h.Kinds[lives.Temporaries] {
				b.vote(remedy.ActivationsNoCheckpointing, 1.2+2*share, "activations", bytes, percent(bytes, h.Moment.Allocated))
				b.vote(remedy.ActivationsNoCheckpointing, 0.3, "no_checkpointing")
			}
		}
		h.lossVotes(b)
		if bytes, share := part(lives.Unknown, lives.Held); h.Request != nil && share > 0.5 {
			// Only that it is the job's own is known, not what it is.
			b.vote(remedy.BatchTooLarge, 1.5, "own", bytes)
			if _, held := part(lives.Held); held <= stateShare {
				b.vote(remedy.TrainStateTooLarge, 1, "own", bytes)
			}
			b.vote(remedy.GPUTooSmall, 0.5, "own", bytes)
		}
	}
	h.growthVotes(b)
	if private := h.privateBytes() + h.Pieces.PrivatePools; float64(private) > 0.2*float64(h.Moment.Reserved) {
		b.vote(remedy.CompileOrCUDAGraph, 2.5, "private_pools", private)
	}
	cached := float64(h.Pieces.Cached) / float64(max(h.Moment.Reserved, 1))
	if h.Request == nil && cached > 4*piecesShare && h.Pieces.Stuck > h.Pieces.Whole {
		b.vote(remedy.Fragmentation, 1+2*cached, "pieces", h.Pieces.Stuck, h.Pieces.Segments)
	}
	return b.count()
}

// requestVotes judges the request that failed.
func (h *Held) requestVotes(b *ballot, cardKnown bool) {
	r := h.Request
	slack := *h.Slack
	cached := float64(h.Pieces.Cached) / float64(max(h.Moment.Reserved, 1))
	if slack >= 0 && h.Pieces.Reachable < r.Bytes {
		// Where little is in pieces, or little would be left, joining them only
		// delays it.
		points, served := 4.0, 1.5
		if cached < 2*piecesShare {
			points -= 2
		}
		if h.Account != nil && float64(slack) < tightShare*float64(h.Account.Capacity) {
			points, served = points-1.5, 0.5
		}
		b.vote(remedy.Fragmentation, max(points, 0.3), "fragmented", h.Pieces.Cached, r.Free, r.Bytes, h.Pieces.Reachable)
		if h.served() {
			b.vote(remedy.Fragmentation, served, "served_otherwise")
		}
	}
	if a := h.Account; a != nil && r.Bytes > a.Capacity {
		// Unless the card's size is given, other processes may hold the rest of it.
		sign, points := "request_beyond", 3.0
		if !cardKnown {
			sign = "request_beyond_known"
			if r.Bytes < 2*a.Capacity {
				points = 2
			}
		}
		b.vote(remedy.InputTooLarge, points, sign, r.Bytes, a.Capacity)
		b.vote(remedy.ShapeOrDataBug, points-1, sign, r.Bytes, a.Capacity)
	}
	switch r.Phase {
	case lives.PhaseOptimizer:
		b.vote(remedy.OptimizerState, 2, "in_optimizer")
		if h.Kinds[lives.Temporaries] > int64(r.Bytes) {
			b.vote(remedy.OptimizerForeachPeak, 1.5, "optimizer_temporaries", units.Bytes(h.Kinds[lives.Temporaries]))
		}
	case lives.PhaseEvaluation:
		b.vote(remedy.EvalWorkloadLarger, 2, "in_evaluation")
		b.vote(remedy.EvalNoGrad, 1.5, "in_evaluation")
	}
}

// served reports whether some other setting serves more requests, as replayed.
func (h *Held) served() bool {
	was := h.Recorded()
	if was == nil {
		return false
	}
	for _, t := range h.Better() {
		if t.OOMs < was.OOMs {
			return true
		}
	}
	return false
}

// lossVotes looks for logits: what the loss holds at the moment.
func (h *Held) lossVotes(b *ballot) {
	var held units.Bytes
	for i := range h.History.Tensors {
		if t := &h.History.Tensors[i]; t.LivesAfter(h.Moment.Event) && t.Within == lives.PhaseLoss {
			held += units.Bytes(t.Bytes)
		}
	}
	if h.Request != nil && h.Request.Phase == lives.PhaseLoss {
		held += h.Request.Bytes
	}
	if share := float64(held) / float64(max(h.Moment.Allocated, 1)); share > 0.1 {
		b.vote(remedy.LogitsVocab, 1+4*share, "loss", held, percent(held, h.Moment.Allocated))
	}
}

// growthVotes looks for what rises from step to step. A run that grows meets the
// wall sooner or later: that it met it with its memory in pieces is not the cause.
func (h *Held) growthVotes(b *ballot) {
	grown := h.grown()
	forward := 0 // places of a forward that grow
	for _, g := range h.Growth {
		if g.Func == "forward" || g.Op != "" {
			forward++
		}
	}
	share := float64(grown) / float64(max(h.Moment.Allocated, 1))
	if share < growthShare {
		return
	}
	g := h.Growth[0]
	points := 3 + 3*min(share, 0.5)
	if h.Request != nil && grown >= h.Request.Bytes {
		points++
		b.vote(remedy.Fragmentation, -2, "")
	}
	sign := "growth"
	if g.Forever {
		sign = "growth_forever"
	}
	b.vote(remedy.LeakStateGrowth, points, sign, grown, len(g.Held), g.Place.String(), units.Bytes(g.PerStep))
	// A graph that is kept holds what many places of the forward made.
	if forward >= 3 {
		b.vote(remedy.LeakGraphRetained, points+1, "growth_graph", forward)
	} else {
		b.vote(remedy.LeakGraphRetained, points-1, "growth_one", grown)
	}
}

// grown is how much more what grows holds at the last step than at the first.
func (h *Held) grown() units.Bytes {
	var grown units.Bytes
	for _, g := range h.Growth {
		grown += units.Bytes(g.Held[len(g.Held)-1] - g.Held[0])
	}
	return grown
}
