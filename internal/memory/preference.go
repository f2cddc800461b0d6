package memory

import (
	"unoom/internal/model"
	"unoom/internal/workload"
)

// prepareObjective doubles the batch where a sample has two answers, and loads
// the frozen reference where there is one. With adapters the reference is the
// model itself without them.
// Source: trl v0.20 trainer/dpo_trainer.py, concatenated_forward and
// compute_ref_log_probs; trainer/kto_trainer.py, get_batch_loss_metrics.
func (p *player) prepareObjective(w *workload.Workload, ld *plainLoader) error {
	switch o := w.Objective; {
	case o == workload.NextToken:
		return nil
	case !o.Pairs() && !o.Reference():
		return &NotModelled{"the objective " + string(o)}
	case w.Model.Family != model.Decoder:
		return &NotModelled{"the objective " + string(o) + " for this family"}
	case p.fsdp != nil || p.shards != nil || p.zero3 != nil:
		return &NotModelled{"the objective " + string(o) + " with weights that ranks share out"}
	}
	if w.Objective.Pairs() {
		p.batch *= 2
	}
	if !w.Objective.Reference() {
		return nil
	}
	p.ref = p.net
	if !w.Method.Adapted() {
		frozen := *ld
		frozen.train = func(place) bool { return false }
		one := func(*model.Module) int64 { return 1 }
		undo := p.x.as(Weights, "reference model")
		p.ref = p.x.load(w.Model, &frozen, func(int, int) bool { return true }, func(string) bool { return true }, one)
		undo()
	}
	return nil
}

// reference runs the frozen model on the batch, without gradients, for the
// probabilities of the answers: after the trained model, whose graph and logits
// are alive.
// Source: trl v0.20 trainer/dpo_trainer.py, get_batch_loss_metrics.
func (p *player) reference(ids, labels tensor) {
	if p.ref == nil {
		return
	}
	x, net, grad, cache := p.x, p.net, p.x.grad, p.x.cache
	cos, sin := p.cos, p.sin                   // what the trained model's recomputation refers to
	p.net, x.grad, x.cache = p.ref, false, nil // an autocast region of its own
	loss, outputs := p.causalModel(ids, labels, false)
	x.drop(loss)
	x.drop(outputs...)
	x.clearCache()
	p.net, x.grad, x.cache = net, grad, cache
	p.cos, p.sin = cos, sin
}
