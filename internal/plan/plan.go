// Package plan answers what to change so that a training run fits its
// accelerators and is as fast as it can be: it searches micro-batch and
// accumulation, recomputation, sharding and parallelism, offload, and what else
// the caller allows, with the effective batch kept exactly.
//
// The search orders settings by closed forms of memory (form.go) and of time
// (package speed), prunes by bounds that keep the whole front of speed against
// memory, and hands what it finds to the engine of package memory, which
// decides. Where the two differ the search is repeated with the difference taken
// off. A plan says how it was reached: each change with its remedy's code, the
// bytes it saves and the time it costs.
//
// Invariants: every plan trains exactly the asked batch; unless the caller
// allows more, it computes the same up to rounding; what a training stack cannot
// do is not proposed for it. The package writes no files: that is package emit.
package plan

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"unoom/internal/memory"
	"unoom/internal/remedy"
	"unoom/internal/speed"
	"unoom/internal/units"
	"unoom/internal/workload"
)

// Allow says which changes of what is trained a caller permits. Without any, a
// plan computes what the workload does.
type Allow struct {
	Precision bool // number formats
	PEFT      bool // adapters instead of all weights
	Optimizer bool // another state or rule
	Sequence  bool // shorter sequences
}

// Hardware is one kind of accelerator and how many of it there are.
type Hardware struct {
	Name     string
	Device   speed.Device
	Capacity units.Bytes // what the driver reports as the total
	Outside  units.Bytes // of the CUDA context and libraries
	Count    int
	// Pairs says that the links join two accelerators only.
	Pairs bool
	// Host is the memory of the host for each accelerator, 0: not known, and not
	// a limit.
	Host  units.Bytes
	Price Price
	// Machine is what a cloud calls the machine, PerMachine how many of the
	// accelerators it has; "" and 0 where the accelerators are alone.
	Machine    string
	PerMachine int
}

// A Price is the range of what one accelerator costs to rent for an hour, in US
// dollars; zero: not known.
type Price struct {
	Low, High    float64
	Source, Date string
}

// Mid is the middle of the range, in the proportion of its ends.
func (p Price) Mid() float64 { return math.Sqrt(p.Low * p.High) }

// A Judge says what a workload needs of one card. It returns an error for what
// it cannot play.
type Judge func(*workload.Workload) (*memory.Estimate, error)

// A Judgement is the need of one workload.
type Judgement struct {
	Device units.Estimate // all of the card: what nvidia-smi would show
	Phase  remedy.Phase   // of the peak
	// Engine is the engine's estimate; nil where it cannot play the run and the
	// figures are the closed form's, with its wider interval.
	Engine *memory.Estimate
	Host   units.Bytes // in host memory, for each accelerator
}

// A Request is what is asked of a plan.
type Request struct {
	// Workload is the present setting, the one the user has.
	Workload *workload.Workload
	// Batch is the effective batch in samples, 0: the workload's.
	Batch    int
	Hardware Hardware
	Allow    Allow
	Headroom float64 // share of the capacity to leave free
	// Targets are the stacks that may run the plan; none: all that can run what
	// the workload uses.
	Targets []Target
	// NoOffload leaves host memory alone.
	NoOffload bool
	// Most is how many plans are listed, 0: 5.
	Most  int
	Judge Judge
}

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
	Present  Present
	// Plans are ranked, the recommended one first; each later one is slower and
	// leaves more memory free, or changes what is computed.
	Plans []Plan
	// Needs says what would do where there is no plan.
	Needs   []Need
	Judged  int // runs of the engine
	Closed  bool
	planner *planner
}

// planner carries one request through its stages.
type planner struct {
	req     *Request
	base    Choice
	space   *space
	budget  float64
	judged  map[Choice]Judgement
	runs    int
	closed  bool
	scale   float64 // of the closed form to the engine, as learnt
	targets []Target
}

// A RequestError says what of a request contradicts itself. Code names a
// message of the room "plan".
type RequestError struct {
	Code string
	Args []any
}

func (e *RequestError) Error() string { return fmt.Sprintf("%s %v", e.Code, e.Args) }

// Make answers a request.
func Make(req *Request) (*Result, error) {
	p, err := newPlanner(req)
	if err != nil {
		return nil, err
	}
	r := &Result{Batch: p.space.batch, Budget: units.Bytes(p.budget), Capacity: req.Hardware.Capacity, planner: p}
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

func newPlanner(req *Request) (*planner, error) {
	w, h := req.Workload, &req.Hardware
	base := choiceOf(w)
	p := &planner{req: req, base: base, judged: map[Choice]Judgement{}, scale: 1}
	batch := req.Batch
	if batch == 0 {
		batch = base.Batch()
	}
	switch {
	case h.Count < 1:
		return nil, &RequestError{"no_gpus", nil}
	case req.Headroom < 0 || req.Headroom >= 1:
		return nil, &RequestError{"headroom", []any{req.Headroom}}
	case batch < 1:
		return nil, &RequestError{"batch", []any{batch}}
	case w.Method == workload.Inference:
		return nil, &RequestError{"inference", nil}
	}
	if req.Judge == nil {
		p.scale = formMargin
	}
	p.budget = float64(h.Capacity) * (1 - req.Headroom)
	p.targets = req.Targets
	if len(p.targets) == 0 {
		p.targets = Targets()
	}
	image, net, err := imageOf(w)
	if err != nil {
		return nil, err
	}
	if image == nil {
		net = speed.FromModel(w.Model)
	} else if p.targets = ofImages(p.targets); len(p.targets) == 0 {
		return nil, &RequestError{"image_target", []any{req.Targets}}
	}
	d := h.Device
	s := &space{
		shape: newShape(w.Model, image, w.Adapter.Targets), net: net, device: &d, consts: speed.Default(),
		batch: batch, perNode: max(d.PerNode, 1), budget: p.budget, host: float64(h.Host), stacks: stacksOf(p.targets),
		base: base, methods: []Method{base.Method}, precisions: []Precision{base.Precision}, seqs: []int{base.Seq},
		offload: !req.NoOffload, slowest: 2,
	}
	for g := h.Count; g >= 1; g /= 2 {
		s.gpus = append(s.gpus, g)
		if g%2 != 0 {
			break
		}
	}
	s.form = &form{s: s.shape, outside: float64(h.Outside), link: d.Link > 0, packed: packedBytes(w.Base), kbit: w.Adapter.KBit, fused: w.Kernels.FusedNorm != "" || w.Kernels.FusedMLP != ""}
	s.optimizers = []Optimizer{base.Optimizer}
	if base.Optimizer == AdamW {
		s.optimizers = []Optimizer{AdamWFused, AdamW}
	}
	s.losses = []Loss{base.Loss}
	if s.shape.vocab > 0 && base.Loss == PlainLoss {
		s.losses = []Loss{FusedLoss, ChunkedLoss, PlainLoss}
	}
	s.attentions = []Attention{base.Attention}
	if base.Attention == EagerAttention {
		s.attentions = []Attention{SDPAAttention, EagerAttention}
	}
	if s.batchNorm() {
		s.micro = base.Micro
	}
	last, _ := w.Option("channels_last")
	s.channelsLast = strings.EqualFold(last, "true")
	p.space = s
	return p, nil
}

// packedBytes is the size of a weight of a quantised base with its scales.
// Source: bitsandbytes functional.py: blocks of 64 with a float32 scale, scales
// quantised again to 8 bits in blocks of 256; GPTQ: groups of 128.
func packedBytes(q workload.Quantization) float64 {
	switch q {
	case workload.NF4:
		return 0.5 + 4.0/64
	case workload.GPTQ4:
		return 0.5 + 2.5/128
	case workload.Int8:
		return 1
	}
	return 0.5 + 1.0/64 + 4.0/(64*256)
}

// loosened is the space with what the caller allows beyond the present
// mathematics, nil if nothing.
func (p *planner) loosened() *space {
	a := p.req.Allow
	s := *p.space
	s.slowest = 1.5
	changed := false
	add := func() { changed = true }
	if a.Precision {
		for _, f := range []Precision{Mixed16, Mixed8, Pure16} {
			if f == Mixed8 && s.device.FP8 == 0 || f == s.base.Precision || s.base.Method != FullTune {
				continue
			}
			s.precisions = append(slices.Clone(s.precisions), f)
			add()
		}
	}
	if a.Optimizer {
		for _, o := range []Optimizer{AdamW8bit, Adafactor} {
			if o != s.base.Optimizer {
				s.optimizers = append(slices.Clone(s.optimizers), o)
				add()
			}
		}
	}
	if s.micro > 0 { // accumulation under BatchNorm
		s.micro = 0
		add()
	}
	if a.PEFT && s.shape.image == nil && s.base.Method == FullTune {
		s.methods = append(slices.Clone(s.methods), LoRA, QLoRA)
		add()
	}
	if a.PEFT && s.base.Method == LoRA {
		s.methods = append(slices.Clone(s.methods), QLoRA)
		add()
	}
	if !changed {
		return nil
	}
	return &s
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

// judge says what a choice needs, by the engine where it can play it.
func (p *planner) judge(c *Choice) Judgement {
	if j, ok := p.judged[*c]; ok {
		return j
	}
	n := p.space.form.peak(c)
	j := Judgement{Phase: phaseOf(n.at), Host: units.Bytes(n.host)}
	if p.req.Judge != nil && p.runs < maxRuns && p.played(c) {
		w := p.workloadOf(c)
		// From the second micro-batch on all are alike, in a pipeline from the
		// second time it is full.
		if most := 2 * int64(c.Pipeline); w.Accumulation > most {
			w = w.Clone()
			w.Accumulation = most
		}
		if est, err := fullest(p.req.Judge, w); err == nil {
			p.runs++
			j.Engine, j.Phase = est, remedy.Phase(est.Phase)
			j.Device = cardOf(est, units.Bytes(n.outside))
			p.judged[*c] = j
			return j
		}
	}
	p.closed = true
	total := n.total
	if p.runs > 0 {
		total *= p.scale / formMargin
	}
	j.Device = units.Estimate{Low: units.Bytes(total * 0.9), Mid: units.Bytes(total), High: units.Bytes(total * formMargin)}
	p.judged[*c] = j
	return j
}

// played reports whether the engine plays everything that a choice sets. What it
// knows that it does not play it refuses itself.
//
// Known gap: the engine does not yet look at the offload of activations, at
// selective recomputation outside of torchtitan, or at recomputation of some
// layers only; its figures would be those of other settings.
func (p *planner) played(c *Choice) bool {
	partial := c.Recompute == RecomputeFull && c.Layers < p.space.layersOfRank(c)
	selective := c.Recompute == RecomputeSelective && p.target(c) != Torchtitan
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

// target is the stack a choice is written for: the one the workload uses if it
// can, else the first that can.
func (p *planner) target(c *Choice) Target {
	who := p.space.who(c)
	own := map[workload.Framework]Target{workload.HFTrainer: HF, workload.Torchtitan: Torchtitan, workload.Megatron: Megatron, workload.DeepSpeed: DeepSpeed}[p.req.Workload.Framework]
	if slices.Contains(who, own) {
		return own
	}
	if len(who) > 0 {
		return who[0]
	}
	return AnyTarget
}

func (p *planner) workloadOf(c *Choice) *workload.Workload {
	if *c == p.base {
		return p.req.Workload
	}
	return apply(p.req.Workload, &p.base, c, p.target(c))
}

// best returns the front of a space as the engine sees it: its fastest member
// fits by the engine's high figure. The closed form's budget is moved by what
// the engine says of the fastest until they agree.
func (p *planner) best(s *space) []candidate {
	var accepted []candidate
	for round := range 8 {
		s.budget = p.budget / p.scale
		list := s.search()
		if len(list) == 0 {
			if p.scale > 1.02 && round < 4 && len(accepted) == 0 {
				p.scale = 1 + (p.scale-1)/2 // perhaps learnt from a setting unlike the rest
				continue
			}
			break
		}
		j := p.judge(&list[0].Choice)
		ratio := float64(j.Device.High) / list[0].need.total
		if p.fits(&j) {
			if len(accepted) == 0 || list[0].time < accepted[0].time {
				accepted = list
			}
			// Room that the closed form did not see may hold a faster setting.
			if next := ratio * 1.005; next < p.scale*0.97 && round < 6 {
				p.scale = max(next, p.scale*0.85)
				continue
			}
			break
		}
		if len(accepted) > 0 { // the larger budget went too far
			break
		}
		p.scale = max(ratio*1.005, p.scale*1.01)
	}
	return accepted
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
		form := p.space.form.peak(&c).total
		if len(out) > 0 && last-form < 0.06*float64(p.req.Hardware.Capacity) {
			continue
		}
		j := p.judge(&c)
		if !p.fits(&j) || len(out) > 0 && j.Device.High >= out[len(out)-1].Need.Device.High {
			continue
		}
		last = form
		out = append(out, p.plan(&c, j, exact))
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
	best, at := 0.0, 0
	for i := range front {
		if front[i].time > front[0].time*1.06 {
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
	try := func(change func(*Choice)) {
		n := out
		change(&n)
		if n == out || s.check(&n) != "" || s.time(&n) > before*1.002 {
			return
		}
		if need := s.form.peak(&n); need.total <= p.budget/p.scale*0.98 {
			out = n
		}
	}
	try(func(n *Choice) { n.Loss = b.Loss })
	try(func(n *Choice) { n.Expandable = b.Expandable })
	try(func(n *Choice) { n.Optimizer = b.Optimizer })
	try(func(n *Choice) { n.OffloadActivations = b.OffloadActivations })
	try(func(n *Choice) { n.Sharding, n.Shard = b.Sharding, b.Shard })
	if out != c {
		if j := p.judge(&out); !p.fits(&j) {
			return c
		}
	}
	return out
}

// fits reports whether a judged setting is within the budget.
func (p *planner) fits(j *Judgement) bool { return float64(j.Device.High) <= p.budget }

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
