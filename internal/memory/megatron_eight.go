package memory

import (
	"unoom/internal/model"
	"unoom/internal/workload"
)

// Eight-bit products of Transformer Engine: a linear saves its input in eight
// bits, keeps eight-bit copies of its weight (unless the parameters are eight-bit
// themselves), and turns what comes back into eight bits before it multiplies.
// Source: TransformerEngine pytorch/module/linear.py, layernorm_linear.py,
// grouped_linear.py, pytorch/tensor/float8_tensor.py (transposes before
// Blackwell), float8_blockwise_tensor.py, mxfp8_tensor.py.

// eightBit is the recipe of a run; the zero value is none.
type eightBit struct {
	on      bool
	params  bool    // --fp8-param-gather: parameters are eight-bit
	both    bool    // products in both directions need two layouts
	scales  float64 // bytes of scales for each element
	delayed bool
}

// readEightBit reads the arguments about eight-bit products.
func (m *megatron) readEightBit() error {
	w := m.w
	if w.FP8 == workload.NoFP8 {
		return nil
	}
	if !m.te {
		return &NotModelled{"fp8 without Transformer Engine in Megatron"}
	}
	e := &m.eight
	e.on = true
	e.params = (w.Has("fp8-param-gather") || w.Has("fp8-param")) && m.distOpt
	e.both = w.GPU.Compute < 100
	switch w.FP8 {
	case workload.FP8Delayed:
		e.delayed = true
	case workload.FP8Blockwise:
		e.scales = 4.0 / 128
		e.both = true
	case workload.MXFP8:
		e.scales = 1.0 / 32
		e.both = true
	}
	return nil
}

// size is the bytes of n elements in one layout.
func (e *eightBit) size(n int64) int64 { return n + int64(e.scales*float64(n)) }

// quantised makes an eight-bit copy of n elements of an input: what is needed now,
// and what is kept for backward, which on Blackwell is the same storage.
func (m *megatron) quantised(n int64) (now, kept tensor) {
	x := m.x
	now = tensor{st: x.alloc(m.eight.size(n)), n: n, dt: f8}
	if !m.eight.both {
		return now, x.keep(now)
	}
	return now, tensor{st: x.alloc(m.eight.size(n)), n: n, dt: f8}
}

// quantiseGradient makes eight-bit copies of a gradient for both products of
// backward; the caller releases them.
func (m *megatron) quantiseGradient(n int64) []int32 {
	if !m.eight.on {
		return nil
	}
	out := []int32{m.x.alloc(m.eight.size(n))}
	if m.eight.both {
		out = append(out, m.x.alloc(m.eight.size(n)))
	}
	return out
}

func (m *megatron) releaseAll(list []int32) {
	for _, st := range list {
		m.x.release(st)
	}
}

// eightBitWeight makes, once, the eight-bit copies of a weight that stay for all
// micro-batches; of an eight-bit parameter only its transpose.
func (m *megatron) eightBitWeight(w *matrix) {
	if !m.eight.on || m.eightMade[w] {
		return
	}
	m.eightMade[w] = true
	defer m.x.as(Weights, "eight-bit copies of weights")()
	n := w.w.n
	if w.w.leaf > 0 {
		n = m.x.params[w.w.leaf-1].t.n
	}
	if !m.eight.params {
		m.x.alloc(m.eight.size(n))
	}
	if m.eight.both {
		m.x.alloc(m.eight.size(n))
	}
}

// inEightBits reports whether a parameter is stored in eight bits: the matrices
// of layers, not the router, tables or the head.
func (e *eightBit) inEightBits(p place) bool {
	return e.params && p.layer >= 0 && p.mod.Kind == model.Linear && p.mod.Role != model.RoleRouter && p.mod.Role != model.RoleNone
}
