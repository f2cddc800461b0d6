package memory

import (
	"strings"

	"unoom/internal/alloc"
	"unoom/internal/model"
	"unoom/internal/workload"
)

// A NotModelled error says what of a workload the engine cannot play. It is an
// answer: no number is better than a guess.
type NotModelled struct{ What string }

func (e *NotModelled) Error() string { return e.What + " is not modelled" }

// played is the outcome of one simulated run.
type played struct {
	x        *machine
	reserved int64
	peak     section
}

// play runs a workload in one choice of its variants.
func play(w *workload.Workload, lib library) (*played, error) {
	a := alloc.New(alloc.Config{})
	x := &machine{dev: &cachingAllocator{a: a}, training: true}
	x.item = x.items.id("", "other")
	x.begin(Load, "load", 0)
	x.newTape()
	p, err := newPlayer(x, w, lib)
	if err != nil {
		return nil, err
	}
	p.train(2)
	out := &played{x: x, reserved: a.PeakReservedBytes()}
	for _, s := range x.sections {
		if s.allocated > out.peak.allocated {
			out.peak = s
		}
	}
	return out, nil
}

// newPlayer loads the model and prepares the loop.
func newPlayer(x *machine, w *workload.Workload, lib library) (*player, error) {
	if w.Model.Family != model.Decoder || w.Parallel.Tensor*w.Parallel.Pipeline*w.Parallel.Context != 1 {
		return nil, &NotModelled{"this family or parallelism"}
	}
	p := &player{x: x, lib: lib, batch: w.MicroBatch, seq: w.Seq, accumulation: int(w.Accumulation), inputsPerToken: 3}
	ld := &plainLoader{train: func(place) bool { return !w.Method.Adapted() }}
	switch w.Precision {
	case workload.FP32:
		ld.dt = f32
	case workload.AMPBF16:
		ld.dt, p.amp = f32, bf16
	case workload.AMPFP16:
		ld.dt, p.amp = f32, f16
	case workload.BF16:
		ld.dt = bf16
	case workload.FP16:
		ld.dt = f16
	}
	ld.compute, ld.other = ld.dt, ld.dt
	if w.Adapter.KBit {
		ld.other = f32
	}
	switch w.Base {
	case workload.NF4:
		ld.quant, ld.style = quantNF4, adapterBnb4
	case workload.NF4Double:
		ld.quant, ld.style = quantNF4Double, adapterBnb4
	case workload.GPTQ4:
		ld.quant, ld.style, ld.other = quantGPTQ, adapterGPTQ, ld.dt
	}
	if ld.quant != 0 && w.Framework == workload.HFTrainer {
		p.amp = ld.compute
	}
	if w.Method.Adapted() {
		ld.rank, ld.dropout, ld.adt = w.Adapter.Rank, w.Adapter.Dropout, f32
		ld.adapt = func(p place) bool { return p.layer >= 0 && targeted(w.Adapter.Targets, p.mod.Leaf()) }
		p.inputsNeedGrad = true
	}
	one := func(*model.Module) int64 { return 1 }
	all := func(int, int) bool { return true }
	ends := func(string) bool { return true }
	if w.Sharding == workload.FSDP {
		s := &fsdp1{x: x, ranks: w.Parallel.Data, reduce: ld.dt, reshard: true, prefetch: true}
		local := ld.dt
		if w.Options["upcast"] == "fp32" {
			local, s.mixed = f32, true
			p.amp = ld.dt
		}
		fl := newFlatLoader(s, *ld, local)
		fl.replicate = lib.fusedLoRA && ld.quant != 0
		p.net = x.load(w.Model, fl, all, ends, one)
		fl.seal(!w.Method.Adapted())
		p.fsdp, p.units, p.rootUnit = s, fl.layers, fl.root
		x.detached = s.holdInput
	} else {
		p.net = x.load(w.Model, ld, all, ends, one)
	}
	p.checkpointed = w.Checkpointing == workload.FullCheckpoint
	p.inPlaceCE = w.Loss == workload.LossInPlace
	p.cublas = 8519680
	p.opt = optimizer{kind: optAdam, impl: implForeach, stateAsParam: true}
	return p, nil
}

// targeted reports whether a module's name is among LoRA's targets. Tables and
// scripts abbreviate q_proj to q.
func targeted(targets []string, leaf string) bool {
	for _, t := range targets {
		if t == leaf || t == "all-linear" || t+"_proj" == leaf || t == strings.TrimSuffix(leaf, "_proj") {
			return true
		}
	}
	return false
}
