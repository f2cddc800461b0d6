package memory

import "unoom/internal/workload"

// lacking names what a network has that no player of transformers' blocks
// plays, "" if there is nothing.
func lacking(w *workload.Workload) string {
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
