package memory

import (
	"fmt"

	"unoom/internal/alloc"
	"unoom/internal/units"
	"unoom/internal/workload"
)

// A NotModelled error says what of a workload the engine cannot play. It is an
// answer: no number is better than a guess.
type NotModelled struct{ What string }

func (e *NotModelled) Error() string { return e.What + " is not modelled" }

// Engine answers what a workload needs. It is safe for concurrent use.
type Engine struct {
	variants Variants
}

// New returns an engine with the variants that the program carries.
func New() (*Engine, error) {
	vs, err := PublishedVariants()
	if err != nil {
		return nil, err
	}
	return &Engine{vs}, nil
}

// A Peak is the highest point of one phase.
type Peak struct {
	Phase     Phase
	Label     string
	Iteration int
	Allocated units.Bytes
	// Items are what it is made of, of phases beside the training steps.
	Items []Share
	at    int
}

// An Estimate is what a workload needs on one GPU.
type Estimate struct {
	Allocated, Reserved, Device units.Estimate
	// Held is what is allocated when the last thing that is played has ended: a
	// training step, or the forward pass where there is nothing else.
	Held    units.Bytes
	Phase   Phase
	Phases  []Peak
	Items   []Share // of the peak; they sum to Allocated.Mid
	Outside []Outside
	Choices []Choice
	// Stages is what the stages of a pipeline need, the fullest first: the other
	// figures are its. It is empty where one rank was asked for.
	Stages []Stage
	// Unplayed names what the workload does beside its training steps that has no
	// player: no figure counts it.
	Unplayed []string
	// Verdict is "fits", "tight" or "does_not_fit"; "" if the card is not known.
	Verdict string
}

// A Choice is a setting of a library that the estimate rests on.
type Choice struct {
	Setting, Value string
	Variant        string // entry of catalog/variants
	Source         string
	Others         []Alternative
}

// An Alternative is what a setting is in other versions, or elsewhere.
type Alternative struct {
	Value string
	// Moves is by how much it would move the allocated peak.
	Moves units.Bytes
}

// Estimate plays the workload and, for each choice that nobody could make for
// sure, its alternatives.
func (e *Engine) Estimate(w *workload.Workload) (*Estimate, error) {
	w = asImages(w)
	choices := e.variants.choose(w)
	lib, err := e.libraryOf(w)
	if err != nil {
		return nil, err
	}
	w, stages := fullest(w, lib)
	est := &Estimate{Outside: outsideOf(w, lib), Stages: stages}
	room, least := usable(w, est.Outside)
	if w.GPU.Capacity > 0 && room <= 0 {
		return nil, fmt.Errorf("the card's %s are taken before the program allocates", w.GPU.Capacity)
	}
	mid, err := play(w, lib, 0)
	if err != nil {
		return nil, err
	}
	reserved := mid.reserved
	if room > 0 {
		est.Verdict, reserved = fit(w, lib, mid, room, least)
	}
	defer mid.done()
	if len(stages) > 0 { // the others are known by folded plays
		stages[0].Allocated = units.Bytes(mid.peak.allocated)
	}
	est.Phase, est.Items = mid.peak.phase, mid.x.breakdown(mid.peak.at)
	est.phases(&mid.x)
	est.Unplayed = mid.x.unplayed
	est.Held = units.Bytes(mid.ends[len(mid.ends)-1])
	est.Allocated, est.Reserved = units.Exactly(units.Bytes(mid.peak.allocated)), units.Exactly(units.Bytes(reserved))
	e.span(est, w, lib, choices, mid)
	est.scattered(w)
	est.outside()
	if est.Verdict == Fits && est.Device.High > w.GPU.Capacity {
		est.Verdict = Tight // what is likely fits, what is possible does not
	}
	return est, nil
}

// span widens the figures to what the alternatives of each choice would make of
// them.
func (e *Engine) span(est *Estimate, w *workload.Workload, lib library, choices []choice, mid *played) {
	base, err := foldedPlay(w, lib)
	if err == nil && base != nil {
		defer base.close()
	}
	for _, c := range choices {
		made := Choice{c.key, c.value, c.from.Name, c.from.Source, make([]Alternative, len(c.others))}
		est.Choices = append(est.Choices, made)
		for i, o := range c.others {
			made.Others[i].Value = o
			l := lib
			if c.key == "modules" {
				continue // nothing of it is in torch's allocator
			}
			if l.set(c.key, o) != nil {
				continue
			}
			allocated, reserved, ok := differs(w, l, base, mid, c.key)
			if !ok {
				continue // the alternative cannot be played: it does not widen the answer
			}
			made.Others[i].Moves = allocated
			est.Allocated.Low, est.Allocated.High = est.Allocated.Low+min(allocated, 0), est.Allocated.High+max(allocated, 0)
			est.Reserved.Low, est.Reserved.High = est.Reserved.Low+min(reserved, 0), est.Reserved.High+max(reserved, 0)
		}
	}
	for _, other := range suppositions(w) {
		alt, err := needOf(other, lib)
		if err != nil {
			continue
		}
		est.Allocated.Low, est.Allocated.High = min(est.Allocated.Low, units.Bytes(alt.allocated)), max(est.Allocated.High, units.Bytes(alt.allocated))
		est.Reserved.Low, est.Reserved.High = min(est.Reserved.Low, units.Bytes(alt.reserved)), max(est.Reserved.High, units.Bytes(alt.reserved))
	}
}

// differs is by how much an alternative needs more than what was played. Where
// both can be folded the allocator is left out: what more is allocated, it
// reserves. A setting of the allocator itself is played.
func differs(w *workload.Workload, l library, base *folded, mid *played, key string) (allocated, reserved units.Bytes, ok bool) {
	if base != nil && key != "alloc_conf" {
		if alt, err := foldedPlay(w, l); err == nil && alt != nil {
			d := units.Bytes(alt.allocated() - base.allocated())
			alt.close()
			return d, d, true
		}
	}
	alt, err := need{}, error(nil)
	if key == "alloc_conf" {
		alt, err = mid.on(w, l, 0)
	} else {
		alt, err = needOf(w, l)
	}
	if err != nil {
		return 0, 0, false
	}
	return units.Bytes(alt.allocated - mid.peak.allocated), units.Bytes(alt.reserved - mid.reserved), true
}

// Quick says what a workload allocates at its peak, and nothing of what the
// allocator reserves for it, of alternatives or of the card: for searches that
// ask a thousand times. Where layers repeat it is the folded play, which differs
// from Estimate's by the rests that the allocator leaves in blocks: within 0.5 %
// in nineteen of twenty random runs, 3 % at worst (TestQuickIsTheEstimate).
func (e *Engine) Quick(w *workload.Workload) (Peak, error) {
	w = asImages(w)
	lib, err := e.libraryOf(w)
	if err != nil {
		return Peak{}, err
	}
	var best section
	ranks := stagesOf(w)
	if len(ranks) == 0 {
		if best, err = peakOf(w, lib); err != nil {
			return Peak{}, err
		}
	}
	for _, rank := range ranks {
		s, err := peakOf(onStage(w, rank), lib)
		if err != nil {
			return Peak{}, err
		}
		if s.allocated > best.allocated {
			best = s
		}
	}
	return Peak{Phase: best.phase, Label: best.label, Iteration: best.iteration, Allocated: units.Bytes(best.allocated)}, nil
}

// peakOf is the section with the peak of one rank, folded where layers repeat.
func peakOf(w *workload.Workload, lib library) (section, error) {
	f, err := foldedPlay(w, lib)
	if err != nil {
		return section{}, err
	}
	if f != nil {
		defer f.close()
		return f.sections[f.peak], nil
	}
	p, err := play(w, lib, 0)
	if err != nil {
		return section{}, err
	}
	defer p.done()
	return p.peak, nil
}

// fit decides whether a run fits into room bytes, and says what the allocator
// reserves there: near the limit it gives cached memory back and tries again.
// A run that only fits that way, or not within the least room there may be, is
// tight.
func fit(w *workload.Workload, lib library, free *played, room, least int64) (verdict string, reserved int64) {
	switch {
	case free.reserved <= least-margin(free.reserved):
		return Fits, free.reserved
	case free.reserved <= room:
		return Tight, free.reserved
	case free.peak.allocated > room:
		return DoesNotFit, free.reserved
	}
	bound, err := free.on(w, lib, room)
	if err != nil || bound.failed != nil {
		return DoesNotFit, free.reserved
	}
	return Tight, bound.reserved
}

// margin is how much room a run should leave. Source: memory model §4.3.
func margin(reserved int64) int64 { return max(reserved/50, 300<<20) }

// libraryOf makes the choices of the catalogue, and those that the workload
// itself states.
func (e *Engine) libraryOf(w *workload.Workload) (library, error) {
	var lib library
	for _, c := range e.variants.choose(w) {
		if err := lib.set(c.key, c.value); err != nil {
			return lib, err
		}
	}
	if w.Reentrant != nil {
		lib.reentrant = *w.Reentrant
	}
	return lib, nil
}

// phases keeps the highest section of each phase.
func (est *Estimate) phases(x *machine) {
	best := map[Phase]int{}
	for _, s := range x.sections {
		p := Peak{Phase: s.phase, Label: s.label, Iteration: s.iteration, Allocated: units.Bytes(s.allocated)}
		if s.phase == Evaluation || s.phase == Save || s.phase == Resume {
			p.at = s.at
		}
		if i, ok := best[s.phase]; !ok {
			best[s.phase] = len(est.Phases)
			est.Phases = append(est.Phases, p)
		} else if p.Allocated > est.Phases[i].Allocated {
			est.Phases[i] = p
		}
	}
	for i := range est.Phases {
		if p := &est.Phases[i]; p.at > 0 {
			p.Items = x.breakdown(p.at)
		}
	}
}

// played is the outcome of one simulated run. It holds its stage until it is
// closed.
type played struct {
	*stage
	reserved int64
	peak     section
	ends     []int64 // allocated after each iteration
	failed   error   // the first request that the card could not serve
}

// play runs a workload in one choice of its variants, on a card of room bytes,
// 0: without bound.
func play(w *workload.Workload, lib library, room int64) (*played, error) {
	conf, err := allocatorOf(w, lib)
	if err != nil {
		return nil, err
	}
	conf.Capacity = room
	out := &played{stage: newStage()}
	out.allocator(conf)
	out.x.reset(&out.dev)
	if err := out.finish(w, lib); err != nil {
		out.done()
		return nil, err
	}
	return out, nil
}

// finish runs the workload on the stage that is set, and takes down the outcome.
func (p *played) finish(w *workload.Workload, lib library) (err error) {
	if p.ends, err = run(&p.x, w, lib); err != nil {
		return err
	}
	p.reserved, p.failed = p.dev.a.PeakReservedBytes(), p.dev.failed
	for _, s := range p.x.sections {
		if s.allocated > p.peak.allocated {
			p.peak = s
		}
	}
	return nil
}

// allocatorOf is the allocator of the workload's torch, with its settings.
func allocatorOf(w *workload.Workload, lib library) (alloc.Config, error) {
	c := alloc.Config{Torch: alloc.Latest()}
	if v, err := alloc.ParseVersion(w.Version("torch")); err == nil {
		c.Torch = v
	}
	text := w.AllocConf
	if text == "" {
		text = lib.allocConf
	}
	if text == "" {
		return c, nil
	}
	s, err := alloc.ParseConf(text, c.Torch, alloc.Defaults())
	if err != nil {
		return c, err
	}
	c.Settings = s
	return c, nil
}

// run plays two iterations in the way of the workload's framework: the second
// has the optimizer's states. It returns what is allocated after each.
func run(x *machine, w *workload.Workload, lib library) ([]int64, error) {
	if w.Model.Image != nil {
		p, err := prepareImages(x, w, lib)
		if err != nil {
			return nil, err
		}
		p.train(2)
		if w.Passages() {
			x.unplayed = append(x.unplayed, passagesOf(w)+" of an image network")
		}
		return p.ends, nil
	}
	switch w.Framework {
	case workload.HFTrainer, workload.PyTorch, workload.DeepSpeed, workload.ColossalAI, workload.Composer, workload.FSDPQLoRA:
		p := &player{x: x, lib: lib, batch: w.MicroBatch, seq: w.Seq, accumulation: int(w.Accumulation), inputsPerToken: 3}
		if lib.inputs > 0 {
			p.inputsPerToken = lib.inputs
		}
		p.checkpointed = w.Checkpointing == workload.FullCheckpoint
		if !lib.images.cublasOwn {
			p.cublas = cublasWorkspace(w.GPU)
		}
		x.saveInputs = lib.images.saveInputs
		if err := p.prepareHF(w); err != nil {
			return nil, err
		}
		p.forwardOnly = w.ForwardOnly
		x.training = !w.EvalMode
		p.train(2)
		p.passages(w)
		return p.ends, nil
	}
	// What these do beside their training steps is not played.
	if w.Passages() {
		x.unplayed = append(x.unplayed, passagesOf(w)+" in "+string(w.Framework))
	}
	switch w.Framework {
	case workload.Megatron, workload.MegatronDeepSpeed:
		prepare := prepareMegatron
		if w.Framework == workload.MegatronDeepSpeed {
			prepare = prepareMegatronDeepSpeed
		}
		m, err := prepare(x, w, lib)
		if err != nil {
			return nil, err
		}
		m.train(2)
		return m.ends, nil
	case workload.Torchtune:
		t, err := prepareTune(x, w, lib)
		if err != nil {
			return nil, err
		}
		t.train(2)
		return t.ends, nil
	case workload.Torchtitan:
		t, err := prepareTitan(x, w, lib)
		if err != nil {
			return nil, err
		}
		t.train(2)
		return t.ends, nil
	}
	return nil, &NotModelled{"the framework " + string(w.Framework)}
}

// cublasWorkspace is the workspace of one thread.
// Source: aten/src/ATen/cuda/CublasHandlePool.cpp, parseChosenWorkspaceSize:
// 4096 KiB twice and 16 KiB eight times, 32 MiB from Hopper on.
func cublasWorkspace(g workload.GPU) int64 {
	if g.Compute >= 90 {
		return 32 << 20
	}
	return 2*4096*1024 + 8*16*1024
}
