package diagnose

import (
	"cmp"
	"slices"
	"strings"
	"sync"

	"unoom/internal/account"
	"unoom/internal/memory"
	"unoom/internal/model"
	"unoom/internal/remedy"
	"unoom/internal/units"
	"unoom/internal/workload"
)

// A Prediction is what the memory engine says of the run that failed: what it
// needs at its peak and what each change would leave of that.
type Prediction struct {
	// Peak is what PyTorch's allocator has allocated at the peak, over what the
	// text leaves open.
	Peak  units.Estimate
	Phase remedy.Phase
	// Parts are what the peak is made of, largest first, in the words of package
	// account; they sum to the peak of the likeliest reading.
	Parts []account.Part
}

// Predict plays the run of a situation whose model, micro-batch and length are
// known, and each change that the engine can play, and puts what it finds into
// the situation: savings, whether the run then fits, how far to split the batch.
// It returns nil, and leaves the situation as it is, where the setting is not
// known well enough, the engine cannot play it, or what it says contradicts the
// message. codes are the remedies of interest.
func Predict(engine *memory.Engine, m *model.Model, card workload.GPU, s *remedy.Situation, codes []remedy.Code) *Prediction {
	p := &predictor{engine: engine, sit: s}
	list := readings(m, card, s)
	p.passages(list)
	for i, est := range p.estimates(list) {
		if est != nil && p.agrees(est) {
			p.base = append(p.base, reading{list[i], est})
		}
	}
	if len(p.base) == 0 {
		return nil
	}
	s.Saves, s.Fits = orEmpty(s.Saves), orEmpty(s.Fits)
	if !beside(s.Phase) {
		p.split()
	}
	for _, code := range codes {
		change := changes[code]
		if beside(s.Phase) {
			change = passageChanges[code] // the steps had their turn, and fit
		}
		if change != nil {
			p.judge(code, func(w *workload.Workload) bool { return change(w, s) })
		}
	}
	first := p.base[0].est
	out := &Prediction{Peak: span(p.base, func(e *memory.Estimate) units.Estimate { return e.Allocated }), Phase: remedy.Phase(first.Phase), Parts: parts(first.Items)}
	if beside(s.Phase) {
		peak := span(p.base, func(e *memory.Estimate) units.Estimate { return units.Exactly(phasePeak(e, s.Phase).Allocated) })
		out.Peak, out.Phase, out.Parts = peak, s.Phase, parts(phasePeak(first, s.Phase).Items)
	}
	s.Need = span(p.base, func(e *memory.Estimate) units.Estimate { return e.Device }).High
	s.Activations = span(p.base, activations)
	return out
}

func orEmpty[V any](m map[remedy.Code]V) map[remedy.Code]V {
	if m == nil {
		return map[remedy.Code]V{}
	}
	return m
}

// A reading is one way to read what the text leaves open.
type reading struct {
	w   *workload.Workload
	est *memory.Estimate
}

type predictor struct {
	engine *memory.Engine
	sit    *remedy.Situation
	base   []reading
}

// estimate plays a run. From the second micro-batch of a step on all are alike,
// so two are played.
func (p *predictor) estimate(w *workload.Workload) (*memory.Estimate, error) {
	if w.Accumulation > 2 {
		w = w.Clone()
		w.Accumulation = 2
	}
	return p.engine.Estimate(w)
}

// agrees holds an estimate against the message. The run failed while it asked
// for more than there was, so its peak is no less than what was allocated; and
// where the failure stands near the peak of its step, the peak is no more than
// half again what was allocated and asked for.
func (p *predictor) agrees(est *memory.Estimate) bool {
	s := p.sit
	if s.Account == nil {
		return true
	}
	had := s.Account.Of(account.Allocated) + s.Account.Of(account.PrivatePools)
	if had == 0 {
		return true
	}
	if beside(s.Phase) {
		// The steps are not at their peak then; where in the evaluation it failed is
		// not known.
		return 1.1*float64(peakIn(est, s.Phase)) >= 0.95*float64(had)
	}
	if float64(est.Allocated.High) < 0.95*float64(had) {
		return false
	}
	switch s.Phase {
	case remedy.PhaseLoss, remedy.PhaseBackward, remedy.PhaseStep:
		return float64(est.Allocated.Low) < 1.5*float64(had+s.Tried)
	}
	return true
}

// estimates plays several runs at once; nil stands for one that the engine
// cannot play.
func (p *predictor) estimates(list []*workload.Workload) []*memory.Estimate {
	out := make([]*memory.Estimate, len(list))
	var wait sync.WaitGroup
	for i, w := range list {
		wait.Go(func() {
			if est, err := p.estimate(w); err == nil {
				out[i] = est
			}
		})
	}
	wait.Wait()
	return out
}

// activations is what a peak has of activations.
func activations(est *memory.Estimate) units.Estimate {
	for _, p := range parts(est.Items) {
		if p.Kind == account.Activations {
			return units.Exactly(p.Bytes)
		}
	}
	return units.Estimate{}
}

// judge plays a change in every reading and notes what it saves and whether the
// run fits then, where all readings say so.
func (p *predictor) judge(code remedy.Code, change func(*workload.Workload) bool) bool {
	var saves units.Estimate
	fits, fails := 0, 0
	var list []*workload.Workload
	for _, b := range p.base {
		w := b.w.Clone()
		if !change(w) {
			return false
		}
		list = append(list, w)
	}
	for i, est := range p.estimates(list) {
		if est == nil {
			return false
		}
		saved := peakIn(p.base[i].est, p.sit.Phase) - peakIn(est, p.sit.Phase)
		if i == 0 {
			saves = units.Exactly(saved)
		}
		saves.Low, saves.High = min(saves.Low, saved), max(saves.High, saved)
		switch est.Verdict {
		case memory.Fits:
			fits++
		case memory.DoesNotFit:
			fails++
		}
	}
	if saves.High <= 0 {
		return false
	}
	saves.Low = max(saves.Low, 0)
	saves.Mid = min(max(saves.Mid, saves.Low), saves.High)
	p.sit.Saves[code] = saves
	delete(p.sit.Fits, code)
	switch len(p.base) {
	case fits:
		p.sit.Fits[code] = true
	case fails:
		p.sit.Fits[code] = false
	}
	return p.sit.Fits[code]
}

// split finds the least division of the micro-batch with which the run fits. The
// need grows evenly with the batch, so halving the range of divisors will do.
func (p *predictor) split() {
	micro := p.sit.MicroBatch
	var by []int
	for k := 2; k <= micro; k++ {
		if micro%k == 0 {
			by = append(by, k)
		}
	}
	if len(by) == 0 {
		return
	}
	try := func(k int) bool {
		p.sit.SplitBy = k
		return p.judge("accumulate.split", func(w *workload.Workload) bool {
			w.MicroBatch, w.Accumulation = int64(micro/k), w.Accumulation*int64(k)
			return true
		})
	}
	low, high := 0, len(by)-1 // the least that fits lies within, if one does
	for low < high {
		if mid := (low + high) / 2; try(by[mid]) {
			high = mid
		} else {
			low = mid + 1
		}
	}
	try(by[low])
	if e, ok := p.sit.Saves["accumulate.split"]; ok {
		p.sit.Saves["batch.reduce"] = e
	}
	if yes, ok := p.sit.Fits["accumulate.split"]; ok {
		p.sit.Fits["batch.reduce"] = yes
	}
}

// changes are the remedies that the engine can play: each changes a workload, and
// reports whether it could.
var changes = map[remedy.Code]func(*workload.Workload, *remedy.Situation) bool{
	"recompute.checkpointing": func(w *workload.Workload, _ *remedy.Situation) bool {
		w.Checkpointing = workload.FullCheckpoint
		return true
	},
	"loss.fused_linear": func(w *workload.Workload, _ *remedy.Situation) bool {
		w.Loss = workload.LossLiger
		return true
	},
	"loss.chunked": func(w *workload.Workload, _ *remedy.Situation) bool {
		w.Loss, w.Kernels.ChunkedLoss = workload.LossChunked, 8
		return true
	},
	"attention.flash": func(w *workload.Workload, _ *remedy.Situation) bool {
		w.Attention = workload.Flash
		return true
	},
	"optimizer.fused": func(w *workload.Workload, _ *remedy.Situation) bool {
		w.Optimizer.Name, w.Optimizer.Impl = "adamw_torch_fused", "fused"
		return true
	},
	"optimizer.8bit": func(w *workload.Workload, _ *remedy.Situation) bool {
		w.Optimizer = workload.Optimizer{Name: "adamw_8bit"}
		return true
	},
	"optimizer.factored": func(w *workload.Workload, _ *remedy.Situation) bool {
		w.Optimizer = workload.Optimizer{Name: "adafactor"}
		return true
	},
	"precision.bf16_weights": func(w *workload.Workload, _ *remedy.Situation) bool {
		w.Precision = workload.BF16
		return true
	},
	"peft.lora":  func(w *workload.Workload, _ *remedy.Situation) bool { adapt(w, workload.LoRA); return true },
	"peft.qlora": func(w *workload.Workload, _ *remedy.Situation) bool { adapt(w, workload.QLoRA); return true },
	"parallel.fsdp": func(w *workload.Workload, s *remedy.Situation) bool {
		w.Sharding = workload.FSDP
		return s.WorldSize > 1
	},
	"sequence.shorter": func(w *workload.Workload, _ *remedy.Situation) bool {
		w.Seq /= 2
		return w.Seq > 0
	},
}

// adapt makes a run train adapters, over a base in 16 or 4 bits.
func adapt(w *workload.Workload, method workload.Method) {
	w.Method, w.Precision = method, workload.BF16
	if w.Adapter.Rank == 0 {
		w.Adapter = workload.Adapter{Rank: 16, Targets: []string{"all-linear"}}
	}
	if method == workload.QLoRA {
		w.Base = workload.NF4Double
	}
}

// readings makes the workloads that a situation can mean, the likeliest first;
// none where model, batch or length is not known, or the engine does not know
// the way in which the job is spread.
func readings(m *model.Model, card workload.GPU, s *remedy.Situation) []*workload.Workload {
	if m == nil || m.Image != nil || s.MicroBatch <= 0 || s.Sequence <= 0 {
		return nil
	}
	if s.Account != nil {
		card.Capacity = s.Account.Capacity - s.Account.Of(account.OtherProcesses)
	}
	w := &workload.Workload{
		Model: m, Name: s.Model, Versions: s.Versions, Framework: workload.HFTrainer, Method: workload.Full, Precision: workload.AMPBF16,
		MicroBatch: int64(s.MicroBatch), Accumulation: int64(max(s.Accumulation, 1)), Seq: int64(s.Sequence),
		Checkpointing: workload.NoCheckpointing, Attention: workload.SDPA, GPU: card,
		Optimizer: workload.Optimizer{Name: or(optimizerName(s.Optimizer), "adamw_torch_fused")}, Sharding: workload.NoSharding, Offload: workload.NoOffload,
		Parallel: workload.Parallel{World: 1, Data: 1, Tensor: 1, Pipeline: 1, Virtual: 1, Context: 1, Expert: 1},
	}
	if strings.Contains(w.Optimizer.Name, "fused") {
		w.Optimizer.Impl = "fused"
	}
	w.Optimizer.Paged = strings.Contains(w.Optimizer.Name, "paged")
	if s.Checkpointing != nil && *s.Checkpointing {
		w.Checkpointing = workload.FullCheckpoint
	}
	switch s.Attention {
	case "eager":
		w.Attention = workload.Eager
	case "flash":
		w.Attention = workload.Flash
	}
	if n := int64(s.WorldSize); n > 1 {
		w.Parallel.World, w.Parallel.Data = n, n
		switch s.Sharding {
		case "ddp", "":
			w.Sharding = workload.DDP
		case "fsdp":
			w.Sharding = workload.FSDP
		default:
			return nil
		}
	}
	switch s.Method {
	case "lora":
		adapt(w, workload.LoRA)
	case "qlora":
		adapt(w, workload.QLoRA)
	}
	return precisions(w, s)
}

// precisions are the readings of the number formats. "bf16" is the trainers'
// switch for autocast over float32 weights, "bfloat16" the type of the weights;
// where the text has neither, both are possible.
func precisions(w *workload.Workload, s *remedy.Situation) []*workload.Workload {
	if w.Method.Adapted() {
		return []*workload.Workload{w}
	}
	as := func(p ...workload.Precision) []*workload.Workload {
		var list []*workload.Workload
		for _, one := range p {
			c := w.Clone()
			c.Precision = one
			list = append(list, c)
		}
		return list
	}
	switch strings.TrimPrefix(strings.ToLower(s.DType), "torch.") {
	case "bf16", "bf16-mixed":
		return as(workload.AMPBF16, workload.BF16)
	case "fp16", "16-mixed", "16":
		return as(workload.AMPFP16)
	case "bfloat16", "bf16-true":
		return as(workload.BF16)
	case "float32", "fp32", "32", "no":
		return as(workload.FP32)
	case "float16", "16-true":
		return as(workload.FP16)
	}
	return as(workload.AMPBF16, workload.BF16, workload.FP32)
}

// optimizerName is an optimizer as its users write it: adamw_torch for
// OptimizerNames.ADAMW_TORCH, adamw for torch.optim.AdamW.
func optimizerName(name string) string {
	return strings.ToLower(name[strings.LastIndexByte(name, '.')+1:])
}

// span is the interval over all readings, about the likeliest.
func span(list []reading, of func(*memory.Estimate) units.Estimate) units.Estimate {
	e := of(list[0].est)
	for _, r := range list[1:] {
		o := of(r.est)
		e.Low, e.High = min(e.Low, o.Low), max(e.High, o.High)
	}
	return e
}

// parts sums the items of a peak by kind, largest first.
func parts(items []memory.Share) []account.Part {
	kinds := map[memory.Kind]account.Kind{
		memory.Weights: account.Weights, memory.Gradients: account.Gradients, memory.OptimizerState: account.OptimizerState,
		memory.Activations: account.Activations,
	}
	var list []account.Part
	for _, it := range items {
		kind, ok := kinds[it.Kind]
		if !ok {
			kind = account.Temporaries
		}
		i := 0
		for i < len(list) && list[i].Kind != kind {
			i++
		}
		if i == len(list) {
			list = append(list, account.Part{Kind: kind})
		}
		list[i].Bytes += units.Bytes(it.Bytes)
	}
	slices.SortFunc(list, func(a, b account.Part) int { return cmp.Compare(b.Bytes, a.Bytes) })
	return list
}
