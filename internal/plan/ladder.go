package plan

import (
	"unoom/internal/remedy"
	"unoom/internal/speed"
	"unoom/internal/units"
)

// A Step is one change on the way from the present setting to a plan.
type Step struct {
	// Code is that of the remedy, or speed.* for a change that spends memory
	// that others freed.
	Code remedy.Code
	// Also has the codes of what changes with it.
	Also []remedy.Code
	// From and To are the values changed, in the words of the workload's flags.
	From, To string
	// Saves is how much less of the card is taken after the step, Peak what is
	// taken then.
	Saves, Peak units.Bytes
	// Host is what each accelerator has in host memory after the step, Moved how
	// much of it the step put there.
	Host, Moved units.Bytes
	// Slowdown is step time after over step time before.
	Slowdown float64
	Exact    bool
}

// Codes of steps that are not remedies: they spend memory.
const (
	LargerMicroBatch remedy.Code = "speed.larger_micro_batch"
	LessRecompute    remedy.Code = "speed.less_recompute"
	LessSharding     remedy.Code = "speed.less_sharding"
	LessOffload      remedy.Code = "speed.less_offload"
	FP8Products      remedy.Code = "speed.fp8"
	ExpertParallel   remedy.Code = "parallel.expert"
)

// A move makes one kind of change on the way to a choice. It returns the code of
// what it changed, "" if nothing.
type move func(cur, to *Choice) change

// A change is what a move did.
type change struct {
	code     remedy.Code
	also     []remedy.Code
	from, to string
	loose    bool // it changes what is computed
}

// moves are in the order of a ladder: what costs nothing first, then what saves
// memory, then what changes the mathematics, and last what spends memory again.
func (p *planner) moves() []move {
	return []move{
		moveAttention, moveLoss, moveAllocator, moveFused,
		p.moveLayout,
		func(c, to *Choice) change {
			if to.Micro*to.Seq >= c.Micro*c.Seq {
				return change{}
			}
			return moveBatch(c, to)
		},
		func(c, to *Choice) change {
			if p.recomputed(to) <= p.recomputed(c) {
				return change{}
			}
			return p.moveRecompute(c, to)
		},
		p.moveOffload,
		movePrecision, moveOptimizer, moveMethod, moveSeq,
		moveBatch, p.moveRecompute,
	}
}

func moveAttention(c, to *Choice) change {
	if c.Attention == to.Attention {
		return change{}
	}
	from := c.Attention
	c.Attention = to.Attention
	return change{code: "attention.flash", from: string(from), to: string(to.Attention)}
}

func moveLoss(c, to *Choice) change {
	if c.Loss == to.Loss {
		return change{}
	}
	from := c.Loss
	c.Loss = to.Loss
	code := remedy.Code("loss.fused_linear")
	if to.Loss == ChunkedLoss {
		code = "loss.chunked"
	}
	return change{code: code, from: string(from), to: string(to.Loss)}
}

func moveAllocator(c, to *Choice) change {
	if c.Expandable == to.Expandable {
		return change{}
	}
	c.Expandable = to.Expandable
	return change{code: "allocator.expandable_segments", from: "False", to: "True"}
}

func moveFused(c, to *Choice) change {
	if c.Optimizer != AdamW || to.Optimizer != AdamWFused {
		return change{}
	}
	c.Optimizer = AdamWFused
	return change{code: "optimizer.fused", from: string(AdamW), to: string(AdamWFused)}
}

// moveOffload moves parts to host memory. One accelerator has to be set up as a
// group of one to offload weights, which is part of the same step.
func (p *planner) moveOffload(c, to *Choice) change {
	from, dest := c.OffloadName(), to.OffloadName()
	if from == dest {
		return change{}
	}
	c.OffloadOptimizer, c.OffloadWeights, c.OffloadActivations = to.OffloadOptimizer, to.OffloadWeights, to.OffloadActivations
	c.Sharding, c.Shard = to.Sharding, to.Shard
	ch := change{code: LessOffload, from: from, to: dest}
	switch {
	case to.OffloadWeights:
		ch.code = "offload.parameters"
	case to.OffloadOptimizer:
		ch.code = "offload.optimizer"
	case to.OffloadActivations:
		ch.code = "offload.activations"
	}
	return ch
}

func movePrecision(c, to *Choice) change {
	if c.Precision == to.Precision {
		return change{}
	}
	from := c.Precision
	c.Precision = to.Precision
	code := remedy.Code("precision.autocast")
	switch to.Precision {
	case Mixed8:
		code = FP8Products
	case Pure16:
		code = "precision.bf16_weights"
	}
	return change{code: code, from: string(from), to: string(to.Precision), loose: true}
}

func moveOptimizer(c, to *Choice) change {
	if c.Optimizer == to.Optimizer {
		return change{}
	}
	from := c.Optimizer
	c.Optimizer = to.Optimizer
	code := remedy.Code("optimizer.8bit")
	if to.Optimizer == Adafactor {
		code = "optimizer.factored"
	}
	return change{code: code, from: string(from), to: string(to.Optimizer), loose: true}
}

func moveMethod(c, to *Choice) change {
	if c.Method == to.Method {
		return change{}
	}
	from := c.Method
	c.Method, c.Rank = to.Method, to.Rank
	return change{code: remedy.Code("peft." + string(to.Method)), from: string(from), to: string(to.Method), loose: true}
}

func moveSeq(c, to *Choice) change {
	if c.Seq == to.Seq {
		return change{}
	}
	from := c.Seq
	c.Seq = to.Seq
	return change{code: "sequence.shorter", from: itoa(from), to: itoa(to.Seq), loose: true}
}

// ladder lists the steps from the present setting to a choice, each with what
// it saves and costs after the ones before. The engine judges both ends; between
// them the closed form is scaled so that it meets the engine at each end, since
// a run of the engine for every rung would take longer than the search.
func (p *planner) ladder(to *Choice) []Step {
	type stop struct {
		change
		peak, time, host float64
	}
	cur := p.base
	// One measure for the whole way: the engine's where it plays both ends.
	quick := p.ask(&p.base).played && p.ask(to).played
	form := func() float64 {
		if quick {
			return p.ask(&cur).total
		}
		return p.space.form.peak(&cur).total
	}
	stopAt := func(ch change) stop { return stop{ch, form(), p.space.time(&cur), p.space.form.peak(&cur).host} }
	stops := []stop{stopAt(change{})}
	for _, m := range p.moves() {
		before := cur.Micro
		if ch := m(&cur, to); ch.code != "" {
			ch.loose = ch.loose || p.space.batchNorm() && cur.Micro != before
			stops = append(stops, stopAt(ch))
		}
	}
	first, last := float64(p.judge(&p.base).Device.High), float64(p.judge(to).Device.High)
	n := len(stops) - 1
	if n < 1 {
		return nil
	}
	top, way := stops[0].peak, stops[0].peak-stops[n].peak
	atFirst, atLast := first/top, last/stops[n].peak
	for i := range stops {
		// In the proportion of the way down, so that a step that changes nothing
		// of the form's peak changes nothing here.
		share := float64(i) / float64(n)
		if way > 0 {
			share = min(1, max(0, (top-stops[i].peak)/way))
		}
		stops[i].peak *= atFirst + (atLast-atFirst)*share
	}
	var out []Step
	for i := 1; i <= n; i++ {
		x := &stops[i]
		s := Step{Code: x.code, Also: x.also, From: x.from, To: x.to, Peak: units.Bytes(x.peak), Saves: units.Bytes(stops[i-1].peak - x.peak), Exact: !x.loose, Slowdown: 1, Host: units.Bytes(x.host)}
		s.Moved = s.Host - units.Bytes(stops[i-1].host)
		if t := stops[i-1].time; t > 0 {
			s.Slowdown = x.time / t
		}
		out = append(out, s)
	}
	return out
}

// moveLayout changes how the work is spread over accelerators.
func (p *planner) moveLayout(c, to *Choice) change {
	same := c.GPUs == to.GPUs && c.Tensor == to.Tensor && c.Pipeline == to.Pipeline && c.Chunks == to.Chunks && c.Context == to.Context && c.Expert == to.Expert &&
		c.Data == to.Data && c.Sharding == to.Sharding && c.Shard == to.Shard
	if same || c.GPUs == 1 && to.GPUs == 1 { // a group of one is for offloading
		return change{}
	}
	from := c.LayoutName()
	var codes []remedy.Code
	if c.Sharding != to.Sharding {
		code := LessSharding
		switch {
		case to.Sharding == speed.DDP:
			code = "parallel.ddp"
		case to.Sharding == speed.FSDP || to.Sharding == speed.ZeRO3:
			code = "parallel.fsdp"
		case to.Sharding == speed.ZeRO1 || to.Sharding == speed.ZeRO2:
			code = "parallel.shard_optimizer"
		}
		codes = append(codes, code)
	}
	for _, d := range []struct {
		now, then int
		code      remedy.Code
	}{{c.Tensor, to.Tensor, "parallel.tensor"}, {c.Pipeline, to.Pipeline, "parallel.pipeline"}, {c.Context, to.Context, "parallel.context"}, {c.Expert, to.Expert, ExpertParallel}} {
		if d.then > d.now {
			codes = append(codes, d.code)
		}
	}
	if len(codes) == 0 {
		codes = []remedy.Code{"parallel.fsdp"}
		if to.Sharding == speed.DDP || to.Sharding == speed.NoSharding {
			codes[0] = "parallel.ddp"
		}
	}
	c.GPUs, c.Tensor, c.Pipeline, c.Chunks, c.Context, c.Expert = to.GPUs, to.Tensor, to.Pipeline, to.Chunks, to.Context, to.Expert
	c.Data, c.Sharding, c.Shard = to.Data, to.Sharding, to.Shard
	// The batch stays whole: with another number of ranks, another accumulation.
	per := p.space.batch / c.Data
	for c.Micro = min(c.Micro, per); per%c.Micro != 0; {
		c.Micro--
	}
	c.Accumulation = per / c.Micro
	if c.Recompute != RecomputeNone { // in proportion to the layers of the rank
		c.Layers = p.space.layersOfRank(c)
	}
	return change{code: codes[0], also: codes[1:], from: from, to: c.LayoutName()}
}

func moveBatch(c, to *Choice) change {
	if c.Micro == to.Micro && c.Accumulation == to.Accumulation {
		return change{}
	}
	from, smaller := c.BatchName(), to.Micro < c.Micro
	c.Micro, c.Accumulation = to.Micro, to.Accumulation
	code := LargerMicroBatch
	if smaller {
		code = "accumulate.split"
	}
	return change{code: code, from: from, to: c.BatchName()}
}

// recomputed is how much of the forward pass a choice computes again.
func (p *planner) recomputed(c *Choice) float64 {
	share := float64(c.Layers) / float64(max(p.space.layersOfRank(c), 1))
	switch c.Recompute {
	case RecomputeFull:
		return share
	case RecomputeSelective:
		return share / 4
	}
	return 0
}

func (p *planner) moveRecompute(c, to *Choice) change {
	per := p.space.layersOfRank(to)
	from, dest := c.RecomputeName(per), to.RecomputeName(per)
	less := p.recomputed(to) < p.recomputed(c)
	c.Recompute, c.Layers = to.Recompute, to.Layers
	switch {
	case from == dest:
		return change{}
	case less:
		return change{code: LessRecompute, from: from, to: dest}
	case to.Recompute == RecomputeSelective:
		return change{code: "recompute.selective", from: from, to: dest}
	}
	return change{code: "recompute.checkpointing", from: from, to: dest}
}
