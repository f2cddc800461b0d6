package memory

import (
	"cmp"
	"strings"

	"unoom/internal/model"
	"unoom/internal/workload"
)

// passages plays what the workload says happens beside its training steps. It
// comes after two of them, when weights and optimizer states are there and
// gradients are not: the trainers evaluate and save between steps. What a resumed
// run holds before its first step is the same.
func (p *player) passages(w *workload.Workload) {
	if p.forwardOnly {
		return
	}
	if w.Eval {
		p.evaluate(w)
		if w.Evaluation.NewTokens > 0 {
			if what := p.ungenerated(); what != "" {
				p.x.unplayed = append(p.x.unplayed, what)
			} else {
				p.generate(w)
			}
		}
	}
	if w.Save != workload.SaveNothing {
		p.save(w)
	}
	if w.Resume != workload.ResumeNothing {
		p.resume(w)
	}
}

// passagesOf names what a workload does beside its training steps.
func passagesOf(w *workload.Workload) string {
	var list []string
	for _, one := range []struct {
		does bool
		name string
	}{{w.Eval, "evaluation"}, {w.Save != workload.SaveNothing, "saving"}, {w.Resume != workload.ResumeNothing, "resuming"}} {
		if one.does {
			list = append(list, one.name)
		}
	}
	return strings.Join(list, ", ")
}

// during counts all sections under one phase until the returned function is
// called: an evaluation has a forward pass and a loss too.
func (x *machine) during(phase Phase, label string, iteration int) func() {
	x.begin(phase, label, iteration)
	x.passage = phase
	return func() { x.passage = "" }
}

// evaluating sets the player to a batch of the evaluation, with dropout off,
// until the returned function is called. A sample with two answers is two rows.
func (p *player) evaluating(w *workload.Workload, rows int64) func() {
	batch, seq, training, checkpointed := p.batch, p.seq, p.x.training, p.checkpointed
	p.batch = rows * max(batch/max(w.MicroBatch, 1), 1)
	// transformers recomputes in training mode only.
	p.x.training, p.checkpointed = false, false
	return func() {
		p.batch, p.seq, p.x.training, p.checkpointed = batch, seq, training, checkpointed
		p.noGrad, p.lossAlone, p.cache = false, false, nil
	}
}

// evaluate plays the evaluation loop: a forward pass for each batch, and what of
// it stays on the card.
// Source: transformers trainer.py, evaluation_loop and prediction_step.
func (p *player) evaluate(w *workload.Workload) {
	e := &w.Evaluation
	defer p.x.during(Evaluation, "evaluation", p.iteration)()
	defer p.evaluating(w, e.Batch)()
	if e.Graph {
		p.evaluateWithGraph()
		return
	}
	p.noGrad, p.lossAlone = true, e.Keep == workload.KeepLoss
	batches := ceilDiv(e.Samples, e.Batch*max(w.Parallel.Data, 1))
	if e.Keep == workload.KeepLoss || batches < 2 {
		batches = 2 // all that follow are like the second
	}
	flush := e.Accumulation
	if flush > 0 { // the host takes what was kept, and it begins anew
		batches = min(batches, flush+1)
	}
	c := collected{p: p, keep: e.Keep, ranks: max(w.Parallel.Data, 1)}
	if more := batches - mostBatches; more > 0 {
		c.skip(more)
		batches = mostBatches
	}
	var batch, outputs []tensor
	for i := range batches {
		if i < playedBatches || i >= batches-playedBatches || i == flush-1 {
			next, results := p.evaluateBatch(batch)
			p.x.drop(outputs...)
			batch, outputs = next, c.results(results)
		} else {
			outputs = c.again(outputs)
		}
		c.add()
		if i == flush-1 {
			c.toHost()
		}
	}
	p.x.drop(outputs...)
	p.x.drop(batch...)
	c.toHost()
}

// playedBatches are those at each end whose forward pass is played: of the others,
// which are alike, only what stays.
const playedBatches = 3

// mostBatches bounds the batches that are played one by one.
const mostBatches = 512

// evaluateBatch is the forward pass of one batch without gradients. It returns
// what the model's output still refers to.
func (p *player) evaluateBatch(previous []tensor) (batch, outputs []tensor) {
	x := p.x
	p.cache = nil
	if p.lib.evalCache && p.ref == nil {
		p.cache = &keyValues{}
	}
	batch, loss, outputs, outer := p.forward(previous, "evaluation")
	x.endTape(outer)
	x.drop(loss)
	p.endPass()
	if p.zero3 != nil {
		p.zero3.endBackward(true)
	}
	p.cache.drop(x)
	p.cache = nil
	return batch, outputs
}

// evaluateWithGraph is a loop without no_grad: the graph of a batch lives until
// the variables that refer to it get new values, when the next one has its own.
func (p *player) evaluateWithGraph() {
	x := p.x
	var batch, held []tensor
	var before *tape
	params := len(x.params)
	for range 2 {
		next, loss, outputs, outer := p.forward(batch, "evaluation")
		graph := x.tape
		x.tape = outer
		x.drop(held...)
		x.forget(before)
		batch, held, before = next, append(outputs, loss), graph
	}
	x.drop(held...)
	x.forget(before)
	x.drop(batch...)
	x.params = x.params[:params]
	x.grad = false
	p.endPass()
	if p.zero3 != nil {
		p.zero3.endBackward(true)
	}
}

// forget drops a graph that nobody runs backward.
func (x *machine) forget(t *tape) {
	if t == nil {
		return
	}
	for _, st := range t.saved {
		x.release(st)
	}
	for _, in := range t.in {
		if in.leaf != 0 && int(in.leaf) <= len(x.params) {
			x.params[in.leaf-1].pending--
		}
	}
	outer := x.tape
	x.tape = t
	x.endTape(outer)
}

// collected is what an evaluation loop keeps of all batches: one tensor that each
// batch is appended to.
// Source: transformers trainer_pt_utils.py, EvalLoopContainer and nested_concat.
type collected struct {
	p     *player
	keep  workload.Kept
	ranks int64
	row   tensor // what the latest batch adds; the loop holds it
	all   tensor
	held  bool
}

// results takes the outputs of a batch, and returns what stays of them for as
// long as the next batch has none: the logits of all ranks.
// Source: accelerate utils/operations.py, _gpu_gather: one tensor for all ranks.
func (c *collected) results(outputs []tensor) []tensor {
	x := c.p.x
	if c.keep == workload.KeepLoss || len(outputs) == 0 {
		if c.p.lib.keepLogits { // variables of a plain loop
			return outputs
		}
		x.drop(outputs...)
		return nil
	}
	defer x.as(Temporaries, "kept predictions")()
	t := outputs[0]
	if c.keep == workload.KeepIDs {
		ids := x.tensor(t.n/c.p.vocabulary(), i64) // preprocess_logits_for_metrics: argmax
		x.drop(outputs...)
		t = ids
	} else {
		x.drop(outputs[1:]...)
	}
	if c.ranks > 1 {
		all := x.tensor(c.ranks*t.n, t.dt)
		x.drop(t)
		t = all
	}
	c.row = t
	return []tensor{t}
}

// again is what the next batch leaves, of the same size.
func (c *collected) again(outputs []tensor) []tensor {
	if len(outputs) == 0 || c.row.n == 0 {
		return outputs
	}
	defer c.p.x.as(Temporaries, "kept predictions")()
	next := c.p.x.tensor(c.row.n, c.row.dt)
	c.p.x.drop(outputs...)
	c.row = next
	return []tensor{next}
}

// add appends a batch: the joined tensor is made while both parts live.
func (c *collected) add() {
	if c.row.n == 0 {
		return
	}
	x := c.p.x
	defer x.as(Temporaries, "kept predictions")()
	if !c.held {
		c.all, c.held = x.keep(c.row), true // the first is kept as it is
		return
	}
	x.giveBack()
	joined := x.tensor(c.all.n+c.row.n, c.row.dt)
	x.drop(c.all)
	c.all = joined
}

// skip starts with some batches kept.
func (c *collected) skip(batches int64) {
	if c.keep == workload.KeepLoss {
		return
	}
	defer c.p.x.as(Temporaries, "kept predictions")()
	n, d := c.p.tokens(), i64
	if c.keep == workload.KeepLogits {
		n, d = n*c.p.vocabulary(), f32
	}
	c.all, c.held = c.p.x.tensor(batches*c.ranks*n, d), true
}

// toHost ends what is kept on the card.
func (c *collected) toHost() {
	if c.held {
		c.p.x.drop(c.all)
		c.held = false
	}
}

// vocabulary is how many logits a token has.
func (p *player) vocabulary() int64 {
	if p.net.head == nil {
		return 1
	}
	return p.net.head.out
}

// giveBack returns cached memory to CUDA, where the card has no bound: on one that
// has, the allocator does it by itself before it fails. A tensor that grows batch
// by batch would leave its earlier sizes in the cache.
func (x *machine) giveBack() {
	if d, ok := x.dev.(*cachingAllocator); ok && d.unbounded {
		d.a.EmptyCache()
		x.turn(true)
	}
}

// keyValues are the keys and values of all layers that a forward pass with
// use_cache has seen so far.
// Source: transformers cache_utils.py, DynamicCache.
type keyValues struct {
	layers []keyValue
	at     int // the layer that runs next
}

type keyValue struct{ k, v tensor }

// update appends the keys and values of new tokens to a layer's, and returns all.
// It takes over its arguments.
func (c *keyValues) update(x *machine, h heads, window int64, k, v tensor) (tensor, tensor, heads) {
	defer x.as(Temporaries, "key-value cache")()
	i := c.at
	c.at++
	before := int64(0)
	if i == len(c.layers) {
		c.layers = append(c.layers, keyValue{none(), none()})
	} else {
		before = c.layers[i].k.n / max(h.batch*h.kv*h.dim, 1)
	}
	old := c.layers[i]
	h.keySeq = before + h.seq
	if window > 0 && before >= window {
		h.keySeq = window
	}
	all := keyValue{x.tensor(h.k(), k.dt), none()}
	x.drop(old.k, k)
	all.v = x.tensor(h.v(), v.dt)
	x.drop(old.v, v)
	c.layers[i] = all
	return x.keep(all.k), x.keep(all.v), h
}

// grow makes what is kept as long as after more tokens, layer by layer.
func (c *keyValues) grow(x *machine, length, tokens int64) {
	defer x.as(Temporaries, "key-value cache")()
	for i := range c.layers {
		l := &c.layers[i]
		for _, t := range []*tensor{&l.k, &l.v} {
			longer := x.tensor(t.n/length*(length+tokens), t.dt)
			x.drop(*t)
			*t = longer
		}
	}
	c.at = 0
}

func (c *keyValues) drop(x *machine) {
	if c == nil {
		return
	}
	for _, l := range c.layers {
		x.drop(l.k, l.v)
	}
	c.layers, c.at = nil, 0
}

// ungenerated names what of the network has no player for its generation, "" if
// there is nothing.
func (p *player) ungenerated() string {
	if p.net.m.Family != model.Decoder {
		return "generation by the family " + string(p.net.m.Family)
	}
	for _, b := range p.net.text().blocks {
		if a := b.l.Attention; a == nil || a.MLA != nil || a.KeyValueShared {
			return "generation by layers that do not keep their own keys and values"
		}
	}
	return ""
}

// generate plays generate() on a batch: the prompt, then the last token, which
// finds the longest cache. Beams are rows from the start.
// Source: transformers generation/utils.py, _expand_inputs_for_generation, _sample
// and _beam_search.
func (p *player) generate(w *workload.Workload) {
	x, e := p.x, &w.Evaluation
	defer x.during(Evaluation, "generation", p.iteration)()
	beams := cmp.Or(e.Beams, 1)
	defer p.evaluating(w, e.Batch*beams)()
	p.noGrad, p.cache = true, &keyValues{}
	step := func() {
		ids := x.tensor(p.tokens(), i64)
		p.causalStep(ids, beams > 1)
		x.drop(ids)
	}
	prompt := p.seq
	step()
	if more := e.NewTokens - 2; more > 0 {
		p.cache.grow(x, prompt, more)
	} else {
		p.cache.at = 0
	}
	p.seq = 1
	step()
	p.cache.drop(x)
}

// causalStep is a forward pass that only the logits of the last position are
// wanted of, and the choice of the next token by them.
func (p *player) causalStep(ids tensor, beams bool) {
	x := p.x
	old := x.grad
	x.grad = false
	var logits tensor
	run := func() {
		body := func(ids tensor) tensor {
			h := p.causalHidden(ids, false)
			defer x.as("", "logits and loss")()
			p.gatherEnds()
			if p.lib.allLogits {
				logits = x.project(h, p.net.head)
				up := x.cast(logits, f32) // of every position
				x.drop(logits)
				logits = up
			} else {
				last := x.slice(h, p.batch*p.net.head.in)
				logits = x.project(last, p.net.head)
				x.drop(last)
			}
			x.drop(h)
			return logits
		}
		p.rooted(ids, body)
		p.endPass()
	}
	if p.amp != f32 {
		x.autocast(p.amp, run)
	} else {
		run()
	}
	if p.zero3 != nil {
		p.zero3.endBackward(true)
	}
	defer x.as("", "logits and loss")()
	next := x.tensor(p.batch*p.vocabulary(), f32)
	x.drop(logits)
	if beams { // log_softmax, and the beams' scores added to it
		logp := x.tensor(next.n, f32)
		x.drop(next)
		next = x.tensor(logp.n, f32)
		x.drop(logp)
	}
	x.drop(next)
	x.grad = old
}
