package plan

import (
	"unoom/internal/memory"
	"unoom/internal/remedy"
	"unoom/internal/units"
	"unoom/internal/workload"
)

// A Judgement is the need of one workload.
type Judgement struct {
	Device units.Estimate // all of the card: what nvidia-smi would show
	Phase  remedy.Phase   // of the peak
	// Engine is the engine's estimate; nil where it cannot play the run and the
	// figures are the closed form's, with its wider interval.
	Engine *memory.Estimate
	Host   units.Bytes // in host memory, for each accelerator
}

// judge says what a choice needs, by the engine where it can play it.
func (p *planner) judge(c *Choice) Judgement {
	if j, ok := p.judged[*c]; ok {
		return j
	}
	n := p.space.form.peak(c)
	j := Judgement{Phase: phaseOf(n.at), Host: units.Bytes(n.host)}
	if p.req.Judge != nil && p.runs < maxRuns && p.played(c) {
		w := fewMicros(p.workloadOf(c))
		if est, err := p.req.Judge(asMegatron(w)); err == nil {
			p.runs++
			j.Engine, j.Phase = est, remedy.Phase(est.Phase)
			j.Device = cardOf(est, units.Bytes(n.outside))
			p.judged[*c] = j
			return j
		}
	}
	p.closed = true
	total := n.total
	j.Device = units.Estimate{Low: units.Bytes(total * 0.9), Mid: units.Bytes(total), High: units.Bytes(total * formMargin)}
	p.judged[*c] = j
	return j
}

// played reports whether the engine plays everything that a choice sets. What it
// knows that it does not play it refuses itself.
//
// Known gap: the engine does not yet look at the offload of activations, at
// selective recomputation outside of torchtitan and Megatron, or at recomputation
// of some layers outside of Megatron; its figures would be those of other settings.
func (p *planner) played(c *Choice) bool {
	target := p.target(c)
	partial := c.Recompute == RecomputeFull && c.Layers < p.space.layersOfRank(c) && target != Megatron
	selective := c.Recompute == RecomputeSelective && target != Torchtitan && target != Megatron
	return !c.OffloadActivations && !selective && !partial
}

// maxRuns bounds the runs of the engine for one request: the present setting,
// what the search ends with, and the other plans.
const maxRuns = 12

// cardOf is the memory that a card must have for a run of the engine: what is
// allocated at the peak, what the allocator cannot give back for it, and what is
// outside of the allocator. It is less than what nvidia-smi shows on a large
// card, where the allocator keeps all it ever had; on a card that is nearly full
// it gives the unused segments back before it fails.
func cardOf(est *memory.Estimate, outside units.Bytes) units.Estimate {
	add := units.Exactly(outside)
	if len(est.Outside) > 0 {
		add = units.Estimate{Low: est.Device.Low - est.Reserved.Low, Mid: est.Device.Mid - est.Reserved.Mid, High: est.Device.High - est.Reserved.High}
	}
	stranded := func(allocated, reserved units.Bytes, share float64) units.Bytes {
		return min(reserved, allocated+units.Bytes(share*float64(allocated)))
	}
	a, r := est.Allocated, est.Reserved
	return units.Estimate{
		Low:  stranded(a.Low, r.Low, 0.01),
		Mid:  stranded(a.Mid, r.Mid, 0.03),
		High: stranded(a.High, max(r.Mid, r.High), 0.06),
	}.Plus(add)
}

// formMargin is what the closed form may be short by, where the engine does not
// decide.
const formMargin = 1.08

func phaseOf(i instant) remedy.Phase {
	switch i {
	case atLoss:
		return remedy.PhaseLoss
	case atStep:
		return remedy.PhaseStep
	}
	return remedy.PhaseBackward
}

// fits reports whether a judged setting is within the budget.
func (p *planner) fits(j *Judgement) bool { return float64(j.Device.High) <= p.budget }

// fewMicros is a workload with no more micro-batches than differ from each other:
// a first, one like all others (in a pipeline a second filling of it), a last.
func fewMicros(w *workload.Workload) *workload.Workload {
	if most := 2*max(w.Parallel.Pipeline, 1) + 1; w.Accumulation > most {
		w = w.Clone()
		w.Accumulation = most
	}
	return w
}

// asked is a quick answer of the engine.
type asked struct {
	total  float64 // of the card
	played bool    // else the closed form's
}

// ask is what a choice takes of a card at its peak, by the engine's quick answer
// where it can play the choice. The first answer for a kind of setting also sets
// how the closed form is corrected for all of that kind.
func (p *planner) ask(c *Choice) asked {
	if a, ok := p.asked[*c]; ok {
		return a
	}
	n := p.space.form.peak(c)
	a := asked{total: n.total}
	if peak, ok := p.quick(c); ok {
		a = asked{float64(peak) + n.outside, true}
		p.space.measured[kindOf(c)] = (a.total - n.outside) / (n.total - n.outside)
	}
	p.asked[*c] = a
	return a
}

// quick asks the engine, as long as it may be asked.
func (p *planner) quick(c *Choice) (units.Bytes, bool) {
	if !p.played(c) {
		return 0, false
	}
	if p.req.Quick == nil {
		if p.req.Judge == nil || p.runs >= maxRuns {
			return 0, false
		}
		j := p.judge(c)
		if j.Engine == nil {
			return 0, false
		}
		return j.Engine.Allocated.Mid, true
	}
	if p.looks >= maxLooks {
		return 0, false
	}
	p.looks++
	peak, err := p.req.Quick(asMegatron(fewMicros(p.workloadOf(c))))
	return peak.Allocated, err == nil
}

// maxLooks bounds the quick answers for one request.
const maxLooks = 200
