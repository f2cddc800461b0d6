package memory

import "unoom/internal/model"

// Hybrid stacks of Megatron-Core have layers that are a Mamba-2 mixer, attention
// or an MLP alone, each with its norm and residual.
// Source: megatron/core/ssm/mamba_layer.py and mamba_mixer.py (_ssm_training);
// mamba_ssm ops/triton/ssd_combined.py, MambaSplitConv1dScanCombinedFn.

// hybridLayer is one layer of a hybrid stack.
func (m *megatron) hybridLayer(b *block, in tensor) tensor {
	x := m.x
	var out tensor
	last := b.ssmO
	switch {
	case b.l.SSM != nil:
		out = m.mamba(b, in)
	case b.l.Attention != nil:
		out, last = m.selfAttention(b, in), b.o
	default:
		b2 := *b
		b2.norm2 = b.norm1
		if b.l.MoE != nil {
			out, last = m.moe(&b2, in), &matrix{bias: none()}
		} else {
			out, last = m.mlp(&b2, in), b.down
		}
	}
	res := m.biasDropoutAdd(out, last, in)
	x.drop(out)
	return res
}

// mamba is the mixer: a projection with its norm, convolution and scan in one
// function, a norm and the output projection.
func (m *megatron) mamba(b *block, in tensor) tensor {
	x := m.x
	defer x.as("", "state-space mixer")()
	s := b.l.SSM
	mixed := m.normLinear(in, b.norm1, b.ssmIn)
	z := x.contiguous(mixed) // from l b d to b l d
	x.drop(mixed)
	y := m.splitConvScan(z, b, s)
	x.drop(z)
	t := x.contiguous(y)
	x.drop(y)
	n := x.fusedNorm(t, b.ssmNorm.w, none(), b.ssmNorm.w.n, 1)
	x.drop(t)
	out := m.rowLinear(n, b.ssmO, false)
	x.drop(n)
	return out
}

// scanSizes are the elements of what the scan works with on this rank.
type scanSizes struct {
	tokens, inner, conv, heads int64
	states, decay              int64 // of all chunks; of all positions
	scores                     int64 // products of C and B within chunks
}

func (m *megatron) scanSizes(s *model.SSM) scanSizes {
	tokens := m.tokens()
	chunks := m.batch * ceilDiv(m.seq, s.Chunk)
	heads, groups := s.Heads/m.t, s.Groups/m.t
	inner := s.Inner / m.t
	return scanSizes{
		tokens: tokens, inner: inner, conv: inner + 2*groups*s.State, heads: heads,
		states: chunks * heads * s.HeadDim * s.State, decay: tokens * heads,
		scores: chunks * groups * s.Chunk * s.Chunk,
	}
}

// splitConvScan saves the projected input and the output before the gate;
// everything between is made again in backward.
func (m *megatron) splitConvScan(z tensor, b *block, s *model.SSM) tensor {
	x := m.x
	c := m.scanSizes(s)
	d := z.dt
	ins := append([]tensor{z, b.ssmConv.w, b.ssmConv.b}, b.extra...)
	n := c.tokens * c.inner
	// forward and backward begin with the convolution and the states of chunks
	scan := func(x *machine) []tensor {
		conv := x.tensor(c.tokens*c.conv, d)
		dt := x.tensor(c.decay, f32)
		decay := x.tensor(c.decay, f32)
		st := x.tensor(c.states, f32)
		passed := x.tensor(c.states, f32)
		x.drop(st)
		scores := x.tensor(c.scores, f32)
		return []tensor{conv, dt, decay, passed, scores}
	}
	rec := x.recording(ins...)
	var fn int32
	zn := z.n
	if rec {
		extra := b.extra
		fn = x.push(1, ins, []tensor{z}, func(f *frame) {
			x := f.x
			temps := scan(x)
			g := x.make(zn, d)
			dconv := x.tensor(c.tokens*c.conv, d)
			dstates := x.tensor(c.states, f32)
			dscores := x.tensor(c.scores, f32)
			x.drop(dstates, dscores, dconv)
			x.drop(temps...)
			f.send(0, g)
			for i, w := range append([]tensor{b.ssmConv.w, b.ssmConv.b}, extra...) {
				if f.want(1 + i) {
					f.send(1+i, x.make(w.n, w.dt))
				}
			}
		})
	}
	temps := scan(x)
	out := x.tensor(n, d)
	before := x.tensor(n, d)
	x.drop(temps...)
	if rec {
		x.saveOutput(before)
		out.fn = fn
	}
	x.drop(before)
	return out
}
