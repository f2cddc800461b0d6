package plan

import (
	"math"

	"unoom/internal/speed"
)

// A layout is the closed form of one way to spread a network: all of its need
// that neither the micro-batch nor what is recomputed changes. The search asks it
// for every pair of those.
type layout struct {
	first, last stage
	ends        bool // there is a last stage besides the first
	pipeline    int
	interleaved float64 // times as many micro-batches in flight, with virtual stages
	outside     float64
}

// layout prepares the layout of a choice.
func (f *form) layout(c *Choice) layout {
	s := f.s
	fm := c.formats(f)
	tp, pp, ep := float64(c.Tensor), float64(c.Pipeline), float64(c.Expert)
	perRank := math.Ceil(float64(s.layers) / pp)
	share := 1.0 // of the layers on the most loaded rank
	if s.layers > 0 {
		share = perRank / float64(s.layers)
	}

	// Parameters of one rank's layers and of the ends of the network.
	var dense, experts, matmul, linearSum, unit float64
	for i := range s.runs {
		r := &s.runs[i]
		dense += r.count * (r.params - r.experts)
		experts += r.count * r.experts
		matmul += r.count * (r.matmul - r.experts + r.experts/ep)
		linearSum += r.count * r.linearSum
		unit = max(unit, r.params-r.experts+r.experts/ep)
	}
	p := parameters{layers: (dense + experts/ep) * share / tp, matmul: matmul * share / tp, adapted: linearSum * share / tp, unit: unit / tp, spread: 1}
	// What ranks share they share over all of them, the experts of an expert
	// group too: of those a rank holds its part already.
	if dense+experts > 0 {
		p.spread = (dense + experts) / (dense + experts/ep)
	}
	if s.image != nil { // one unit, of which the matrices are cast
		p.matmul, p.unit = s.matmul, s.params
	}
	kept := f.kept(c, fm)
	l := layout{pipeline: c.Pipeline, interleaved: 1, outside: f.outside + f.communicators(c)}
	first, last := s.embed/tp, s.head/tp
	if s.tied && pp > 1 {
		last += s.vocab * s.hidden / tp
	}
	if pp == 1 {
		p.ends = first + last
		l.first = f.stage(c, fm, &p, &kept, s.vocab/tp, perRank)
		return l
	}
	if c.Chunks > 1 {
		l.interleaved += (pp - 1) / (pp * float64(c.Chunks))
	}
	p.ends = first
	l.first = f.stage(c, fm, &p, &kept, 0, perRank)
	p.ends, l.ends = last, true
	l.last = f.stage(c, fm, &p, &kept, s.vocab/tp, perRank)
	return l
}

// need returns what the most loaded accelerator of a choice of this layout needs.
func (l *layout) need(c *Choice) need {
	inflight := float64(min(c.Accumulation, l.pipeline)) * l.interleaved
	n := l.first.need(c, inflight, l.outside)
	if l.ends {
		if last := l.last.need(c, 1, l.outside); last.total > n.total {
			return last
		}
	}
	return n
}

// peak returns what the most loaded accelerator of a choice needs.
func (f *form) peak(c *Choice) need {
	l := f.layout(c)
	return l.need(c)
}

// parameters are those of one pipeline stage on one rank.
type parameters struct {
	layers, ends float64
	matmul       float64 // of dense matrices
	adapted      float64 // of adapters of rank 1
	unit         float64 // the largest layer
	spread       float64 // ranks that share out what others hold a part of
}

// kept is what a token keeps, averaged over the layers, with the largest
// transient and the largest layer.
type kept struct {
	layer
	largest float64
}

func (f *form) kept(c *Choice, fm formats) kept {
	var k kept
	var count float64
	for i := range f.s.runs {
		r := &f.s.runs[i]
		l := f.layer(r, c, fm)
		if l.scores > 0 {
			l.all += l.scores * float64(c.Seq) // one score for each pair of tokens
			l.transient += l.scores * float64(c.Seq)
		}
		k.all += r.count * l.all
		k.selective += r.count * l.selective
		k.boundary += r.count * l.boundary
		count += r.count
		k.transient = max(k.transient, l.transient)
		k.largest = max(k.largest, l.all)
	}
	if count > 0 {
		k.all /= count
		k.selective /= count
		k.boundary /= count
	}
	return k
}

// A stage is one pipeline stage of a layout.
type stage struct {
	kept
	static    float64 // weights, state and buffers
	reducing  float64 // buffers that are there from the first reduction on
	grads     float64
	always    bool    // gradients are there when a forward pass starts, whatever is accumulated
	early     float64 // gradients that are there when the last layer's backward runs
	embedGrad float64
	step      float64 // the optimizer's own tensors
	cache     float64 // autocast's copies
	unpacked  float64 // the largest matrix, dequantised
	host      float64
	perRank   float64 // layers
	head      head

	image                  bool
	imageKept, imagePassed float64 // of an image network, for each image
}

// stage prepares one pipeline stage; vocab is the part of the vocabulary that it
// computes logits of, 0: none.
func (f *form) stage(c *Choice, fm formats, p *parameters, k *kept, vocab, perRank float64) stage {
	s := f.s
	g := stage{kept: *k, perRank: perRank}
	params := p.layers + p.ends
	trained, weights := params, fm.weight*params
	switch c.Method {
	case LoRA:
		trained = float64(c.Rank) * p.adapted
		weights += 4 * trained
	case QLoRA:
		trained = float64(c.Rank) * p.adapted
		rest := 2.0
		if f.kbit {
			rest = 4
		}
		weights = fm.weight*p.matmul + rest*max(0, params-p.matmul) + 4*trained
		g.unpacked = 2 * p.unit / 4
	}
	moments, temporary := c.Optimizer.moments(fm)
	grads := fm.grad * trained
	state := (fm.master + moments) * trained
	step := temporary * trained
	n := 1.0 // ranks that the sharded parts are divided over
	var buffers float64
	if c.Sharding != speed.NoSharding && c.Sharding != speed.DDP {
		n = max(1, float64(c.Shard*c.Context)/p.spread)
	}
	mega := c.Kernels == speed.Megatron
	titan := c.Kernels == speed.Fused && !f.fused
	largest := max(s.embed, s.head) / float64(c.Tensor)
	unitBytes := 2.0
	if fm.compute == 4 {
		unitBytes = 4
	}
	if c.Method == QLoRA {
		unitBytes = fm.weight
	}
	switch c.Sharding {
	case speed.DDP:
		if c.Data > 1 {
			buffers += grads // the reducer's buckets
		}
	case speed.ZeRO1:
		state, step = state/n, 4*trained/n
		if mega { // views of the gradient buffer
			step = 0
		}
	case speed.ZeRO2:
		buffers += min(2*5e8*fm.grad, grads) // reduce_bucket_size, twice with overlap
		grads, state, step = grads/n, state/n, 4*trained/n
	case speed.ZeRO3:
		live := min(1e9*unitBytes, unitBytes*params)
		buffers += live + min(2*5e8*fm.grad, grads)
		weights, grads, state, step = weights/n, grads/n, state/n, 4*trained/n
	case speed.FSDP:
		// The ends stay gathered from forward to backward; of the layers, two or
		// three at a time, in pools of the streams that gather and reduce.
		held := p.ends
		if titan {
			held = largest // embedding and head are groups of their own
		}
		gathered := unitBytes*held + 3*unitBytes*p.unit
		reduce := 0.0
		if c.Method == FullTune {
			// Under accelerate gradients are reduced in the type of computation, in
			// torchtitan in float32.
			each := unitBytes
			if titan {
				each = fm.grad
			}
			reduce = max(2*each*p.unit, each*held)
		}
		if c.Data > 1 || c.Context > 1 {
			buffers += gathered
			g.reducing = reduce
		}
		weights, grads, state, step = weights/n, grads/n, state/n, step/n
	}
	if mega && c.Method == FullTune { // stand-ins for gradients that are added into the buffer
		buffers += 2 * (p.unit + largest)
	}
	if c.OffloadOptimizer {
		g.host += state
		state, step = 0, min(4e9, 4*trained/n) // the staging piece
	}
	if c.OffloadWeights {
		g.host += weights + grads + state
		if c.Sharding != speed.FSDP {
			buffers += 3 * unitBytes * p.unit
		}
		weights, state, step = 0, 0, 0
		if c.Method == FullTune {
			grads = 0
		}
	}
	if s.image != nil {
		buffers += convWorkspace
		g.image = true
		kept, most := s.image.activations(fm.compute)
		g.imageKept, g.imagePassed = kept, most-kept
	}
	g.static, g.grads, g.step, g.cache = weights+state+buffers, grads, step, fm.cache*p.matmul
	g.always = mega                      // Megatron's buffer is there from the start
	g.early = min(grads, fm.grad*p.ends) // of the ends
	if titan && c.Sharding == speed.FSDP {
		g.early = min(grads, fm.grad*p.ends/n)
	}
	if c.Method == FullTune && s.vocab > 0 && c.Sharding != speed.FSDP { // there it is in the buffers
		g.embedGrad = fm.grad * min(p.ends, s.vocab*s.hidden/float64(c.Tensor))
	}
	g.head = f.head(c, fm.compute, vocab, titan)
	return g
}

// A head is what logits and loss take.
type head struct {
	perToken float64
	// A fused head works on pieces of the tokens: what each token of a piece takes,
	// what share of all tokens a piece has, and the gradient of the weights.
	piece, share, weights float64
}

func (h *head) bytes(tokens float64) float64 {
	b := tokens*h.perToken + h.weights
	if h.piece > 0 {
		b += min(tokens, 1+tokens*h.share) * h.piece
	}
	return b
}

// head prepares the loss over a vocabulary, of which w bytes hold a logit.
func (f *form) head(c *Choice, w, vocab float64, titan bool) head {
	mega := c.Kernels == speed.Megatron
	switch {
	case vocab == 0:
		return head{}
	case titan && c.Loss != FusedLoss:
		return head{perToken: 12 * vocab / titanPieces}
	case c.Loss == ChunkedLoss:
		return head{perToken: w*vocab + 7*vocab/8}
	case c.Loss == FusedLoss && mega:
		return head{perToken: 4 * vocab}
	case c.Loss == FusedLoss:
		h := head{perToken: w * f.s.hidden, piece: vocab * 3 * w, share: f.s.hidden / vocab}
		if c.Method == FullTune {
			h.weights = w * vocab * f.s.hidden
		}
		return h
	case mega: // logits, and probabilities in float32 that are worked on in place
		return head{perToken: 6 * vocab}
	}
	return head{perToken: 12 * vocab}
}

// titanPieces is in how many pieces torchtitan computes head and loss.
// Source: torchtitan components/loss.py, ChunkedCELoss, since April 2026.
const titanPieces = 8

// need is the peak of the stage with a micro-batch and a recomputation, of which
// it holds so many in flight.
func (g *stage) need(c *Choice, inflight, outside float64) need {
	tokens := float64(c.Micro) * float64(c.Seq) / float64(c.Context)
	again := min(float64(c.Layers), g.perRank)
	worst := need{host: g.host, outside: outside}
	x, passing := g.all*g.perRank, g.transient // of a token: what is kept, what a layer's backward needs beside
	switch c.Recompute {
	case RecomputeFull:
		x = g.all * (g.perRank - again)
		if c.OffloadActivations {
			worst.host += tokens * inflight * g.boundary * again
			x += 2 * g.boundary
		} else {
			x += g.boundary * again
		}
		if again > 0 {
			passing += g.largest
		}
	case RecomputeSelective:
		x = g.all*(g.perRank-again) + g.selective*again
		if again > 0 {
			passing += max(0, g.largest-g.selective)
		}
	}
	if g.image {
		x, passing = g.imageKept, g.imagePassed
	}
	x *= tokens * inflight
	passing *= tokens

	before := 0.0 // gradients that are there when a forward pass starts
	if c.Accumulation > 1 || g.always {
		before = g.grads
	}
	note := func(at instant, fixed, active float64) {
		if fixed+active > worst.static+worst.active {
			worst.static, worst.active, worst.at = fixed, active, at
		}
	}
	note(atLoss, g.static+before+g.cache, x+g.head.bytes(tokens))
	note(atBackward, g.static+g.reducing+max(before, g.early)+g.cache, x+passing)
	note(atEnd, g.static+g.reducing+g.grads, passing+g.embedGrad)
	note(atStep, g.static+g.grads, g.step)
	worst.active += g.unpacked

	// The allocator keeps what its pieces leave over; communicators and the
	// context are outside of it.
	waste := 1.04
	if c.Expandable {
		waste = 1.02
	}
	worst.static *= waste
	worst.active *= waste
	worst.total = worst.static + worst.active + worst.outside
	return worst
}
