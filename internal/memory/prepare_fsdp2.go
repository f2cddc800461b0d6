package memory

import (
	"unoom/internal/model"
	"unoom/internal/workload"
)

// loadFSDP2 builds the weights as accelerate does with fsdp_version 2: under
// mixed precision what is trained is kept in float32, gathered and reduced in 16
// bits, and there is no autocast. A quantised base is shared out only where it is
// stored as a floating-point type.
// Source: accelerate v1.14.0 utils/fsdp_utils.py, fsdp2_prepare_model;
// utils/dataclasses.py, FullyShardedDataParallelPlugin.set_mixed_precision;
// accelerator.py, _prepare_fsdp2, which does not go through prepare_model.
func (p *player) loadFSDP2(w *workload.Workload, ld *plainLoader) error {
	switch {
	case w.Model.Family != model.Decoder:
		return &NotModelled{"the family " + string(w.Model.Family) + " under FSDP2"}
	case w.Has("fsdp-no-shard"):
		return &NotModelled{"FSDP2 that shards nothing"}
	}
	param, local := ld.dt, ld.dt
	if p.amp != f32 {
		param, local, p.amp = p.amp, f32, f32
	}
	ranks := w.Parallel.Data
	if w.Parallel.Shard > 0 {
		ranks = w.Parallel.Shard
	}
	p.shards = newFSDP2(p.x, w, ranks, param, param, local)
	p.shards.host = w.Offload == workload.OffloadParams
	g := newGroupLoader(p.shards)
	g.plainLoader = *ld
	g.frozen = param
	if p.lib.fsdp2FrozenFloat {
		g.frozen = local
	}
	g.compute, g.adt = param, param
	g.whole = !w.Has("quant-storage")
	g.ends = p.lib.groupedEnds && !w.Model.TiedHead
	p.groups = g
	p.net = p.x.load(w.Model, g, func(int, int) bool { return true }, func(string) bool { return true }, func(*model.Module) int64 { return 1 })
	after := w.ReshardAfterForward
	if after == "" {
		after = "always" // but for the root
	}
	g.finish(after)
	return nil
}

// rooted runs the model within what wraps all of it.
func (p *player) rooted(ids tensor, body func(tensor) tensor) tensor {
	switch {
	case p.fsdp != nil:
		return p.fsdp.forward(p.rootUnit, ids, body)
	case p.shards != nil:
		return p.shards.forward(p.groups.root, ids, body)
	}
	return body(ids)
}

// grouped runs a part of the model in its FSDP2 group, if there is one.
func (p *player) grouped(g func(*groupLoader) *group, in tensor, body func(tensor) tensor) tensor {
	if p.shards == nil {
		return body(in)
	}
	return p.shards.around(g(p.groups), in, body)
}

// endPass is what happens to gathered weights when a backward pass, or a forward
// pass without one, has ended.
func (p *player) endPass() {
	if p.fsdp != nil {
		p.fsdp.finish()
	}
	if p.shards != nil {
		p.shards.finish()
	}
}
