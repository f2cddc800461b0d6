package speed

import "math"

// micro is the time of one pass in microseconds, split by what bounds it.
type micro struct {
	matrix    float64 // projections
	attention float64 // score products
	memory    float64 // pointwise operations and copies
	host      float64 // launches
}

func (m *micro) add(o micro, times float64) {
	m.matrix += times * o.matrix
	m.attention += times * o.attention
	m.memory += times * o.memory
	m.host += times * o.host
}

// gpu is the time the device is busy.
func (m micro) gpu() float64 { return m.matrix + m.attention + m.memory }

// total is the time the pass takes: the device waits for the host where the
// kernels are shorter than their launches. The two overlap, so the longer one
// counts, rounded off near the crossing because a layer has kernels of both
// kinds.
func (m micro) total() float64 {
	g, h := m.gpu(), m.host
	return math.Cbrt(g*g*g + h*h*h)
}

// machine is a device with the rates that the constants give it.
type machine struct {
	d         *Device
	c         *Constants
	sms       float64
	bandwidth float64 // bytes per microsecond
}

func newMachine(d *Device, c *Constants) machine {
	m := machine{d: d, c: c, sms: float64(d.SMs), bandwidth: d.Bandwidth * 1e3 * c.Memory}
	if m.sms == 0 {
		m.sms = max(d.BF16, d.FP16/2) / 2.9 // A100: 312/108; H100: 989/132 has larger units, see tile
	}
	return m
}

// peak is the rate in FLOP per microsecond that large matrix products sustain.
func (m *machine) peak(t Compute) float64 {
	d := m.d
	rate, ratio := d.BF16, m.c.sustained(d.Arch)
	switch t {
	case FP8:
		if d.FP8 > 0 {
			rate, ratio = d.FP8, ratio*m.c.FP8
		}
	case FP16:
		if d.FP16 > 0 {
			rate = d.FP16
		}
	case FP32:
		rate = d.TF32
		if rate == 0 {
			rate = d.FP32
		}
	case BF16:
		if rate == 0 { // emulated through float32 on Volta and Turing
			rate = d.FP32
		}
	}
	if rate == 0 {
		rate = max(d.BF16, d.FP16, d.TF32, d.FP32)
	}
	power := 1.0
	if d.Power > 0 {
		// Clock goes with about the cube root of power near the limit, but
		// matrix products are what the limit throttles: between the two.
		power = math.Sqrt(d.Power)
	}
	return rate * 1e6 * ratio * power
}

// product is the time of one matrix product of rows × in by in × out, of which
// there are copies at a time (experts in one grouped kernel).
func (m *machine) product(rows, in, out, copies float64, t Compute) float64 {
	if rows <= 0 || in <= 0 || out <= 0 || copies <= 0 {
		return 0
	}
	use := m.use(rows, in, out, copies)
	flops := 2 * rows * in * out * copies
	compute := flops / (m.peak(t) * use)
	width := 2.0
	if t == FP32 {
		width = 4
	}
	traffic := width * copies * (rows*in + in*out + rows*out) / m.bandwidth
	return max(compute, traffic)
}

// use is the share of the sustained rate that a matrix product of a size
// reaches.
func (m *machine) use(rows, in, out, copies float64) float64 {
	// A kernel covers the output with tiles; the last, partly filled wave of
	// tiles over the multiprocessors is lost, and so is the filling of the
	// pipeline along the inner dimension. Both matter only to small products.
	tiles := copies * math.Ceil(rows/128) * math.Ceil(out/256)
	waves := tiles / m.sms
	use := waves / (waves + m.c.Wave) * in / (in + m.c.Depth)
	if rows < 128 {
		use *= max(rows, 16) / 128
	}
	return use
}

// forward is the forward pass of one layer over n tokens of a rank, in
// sequences of s tokens of which the rank holds every one in context parts.
func (m *machine) forward(b *Block, n, s float64, st *Setting) micro {
	tp := float64(st.Tensor)
	var r micro
	launches := 0.0
	for _, g := range b.GEMMs {
		in, out := float64(g.In), float64(g.Out)
		if g.Experts == 0 {
			if g.Rows {
				in /= tp
			} else {
				out /= tp
			}
			r.matrix += m.product(n, in, out, 1, st.Compute)
			launches++
			continue
		}
		// A rank holds 1/e of the experts and receives the tokens of e ranks.
		e := min(float64(st.Expert), float64(g.Experts))
		held := float64(g.Experts) / e
		rows := n * float64(g.TopK) / held
		if tp > 1 && e < float64(st.Expert)*tp {
			out /= tp
		}
		r.matrix += m.product(rows, in, out, held, st.Compute)
		if st.Kernels == Eager {
			launches += held // a loop over the experts
		} else {
			launches++
		}
	}
	if b.Query > 0 {
		t := st.Compute
		if t == FP8 {
			t = BF16
		}
		use := m.c.attention(m.d.Arch)
		work := n * b.scoreFLOPs(int64(s)) / tp
		// Short sequences do not fill the tiles of a fused attention kernel; ranks
		// that pass keys around work on pieces, twice as many as there are ranks.
		piece := s
		if st.Context > 1 {
			piece = s / float64(2*st.Context)
			launches += 3 * float64(2*st.Context)
		}
		r.attention += work / (m.peak(t) * use * piece / (piece + m.c.ShortSequence))
	}
	f := m.c.pointwise(st.Kernels)
	r.memory += n / tp * f * (m.c.NormTraffic*float64(b.Norms) + m.c.InnerTraffic*float64(b.Inner)) / m.bandwidth
	if b.Routed {
		r.memory += n * float64(b.Norms) * m.c.RouteTraffic / m.bandwidth
	}
	if b.State > 0 {
		r.memory += n / tp * float64(b.State) / 8 / m.bandwidth
	}
	if st.Adapter > 0 {
		for _, g := range b.GEMMs {
			w := n * st.Targets
			if g.Experts > 0 {
				w *= float64(g.TopK)
			}
			r.memory += w * m.c.AdapterTraffic * float64(g.In+g.Out) / tp / m.bandwidth
			launches += 4 * st.Targets
		}
	}
	if st.Quantised {
		for _, g := range b.GEMMs {
			w := float64(g.In) * float64(g.Out) / tp
			if g.Experts > 0 {
				w *= float64(g.Experts) / min(float64(st.Expert), float64(g.Experts))
			}
			r.memory += w * 2.5 / (m.bandwidth * m.c.Dequantise)
			launches++
		}
	}
	scale := b.KernelScale
	if scale == 0 {
		scale = 1
	}
	r.host += m.c.Launch * (launches + scale*m.c.kernels(st.Kernels))
	return r
}

// head is the forward pass of the language head and the loss.
func (m *machine) head(net *Net, n float64, st *Setting) micro {
	if net.Vocab == 0 {
		return micro{}
	}
	v := float64(net.Vocab) / float64(st.Tensor)
	t := st.Compute
	if t == FP8 {
		t = BF16 // the head stays in 16 bits in the recipes of FP8 training
	}
	r := micro{matrix: m.product(n, float64(net.Hidden), v, 1, t), host: 10 * m.c.Launch}
	r.memory = n * v * m.c.LossTraffic * m.c.pointwise(st.Kernels) / m.bandwidth
	return r
}
