package workload

import "strconv"

// Kept is what of each batch of an evaluation stays on the card.
type Kept string

// What can stay. A Trainer keeps the logits of all batches as soon as metrics are
// computed from them.
const (
	KeepLoss   Kept = "loss"
	KeepLogits Kept = "logits"
	KeepIDs    Kept = "ids" // preprocess_logits_for_metrics with argmax: one int64 a token
)

// Evaluation is what a run does between its steps to measure itself. Weights and
// optimizer states are there all the while.
type Evaluation struct {
	Batch   int64 `json:"batch,omitempty"`   // samples of one forward pass on one GPU
	Samples int64 `json:"samples,omitempty"` // over all GPUs, 0: nobody said
	Keep    Kept  `json:"keep,omitempty"`
	// Accumulation is after how many batches what is kept goes to the host, 0: when
	// all have run.
	Accumulation int64 `json:"accumulation,omitempty"`
	// Graph says that gradients are recorded: a loop without no_grad.
	Graph bool `json:"graph,omitempty"`
	// NewTokens are generated after each sample, 0: none; Beams are how many
	// continuations are followed.
	NewTokens int64 `json:"new_tokens,omitempty"`
	Beams     int64 `json:"beams,omitempty"`
}

// Saving is how a checkpoint is written.
type Saving string

// The ways, in FSDP's words where it has some. SaveFull gathers the weights on the
// first rank's host, one unit after the other; SaveFullGPU gathers them on every
// card; SaveSharded writes each rank's part; SaveMerged adds adapters to the base
// first.
const (
	SaveNothing Saving = ""
	SaveFull    Saving = "full"
	SaveFullGPU Saving = "full-gpu"
	SaveSharded Saving = "sharded"
	SaveMerged  Saving = "merged"
)

// Resuming is how a checkpoint is read.
type Resuming string

// The ways. ResumeGPU is torch.load without map_location: the tensors come back on
// the card they were saved from, and every rank of a job makes them on the first.
const (
	ResumeNothing Resuming = ""
	ResumeHost    Resuming = "cpu"
	ResumeGPU     Resuming = "gpu"
)

// Passages reports whether anything happens beside the training steps.
func (w *Workload) Passages() bool {
	return w.Eval || w.Save != SaveNothing || w.Resume != ResumeNothing
}

// StepsAlone returns the workload without what happens beside its training steps;
// w itself where there is nothing.
func (w *Workload) StepsAlone() *Workload {
	if !w.Passages() {
		return w
	}
	c := w.Clone()
	c.Eval, c.Evaluation, c.Save, c.Resume = false, Evaluation{}, SaveNothing, ResumeNothing
	return c
}

// passages sets what happens beside the training steps: what is stated, and what
// the framework of a stated file does by itself.
func (b *builder) passages() error {
	w := b.w
	if v, ok := b.said(FieldEvalBatch, FieldEvalSamples, FieldEvalKeep, FieldEvalAccumulation, FieldEvalGraph, FieldNewTokens, FieldBeams); ok && !b.Says(FieldEval) && v.Place == "" {
		w.Eval = true // a flag about the evaluation says that there is one
	}
	if w.Eval {
		b.evaluation()
	}
	w.Save = Saving(b.quiet(FieldSave, ""))
	if w.Save == "none" {
		w.Save = SaveNothing
	}
	w.Resume = Resuming(b.quiet(FieldResume, ""))
	if w.Resume == "none" {
		w.Resume = ResumeNothing
	}
	if w.Save == SaveMerged && !w.Method.Adapted() {
		return wrong("--save full writes all weights", "%s: there are no adapters to merge with method %s", b.cite(FieldSave), w.Method)
	}
	return nil
}

func (b *builder) evaluation() {
	w := b.w
	e := &w.Evaluation
	e.Batch = b.count(FieldEvalBatch, w.MicroBatch)
	e.Samples = b.number(FieldEvalSamples, 0)
	e.Graph = b.yes(FieldEvalGraph)
	e.Accumulation = b.number(FieldEvalAccumulation, 0)
	e.NewTokens, e.Beams = b.number(FieldNewTokens, 0), b.number(FieldBeams, 1)
	e.Keep = Kept(b.quiet(FieldEvalKeep, ""))
	if e.Keep == "" {
		e.Keep = KeepLoss
		if w.Framework == HFTrainer && !e.Graph {
			w.Assume(string(FieldEvalKeep), string(KeepLoss), "a Trainer keeps logits only where compute_metrics is given")
		}
	}
	if e.Keep != KeepLoss && e.Samples == 0 {
		e.Samples = 16 * e.Batch * max(w.Parallel.Data, 1)
		w.Assume(string(FieldEvalSamples), strconv.FormatInt(e.Samples, 10), "sixteen batches; what is kept grows with them")
	}
	if e.Beams == 1 && e.NewTokens == 0 {
		e.Beams = 0
	}
}
