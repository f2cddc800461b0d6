// Package plan answers what to change so that a training run fits its
// accelerators and is as fast as it can be: it searches micro-batch and
// accumulation, recomputation, sharding and parallelism, offload, and what else
// the caller allows, with the effective batch kept exactly.
//
// The search (search.go, place.go) orders settings by closed forms of memory (form.go, stage.go) and
// of time (package speed) and prunes by bounds that keep the whole front of speed
// against memory. What it finds is asked of the engine of package memory, whose
// answers correct the form (judge.go, measured.go) until they agree (pick.go); the
// engine's whole estimate then decides. A plan says how it was reached: each
// change with its remedy's code, the bytes it saves and the time it costs.
//
// Invariants: every plan trains exactly the asked batch; unless the caller
// allows more, it computes the same up to rounding; what a training stack cannot
// do is not proposed for it. The package writes no files: that is package emit.
package plan

import (
	"unoom/internal/speed"
	"unoom/internal/units"
	"unoom/internal/workload"
)

// A Plan is one setting that fits.
type Plan struct {
	Workload *workload.Workload
	Choice   Choice
	Need     Judgement
	Time     speed.Step
	Targets  []Target // the stacks that can run it, the one it is written for first
	Steps    []Step
	// Exact says that it computes what the present setting does, up to rounding.
	Exact bool
}

// Headroom is the share of a capacity that the plan leaves free.
func (p *Plan) Headroom(capacity units.Bytes) float64 {
	return 1 - float64(p.Need.Device.High)/float64(capacity)
}

// Present is the setting the user has, judged.
type Present struct {
	Choice Choice
	Need   Judgement
	Time   speed.Step
	Fits   bool
	// Short is what it lacks, 0 where it fits.
	Short units.Bytes
	// Broken is the code of a rule that the setting breaks, "" if none.
	Broken string
}

// A Result is the answer.
type Result struct {
	Batch    int
	Budget   units.Bytes // what a plan may take
	Capacity units.Bytes
	// Host is the host memory of each accelerator that plans keep to, 0: not known.
	Host        units.Bytes
	HostAssumed bool
	Present     Present
	// Plans are ranked, the recommended one first; each later one is slower and
	// leaves more memory free, or changes what is computed.
	Plans []Plan
	// Needs says what would do where there is no plan.
	Needs   []Need
	Judged  int // runs of the engine
	Closed  bool
	planner *planner
}

// Make answers a request.
func Make(req *Request) (*Result, error) {
	p, err := newPlanner(req)
	if err != nil {
		return nil, err
	}
	r := &Result{Batch: p.space.batch, Budget: units.Bytes(p.budget), Capacity: req.Hardware.Capacity, Host: req.Hardware.Host, HostAssumed: req.Hardware.HostAssumed, planner: p}
	r.Present = p.present()
	exact := p.best(p.space)
	r.Plans = p.list(exact, true)
	if loose := p.loosened(); loose != nil {
		found := p.best(loose)
		// What changes the mathematics has to buy something for it.
		var more []candidate
		for _, c := range found {
			if len(exact) == 0 || c.time < 0.9*exact[0].time {
				more = append(more, c)
			}
		}
		listed := p.list(more, false)
		if allowed := req.Allow != (Allow{}); len(r.Plans) == 0 || allowed && len(listed) > 0 && listed[0].Time.Mid < 0.75*r.Plans[0].Time.Mid {
			r.Plans = append(listed[:min(3, len(listed))], r.Plans...)
		} else {
			r.Plans = append(r.Plans[:min(3, len(r.Plans))], listed...)
		}
		r.Plans = r.Plans[:min(maxPlans, len(r.Plans))]
	}
	if len(r.Plans) == 0 && req.Allow.Sequence && r.Tokens() {
		r.Plans = p.list(p.shorter(), false)
	}
	if len(r.Plans) == 0 {
		r.Needs = p.needs()
	}
	r.Judged, r.Closed = p.runs, p.closed
	return r, nil
}

// present judges the setting the user has.
func (p *planner) present() Present {
	c := p.base
	out := Present{Choice: c}
	s := *p.space
	s.batch = c.Batch()
	if code := s.check(&c); code != "no_stack" { // what the user's stack can do, it does
		out.Broken = code
	}
	out.Need = p.judge(&c)
	st := c.speedSetting(&s)
	out.Time = s.consts.Estimate(s.net, s.device, &st)
	out.Fits = p.fits(&out.Need)
	if !out.Fits {
		out.Short = out.Need.Device.High - units.Bytes(p.budget)
	}
	return out
}
