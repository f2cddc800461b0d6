package plan

import (
	"cmp"
	"math"
	"slices"
)

// A Market is the hardware that may be rented or bought for a run.
type Market struct {
	// Kinds are the accelerators, with Count ignored.
	Kinds []Hardware
	// MaxGPUs bounds the number of accelerators, 0: 8 without a price limit, else
	// what the limit allows.
	MaxGPUs int
	// MaxPrice bounds what all of them cost for an hour, in US dollars; 0: none.
	MaxPrice float64
}

// An Offer is a set of accelerators with the plan for it.
type Offer struct {
	Hardware Hardware
	Plan     Plan
	// USDPerHour is the price of the set, USDPerStep of one optimizer step; 0:
	// not known.
	USDPerHour, USDPerStep float64
}

// Offers are the answers to "which hardware do I need".
type Offers struct {
	Smallest *Offer // the least memory of all accelerators together
	Cheapest *Offer // by price for each step; nil where no price is known
	Fastest  *Offer
	// Considered is the number of sets that were looked at, Fitting how many of
	// them can do it.
	Considered, Fitting int
}

// scanned is a set of accelerators with what the closed forms say of it.
type scanned struct {
	h    Hardware
	time float64
	usd  float64 // for a step, 0: not known
}

// Choose looks for the hardware that can run a request. The request's own
// hardware is not looked at.
func Choose(req *Request, m *Market) (*Offers, error) {
	most := m.MaxGPUs
	if most == 0 {
		most = 8
		if m.MaxPrice > 0 {
			most = maxGPUs
		}
	}
	out := &Offers{}
	var all []scanned
	for i := range m.Kinds {
		h := m.Kinds[i]
		if req.Hardware.Host > 0 {
			h.Host, h.HostAssumed = req.Hardware.Host, req.Hardware.HostAssumed
		}
		if !suits(&h, req) {
			continue
		}
		// From the first count that is enough, twice as many each time: more
		// accelerators are faster, and rarely cheaper for a step.
		for n := max(h.PerMachine, 1); n <= most; n = h.next(n) {
			if m.MaxPrice > 0 && (h.Price.Low == 0 || float64(n)*h.Price.Mid() > m.MaxPrice) {
				break
			}
			h.Count = n
			if h.Pairs && n > 2 { // a bridge joins two
				h.Device.Link = 0
			}
			out.Considered++
			t, err := scan(req, h)
			if err != nil {
				return nil, err
			}
			if t == 0 {
				continue
			}
			s := scanned{h: h, time: t}
			if h.Price.Low > 0 {
				s.usd = float64(n) * h.Price.Mid() * t / 3.6e9
			}
			all = append(all, s)
		}
	}
	out.Fitting = len(all)
	slices.SortStableFunc(all, func(a, b scanned) int {
		total := func(s *scanned) float64 { return float64(s.h.Count) * s.h.Capacity.GiB() }
		return cmp.Or(cmp.Compare(total(&a), total(&b)), cmp.Compare(a.h.Count, b.h.Count), cmp.Compare(a.time, b.time))
	})
	var err error
	if out.Smallest, err = offer(req, all, nil); err != nil {
		return nil, err
	}
	slices.SortStableFunc(all, func(a, b scanned) int { return cmp.Compare(a.usd, b.usd) })
	if out.Cheapest, err = offer(req, all, func(s *scanned) bool { return s.usd > 0 }); err != nil {
		return nil, err
	}
	slices.SortStableFunc(all, func(a, b scanned) int { return cmp.Compare(a.time, b.time) })
	out.Fastest, err = offer(req, all, nil)
	return out, err
}

// next is the number of accelerators to look at after n: twice as many, or twice
// the machines where the machine is a whole node; one machine of a part of a node
// does not join another.
func (h *Hardware) next(n int) int {
	switch {
	case h.PerMachine == 0:
		return nextCount(n, max(h.Device.PerNode, 1))
	case h.PerMachine < 8:
		return math.MaxInt
	}
	return 2 * n
}

// suits reports whether a kind of accelerator computes in the formats of a
// request.
func suits(h *Hardware, req *Request) bool {
	c := choiceOf(req.Workload)
	d := &h.Device
	switch {
	case c.Precision == Float32:
		return d.FP32 > 0
	case c.Precision == Mixed8:
		return d.FP8 > 0
	case half(req.Workload):
		return d.FP16 > 0
	}
	return d.BF16 > 0
}

// scan returns the time of the fastest plan on a set of accelerators by the
// closed forms alone, 0 if none fits.
func scan(req *Request, h Hardware) (float64, error) {
	quick := *req
	quick.Judge, quick.Quick, quick.Hardware = nil, nil, h
	p, err := newPlanner(&quick)
	if err != nil {
		return 0, err
	}
	s := p.space
	if loose := p.loosened(); loose != nil {
		s = loose
	}
	s.gpus = []int{h.Count}
	s.offload = h.Host > 0 // the host of a machine nobody has chosen yet is not known
	s.slowest = 1          // only the fastest counts
	s.losses, s.optimizers = s.losses[:1], s.optimizers[:1]
	if len(s.stacks) > 1 { // not every stack has the first loss
		s.losses = p.space.losses
	}
	s.budget = p.budget / formMargin
	list := s.search()
	if len(list) == 0 {
		return 0, nil
	}
	return list[0].time, nil
}

// offer plans for the first of the sets that still fits when the engine looks.
func offer(req *Request, all []scanned, ok func(*scanned) bool) (*Offer, error) {
	tries := 0
	for i := range all {
		if ok != nil && !ok(&all[i]) {
			continue
		}
		if tries++; tries > 4 {
			break
		}
		full := *req
		full.Hardware, full.NoOffload, full.Most = all[i].h, all[i].h.Host == 0, 1
		r, err := Make(&full)
		if err != nil {
			return nil, err
		}
		if len(r.Plans) == 0 {
			continue
		}
		o := &Offer{Hardware: all[i].h, Plan: r.Plans[0]}
		if p := o.Hardware.Price; p.Low > 0 {
			o.USDPerHour = p.Mid() * float64(o.Hardware.Count)
			o.USDPerStep = o.USDPerHour * o.Plan.Time.Mid / 3.6e9
		}
		return o, nil
	}
	return nil, nil
}

// Bigger returns the kind with the least memory, of those with more than the
// request's, that runs the request with as many accelerators, or with the fewest
// beyond that; nil if none does.
func Bigger(req *Request, kinds []Hardware) (*Hardware, error) {
	kinds = slices.Clone(kinds)
	slices.SortStableFunc(kinds, func(a, b Hardware) int {
		return cmp.Or(cmp.Compare(a.Capacity, b.Capacity), cmp.Compare(a.Price.Low, b.Price.Low))
	})
	for n := req.Hardware.Count; n <= maxGPUs; n *= 2 {
		for i := range kinds {
			h := kinds[i]
			h.Host, h.HostAssumed = req.Hardware.Host, req.Hardware.HostAssumed
			if float64(h.Capacity) < 1.05*float64(req.Hardware.Capacity) || !suits(&h, req) {
				continue
			}
			h.Count = n
			if h.Pairs && n > 2 {
				h.Device.Link = 0
			}
			t, err := scan(req, h)
			if err != nil {
				return nil, err
			}
			if t > 0 {
				return &h, nil
			}
		}
	}
	return nil, nil
}

// RunsAlso are the kinds on which a plan of the result runs as it is, its own
// first: with no less memory than it may take, the number formats, as many in a
// machine, and no slower as far as the prediction tells.
func (r *Result) RunsAlso(pl *Plan, kinds []Hardware) []string {
	p, own := r.planner, &r.planner.req.Hardware
	out := []string{own.Name}
	st := pl.Choice.speedSetting(p.space)
	for i := range kinds {
		h := &kinds[i]
		peak := float64(pl.Need.Device.High + max(0, h.Outside-own.Outside))
		switch {
		case slices.Contains(out, h.Name), !suits(h, p.req), peak > float64(h.Capacity)*(1-p.req.Headroom),
			h.Device.PerNode < min(own.Device.PerNode, pl.Choice.GPUs), p.space.consts.Estimate(p.space.net, &h.Device, &st).Mid > pl.Time.Mid:
			continue
		}
		out = append(out, h.Name)
	}
	return out
}
