package memory

import (
	"strings"

	"unoom/internal/units"
	"unoom/internal/workload"
)

// Outside is memory of the process that torch's allocator does not know of.
type Outside struct {
	Name   string
	Bytes  units.Estimate
	Source string
}

// outsideOf lists what the driver and the libraries take.
func outsideOf(w *workload.Workload, lib library) []Outside {
	var out []Outside
	if w.GPU.Context > 0 {
		out = append(out, contextOf(w, lib))
	}
	if g := groups(w); g > 0 {
		c := units.Bytes(g*channels(w.GPU)) * collectiveChannel
		out = append(out, Outside{"NCCL buffers", units.Estimate{Low: c / 2, Mid: c, High: c + c/2}, "nccl src/transport: SIMPLE 4 MiB, LL128 4.69 MiB and LL 0.5 MiB for each connection of a channel; ring and two trees"})
	}
	return out
}

// contextOf is the context of the process with the kernels in it. CUDA loads a
// library's kernels when they are first needed, or all of them at the start
// where the driver is older than R515; a version that leaves that open is
// spanned.
func contextOf(w *workload.Workload, lib library) Outside {
	c := w.GPU.Context
	o := Outside{"CUDA context and kernels", units.Estimate{Low: max(c-contextLess, c/2), Mid: c, High: c + contextMore}, "catalogue of GPUs: context_mib"}
	if lib.eagerModules && !w.GPU.ContextMeasured && w.GPU.Vendor == "nvidia" {
		o.Bytes.Mid += allKernels
		if w.Model.Image != nil {
			o.Bytes.Mid += allKernelsDNN
		}
		o.Bytes.High = o.Bytes.Mid + contextMore
		o.Source += "; catalogue of variants: modules"
	}
	return o
}

// What torch's and cuDNN's kernels take when all are loaded at the start.
// Source: on one A100, whose context alone takes 0.5 GiB, nvidia-smi showed
// 1443 MiB or more for each of 3,000 dense networks of a few MiB (GPUMemNet,
// Datasets/MLP), 1.37 GiB less what they hold, and convolution networks 330 to
// 420 MiB more; torch 1.10 took 1.78 GiB on an A100 (§4.1 of the design's
// memory model), and transformers' documentation counts 1343 MiB on a V100.
const (
	allKernels    = 900 * units.MiB
	allKernelsDNN = 350 * units.MiB
)

// What the context of one process differs by, with the kernels that get loaded.
// Source: the points of §4.1 of the design's memory model, 300 to 920 MiB on
// one kind of card.
const (
	contextLess = 150 * units.MiB
	contextMore = 300 * units.MiB
)

// collectiveChannel is the memory of one channel of a communicator: a ring and
// two trees of connections.
const collectiveChannel = 27*units.MiB + 614*units.KiB

// groups counts the communicators: one for each dimension that has ranks.
func groups(w *workload.Workload) int64 {
	p := w.Parallel
	n := int64(0)
	for _, size := range []int64{p.Data * p.Context, p.Tensor, p.Pipeline, p.Context, p.Expert} {
		if size > 1 {
			n++
		}
	}
	return n
}

// channels is how many channels NCCL takes over the link between cards.
// Source: nccl src/graph; measured totals of 544 to 688 MB on NVLink of A100.
func channels(g workload.GPU) int64 {
	switch {
	case strings.HasPrefix(g.Link, "nvlink3"):
		return 24
	case strings.HasPrefix(g.Link, "nvlink4"), strings.HasPrefix(g.Link, "nvlink5"):
		return 32
	case strings.HasPrefix(g.Link, "nvlink"), strings.HasPrefix(g.Link, "infinity"):
		return 16
	}
	return 2
}

// outside adds what nvidia-smi shows on top of what the allocator reserved.
func (est *Estimate) outside() {
	est.Device = est.Reserved
	for _, o := range est.Outside {
		est.Device = est.Device.Plus(o.Bytes)
	}
}

// usable is what the allocator can get of the card; 0: not known.
func usable(w *workload.Workload, outside []Outside) (mid, low int64) {
	if w.GPU.Capacity <= 0 {
		return 0, 0
	}
	m, l := w.GPU.Capacity, w.GPU.Capacity
	for _, o := range outside {
		m -= o.Bytes.Mid
		l -= o.Bytes.High
	}
	return int64(m), int64(l)
}

// The verdicts.
const (
	Fits       = "fits"
	Tight      = "tight"
	DoesNotFit = "does_not_fit"
)
