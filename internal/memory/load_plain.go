package memory

import (
	"unoom/internal/model"
)

// plainLoader stores each parameter in a storage of its own, quantises the
// matrices of layers where the base is quantised, and adds adapters.
type plainLoader struct {
	dt      dtype // of weights
	other   dtype // of what is not quantised, where the base is (float32 after kbit preparation)
	norms   dtype // of norms, there too
	train   func(p place) bool
	quant   quantKind // 0: none
	compute dtype     // of expanded matrices
	style   adapterStyle
	adapt   func(p place) bool
	rank    int64
	dropout float64
	adt     dtype // of adapters
	dora    bool
	// compiled: quantised matrices are expanded within a compiled region.
	compiled bool
}

// pair makes the adapter of a matrix; param makes each of its parameters.
func (ld *plainLoader) pair(mod *model.Module, in, out int64, param func(name string, n, rows, cols int64) tensor) *adapter {
	l := &adapter{rank: ld.rank, dropout: ld.dropout, style: ld.style, dora: ld.dora}
	l.a = param(mod.Name+".lora_A", in*ld.rank, ld.rank, in)
	l.b = param(mod.Name+".lora_B", ld.rank*out, out, ld.rank)
	if ld.dora {
		l.magnitude = param(mod.Name+".lora_magnitude", out, 1, out)
	}
	return l
}

// adapts reports whether a module gets an adapter.
func (ld *plainLoader) adapts(p place) bool {
	return ld.adapt != nil && p.mod.Kind == model.Linear && ld.adapt(p)
}

// newParam makes a parameter of n elements.
func (x *machine) newParam(name string, n, rows, cols int64, d dtype, train bool) tensor {
	t := tensor{st: x.alloc(d.size(n)), n: n, dt: d}
	return x.register(name, t, rows, cols, train)
}

// register makes a parameter of an existing tensor.
func (x *machine) register(name string, t tensor, rows, cols int64, train bool) tensor {
	id := int32(len(x.params))
	t.fn, t.leaf, t.slot = 0, 0, 0
	if train {
		t.leaf = id + 1
	}
	x.params = append(x.params, parameter{name: name, t: t, grad: noStorage, gdt: t.dt, rows: rows, cols: cols})
	return t
}

func (ld *plainLoader) dtypeOf(p place) dtype {
	switch {
	case ld.quant == 0:
		return ld.dt
	case p.mod.Kind == model.Normalize:
		return ld.norms
	}
	return ld.other
}

func (ld *plainLoader) matrix(x *machine, p place, copies int64) *matrix {
	mod := p.mod
	in, out := mod.In, mod.Out
	switch mod.Split {
	case model.SplitOutputs:
		out /= p.split
	case model.SplitInputs:
		in /= p.split
	case model.SplitVocab:
		in = ceilDiv(in, p.split)
	}
	m := &matrix{in: in, out: out}
	undo := x.as(Weights, "weights")
	switch {
	case ld.quant != 0 && p.layer >= 0 && mod.Kind == model.Linear:
		m.quant = &quantized{kind: ld.quant, compute: ld.compute, compiled: ld.compiled}
		for range copies {
			for i, b := range ld.quant.storedBytes(in, out) {
				st := x.alloc(b)
				if i == 0 {
					m.w = tensor{st: st, n: b, dt: u8}
				}
			}
		}
	default:
		d := ld.dtypeOf(p)
		for range copies {
			m.w = x.newParam(mod.Name, in*out, out, in, d, ld.train(p))
		}
		if copies > 1 {
			m.w.n = in * out
		}
		if mod.Bias() {
			m.bias = x.newParam(mod.Name+".bias", out, 1, out, d, ld.train(p))
			m.biased = true
		}
	}
	if ld.adapts(p) {
		x.item = x.items.id(Weights, "adapters")
		m.lora = ld.pair(mod, in, out, func(name string, n, rows, cols int64) tensor {
			return x.newParam(name, n, rows, cols, ld.adt, true)
		})
	}
	undo()
	return m
}

func (ld *plainLoader) vector(x *machine, p place) *vector {
	v := &vector{w: none(), b: none(), width: p.mod.Out}
	undo := x.as(Weights, "weights")
	for i := range p.mod.Params {
		q := &p.mod.Params[i]
		if q.Tied {
			continue
		}
		t := x.newParam(p.mod.Name, q.Elements(), 1, q.Elements(), ld.dtypeOf(p), ld.train(p) && !q.Buffer && !q.Frozen)
		if i == 0 {
			v.w = t
		} else {
			v.b = t
		}
	}
	undo()
	return v
}
