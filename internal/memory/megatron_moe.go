package memory

import (
	"strconv"

	"unoom/internal/model"
)

// Mixtures of experts as Megatron-Core plays them: a router, tokens brought to
// the ranks of their experts, the experts, and the way back. How tokens choose
// is not known beforehand; they are taken to spread evenly.
// Source: megatron/core/transformer/moe: moe_layer.py, router.py, moe_utils.py,
// token_dispatcher.py, experts.py, shared_experts.py.

// dispatcher is how tokens come to their experts.
type dispatcher uint8

const (
	dispatchGather   dispatcher = iota // every rank sees all tokens of the group
	dispatchAllToAll                   // tokens travel
	dispatchFlex                       // DeepEP, HybridEP: permuted by the kernels that send
)

// expertSetup has what the arguments say of the experts of this rank.
type expertSetup struct {
	ranks  int64 // expert parallel size
	split  int64 // expert tensor parallel size
	shards int64 // ranks that hold the same experts and divide their optimizer states

	dispatch     dispatcher
	grouped      bool // one grouped product for all experts of the rank
	fusedPermute bool // --moe-permute-fusion
	routerType   dtype
	scores       bool // scores of all experts are kept: sigmoid, or softmax before top-k
	balance      bool // the balancing loss has scores of its own
	capacity     float64
	padded       bool // to the capacity
}

// readExperts reads the arguments about experts; layers of the model that have
// experts are checked against them.
func (m *megatron) readExperts() error {
	w := m.w
	number := func(name string, def int64) int64 {
		if n, err := strconv.ParseInt(m.option(name), 10, 64); err == nil && n > 0 {
			return n
		}
		return def
	}
	e := &m.experts
	e.ranks = max(w.Parallel.Expert, number("expert-model-parallel-size", 1), 1)
	e.split = number("expert-tensor-parallel-size", number("etp", m.t))
	e.grouped = w.Has("moe-grouped-gemm") && m.te
	e.fusedPermute = w.Has("moe-permute-fusion")
	e.routerType = m.residual
	if m.option("moe-router-dtype") == "fp32" {
		e.routerType = f32
	}
	switch m.option("moe-token-dispatcher-type") {
	case "alltoall", "alltoall_seq":
		e.dispatch = dispatchAllToAll
	case "flex":
		e.dispatch = dispatchFlex
	}
	e.scores = w.Has("moe-router-pre-softmax") || m.option("moe-router-score-function") == "sigmoid"
	if c, err := strconv.ParseFloat(m.option("moe-aux-loss-coeff"), 64); err == nil && c > 0 {
		e.balance = m.option("moe-router-load-balancing-type") != "none"
	}
	if c, err := strconv.ParseFloat(m.option("moe-expert-capacity-factor"), 64); err == nil && c > 0 {
		e.capacity, e.padded = c, w.Has("moe-pad-expert-input-to-capacity")
	}
	group := e.ranks * e.split
	ranks := m.t * m.c * m.dp
	if ranks%group != 0 {
		return &NotModelled{"EP" + strconv.FormatInt(e.ranks, 10) + " with ETP" + strconv.FormatInt(e.split, 10) + " on stages of " + strconv.FormatInt(ranks, 10) + " ranks"}
	}
	e.shards = ranks / group
	for _, s := range w.Model.Stacks {
		for _, l := range s.Layers {
			if l.MoE != nil && l.MoE.Experts%e.ranks != 0 {
				return &NotModelled{strconv.FormatInt(l.MoE.Experts, 10) + " experts over " + strconv.FormatInt(e.ranks, 10) + " ranks"}
			}
		}
	}
	return nil
}

// isExpert reports whether a module belongs to the routed experts, which are
// divided in ways of their own.
func isExpert(mod *model.Module) bool {
	switch mod.Role {
	case model.RoleExpertGate, model.RoleExpertUp, model.RoleExpertGateUp, model.RoleExpertDown:
		return true
	}
	return false
}

// moe is a layer of experts, from the residual stream to what is added to it.
func (m *megatron) moe(b *block, in tensor) tensor {
	x := m.x
	defer x.as("", "experts")()
	normed, renormed := m.separateNorm(in, b.norm2)
	defer x.drop(normed)
	if m.again.modules["moe"] {
		return renormed.discard(x, m.checkpointed([]tensor{normed}, func(ins []tensor) tensor {
			defer x.drop(ins...)
			return m.mixture(b, ins[0])
		}))
	}
	return renormed.discard(x, m.mixture(b, normed))
}

// mixture is the router, the experts and the expert that all tokens take.
func (m *megatron) mixture(b *block, normed tensor) tensor {
	x := m.x
	shared := none()
	switch {
	case b.shDown != nil && m.again.modules["shared_experts"]:
		shared = m.checkpointed([]tensor{normed}, func(ins []tensor) tensor {
			defer x.drop(ins...)
			return m.sharedExperts(b, ins[0])
		})
	case b.shDown != nil:
		shared = m.sharedExperts(b, normed)
	}
	probs := m.route(b, normed)
	var out tensor
	if m.experts.dispatch == dispatchGather {
		out = m.gatheredExperts(b, normed, probs)
	} else {
		out = m.sentExperts(b, normed, probs)
	}
	if shared.st >= 0 || shared.fn > 0 {
		sum := x.add(out, shared)
		x.drop(out, shared)
		out = sum
	}
	return out
}

// sharedExperts is the MLP that every token takes.
func (m *megatron) sharedExperts(b *block, normed tensor) tensor {
	x := m.x
	up := m.columnLinear(normed, b.shUp)
	n := up.n
	if b.l.MoE.Gated {
		n /= 2
	}
	act := m.glu(up, n)
	x.drop(up)
	out := m.rowLinear(act, b.shDown, false)
	x.drop(act)
	return out
}

// glu is a fused activation that saves its input.
func (m *megatron) glu(t tensor, n int64) tensor {
	in, d := t.n, t.dt
	return m.x.op(n, d, []tensor{t}, []tensor{t}, false, func(f *frame) { f.send(0, f.x.make(in, d)) })
}

// route scores the experts for each token. Its result stands for the
// probabilities; what routing saves besides is saved by its node.
func (m *megatron) route(b *block, normed tensor) tensor {
	x := m.x
	e, moe := &m.experts, b.l.MoE
	tokens := normed.n / m.net.m.Hidden
	all, top := tokens*moe.Experts, tokens*moe.TopK
	logits := m.gate(normed, b.router, all)
	rd := e.routerType
	rec := x.recording(logits)
	var fn int32
	if rec {
		// softmax or sigmoid of the top or of all, scatter, and the loss
		fn = x.push(1, []tensor{logits}, nil, func(f *frame) {
			x := f.x
			g := x.make(all, f32)
			if e.balance {
				x.release(x.alloc(f32.size(all)))
			}
			if rd == f32 {
				f.send(0, g)
				return
			}
			low := x.make(all, rd)
			x.release(g.st)
			f.send(0, low)
		})
	}
	keep := func(n int64, d dtype) {
		t := x.tensor(n, d)
		if rec {
			x.saveOutput(t)
		}
		x.drop(t)
	}
	if e.scores {
		keep(all, f32)
	}
	keep(top, i64) // which experts, for top-k and for the scatter
	keep(top, f32)
	x.scratch(i32.size(all)) // the routing map before it is boolean
	keep(all, u8)
	if e.balance {
		keep(all, f32)
		x.scratch(i32.size(all))
	}
	probs := x.tensor(all, rd)
	probs.fn = fn
	x.drop(logits)
	return probs
}

// gate is RouterGatingLinearFunction: 16-bit operands, logits in the router's
// dtype, and in backward operands and gradients in that dtype.
func (m *megatron) gate(normed tensor, w *matrix, all int64) tensor {
	x := m.x
	rd := m.experts.routerType
	n, d, wn := normed.n, normed.dt, w.w.n
	m.teWorkspace()
	return x.op(all, rd, []tensor{normed, w.w}, []tensor{normed, w.w}, false, func(f *frame) {
		x := f.x
		cast := func(n int64) int32 {
			if rd == d {
				return noStorage
			}
			return x.alloc(rd.size(n))
		}
		wc := cast(wn)
		gi := x.make(n, rd)
		x.release(wc)
		ic := cast(n)
		gw := x.make(wn, rd)
		x.release(ic)
		if rd != d {
			low := x.make(n, d)
			x.release(gi.st)
			gi = low
			small := x.make(wn, d)
			x.release(gw.st)
			gw = small
		}
		f.send(0, gi)
		f.send(1, gw)
	})
}

// routed is how many tokens the experts of this rank get, of tokens that the
// ranks of the group have each.
func (m *megatron) routed(moe *model.MoE, tokens int64) int64 {
	e := &m.experts
	n := tokens * moe.TopK
	if e.capacity > 0 {
		fit := int64(float64(n) / float64(moe.Experts) * e.capacity)
		if limit := fit * moe.Experts; e.padded || limit < n {
			n = limit
		}
	}
	return n
}

// pick copies the rows that go to experts, in their order; weights of the rows
// come from probs where they travel with them. Backward adds the rows up again.
func (m *megatron) pick(t, probs tensor, rows, width, choices int64) (out, weights tensor) {
	x := m.x
	e := &m.experts
	n, d := t.n, t.dt
	tokens := n / width
	pn, pd := probs.n, probs.dt
	ins := []tensor{t, probs}
	rec := x.recording(ins...)
	var fn int32
	if rec {
		fn = x.push(2, ins, nil, func(f *frame) {
			f.send(0, f.x.make(n, d))
			if f.want(1) {
				f.send(1, f.x.make(pn, pd))
			}
		})
	}
	keep := func(n int64, dt dtype) {
		k := x.tensor(n, dt)
		if rec {
			x.saveOutput(k)
		}
		x.drop(k)
	}
	if e.fusedPermute || e.dispatch == dispatchFlex {
		keep(tokens*(2*choices+1), i32)
	} else {
		x.scratch(u8.size(tokens * choices))
		keep(tokens*choices, i64) // the sorted map; its first entries are the rows
		keep(rows, i64)
	}
	out = x.tensor(rows*width, d)
	weights = x.tensor(rows, pd)
	out.fn, weights.fn, weights.slot = fn, fn, 1
	if !rec {
		out.fn, weights.fn = 0, 0
	}
	return out, weights
}

// moved is a copy of rows elsewhere or in another order: an exchange, a gather
// over more ranks, a sort. Its gradient is made the same way back.
func (m *megatron) moved(t tensor, n int64) tensor {
	from, d := t.n, t.dt
	return m.x.op(n, d, []tensor{t}, nil, false, func(f *frame) { f.send(0, f.x.make(from, d)) })
}

// unpick adds the rows of each token up; deterministic runs make the zeros
// twice.
func (m *megatron) unpick(t tensor, n int64) tensor {
	x := m.x
	if m.w.Has("deterministic-mode") && !m.experts.fusedPermute {
		x.scratch(t.dt.size(n))
	}
	return m.moved(t, n)
}

// reduced is a reduce-scatter over ranks in the dtype of the probabilities.
func (m *megatron) reduced(t tensor, n int64) tensor {
	x := m.x
	up := x.cast(t, m.experts.routerType)
	sum := m.moved(up, n)
	x.drop(up)
	out := x.cast(sum, t.dt)
	x.drop(sum)
	return out
}

// sentExperts sends tokens to the ranks of their experts and back.
func (m *megatron) sentExperts(b *block, normed, probs tensor) tensor {
	x := m.x
	e, moe := &m.experts, b.l.MoE
	h := m.net.m.Hidden
	rows := m.routed(moe, normed.n/h)
	local := moe.Experts / e.ranks
	picked, weights := m.pick(normed, probs, rows, h, moe.Experts)
	x.drop(probs)
	// The caller's variables refer to what was sent until the experts are done.
	held := []tensor{picked}
	here := picked
	next := func(n int64, wn int64) {
		here = m.moved(here, n)
		w := m.moved(weights, wn)
		x.drop(weights)
		weights = w
		held = append(held, here)
	}
	if e.ranks > 1 && e.dispatch != dispatchFlex {
		next(rows*h, rows)
	}
	if e.split > 1 {
		rows *= e.split
		next(rows*h, rows)
	}
	sorted := local > 1 && e.dispatch != dispatchFlex
	if sorted {
		next(rows*h, rows)
	}
	out := m.routedExperts(b, here, weights, local)
	x.drop(weights)
	back := func(t tensor) { x.drop(out); out = t }
	if sorted {
		back(m.moved(out, rows*h))
	}
	if e.split > 1 {
		rows /= e.split
		back(m.reduced(out, rows*h))
	}
	if e.ranks > 1 {
		back(m.moved(out, rows*h))
	}
	back(m.unpick(out, normed.n))
	x.drop(held...)
	return out
}

// gatheredExperts lets every rank of the group see all tokens; each takes those
// of its experts, and the sums are scattered.
func (m *megatron) gatheredExperts(b *block, normed, probs tensor) tensor {
	x := m.x
	e, moe := &m.experts, b.l.MoE
	h := m.net.m.Hidden
	group := e.ranks * e.split
	all := normed.n * group
	local := moe.Experts / e.ranks
	gathered := x.keep(normed)
	if group > 1 {
		p := m.moved(probs, probs.n*group)
		x.drop(probs)
		probs = p
		m.memoryBuffer("mpu", normed.dt.size(all))
		x.drop(gathered)
		gathered = m.inBuffer(normed, all)
	}
	rows := m.routed(moe, normed.n/h) * e.split
	mine := m.moved(probs, all/h*local) // the columns of the experts here
	x.drop(probs)
	picked, weights := m.pick(gathered, mine, rows, h, local)
	x.drop(mine)
	out := m.routedExperts(b, picked, weights, local)
	x.drop(weights)
	sum := m.unpick(out, all)
	x.drop(out)
	out = sum
	if group > 1 {
		out = m.reduced(sum, normed.n)
		x.drop(sum)
	}
	x.drop(picked, gathered)
	return out
}

// inBuffer is a gather into the global memory buffer: the result takes no
// storage of its own.
func (m *megatron) inBuffer(t tensor, n int64) tensor {
	x := m.x
	from, d := t.n, t.dt
	out := tensor{st: noStorage, n: n, dt: d}
	if x.recording(t) {
		out.fn = x.push(1, []tensor{t}, nil, func(f *frame) { f.send(0, f.x.make(from, d)) })
	}
	return out
}

// routedExperts runs the experts of this rank on their rows.
func (m *megatron) routedExperts(b *block, rows, weights tensor, local int64) tensor {
	x := m.x
	e := &b.experts[0]
	up := e.up
	if e.gateUp != nil {
		up = e.gateUp
	}
	if m.experts.grouped || local == 1 {
		return m.oneExpert(b, rows, weights, up, e.down)
	}
	// One expert after the other on its share, then joined.
	h := m.net.m.Hidden
	n := rows.n / h
	parts := make([]int64, local)
	for i := range parts {
		parts[i] = n * int64(i+1) / local * h
	}
	for i := local - 1; i > 0; i-- {
		parts[i] -= parts[i-1]
	}
	shares := x.split(rows, parts...)
	for i := range parts {
		parts[i] /= h
	}
	probs := x.split(weights, parts...)
	var outs []tensor
	ups, downs := m.copies[up], m.copies[e.down]
	for i := range shares {
		outs = append(outs, m.oneExpert(b, shares[i], probs[i], ups[i], downs[i]))
	}
	x.drop(shares...)
	x.drop(probs...)
	var fn int32
	if x.recording(outs...) {
		fn = x.push(1, outs, nil, func(f *frame) {
			for i := range outs {
				f.pass(i) // narrowed views of one gradient
			}
		})
	}
	joined := x.tensor(n*h, rows.dt)
	joined.fn = fn
	x.drop(outs...)
	return joined
}

// oneExpert is the MLP of an expert, or of all in grouped products.
func (m *megatron) oneExpert(b *block, rows, weights tensor, upM, downM *matrix) tensor {
	x := m.x
	if m.experts.grouped {
		m.groupedWorkspace()
	}
	up := m.plainLinear(rows, upM)
	var act tensor
	var c *outputless
	if m.again.modules["moe_act"] {
		var outs []tensor
		outs, c = m.withoutOutput([]tensor{up, weights}, 1, func(ins []tensor) []tensor {
			defer x.drop(ins...)
			return []tensor{m.weighted(ins[0], ins[1], b.l.MoE)}
		})
		act = outs[0]
	} else {
		act = m.weighted(up, weights, b.l.MoE)
	}
	x.drop(up)
	out := m.plainLinear(act, downM)
	x.drop(act)
	return c.discard(x, out)
}

// weighted is the activation times the probability of each row. Fused, it saves
// its input and the probabilities; else each step saves what it needs, and the
// product is in the dtype of the probabilities.
func (m *megatron) weighted(t, weights tensor, moe *model.MoE) tensor {
	x := m.x
	n := t.n
	if moe.Gated {
		n /= 2
	}
	rows := weights.n
	wd, d, in := weights.dt, t.dt, t.n
	fused := moe.Gated && !m.w.Has("no-bias-swiglu-fusion") || moe.Act == model.SquaredReLU && m.w.Has("use-fused-weighted-squared-relu")
	if fused {
		return x.op(n, d, []tensor{t, weights}, []tensor{t, weights}, false, func(f *frame) {
			f.send(0, f.x.make(in, d))
			if f.want(1) {
				f.send(1, f.x.make(rows, wd))
			}
		})
	}
	var act tensor
	if moe.Gated {
		parts := x.split(t, n, n)
		s := x.unaryIn(parts[0])
		plus := m.moved(parts[1], n) // plus an offset of zero
		act = x.mul(s, plus)
		x.drop(parts...)
		x.drop(s, plus)
	} else {
		act = x.unaryIn(t)
	}
	defer x.drop(act)
	if wd == f32 && d != f32 {
		return m.promoted(act, weights, d)
	}
	return x.mulRows(act, weights, rows)
}

// promoted is 16-bit rows times float32 factors, cast back.
func (m *megatron) promoted(t, weights tensor, d dtype) tensor {
	x := m.x
	n, rows := t.n, weights.n
	rec := x.recording(t, weights)
	var fn int32
	if rec {
		fn = x.push(1, []tensor{t, weights}, []tensor{t, weights}, func(f *frame) {
			x := f.x
			up := x.make(n, f32)
			wide := x.make(n, f32)
			g := x.make(n, d)
			x.release(wide.st)
			full := x.make(n, f32)
			gw := x.make(rows, f32)
			x.release(full.st)
			x.release(up.st)
			f.send(0, g)
			f.send(1, gw)
		})
	}
	wide := x.tensor(n, f32)
	out := x.tensor(n, d)
	x.drop(wide)
	out.fn = fn
	return out
}
