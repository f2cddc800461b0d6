package diagnose

import (
	"strings"

	"unoom/internal/oomlog"
	"unoom/internal/remedy"
	"unoom/internal/units"
)

// historyRules: what happened before. Where figures and traceback are silent,
// when it fails decides.
func historyRules() []logRule {
	return []logRule{
		{"hist.late", []vote{{remedy.LongestBatch, 2.2}, {remedy.LeakGraphRetained, weak}, {remedy.Fragmentation, weak}, {remedy.LeakStateGrowth, trace}, {remedy.BatchTooLarge, -1}, {remedy.GPUTooSmall, -1}, {remedy.TrainStateTooLarge, -fair}, {remedy.ActivationsNoCheckpointing, -1}}, late},
		{"hist.first_step", []vote{{remedy.BatchTooLarge, trace}, {remedy.GPUTooSmall, 0.5}, {remedy.LongestBatch, -fair}, {remedy.LeakGraphRetained, -fair}, {remedy.LeakStateGrowth, -fair}}, firstStep},
		{"hist.growth", []vote{{remedy.LeakGraphRetained, strong + 0.5}, {remedy.LeakStateGrowth, strong - 0.5}}, grows},
		{"hist.eval_growth", []vote{{remedy.EvalAccumulatesPredictions, fair}, {remedy.EvalNoGrad, fair}, {remedy.LeakGraphRetained, -weak}}, evalGrows},
		{"hist.retry", []vote{{remedy.ExceptionHoldsTensors, strong}}, retryHolds},
		{"hist.nested", []vote{{remedy.ExceptionHoldsTensors, fair}}, nested},
		{"hist.skips", []vote{{remedy.LongestBatch, 3.2}, {remedy.BatchTooLarge, weak}, {remedy.GPUTooSmall, -1}, {remedy.ActivationsNoCheckpointing, -1}}, skips},
		{"hist.like_holders", []vote{{remedy.RanksShareGPU, strong + 2}, {remedy.OtherProcess, -fair}, {remedy.OrphanProcess, -fair}, {remedy.NCCLOutsideAllocator, -1}}, likeHolders},
		{"hist.ranks_on_gpu0", []vote{{remedy.RanksShareGPU, strong}}, ranksOnGPU0},
		{"hist.busy_card", []vote{{remedy.WrongGPU, strong + 1.5}, {remedy.OtherProcess, -0.5}}, otherCardFree},
		{"hist.holder", []vote{{remedy.OtherProcess, weak}}, holder},
		{"hist.no_holder", []vote{{remedy.OrphanProcess, strong}}, noHolder},
		{"hist.unlike_cards", []vote{{remedy.MixedGPUs, strong}}, unlikeCards},
		{"hist.imbalance", []vote{{remedy.MixedGPUs, strong + 1}}, imbalance},
		{"hist.visible", []vote{{remedy.WrongGPU, weak}}, visibleButBusy},
		{"hist.version", []vote{{remedy.LibraryRegression, strong}}, versionChanged},
		{"hist.resumed", []vote{{remedy.ResumeDoubleLoad, strong}}, resumed},
	}
}

// lateSteps is from where on a failure is not one of the start.
const lateSteps = 50

func late(s *signals) (hit, bool) {
	p := s.progress
	if p == nil || !s.memory() || s.phase == oomlog.PhaseSave || s.phase == oomlog.PhaseResume || s.phase == oomlog.PhaseEvaluation {
		return hit{}, false
	}
	if s.figuresKnown() && s.outsideShare() > 0.5 {
		return hit{}, false
	}
	if p.Total > 0 && p.Step >= p.Total { // that bar was done; what failed had not begun to count
		return hit{}, false
	}
	h := hit{args: []any{p.Step, p.Total}, at: p.Source}
	return h, p.Step >= lateSteps || p.Epoch >= 2 && p.Step != 0
}

func firstStep(s *signals) (hit, bool) {
	p := s.progress
	if p == nil || !s.memory() || p.Epoch > 1 {
		return hit{}, false
	}
	return hit{args: []any{p.Step, p.Total}, at: p.Source}, p.Step == 0 || p.Step == 1
}

func grows(s *signals) (hit, bool) {
	g := s.growth
	if g == nil || !s.memory() {
		return hit{}, false
	}
	return hit{args: []any{g.first.Allocated.Bytes, g.last.Allocated.Bytes, g.n}, at: g.last.Source}, true
}

func evalGrows(s *signals) (hit, bool) {
	h, ok := grows(s)
	return h, ok && s.phase == oomlog.PhaseEvaluation
}

// imbalance: PyTorch's DataParallel warns of unlike cards.
func imbalance(s *signals) (hit, bool) {
	f, ok := s.res.Facts.Get(oomlog.FactImbalance)
	return hit{at: f.Source}, ok && s.memory()
}

// visibleButBusy: a card was chosen by number, and the one that the job got is
// held by somebody else.
func visibleButBusy(s *signals) (hit, bool) {
	_, held := heldElsewhere(s)
	f, ok := s.res.Facts.Get(oomlog.FactVisible)
	return hit{args: []any{f.Value}, at: f.Source}, ok && held
}

// versionChanged: the text says that an update came before.
func versionChanged(s *signals) (hit, bool) {
	f, ok := s.res.Facts.Get(oomlog.FactVersionChange)
	return hit{args: []any{f.Key}, at: f.Source}, ok && s.memory()
}

// retryHolds: an attempt with less work fails with as much allocated as before.
func retryHolds(s *signals) (hit, bool) {
	if s.fail == nil || s.fail.Attempt == 0 || !s.hasReserved || !s.memory() {
		return hit{}, false
	}
	for _, f := range s.earlier {
		if f.Attempt < s.fail.Attempt && f.Rank == s.fail.Rank && f.Figures.Allocated.Known && s.allocated*10 >= f.Figures.Allocated.Bytes*9 {
			return hit{args: []any{f.Figures.Allocated.Bytes, s.allocated}, at: f.Source}, true
		}
	}
	return hit{}, false
}

// nested: the handler of an out-of-memory ran out itself, while the exception
// still holds the frames that failed, and their tensors.
func nested(s *signals) (hit, bool) {
	n, ok := s.res.Facts.Get(oomlog.FactNested)
	if !ok || s.fail == nil || !s.memory() || n.Source.Offset < s.fail.Source.Offset {
		return hit{}, false
	}
	for _, f := range s.later {
		if f.Class == oomlog.ClassVRAM && f.Rank == s.fail.Rank && f.Attempt == s.fail.Attempt && f.Source.Offset > n.Source.Offset {
			return hit{at: n.Source}, true
		}
	}
	return hit{}, false
}

// skips: the program drops a batch that does not fit and goes on, which helps
// only against the rare ones.
func skips(s *signals) (hit, bool) {
	f, ok := s.res.Facts.Get(oomlog.FactSkipped)
	return hit{at: f.Source}, ok && s.memory() && s.phase != oomlog.PhaseSave && s.phase != oomlog.PhaseEvaluation
}

// likeHolders: a pasted nvidia-smi table shows several processes of one program
// on a card with nearly the same little memory, besides the one that fills it:
// the contexts that other ranks opened there.
func likeHolders(s *signals) (hit, bool) {
	if !s.memory() {
		return hit{}, false
	}
	for _, first := range s.res.Holders {
		n := 0
		for _, h := range s.res.Holders {
			if h.Card == first.Card && h.PID != first.PID && h.Name == first.Name && first.Memory.Bytes >= 150*units.MiB && first.Memory.Bytes < 3*units.GiB && max(h.Memory.Bytes, first.Memory.Bytes)*10 <= min(h.Memory.Bytes, first.Memory.Bytes)*13 {
				n++
			}
		}
		if n >= 2 {
			return hit{args: []any{n + 1, first.Name, first.Card, first.Memory.Bytes}, at: first.Source}, true
		}
	}
	return hit{}, false
}

// ranksOnGPU0: a rank other than the first fails on GPU 0. Launchers show each
// rank its own card by number, so it should have failed on its own.
func ranksOnGPU0(s *signals) (hit, bool) {
	if s.fail == nil || s.fail.Rank <= 0 || s.fail.Figures.Device != 0 || !s.memory() {
		return hit{}, false
	}
	for _, f := range s.res.Failures {
		if f.Figures.Device > 0 {
			return s.at(s.fail.Rank), true // the numbering is not per rank
		}
	}
	return s.at(s.fail.Rank), len(s.others) > 0
}

// otherCardFree: a pasted nvidia-smi table shows this card busy, another empty.
func otherCardFree(s *signals) (hit, bool) {
	if s.fail == nil || !s.memory() || len(s.res.Cards) < 2 {
		return hit{}, false
	}
	var busy, free *oomlog.Card
	for i := range s.res.Cards {
		c := &s.res.Cards[i]
		switch used := share(c.InUse.Bytes, c.Capacity.Bytes); {
		case used > 0.5 && (s.fail.Figures.Device < 0 && c.Index == 0 || c.Index == s.fail.Figures.Device):
			busy = c
		case used < 0.1:
			free = c
		}
	}
	if busy == nil || free == nil {
		return hit{}, false
	}
	return hit{args: []any{busy.Index, free.Index}, at: busy.Source}, true
}

func holder(s *signals) (hit, bool) {
	if s.fail == nil || !s.memory() {
		return hit{}, false
	}
	for _, h := range s.res.Holders {
		if h.Memory.Bytes > 0 && (s.hasCapacity && share(h.Memory.Bytes, s.capacity) > 0.3 || !s.hasCapacity) && !strings.Contains(h.Name, "Xorg") {
			return hit{args: []any{h.PID, h.Name, h.Memory.Bytes}, at: h.Source}, s.outsideShare() > 0.3 || !s.hasReserved
		}
	}
	return hit{}, false
}

// noHolder: the table shows memory in use and no process that uses it.
func noHolder(s *signals) (hit, bool) {
	if s.fail == nil || !s.memory() || len(s.res.Holders) > 0 {
		return hit{}, false
	}
	for _, c := range s.res.Cards {
		if share(c.InUse.Bytes, c.Capacity.Bytes) > 0.3 && (!s.hasCapacity || s.outsideShare() > 0.3) {
			return hit{args: []any{c.Index, c.InUse.Bytes}, at: c.Source}, true
		}
	}
	return hit{}, false
}

func unlikeCards(s *signals) (hit, bool) {
	if s.fail == nil || !s.memory() || len(s.res.Cards) < 2 || !s.distributed {
		return hit{}, false
	}
	low, high := s.res.Cards[0], s.res.Cards[0]
	for _, c := range s.res.Cards {
		if c.Capacity.Bytes < low.Capacity.Bytes {
			low = c
		}
		if c.Capacity.Bytes > high.Capacity.Bytes {
			high = c
		}
	}
	return hit{args: []any{low.Capacity.Bytes, high.Capacity.Bytes}, at: low.Source}, low.Capacity.Bytes*10 < high.Capacity.Bytes*9
}

func resumed(s *signals) (hit, bool) {
	if !s.memory() || s.phase == oomlog.PhaseSave || s.phase == oomlog.PhaseEvaluation {
		return hit{}, false
	}
	f, ok := s.res.Facts.Get(oomlog.FactResume)
	if yes, known := oomlog.Truth(f.Value); !ok || known && !yes {
		return hit{}, false
	}
	return hit{args: []any{f.Key}, at: f.Source}, s.progress == nil || s.progress.Step < lateSteps
}
