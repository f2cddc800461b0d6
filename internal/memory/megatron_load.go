package memory

import (
	"strconv"
	"strings"

	"unoom/internal/model"
)

// layersOf returns the indices of the layers on a pipeline rank, chunk by chunk.
func (m *megatron) layersOf(total int64) [][]int {
	out := make([][]int, m.v)
	if m.layout != nil {
		at := 0
		for i, stage := range m.layout {
			for range strings.Count(stage, "t") {
				if int64(i)%m.p == m.rnk && int64(at) < total {
					out[int64(i)/m.p] = append(out[int64(i)/m.p], at)
				}
				at++
			}
		}
		return out
	}
	firstN, errF := strconv.ParseInt(m.option("decoder-first-pipeline-num-layers"), 10, 64)
	lastN, errL := strconv.ParseInt(m.option("decoder-last-pipeline-num-layers"), 10, 64)
	if errF == nil || errL == nil {
		rest, ranks := total, m.p
		if errF == nil {
			rest, ranks = rest-firstN, ranks-1
		}
		if errL == nil {
			rest, ranks = rest-lastN, ranks-1
		}
		per := rest / max(ranks, 1)
		from := int64(0)
		for r := range m.p {
			n := per
			if r == 0 && errF == nil {
				n = firstN
			}
			if r == m.p-1 && errL == nil {
				n = lastN
			}
			if r == m.rnk {
				for i := range n {
					out[0] = append(out[0], int(from+i))
				}
			}
			from += n
		}
		return out
	}
	// Virtual stages go round the ranks. Where the layers do not divide, the
	// embedding and the loss count as one each
	// (account-for-embedding-in-pipeline-split).
	stages := m.p * m.v
	all, shift := total, int64(0)
	if total%stages != 0 && (total+2)%stages == 0 {
		all, shift = total+2, 1
	}
	per := all / stages
	for k := range m.v {
		stage := k*m.p + m.rnk
		for i := range per {
			if l := stage*per + i - shift; l >= 0 && l < total {
				out[k] = append(out[k], int(l))
			}
		}
	}
	return out
}

// load makes weights, gradient buffers and optimizer state of the rank.
func (m *megatron) load() error {
	x, w := m.x, m.w
	stack := w.Model.Stacks[0]
	layers := m.layersOf(int64(len(stack.Layers)))
	wanted := map[int]int{}
	for k, ls := range layers {
		for _, l := range ls {
			wanted[l] = k
		}
	}
	ld := &megatronLoader{m: m}
	mtp := len(w.Model.Stacks) > 1 && w.Model.Stacks[1].Name == "mtp"
	// The head that is tied, and prediction layers, need the table on the last
	// stage too.
	copied := m.last && !m.first && (w.Model.TiedHead || mtp)
	n := x.load(w.Model, ld, func(s, l int) bool {
		_, ok := wanted[l]
		return s == 0 && ok || s > 0 && (w.Model.Family == model.EncoderDecoder || mtp && m.last)
	},
		func(part string) bool {
			switch part {
			case "embed":
				return m.first || copied
			case "head":
				return m.last
			}
			return m.last
		},
		func(mod *model.Module) int64 {
			if mod.Split == model.SplitNone {
				return 1
			}
			return m.t
		})
	m.net = n
	m.chunks = make([][]*block, m.v)
	i := 0
	for l := range stack.Layers {
		if k, ok := wanted[l]; ok {
			m.chunks[k] = append(m.chunks[k], n.stacks[0].blocks[i])
			i++
		}
	}
	ld.finish()
	return nil
}

// megatronLoader stores parameters, and DDP's and the optimizer's buffers.
type megatronLoader struct {
	m   *megatron
	ids []int32
	ws  []*tensor // where the modules keep their weights
	// routed says which of them belong to experts, whose gradients and states
	// have buffers of their own.
	routed []bool
	expert bool
	eight  bool // the next one is stored in eight bits
}

func (ld *megatronLoader) param(to *tensor, name string, n, rows, cols int64) {
	x := ld.m.x
	undo := x.as(Weights, "weights")
	t := x.newParam(name, n, rows, cols, ld.m.residual, true)
	undo()
	if !ld.m.deepspeed {
		// DDP's hook adds the gradient to main_grad and drops it; with gradient
		// accumulation fusion there is none.
		x.params[t.leaf-1].sink = func(x *machine, _ *parameter, g gradient) { x.release(g.st) }
	}
	ld.ids = append(ld.ids, t.leaf-1)
	ld.ws = append(ld.ws, to)
	ld.routed = append(ld.routed, ld.expert)
	kind := 0
	if ld.expert {
		kind = 1
		ld.m.expertParams += n
	} else {
		ld.m.params += n
	}
	if ld.eight {
		ld.m.eightParams[kind] += n
	}
	*to = t
}

func (ld *megatronLoader) matrix(_ *machine, p place, copies int64) *matrix {
	mod := p.mod
	if isExpert(mod) {
		return ld.expertMatrix(p, copies)
	}
	in, out := mod.In, mod.Out
	switch mod.Split {
	case model.SplitOutputs:
		out = ceilDiv(out, p.split)
	case model.SplitInputs:
		in = ceilDiv(in, p.split)
	case model.SplitVocab:
		in = ceilDiv(in, p.split)
	}
	m := &matrix{w: none(), bias: none(), in: in, out: out}
	if p.part == "embed" && mod.Role != model.RoleTokens && !ld.m.first {
		return m // the last stage has only a copy of the tied table
	}
	ld.eight = ld.m.eight.inEightBits(p)
	ld.param(&m.w, mod.Name, in*out, out, in)
	ld.eight = false
	if mod.Bias() {
		n := out
		if mod.Split == model.SplitInputs {
			n = mod.Out
		}
		m.biased = true
		ld.param(&m.bias, mod.Name+".bias", n, 1, n)
	}
	return m
}

// expertMatrix makes the matrices of the experts on this rank: together where
// grouped products run over them, else one for each.
func (ld *megatronLoader) expertMatrix(p place, copies int64) *matrix {
	m, mod := ld.m, p.mod
	in, out := mod.In, mod.Out
	bias := out
	if mod.Split == model.SplitInputs {
		in = ceilDiv(in, m.experts.split)
	} else {
		out = ceilDiv(out, m.experts.split)
		bias = out
	}
	local := copies / m.experts.ranks
	ld.expert = true
	defer func() { ld.expert = false }()
	one := func(times int64) *matrix {
		w := &matrix{w: none(), bias: none(), in: in, out: out}
		ld.eight = m.eight.inEightBits(p)
		ld.param(&w.w, mod.Name, times*in*out, times*out, in)
		ld.eight = false
		if mod.Bias() {
			w.biased = true
			ld.param(&w.bias, mod.Name+".bias", times*bias, 1, times*bias)
		}
		return w
	}
	if m.experts.grouped {
		return one(local)
	}
	first := one(1)
	list := []*matrix{first}
	for range local - 1 {
		list = append(list, one(1))
	}
	m.copies[first] = list
	return first
}

func (ld *megatronLoader) vector(_ *machine, p place) *vector {
	v := &vector{w: none(), b: none(), width: p.mod.Out}
	if p.part == "embed" && !ld.m.first {
		return v
	}
	for i := range p.mod.Params {
		q := &p.mod.Params[i]
		if q.Tied {
			continue
		}
		if q.Buffer {
			undo := ld.m.x.as(Weights, "buffers")
			ld.m.x.alloc(f32.size(q.Elements()))
			undo()
			continue
		}
		w := &v.w
		if i > 0 {
			w = &v.b
		}
		n := q.Elements()
		switch p.mod.Role {
		case model.RoleSSMConv, model.RoleSSMNorm, model.RoleSSMParams:
			n /= ld.m.t // heads and groups are divided
		}
		if p.mod.Kind == model.Linear && p.mod.Split == model.SplitOutputs {
			n /= ld.m.t
		}
		ld.param(w, p.mod.Name, n, 1, n)
	}
	return v
}

// shardedBuffer is a buffer of DDP: parameters of one kind, with the ranks that
// divide their optimizer states.
type shardedBuffer struct{ n, shards int64 }

// buffers are those of dense parameters and of experts. Each parameter starts on
// a multiple of 64 elements, buckets end on multiples of the ranks (and 128): a
// fraction of a percent.
func (m *megatron) buffers() []shardedBuffer {
	list := []shardedBuffer{{m.params, m.optShards}}
	if m.expertParams > 0 {
		list = append(list, shardedBuffer{m.expertParams, max(m.experts.shards/m.instances, 1)})
	}
	if m.distOpt {
		list[0].n = roundUp(list[0].n, 128*m.dp)
		for i := range list[1:] {
			list[1+i].n = roundUp(list[1+i].n, 128*m.experts.shards)
		}
	}
	return list
}

// finish makes the gradient buffers, and with the distributed optimizer the
// parameter buffers, then the float32 parameters.
func (ld *megatronLoader) finish() {
	m := ld.m
	x := m.x
	if m.deepspeed {
		ld.flatten()
		return
	}
	if m.fsdp != nil {
		m.fsdp.divide(ld)
		return
	}
	for k, b := range m.buffers() {
		if m.distOpt {
			undo := x.as(Weights, "weights")
			buffer := x.alloc(m.residual.size(b.n-m.eightParams[k]) + m.eightParams[k])
			undo()
			for i, id := range ld.ids {
				if ld.routed[i] == (k == 1) {
					x.release(x.params[id].t.st)
					x.params[id].t.st, ld.ws[i].st = buffer, buffer
				}
			}
		}
		undo := x.as(Gradients, "gradient buffer")
		x.alloc(m.gradType.size(b.n))
		undo()
	}
	defer x.as(OptimizerState, "float32 parameters")()
	if m.distOpt {
		for _, b := range m.buffers() {
			x.alloc(f32.size(b.n / b.shards))
		}
		return
	}
	if m.residual == f32 {
		return
	}
	for _, id := range ld.ids {
		c := x.alloc(m.residual.size(x.params[id].t.n))
		x.alloc(f32.size(x.params[id].t.n))
		x.release(c)
	}
}

// makeState makes Adam's two moments.
func (m *megatron) makeState(ids int) {
	x := m.x
	defer x.as(OptimizerState, "optimizer state")()
	if m.distOpt || m.fsdp != nil {
		for _, b := range m.buffers() {
			x.alloc(f32.size(b.n / b.shards))
			x.alloc(f32.size(b.n / b.shards))
		}
		return
	}
	for i := range ids {
		n := x.params[i].t.n
		x.alloc(f32.size(n))
		x.alloc(f32.size(n))
	}
}
