package memory

import "unoom/internal/workload"

// lackingTransformers names what a network has that transformers' blocks do not
// play, "" if there is nothing. Routed experts are, one by one; not where one
// operation runs all of them, nor where adapters stand on them, nor flattened.
func lackingTransformers(w *workload.Workload) string {
	for _, s := range w.Model.Stacks {
		for _, l := range s.Layers {
			if l.SSM != nil {
				return "a network with state-space layers"
			}
			if l.MoE == nil {
				continue
			}
			switch {
			case l.MoE.FusedGateUp:
				return "experts that one operation runs together"
			case w.Sharding == workload.FSDP || w.Sharding == workload.FSDP2:
				return "a mixture of experts under FSDP"
			}
			for i := range l.Modules {
				if m := &l.Modules[i]; m.Role.Expert() && w.Method.Adapted() && targeted(w.Adapter.Targets, m) {
					return "adapters on experts"
				}
			}
		}
	}
	return ""
}

// lacking names what a network has that no player of transformers' blocks
// plays, "" if there is nothing.
func lacking(w *workload.Workload) string {
	if w.Model.Sight != nil {
		return "a model that sees"
	}
	for _, s := range w.Model.Stacks {
		for _, l := range s.Layers {
			switch {
			case l.MoE != nil:
				return "a mixture of experts"
			case l.Attention != nil && l.Attention.MLA != nil:
				return "latent attention"
			case l.SSM != nil:
				return "a network with state-space layers"
			}
		}
	}
	return ""
}
