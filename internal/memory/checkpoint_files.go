package memory

import (
	"slices"

	"unoom/internal/workload"
)

// save plays what writing a checkpoint allocates. Whole weights are written tensor
// by tensor from where they are, which takes nothing; what is shared out has to be
// gathered first.
func (p *player) save(w *workload.Workload) {
	x := p.x
	defer x.during(Save, "save", p.iteration)()
	switch {
	case w.Save == workload.SaveMerged:
		p.merge()
	case p.shards != nil:
		x.unplayed = append(x.unplayed, "saving under FSDP2")
	case p.fsdp != nil:
		p.fsdp.stateDict(w.Save)
		if w.Save != workload.SaveSharded {
			p.fsdp.optimizerStates()
		}
	case p.zero3 != nil && w.Save != workload.SaveSharded:
		p.zero3.consolidate(w.Save == workload.SaveFullGPU)
	}
}

// stateDict plays model.state_dict(). Each unit is brought together in the dtype
// of its shards. A full one goes to the first rank's host before the next unit
// comes; without offload_to_cpu every tensor is cloned and stays. The root's
// pre-hook runs before the other units', its post-hook after them, so that it
// stays together unless it has gone to the host.
// Source: torch/distributed/fsdp/_state_dict_utils.py,
// _common_unshard_pre_state_dict_hook and _full_post_state_dict_hook;
// _unshard_param_utils.py, _unshard_fsdp_state_params.
func (s *fsdp1) stateDict(how workload.Saving) {
	x := s.x
	defer x.as(Buffers, "gathered checkpoint")()
	n := len(s.units)
	order := append([]*unit{s.units[n-1]}, s.units[:n-1]...) // the root comes last in units
	var clones []int32
	root := int32(noStorage)
	for i, u := range order {
		whole := x.alloc(u.local.size(u.n))
		if how == workload.SaveFull {
			x.release(whole)
			continue
		}
		if i == 0 {
			root = whole
			continue
		}
		clones = s.cloned(clones, u, how)
		x.release(whole)
	}
	if how != workload.SaveFull {
		clones = s.cloned(clones, order[0], how)
		x.release(root)
	}
	for _, st := range clones {
		x.release(st)
	}
}

// cloned is what stays of a unit in the state dictionary: each tensor, or this
// rank's part of it.
func (s *fsdp1) cloned(list []int32, u *unit, how workload.Saving) []int32 {
	for _, part := range u.parts {
		n := part.n
		if how == workload.SaveSharded {
			n = ceilDiv(n, s.ranks)
		}
		list = append(list, s.x.alloc(u.local.size(n)))
	}
	return list
}

// optimizerStates plays FSDP.optim_state_dict of a full state: of each unit one
// state after the other is gathered and goes to the host.
// Source: torch/distributed/fsdp/_optim_utils.py, _gather_all_orig_param_state.
func (s *fsdp1) optimizerStates() {
	x := s.x
	defer x.as(Buffers, "gathered checkpoint")()
	for _, u := range s.units {
		if u.leaf == 0 {
			continue
		}
		for _, st := range x.params[u.leaf-1].state {
			if st < 0 {
				continue
			}
			own := x.alloc(x.sts[st].bytes)
			x.scratch(x.sts[st].bytes * s.ranks)
			x.release(own)
		}
	}
}

// consolidate plays DeepSpeed's gathering of 16-bit weights: one module after the
// other is whole on every rank, and the first one takes it to its host.
// Source: DeepSpeed runtime/engine.py, _zero3_consolidated_16bit_state_dict.
func (z *zero3) consolidate(stays bool) {
	var all []int32
	for _, u := range append(slices.Clone(z.units), z.ends) {
		if u == nil {
			continue
		}
		for _, st := range u.parts {
			z.x.fill(st)
			if stays {
				all = append(all, st)
			} else {
				z.x.vacate(st)
			}
		}
	}
	for _, st := range all {
		z.x.vacate(st)
	}
}

// merge plays peft's merge_and_unload: for each target the product of its two
// matrices, the scaled product, and that in the dtype of the base. A quantised
// base is expanded, added to, and quantised again.
// Source: peft tuners/lora/layer.py, get_delta_weight; tuners/lora/bnb.py, merge.
func (p *player) merge() {
	x := p.x
	defer x.as(Temporaries, "merged adapters")()
	for _, st := range p.net.stacks {
		for _, b := range st.blocks {
			for _, m := range b.matrices() {
				if m == nil || m.lora == nil {
					continue
				}
				n := m.in * m.out
				delta := x.tensor(n, m.lora.b.dt)
				scaled := x.tensor(n, m.lora.b.dt)
				x.drop(delta)
				if m.quant == nil {
					low := x.cast(scaled, m.w.dt)
					x.drop(scaled, low)
					continue
				}
				base := x.expand(m.quant, n)
				sum := x.tensor(n, m.quant.compute)
				x.drop(base, scaled)
				for _, bytes := range m.quant.kind.storedBytes(m.in, m.out) {
					x.scratch(bytes)
				}
				x.drop(sum)
			}
		}
	}
}

// matrices lists the matrices of a layer, nil for those that it has not.
func (b *block) matrices() []*matrix {
	return []*matrix{b.q, b.k, b.v, b.qkv, b.o, b.qa, b.qb, b.kva, b.kvb, b.gate, b.up, b.gateUp, b.down}
}

// resume plays the loading of a checkpoint beside the weights that are there. The
// states of the optimizer are those that the step made: what is loaded takes
// their place.
// Source: torch/serialization.py, torch.load without map_location: a tensor goes
// back to the card it was saved from; transformers trainer.py,
// _load_from_checkpoint (weights on the host) and _load_optimizer_and_scheduler
// (on the card where there are several ranks).
func (p *player) resume(w *workload.Workload) {
	x := p.x
	defer x.during(Resume, "resume", p.iteration)()
	defer x.as(Temporaries, "loaded checkpoint")()
	if p.fsdp != nil {
		p.fsdp.loadStateDict(w.Save)
		return
	}
	if p.shards != nil {
		x.unplayed = append(x.unplayed, "resuming under FSDP2")
		return
	}
	if p.zero != nil {
		return // DeepSpeed reads a rank's part on the host
	}
	var copies []int32
	onCard := w.Resume == workload.ResumeGPU
	if onCard {
		for i := range x.params {
			if q := &x.params[i]; q.t.st >= 0 {
				copies = append(copies, x.alloc(x.sts[q.t.st].bytes))
			}
		}
	}
	if p.lib.deepCopies && (onCard || w.Parallel.World > 1) {
		for i := range x.params {
			for _, st := range x.params[i].state {
				if st >= 0 {
					copies = append(copies, x.alloc(x.sts[st].bytes))
				}
			}
		}
	}
	for _, st := range copies {
		x.release(st)
	}
}

// loadStateDict plays load_state_dict: each unit is brought together to be written
// into, the root while the others come and go. The tensors of a sharded one are
// gathered on the card first.
// Source: torch/distributed/fsdp/_state_dict_utils.py, _full_pre_load_state_dict_hook
// and _sharded_pre_load_state_dict_hook.
func (s *fsdp1) loadStateDict(how workload.Saving) {
	x := s.x
	whole := func(u *unit) []int32 {
		list := []int32{x.alloc(u.local.size(u.n))}
		if how == workload.SaveSharded {
			for _, part := range u.parts {
				list = append(list, x.alloc(u.local.size(part.n)))
			}
		}
		return list
	}
	free := func(list []int32) {
		for _, st := range list {
			x.release(st)
		}
	}
	n := len(s.units)
	root := whole(s.units[n-1])
	for _, u := range s.units[:n-1] {
		free(whole(u))
	}
	free(root)
}
