// Package speed predicts the time of one training step, to rank settings: the
// work with what is computed again, kernels at their size, launches, links
// between ranks, pipeline bubbles, offload and the optimizer. The constants are
// calibrated on published throughput; the answer is an interval, not a promise.
package speed

// A Step is the predicted time of one optimizer step, in microseconds.
type Step struct {
	Low, Mid, High float64

	// The parts of Mid. Communication and offload count only as far as they are
	// not hidden behind computation.
	Compute    float64 // forward and backward, without recomputation
	Recompute  float64
	Launch     float64 // waiting for the host
	Data       float64 // gradients and gathered weights
	Tensor     float64
	Context    float64
	Expert     float64
	Bubble     float64 // pipeline ranks that wait, and the transfers between them
	Offload    float64
	Optimizer  float64
	FLOPs      float64 // of the model, without recomputation, on one accelerator
	TokensStep int64
}

// TokensPerSecond returns the throughput over all accelerators.
func (s *Step) TokensPerSecond() float64 { return float64(s.TokensStep) / s.Mid * 1e6 }

// Estimate returns the time of one optimizer step of a network in a setting.
func Estimate(net *Net, d *Device, setting *Setting) Step { return Default().Estimate(net, d, setting) }

// Estimate returns the time of one optimizer step with these constants.
func (c *Constants) Estimate(net *Net, d *Device, setting *Setting) Step {
	st := setting.normalised()
	m := newMachine(d, c)
	s := float64(st.Seq)
	n := float64(st.MicroBatch) * s / float64(st.Context)
	layers := max(float64(net.Layers), 1)
	p := float64(st.Pipeline)

	// One micro-batch through the layers of one pipeline stage.
	var fwd, back, again, cheap micro
	for i := range net.Blocks {
		b := &net.Blocks[i]
		f := m.forward(b, n, s, &st)
		count := float64(b.Count) / p
		fwd.add(f, count)
		grads := 2.0
		if st.Frozen {
			grads = 1
		}
		back.add(micro{grads * f.matrix, c.AttentionBackward * f.attention, c.PointwiseBackward * f.memory, c.LaunchBackward * f.host}, count)
		again.add(f, count*st.Full)
		// Selective recomputation keeps the results of attention and of half of
		// the projections.
		cheap.add(micro{f.matrix / 2, 0, f.memory, f.host * 0.7}, count*st.Selective)
	}
	if len(net.Products) > 0 {
		f := m.sample(net, float64(st.MicroBatch), &st)
		fwd.add(f, 1/p)
		back.add(micro{2 * f.matrix, 0, c.PointwiseBackward * f.memory, c.LaunchBackward * f.host}, 1/p)
		again.add(f, st.Full/p)
	}
	h := m.head(net, n, &st)
	hb := micro{2 * h.matrix, 0, c.PointwiseBackward * h.memory, h.host}
	if st.Frozen {
		hb.matrix = h.matrix
	}
	again.add(cheap, 1)

	if st.Sharding == ZeRO3 { // DeepSpeed's hooks run on the host for every tensor
		fwd.host *= c.HookHost
		back.host *= c.HookHost
		again.host *= c.HookHost
	}
	tf, tb, tr := fwd.total(), back.total(), again.total()
	th := h.total() + hb.total()
	var r Step
	r.TokensStep = st.Tokens()
	r.FLOPs = 3 * net.ForwardFLOPs(int64(st.Seq)) * float64(st.MicroBatch*st.Accumulation) / float64(st.Tensor*st.Pipeline*st.Context)

	// Communication inside one micro-batch.
	inside := layers / p
	tensor := m.tensor(net, n, inside, &st)
	context := m.context(net, n, s, tf, &st)
	expert := m.expert(net, n, &st)
	gatherF, gatherB, once := m.data(net, tf, tb+tr, &st)
	upF, upB := m.offload(net, n, inside, tf, tb+tr, &st)

	one := tf + tb + tr + th/p + tensor + context + expert + gatherF + gatherB + upF + upB
	micros := float64(st.Accumulation)
	r.Compute = micros * (tf + tb + th/p)
	r.Recompute = micros * tr
	r.Launch = micros * (tf + tb + tr - fwd.gpu() - back.gpu() - again.gpu())
	r.Compute -= micros * (tf + tb - fwd.gpu() - back.gpu())
	r.Recompute -= micros * (tr - again.gpu())
	r.Tensor, r.Context, r.Expert = micros*tensor, micros*context, micros*expert
	r.Data = micros*(gatherF+gatherB) + once
	r.Offload = micros * (upF + upB)
	if st.Pipeline > 1 {
		r.Bubble = m.bubble(net, n, one, th, micros, &st)
	}
	r.Optimizer = m.optimizer(net, &st)
	// The host's work between the steps: loss, norm, clipping, data.
	loop := c.StepHost * c.kernels(st.Kernels) * c.Launch
	r.Launch += loop
	r.Mid = micros*one + once + r.Bubble + r.Optimizer + loop
	spread := c.spread(net, d, &st)
	r.Low, r.High = r.Mid/spread, r.Mid*spread
	return r
}

// tensor is the time of the all-reduces of tensor parallelism (or the gathers
// and scatters that sequence parallelism puts in their place) in a micro-batch:
// two forward, two backward, two more where the layer is recomputed.
func (m *machine) tensor(net *Net, n, layers float64, st *Setting) float64 {
	if st.Tensor <= 1 {
		return 0
	}
	g := group{st.Tensor, 1}
	one := m.reduce(g, 2*float64(net.Hidden)*n)
	times := layers * (4 + 2*st.Full)
	if st.Kernels == Megatron {
		one *= m.c.TensorOverlap // transfers split and hidden behind the products
	}
	return times * one
}

// context is the time in which context parallelism passes keys and values
// around that attention does not hide.
func (m *machine) context(net *Net, n, s, forward float64, st *Setting) float64 {
	if st.Context <= 1 {
		return 0
	}
	c := float64(st.Context)
	g := group{st.Context, st.Tensor}
	rate, hop := m.rate(g)
	var t float64
	for i := range net.Blocks {
		b := &net.Blocks[i]
		if b.Query == 0 {
			continue
		}
		bytes := (c - 1) * 2 * float64(b.Key+b.Key) * n / float64(st.Tensor)
		f := m.forward(b, n, s, st).attention
		one := bytes/rate + (c-1)*hop
		passes := m.exposed(one, f) + m.exposed(2*one, m.c.AttentionBackward*f) + st.Full*m.exposed(one, f)
		t += float64(b.Count) / float64(st.Pipeline) * passes
	}
	return t
}

// expert is the time of the exchanges that send tokens to their experts and
// back: two forward, two backward, two more where the layer is recomputed.
func (m *machine) expert(net *Net, n float64, st *Setting) float64 {
	if st.Expert <= 1 {
		return 0
	}
	g := group{st.Expert, st.Tensor}
	var t float64
	for i := range net.Blocks {
		b := &net.Blocks[i]
		if !b.Routed {
			continue
		}
		k := 1.0
		for _, e := range b.GEMMs {
			if e.Experts > 0 {
				k = float64(e.TopK)
				break
			}
		}
		one := m.exchange(g, 2*float64(b.Norms)*n, k)
		t += float64(b.Count) / float64(st.Pipeline) * (4 + 2*st.Full) * one
	}
	return t
}

// data is the time of the data-parallel transfers: what each micro-batch pays in
// its forward and backward pass, and what is paid once a step.
func (m *machine) data(net *Net, forward, backward float64, st *Setting) (f, b, once float64) {
	if st.Data <= 1 {
		return 0, 0, 0
	}
	stride := st.Tensor * st.Context
	held := m.held(net, st)
	trained := float64(st.Trainable)
	if trained == 0 || !st.Frozen {
		trained = held
	} else {
		trained /= float64(st.Tensor * st.Pipeline)
	}
	layers := max(float64(net.Layers)/float64(st.Pipeline), 1)
	all := group{st.Data * st.Context, st.Tensor}
	shard := group{st.Shard * st.Context, st.Tensor}
	if st.Shard < st.Data {
		shard = group{st.Shard, stride}
	}
	grads := trained * st.GradBytes
	switch {
	case st.Sharding.gathers():
		per := m.gather(shard, held*st.WeightBytes/layers)
		scatter := m.gather(shard, grads/layers)
		if st.Sharding == ZeRO3 { // tensor by tensor, not a layer at a time
			per *= m.c.TensorGather
			scatter *= m.c.TensorGather
		}
		f = layers * m.exposed(per, forward/layers)
		b = layers * m.exposed(per+scatter, backward/layers)
		if st.Shard < st.Data {
			rep := group{st.Data / st.Shard, stride * st.Shard}
			once = m.exposed(m.reduce(rep, grads/float64(st.Shard)), backward*m.c.Overlap)
		}
	case st.Sharding == ZeRO2:
		// Gradients are reduced in every micro-batch, weights gathered once.
		b = m.exposed(m.gather(all, grads), backward*m.c.Overlap)
		once = m.exposed(m.gather(all, held*st.WeightBytes), forward)
	case st.Sharding == ZeRO1:
		once = m.exposed(m.gather(all, grads), backward*m.c.Overlap) + m.exposed(m.gather(all, held*st.WeightBytes), forward*m.c.Overlap)
	default:
		once = m.exposed(m.reduce(all, grads), backward*m.c.Overlap)
	}
	return f, b, once
}

// held is the number of parameters of one model-parallel rank, unsharded.
func (m *machine) held(net *Net, st *Setting) float64 {
	var experts float64
	for i := range net.Blocks {
		experts += float64(net.Blocks[i].Count) * float64(net.Blocks[i].Experts)
	}
	rest := float64(net.Params) - experts
	return (rest + experts/float64(st.Expert)) / float64(st.Tensor*st.Pipeline)
}

// offload is the time of the transfers to host memory that each micro-batch
// does not hide.
func (m *machine) offload(net *Net, n, layers, forward, backward float64, st *Setting) (f, b float64) {
	rate := m.d.PCIe * m.c.PCIe * 1e3
	if rate <= 0 {
		return 0, 0
	}
	if st.OffloadWeights {
		share := 1.0
		if st.Sharding.gathers() {
			share = float64(st.Shard * st.Context)
		}
		bytes := m.held(net, st) * st.WeightBytes / share
		f += m.exposed(bytes/rate, forward)
		b += m.exposed(bytes/rate, backward)
		if !st.Frozen {
			b += m.exposed(m.held(net, st)*st.GradBytes/share/rate, backward)
		}
	}
	if st.OffloadActivations {
		per := st.ActivationBytes
		if per == 0 {
			per = 2 * float64(net.Hidden)
		}
		bytes := n * per * layers
		f += m.exposed(bytes/rate, forward)
		b += m.exposed(bytes/rate, backward)
	}
	return f, b
}

// bubble is the time in which the ranks of a pipeline wait: filling and
// draining, the stage with the head that holds up the others, and transfers.
func (m *machine) bubble(net *Net, n, one, head, micros float64, st *Setting) float64 {
	p := float64(st.Pipeline)
	fill := (p - 1) / float64(st.Chunks) * one
	// The last stage also has the head; the others wait for it. A layout that
	// gives it fewer layers makes up for a part.
	uneven := micros * head * (1 - 1/p) * m.c.HeadImbalance
	rate, hop := m.rate(group{st.Pipeline, st.Tensor * st.Context * st.Data})
	send := 2*float64(net.Hidden)*n/float64(st.Tensor)/rate + hop
	transfers := 2 * send * (micros*float64(st.Chunks)*m.c.PipelineExposed + p - 1)
	return fill + uneven + transfers
}

// optimizer is the time of the update.
func (m *machine) optimizer(net *Net, st *Setting) float64 {
	mine := m.held(net, st)
	if st.Frozen && st.Trainable > 0 {
		mine = float64(st.Trainable) / float64(st.Tensor*st.Pipeline)
	}
	if st.Sharding != NoSharding && st.Sharding != DDP {
		mine /= float64(st.Shard * st.Context)
	}
	if st.OffloadOptimizer || (st.OffloadWeights && !st.Frozen) {
		// Gradients down, new weights up, and AdamW on the host: DeepSpeed's
		// CPU Adam is bound by the memory of the host, which the ranks share.
		pcie := (st.GradBytes + st.WeightBytes) / (m.d.PCIe * m.c.PCIe * 1e3)
		host := 28 * float64(max(m.d.PerNode, 1)) / (m.c.HostBandwidth * 1e3)
		return mine * (pcie + host)
	}
	return mine * st.StepBytes / m.bandwidth
}
