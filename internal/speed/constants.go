package speed

// Constants are the figures of the model that no data sheet states. Those
// marked fitted were chosen to bring the predictions near the public table in
// testdata (TestFit prints them); the others have the source beside them.
type Constants struct {
	// Sustained is the share of the data sheet's rate that large matrix products
	// keep up during training, by architecture. Upper bounds are the achievable
	// figures of stas00/ml-engineering (MAMF): A100 0.87, H100 0.80, B200 0.78,
	// MI300X 0.51-0.6; training stays below, because the power limit lowers the
	// clock.
	Sustained map[Arch]float64
	// Attention is the rate of fused attention relative to large products:
	// FlashAttention-2 on Ampere, -3 or cuDNN on Hopper.
	Attention map[Arch]float64
	FP8       float64 // how much of the doubled FP8 rate arrives, casts included

	Wave, Depth   float64 // waves of tiles and inner length lost by a product
	ShortSequence float64 // tokens of a sequence lost by fused attention
	Memory        float64 // share of the bandwidth that pointwise kernels reach

	NormTraffic, InnerTraffic float64 // bytes for each token and unit of width, forward, eager
	LossTraffic               float64 // bytes for each token and word of the vocabulary
	RouteTraffic              float64
	AdapterTraffic            float64
	Dequantise                float64 // share of the bandwidth of a dequantisation kernel
	Pointwise                 map[Kernels]float64
	Kernels                   map[Kernels]float64 // launched in the forward pass of a layer
	Launch                    float64             // microseconds on the host
	StepHost                  float64             // times Kernels×Launch for each step outside of the layers

	AttentionBackward, PointwiseBackward, LaunchBackward float64

	Link, PCIe, NIC      float64 // share of the one-way rate that a ring reaches
	HopInside, HopAcross float64 // microseconds
	Contention           float64 // cost of hidden transfers
	Overlap              float64 // share of the backward pass that can hide gradients
	TensorOverlap        float64
	HeadImbalance        float64
	PipelineExposed      float64
	// Of image networks. Convolution is the rate relative to large products; it
	// is above 1 where cuDNN takes a faster algorithm. Depthwise is the share of
	// the float32 rate that filters of one channel reach, MapTraffic how often
	// the other operations read and write their maps, and Turned how often maps
	// are read and written to bring their channels to where tensor cores want
	// them.
	Convolution, Depthwise, MapTraffic, Turned float64
	HookHost                                   float64 // host work of DeepSpeed's ZeRO-3 relative to plain PyTorch
	TensorGather                               float64 // its transfers relative to FSDP's, which gather whole layers
	HostBandwidth                              float64 // GB/s of the memory of a node's host
}

// Prior returns the constants before they are fitted: data sheets, published
// micro-benchmarks and reasoning, each with what it stands on.
func Prior() *Constants {
	return &Constants{
		Sustained: map[Arch]float64{
			Volta: 0.75, Turing: 0.7, Ampere: 0.80, AmpereGA: 0.85, Ada: 0.85, Hopper: 0.62, Blackwell: 0.62, GB20x: 0.8, CDNA3: 0.45, OtherArch: 0.65,
		},
		Attention: map[Arch]float64{Ampere: 0.7, Hopper: 0.6, Blackwell: 0.6, OtherArch: 0.6},
		FP8:       0.75,
		Wave:      0.3, Depth: 200, ShortSequence: 200, Memory: 0.8,
		NormTraffic: 24, InnerTraffic: 8, LossTraffic: 16, RouteTraffic: 16, AdapterTraffic: 6, Dequantise: 0.3,
		Pointwise: map[Kernels]float64{Eager: 1, Fused: 0.6, Compiled: 0.5, Megatron: 0.5},
		Kernels:   map[Kernels]float64{Eager: 60, Fused: 35, Compiled: 15, Megatron: 12},
		Launch:    6, StepHost: 4,
		AttentionBackward: 2.5, PointwiseBackward: 1.7, LaunchBackward: 1.8,
		Link: 0.8, PCIe: 0.7, NIC: 0.8, HopInside: 6, HopAcross: 12, Contention: 0.15, Overlap: 0.8,
		TensorOverlap: 0.5, HeadImbalance: 0.7, PipelineExposed: 0.2, Convolution: 0.8, Depthwise: 0.2, MapTraffic: 1, Turned: 1,
		HookHost: 2, TensorGather: 1.5, HostBandwidth: 150,
	}
}

// Default returns the constants in use: those of Prior, moved by the fit to the
// public table of 2026-12 (`go test ./internal/speed -run TestFit -v -fit`). No
// constant is for one model, one source or one framework release.
func Default() *Constants {
	return &Constants{
		Sustained: map[Arch]float64{
			Volta: 0.75, Turing: 0.7, Ampere: 0.77, AmpereGA: 0.85, Ada: 0.87, Hopper: 0.60, Blackwell: 0.575, GB20x: 0.8, CDNA3: 0.45, OtherArch: 0.65,
		},
		Attention: map[Arch]float64{Ampere: 0.52, Hopper: 0.45, Blackwell: 0.52, OtherArch: 0.5},
		FP8:       0.96,
		Wave:      0.31, Depth: 220, ShortSequence: 204, Memory: 0.8,
		NormTraffic: 25.9, InnerTraffic: 8.95, LossTraffic: 17.2, RouteTraffic: 16.3, AdapterTraffic: 5.7, Dequantise: 0.23,
		Pointwise: map[Kernels]float64{Eager: 1, Fused: 0.71, Compiled: 0.48, Megatron: 0.49},
		Kernels:   map[Kernels]float64{Eager: 94, Fused: 35, Compiled: 15, Megatron: 12},
		Launch:    10.1, StepHost: 4,
		AttentionBackward: 2.6, PointwiseBackward: 1.73, LaunchBackward: 1.8,
		Link: 0.63, PCIe: 0.57, NIC: 0.85, HopInside: 6, HopAcross: 12, Contention: 0.16, Overlap: 0.8,
		TensorOverlap: 0.47, HeadImbalance: 0.67, PipelineExposed: 0.2, Convolution: 1.3, Depthwise: 0.08, MapTraffic: 1.03, Turned: 1.4,
		HookHost: 2.5, TensorGather: 1.68, HostBandwidth: 165,
	}
}

// spread is the factor by which the time may be off either way. Where a whole
// source was left out of the fit, 80 % of its figures were within 1.27 and 90 %
// within 1.39; offload, experts and PCIe depend most on the machine.
func (c *Constants) spread(net *Net, d *Device, st *Setting) float64 {
	f := 1.3
	if st.OffloadOptimizer || st.OffloadWeights || st.OffloadActivations {
		f *= 1.15
	}
	if st.Expert > 1 {
		f *= 1.15
	}
	if len(net.Products) > 0 { // the public figures are of classifiers on three cards
		f *= 1.1
	}
	if d.Link == 0 && st.World() > 1 {
		f *= 1.15
	}
	if d.Arch != Ampere && d.Arch != Hopper && d.Arch != Ada && d.Arch != AmpereGA && d.Arch != Blackwell {
		f *= 1.2 // no public figures of this architecture are in the table
	}
	return f
}

func byArch(t map[Arch]float64, a Arch) float64 {
	if v, ok := t[a]; ok {
		return v
	}
	return t[OtherArch]
}

func (c *Constants) sustained(a Arch) float64 { return byArch(c.Sustained, a) }
func (c *Constants) attention(a Arch) float64 { return byArch(c.Attention, a) }

func (c *Constants) pointwise(k Kernels) float64 {
	if v, ok := c.Pointwise[k]; ok {
		return v
	}
	return c.Pointwise[Eager]
}

func (c *Constants) kernels(k Kernels) float64 {
	if v, ok := c.Kernels[k]; ok {
		return v
	}
	return c.Kernels[Eager]
}
