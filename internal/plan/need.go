package plan

import (
	"unoom/internal/units"
)

// A NeedKind is a way in which an impossible request becomes possible.
type NeedKind string

// The ways, in the order in which they are listed.
const (
	NeedGPUs      NeedKind = "more_gpus"     // more of the same accelerator
	NeedBigger    NeedKind = "bigger_gpu"    // another accelerator
	NeedOptimizer NeedKind = "optimizer"     // --allow optimizer
	NeedPrecision NeedKind = "precision"     // --allow precision
	NeedPEFT      NeedKind = "peft"          // --allow peft
	NeedSequence  NeedKind = "sequence"      // --allow sequence
	NeedHeadroom  NeedKind = "less_headroom" // a smaller --headroom
	NeedTarget    NeedKind = "target"        // another stack
	NeedHost      NeedKind = "host_memory"   // more memory of the host
)

// A Need is what would make an impossible request possible.
type Need struct {
	Kind NeedKind
	// GPUs and GPU are the accelerators needed.
	GPUs int
	GPU  string
	// Method, Optimizer, Precision and Seq are what the change would be.
	Choice Choice
	Peak   units.Bytes // what the setting then takes of a card
	Time   float64     // microseconds of a step
	Target Target      // the stack it is written for
	Host   units.Bytes // in host memory, for each accelerator
}

// needs looks for the nearest requests that can be answered: more of the same
// accelerators first, then what would have to be allowed.
func (p *planner) needs() []Need {
	var out []Need
	found := func(k NeedKind, s *space, count int) bool {
		list := p.best(s)
		if len(list) == 0 {
			return false
		}
		c := list[0].Choice
		j := p.judge(&c)
		out = append(out, Need{Kind: k, GPUs: count, GPU: p.req.Hardware.Name, Choice: c, Peak: j.Device.High, Time: p.space.time(&c), Target: p.stackOf(s, &c), Host: j.Host})
		return true
	}
	count := p.req.Hardware.Count
	if p.req.Headroom > 0 {
		// With less headroom than asked: the budget is the whole card.
		whole := *p
		whole.budget = float64(p.req.Hardware.Capacity)
		if list := whole.best(p.space); len(list) > 0 {
			c := list[0].Choice
			out = append(out, Need{Kind: NeedHeadroom, GPUs: count, GPU: p.req.Hardware.Name, Choice: c, Peak: whole.judge(&c).Device.High, Time: p.space.time(&c), Target: p.target(&c)})
		}
		p.runs += whole.runs
	}
	base := *p.space
	for n := nextCount(count, base.perNode); n <= maxGPUs; n = nextCount(n, base.perNode) {
		s := base
		s.gpus = []int{n}
		if found(NeedGPUs, &s, n) {
			break
		}
	}
	s := base
	if s.host > 0 && s.offload {
		s.host = 0
		found(NeedHost, &s, count)
		s = base
	}
	s.optimizers = []Optimizer{AdamW8bit, Adafactor}
	found(NeedOptimizer, &s, count)
	tokens := base.shape.image == nil
	if base.base.Method == FullTune {
		s = base
		s.precisions = []Precision{Pure16}
		if base.base.Precision == Float32 {
			s.precisions = []Precision{Mixed16, Pure16}
		}
		if base.base.Precision != Pure16 {
			found(NeedPrecision, &s, count)
		}
		s = base
		s.methods = []Method{LoRA}
		if tokens && !found(NeedPEFT, &s, count) {
			p.needQuantised(base, found)
		}
	} else if base.base.Method == LoRA {
		p.needQuantised(base, found)
	}
	for _, eighths := range []int{6, 4, 3, 2, 1} {
		s = base
		s.seqs = []int{max(1, p.base.Seq*eighths/8)}
		if !tokens || found(NeedSequence, &s, count) {
			break
		}
	}
	if len(p.req.Targets) > 0 && len(p.req.Targets) < len(Targets()) {
		s = base
		s.stacks = stacksOf(Targets())
		found(NeedTarget, &s, count)
	}
	return out
}

// needQuantised looks for the fewest accelerators that hold a quantised base with
// adapters.
func (p *planner) needQuantised(base space, found func(NeedKind, *space, int) bool) {
	for n := p.req.Hardware.Count; n <= maxGPUs; n = nextCount(n, base.perNode) {
		s := base
		s.methods, s.gpus = []Method{QLoRA}, []int{n}
		if found(NeedPEFT, &s, n) {
			return
		}
	}
}

// maxGPUs is the largest number of accelerators that is looked at.
const maxGPUs = 4096

// nextCount is the next number of accelerators people have: powers of two, and
// beyond a node whole nodes.
func nextCount(n, node int) int {
	p := 1
	for p <= n {
		p *= 2
	}
	if n >= node && node > 1 {
		for w := node; ; w *= 2 {
			if w > n {
				return w
			}
		}
	}
	return p
}

// stackOf is the first of a space's stacks that can run a choice.
func (p *planner) stackOf(s *space, c *Choice) Target {
	if who := s.who(c); len(who) > 0 {
		return who[0]
	}
	return p.target(c)
}

// NeedOn is what another kind of accelerator needs for a request, and whether it
// does at all.
func NeedOn(req *Request, h Hardware) (Need, bool) {
	full := *req
	full.Hardware = h
	p, err := newPlanner(&full)
	if err != nil {
		return Need{}, false
	}
	list := p.best(p.space)
	if len(list) == 0 {
		return Need{}, false
	}
	c := list[0].Choice
	return Need{Kind: NeedBigger, GPUs: h.Count, GPU: h.Name, Choice: c, Peak: p.judge(&c).Device.High, Time: p.space.time(&c), Target: p.target(&c)}, true
}
