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
	sharded := p.fsdp != nil || p.shards != nil || p.zero3 != nil
	switch o := w.Objective; {
	case o == workload.NextToken:
		return nil
	case !o.Pairs() && !o.Reference():
		return &NotModelled{"the objective " + string(o)}
	case w.Model.Family != model.Decoder:
		return &NotModelled{"the objective " + string(o) + " for this family"}
	case sharded && o.Reference():
		return &NotModelled{"the objective " + string(o) + " with weights that ranks share out"}
	case w.Loss == workload.LossLiger || w.Loss == workload.LossInPlace:
		return &NotModelled{"the objective " + string(o) + " with the loss " + string(w.Loss)}
	}
	p.objective = w.Objective
	p.answered, p.referred = none(), none()
	p.klAnswered, p.klReferred = none(), none()
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

// rewardModel is the model of a reward: one number in place of logits.
// Source: transformers modeling_layers.py, GenericForSequenceClassification:
// score = nn.Linear(hidden_size, num_labels, bias=False) on every position.
func rewardModel(m *model.Model) *model.Model {
	c := *m
	score := model.Module{Name: "score", Role: model.RoleHead, Kind: model.Linear, In: m.Hidden, Out: 1}
	score.Params = []model.Param{{Name: "score.weight", Shape: []int64{1, m.Hidden}}}
	c.Head, c.TiedHead, c.Vocab = []model.Module{score}, false, 1
	return &c
}

// answers are the logits that a model's forward pass returns to the trainer.
func (p *player) answers(net *network, ids tensor, checkpointed bool) tensor {
	x := p.x
	before := p.net
	p.net = net
	var logits tensor
	forward := func() {
		logits = p.rooted(ids, func(ids tensor) tensor {
			h := p.causalHidden(ids, checkpointed)
			defer x.as("", "logits and loss")()
			defer x.drop(h)
			return p.grouped(func(ld *groupLoader) *group { return ld.head }, h, func(h tensor) tensor {
				return p.scaledLogits(x.project(h, p.net.head))
			})
		})
	}
	inFloat := p.lib.loss == lossForwardCopy || p.lib.answersFloat
	if p.amp != f32 {
		x.autocast(p.amp, forward)
		inFloat = inFloat || p.lib.outputsFloat
	} else {
		forward()
	}
	p.net = before
	defer x.as("", "logits and loss")()
	if inFloat {
		up := x.cast(logits, f32)
		x.drop(logits)
		logits = up
	}
	return logits
}

// preferences is the forward pass of a preference objective: the trained model,
// the reference, and the loss of the probabilities of the answers. Neither
// trainer holds more than the loss refers to when backward runs, but ColossalChat,
// whose loop refers to every logits until the next iteration replaces them.
// Source: trl v0.20 trainer/dpo_trainer.py, get_batch_loss_metrics; ColossalAI
// applications/ColossalChat/coati/trainer/dpo.py and kto.py, _train.
func (p *player) preferences(ids tensor) tensor {
	x := p.x
	assign := func(to *tensor, logits tensor) {
		x.drop(*to)
		*to = none()
		if p.lib.holdsAnswers {
			*to = logits.detach()
			return
		}
		x.drop(logits)
	}
	own := func(net *network, checkpointed bool) tensor { return p.answers(net, ids, checkpointed) }
	withKL := p.objective == workload.KTO && p.lib.holdsAnswers
	if withKL {
		assign(&p.klAnswered, x.withoutGrad(func() tensor { return own(p.net, false) }))
	}
	logits := own(p.net, p.checkpointed)
	x.begin(Loss, "loss", p.iteration)
	undo := x.as("", "logits and loss")
	loss := p.logProbs(logits)
	if p.objective == workload.ORPO || p.objective == workload.CPO {
		nll := p.chosenEntropy(logits)
		sum := x.add(loss, nll)
		x.drop(loss, nll)
		loss = sum
	}
	undo()
	assign(&p.answered, logits)
	if p.ref == nil {
		return loss
	}
	refer := func(to *tensor) {
		assign(to, x.withoutGrad(func() tensor {
			// the tables that recomputation of the trained model refers to
			cos, sin, cache := p.cos, p.sin, x.cache
			x.cache = nil
			logits := own(p.ref, false)
			x.clearCache()
			p.cos, p.sin, x.cache = cos, sin, cache
			defer x.as("", "logits and loss")()
			x.drop(p.logProbs(logits))
			return logits
		}))
	}
	if withKL {
		refer(&p.klReferred)
	}
	refer(&p.referred)
	return loss
}

// withoutGrad runs f under torch.no_grad.
func (x *machine) withoutGrad(f func() tensor) tensor {
	old := x.grad
	x.grad = false
	t := f()
	x.grad = old
	return t
}

// logProbStyle is how the probabilities of the tokens of an answer are taken from
// logits.
type logProbStyle uint8

const (
	logProbsByRow  logProbStyle = iota // one sample after the other (trl from 0.15)
	logProbsWhole                      // log_softmax of all logits, shifted
	logProbsHalves                     // the same, of the chosen answers and of the rejected ones apart
)

// logProbs is the sum of the log probabilities of the labels.
// Source: trl v0.20 trainer/utils.py, selective_log_softmax; v0.11.4
// trainer/dpo_trainer.py, get_batch_logps; ColossalAI applications/ColossalChat/
// coati/models/utils.py, calc_masked_log_probs.
func (p *player) logProbs(logits tensor) tensor {
	x := p.x
	switch {
	case p.lib.logProbs == logProbsWhole, p.lib.logProbs == logProbsHalves && !p.objective.Pairs():
		return p.shiftedLogProbs(logits, p.batch)
	case p.lib.logProbs == logProbsHalves:
		a, b := x.slice(logits, logits.n/2), x.slice(logits, logits.n/2)
		first, second := p.shiftedLogProbs(a, p.batch/2), p.shiftedLogProbs(b, p.batch/2)
		x.drop(a, b)
		sum := x.add(first, second)
		x.drop(first, second)
		return sum
	}
	rows := make([]int64, p.batch)
	for i := range rows {
		rows[i] = logits.n / p.batch
	}
	total := none()
	var parts []tensor
	if logits.dt == f32 {
		parts = append(parts, x.gather(logits, logits.n/p.vocabulary()))
	}
	for _, row := range x.split(logits, rows...) {
		n, d := row.n, row.dt
		if d == f32 {
			// logsumexp keeps its input and its result
			parts = append(parts, x.op(n/p.vocabulary(), d, []tensor{row}, []tensor{row}, true, func(f *frame) { f.send(0, f.x.make(n, d)) }))
			x.scratch(d.size(n))
		} else {
			logp := x.op(n, d, []tensor{row}, nil, true, func(f *frame) { f.send(0, f.x.make(n, d)) })
			parts = append(parts, x.gather(logp, n/p.vocabulary()))
			x.drop(logp)
		}
		x.drop(row)
	}
	for _, t := range parts {
		one := x.reduced(t)
		if total.st < 0 {
			total = one
			continue
		}
		sum := x.add(total, one)
		x.drop(total, one)
		total = sum
	}
	return total
}

// shiftedLogProbs is log_softmax(logits[:, :-1]) of some samples, and the labels'
// part of it. The kernel wants its input in one piece.
func (p *player) shiftedLogProbs(logits tensor, samples int64) tensor {
	x := p.x
	n := logits.n / p.seq * (p.seq - 1)
	d := logits.dt
	s := x.slice(logits, n)
	logp := x.op(n, d, []tensor{s}, nil, true, func(f *frame) { f.send(0, f.x.make(n, d)) })
	if samples > 1 {
		x.scratch(d.size(n))
	}
	x.drop(s)
	picked := x.gather(logp, n/p.vocabulary())
	x.drop(logp)
	return x.reduced(picked)
}

// gather picks k elements of t; backward makes zeros of its size.
func (x *machine) gather(t tensor, k int64) tensor {
	n, d := t.n, t.dt
	return x.op(k, d, []tensor{t}, nil, false, func(f *frame) { f.send(0, f.x.make(n, d)) })
}

// chosenEntropy is the loss of the next token over the chosen answers.
// Source: trl v0.20 trainer/orpo_trainer.py and cpo_trainer.py,
// concatenated_forward: logits[..., :-1, :].contiguous().
func (p *player) chosenEntropy(logits tensor) tensor {
	x := p.x
	half := x.slice(logits, logits.n/2)
	n := half.n / p.seq * (p.seq - 1)
	s := x.slice(half, n)
	c := x.contiguous(s)
	labels := none()
	loss := x.crossEntropy(c, labels, n/p.vocabulary(), p.vocabulary())
	x.drop(half, s, c)
	return loss
}
