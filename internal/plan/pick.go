package plan

import (
	"slices"

	"unoom/internal/workload"
)

// best returns the front of a space as the engine sees it. What the search finds
// by the closed form is asked of the engine, the form is corrected by the answers,
// and the search repeated, until all that it finds was asked about. The fastest
// then has to stand before the engine's whole estimate.
func (p *planner) best(s *space) []candidate {
	// What one round knows serves the next, and nobody else: a space may be changed.
	s.times = &times{more: map[timed]float64{}}
	defer func() { s.known, s.times = nil, nil }()
	var list []candidate
	for round := range maxRounds {
		s.budget = p.budget / p.wide
		list = s.search()
		s.known = slices.Clone(list)
		if !p.askAll(list) && round < maxRounds-1 {
			continue
		}
		list = p.fitting(list)
		if len(list) == 0 {
			return nil
		}
		j := p.judge(&list[0].Choice)
		if p.fits(&j) {
			return list
		}
		if wide := float64(j.Device.High) / list[0].need.total; wide > p.wide*1.001 {
			p.wide = wide
			continue
		}
		list = list[1:]
		break
	}
	return p.fitting(list)
}

// maxRounds bounds how often the search is repeated: what still changes after
// that differs by less than times are predicted.
const maxRounds = 4

// askAll asks the engine about candidates, and reports whether it knew all of
// them: if not, the search has to be repeated with what it said.
func (p *planner) askAll(list []candidate) bool {
	known := true
	for i := range list {
		c := &list[i]
		if _, ok := p.asked[c.Choice]; !ok {
			known = false
		}
		c.need.total = p.ask(&c.Choice).total
	}
	return known
}

// apart is by how much memory plans that are listed differ at least.
func (p *planner) apart() float64 { return 0.06 * float64(p.req.Hardware.Capacity) }

// fitting are the candidates that are within the budget by what the engine said.
func (p *planner) fitting(list []candidate) []candidate {
	var out []candidate
	for i := range list {
		if a, ok := p.asked[list[i].Choice]; !ok || a.total <= p.budget/p.wide {
			out = append(out, list[i])
		}
	}
	return out
}

// list writes the plans of a front: the fastest, and those that leave clearly
// more memory free.
func (p *planner) list(front []candidate, exact bool) []Plan {
	var out []Plan
	last := 0.0
	for i := p.simplestOf(front); i < len(front); i++ {
		c := front[i].Choice
		if len(out) == 0 {
			c = p.simplest(c)
		}
		form := front[i].need.total
		if len(out) > 0 && last-form < p.apart() {
			continue
		}
		j := p.judge(&c)
		if !p.fits(&j) || len(out) > 0 && float64(j.Device.High) > float64(out[len(out)-1].Need.Device.High)-p.apart()/2 {
			continue
		}
		pl := p.plan(&c, j, exact)
		if len(out) > 0 && pl.Time.Mid < out[0].Time.Mid { // it offloads, and is not fast enough for that
			continue
		}
		last = form
		out = append(out, pl)
		if len(out) == maxPlans || len(out) == p.req.Most {
			break
		}
	}
	return out
}

// maxPlans is how many plans are listed; more do not help to choose.
const maxPlans = 5

func (p *planner) plan(c *Choice, j Judgement, exact bool) Plan {
	st := c.speedSetting(p.space)
	pl := Plan{Choice: *c, Need: j, Time: p.space.consts.Estimate(p.space.net, p.space.device, &st), Workload: p.workloadOf(c), Exact: exact, Steps: p.ladder(c)}
	pl.Targets = p.space.who(c)
	if own := p.target(c); len(pl.Targets) > 0 && pl.Targets[0] != own {
		i := slices.Index(pl.Targets, own)
		pl.Targets = slices.Insert(slices.Delete(pl.Targets, i, i+1), 0, own)
	}
	return pl
}

// simplestOf is the index of the plan to recommend: the fastest, or one that is
// nearly as fast and much simpler to set up. The prediction of time does not
// tell apart what differs by less.
func (p *planner) simplestOf(front []candidate) int {
	const near = 1.12
	best, at := 0.0, 0
	for i := range front {
		if front[i].time > front[0].time*near {
			break
		}
		cost := front[i].time * (1 + 0.01*p.effort(&front[i].Choice))
		if i == 0 || cost < best {
			best, at = cost, i
		}
	}
	return at
}

// effort is how much of a change a choice is for the user, in per cent of step
// time that it has to be worth.
func (p *planner) effort(c *Choice) float64 {
	e, b := 0.0, &p.base
	add := func(changed bool, percent float64) {
		if changed {
			e += percent
		}
	}
	own := map[workload.Framework]Target{workload.HFTrainer: HF, workload.Torchtitan: Torchtitan, workload.Megatron: Megatron, workload.DeepSpeed: DeepSpeed}[p.req.Workload.Framework]
	add(own != "" && p.target(c) != own, 4)
	add(c.Sharding != b.Sharding, 1)
	add(c.Tensor > 1 && c.Tensor != b.Tensor, 1)
	add(c.Pipeline > 1 && c.Pipeline != b.Pipeline, 2)
	add(c.Chunks > 1 && c.Chunks != b.Chunks, 0.5)
	add(c.Context > 1 && c.Context != b.Context, 1)
	add(c.Expert > 1 && c.Expert != b.Expert, 1)
	add(c.OffloadName() != "none" && c.OffloadName() != b.OffloadName(), 2)
	add(c.Recompute == RecomputeFull && c.Layers < p.space.layersOfRank(c), 0.5)
	add(c.Loss != b.Loss, 0.5)
	add(c.Method != b.Method, 5)
	add(c.Optimizer != b.Optimizer && c.Optimizer != AdamWFused, 3)
	add(c.Precision != b.Precision, 3)
	return e
}

// simplest takes back the changes of a choice that it fits without and is not
// slower without.
func (p *planner) simplest(c Choice) Choice {
	b, s := &p.base, p.space
	before := s.time(&c)
	out := c
	slower := 1.002
	try := func(change func(*Choice)) {
		n := out
		change(&n)
		if n == out || s.check(&n) != "" || s.time(&n) > before*slower {
			return
		}
		if need := s.need(&n); need.total <= p.budget/p.wide*0.98 {
			out = n
		}
	}
	try(func(n *Choice) { n.Loss = b.Loss })
	try(func(n *Choice) { n.Expandable = b.Expandable })
	try(func(n *Choice) { n.Optimizer = b.Optimizer })
	try(func(n *Choice) { n.OffloadActivations = b.OffloadActivations })
	slower = 1.06 // another way to join the ranks is a change of the stack's set-up
	try(func(n *Choice) { n.Sharding, n.Shard = b.Sharding, b.Shard })
	if out != c {
		if j := p.judge(&out); !p.fits(&j) {
			return c
		}
	}
	return out
}

// shorter returns the front with the longest sequences that fit.
func (p *planner) shorter() []candidate {
	base := p.loosened()
	if base == nil {
		base = p.space
	}
	for _, eighths := range []int{6, 4, 3, 2, 1} {
		s := *base
		s.seqs = []int{max(1, p.base.Seq*eighths/8)}
		if list := p.best(&s); len(list) > 0 {
			return list
		}
	}
	return nil
}
