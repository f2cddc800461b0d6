package plan

import (
	"slices"
	"strings"

	"unoom/internal/speed"
	"unoom/internal/workload"
)

// planner carries one request through its stages.
type planner struct {
	req    *Request
	base   Choice
	space  *space
	budget float64
	judged map[Choice]Judgement
	runs   int
	closed bool
	// asked is what the engine said of settings met by the search, quickly.
	asked map[Choice]asked
	looks int
	// wide is the high end of the engine's estimate over its quick answer, as
	// learnt: what alternatives and the allocator may add.
	wide    float64
	targets []Target
}

func newPlanner(req *Request) (*planner, error) {
	w, h := req.Workload, &req.Hardware
	base := choiceOf(w)
	p := &planner{req: req, base: base, judged: map[Choice]Judgement{}, asked: map[Choice]asked{}, wide: 1}
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
		p.wide = formMargin
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
	s.measured = map[kind]float64{}
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
