package lives

import (
	"slices"

	"unoom/internal/account"
)

// A Kind is what a tensor is.
type Kind uint8

// The kinds, and how many there are.
const (
	Unknown Kind = iota
	Weights
	Gradients
	OptimizerState
	Activations
	Temporaries
	// Held is what lives through the whole trace and is not identified: weights,
	// optimizer state, caches.
	Held
	Kinds = int(Held) + 1
)

// Account returns the part of an account that a kind belongs to.
func (k Kind) Account() account.Kind {
	return [Kinds]account.Kind{
		account.Allocated, account.Weights, account.Gradients, account.OptimizerState,
		account.Activations, account.Temporaries, account.Allocated,
	}[k]
}

// String returns the stable name of a kind.
func (k Kind) String() string {
	return [Kinds]string{"unknown", "weights", "gradients", "optimizer_state", "activations", "temporaries", "held"}[k]
}

// classify tells what each tensor is: by what the file says, by its stack, and by
// how its life lies in the phases and steps.
func (h *History) classify() {
	h.takeCategories()
	end := int32(len(h.Events)) - 1
	gradientSizes := map[int64]int{} // of one step
	for i := range h.Tensors {
		t := &h.Tensors[i]
		if t.Kind == Unknown {
			t.Kind = h.kindOf(t, end)
		}
		if t.Kind == Gradients && t.Freed == Never {
			gradientSizes[t.Bytes]++
		}
	}
	h.splitHeld(gradientSizes)
}

// takeCategories takes what torch's profile_plot says.
func (h *History) takeCategories() {
	if h.Device >= len(h.Snapshot.Traces) {
		return
	}
	column := h.Snapshot.Traces[h.Device].Category
	for i := range h.Tensors {
		t := &h.Tensors[i]
		if t.Born < 0 || int(t.Born) >= len(column) {
			continue
		}
		// Source: torch/profiler/_memory_profiler.py, Category.
		switch h.Snapshot.Text(column[t.Born]) {
		case "parameter":
			t.Kind = Weights
		case "gradient":
			t.Kind = Gradients
		case "optimizer_state":
			t.Kind = OptimizerState
		case "activation", "autograd_detail", "input":
			t.Kind = Activations
		case "temporary":
			t.Kind = Temporaries
		}
	}
}

func (h *History) kindOf(t *Tensor, end int32) Kind {
	traits := h.traitsOf(t)
	lives := t.Freed == Never
	if t.Born == Before {
		return h.kindFromBefore(t, traits)
	}
	died := h.PhaseAt(t.Freed)
	if lives {
		died = PhaseUnknown
	}
	kept := h.outlivesStep(t) || lives && h.afterStep(t, end)
	if traits&inModuleMove != 0 && (lives || kept) {
		return Weights
	}
	switch t.Within {
	case PhaseLoad:
		if lives || kept {
			return Weights
		}
		return Temporaries
	case PhaseOptimizer:
		if kept || lives && (h.PhaseAt(end) != PhaseOptimizer || traits&inStep != 0 && longBefore(t, end)) {
			return OptimizerState
		}
		return Temporaries
	case PhaseBackward:
		switch {
		case traits&inAccumulate != 0:
			return Gradients
		case traits&inRecompute != 0 && traits&inForward != 0:
			return Activations
		case kept, !lives && died != PhaseBackward, lives && (h.runEnd[t.Born] < end || longBefore(t, end)):
			return Gradients
		}
		return Temporaries
	case PhaseForward, PhaseLoss, PhaseEvaluation:
		failed := len(h.OOMs) > 0 && h.OOMs[len(h.OOMs)-1] >= t.Born
		switch {
		case kept:
			return Held
		case died == PhaseBackward, died == PhaseOptimizer, lives && (h.backward || failed):
			return Activations
		case lives:
			return Held
		case t.Freed <= h.runEnd[t.Born] && (h.backward || t.Freed-t.Born < shortLife):
			return Temporaries
		case h.backward:
			return Activations
		}
		return Unknown
	}
	// Nothing tells the phase: only how long it lives.
	switch {
	case kept:
		return Held
	case len(h.OOMs) > 0 && t.LivesAfter(h.OOMs[0]):
		// The exception that follows drops what the failed computation held.
		if lives {
			return Held
		}
		return Activations
	case h.Steps.Whole() > 0 && !lives && t.Freed-t.Born < shortLife:
		return Temporaries
	}
	return Unknown
}

// shortLife is how many events a tensor lives at most to be called a temporary
// where only its life tells.
const shortLife = 64

func (h *History) kindFromBefore(t *Tensor, traits trait) Kind {
	lives := t.Freed == Never
	switch {
	case traits&inStep != 0, traits&inOptimizer != 0 && traits&inForward == 0:
		return OptimizerState
	case traits&inAccumulate != 0:
		return Gradients
	case traits&inLoading != 0:
		return Weights
	case traits&inEngine != 0:
		return Gradients
	case traits&inForward != 0 && traits&inEvaluation == 0 && (!h.Recorded || !lives):
		return Activations
	case lives:
		return Held
	}
	free := h.traitsOfStack(h.Events[t.Freed].Stack)
	switch {
	case free&inZeroGrad != 0:
		return Gradients
	case free&inStep != 0:
		return OptimizerState // replaced by a new one
	case h.PhaseAt(t.Freed) == PhaseBackward:
		return Activations
	}
	return Unknown
}

// outlivesStep reports whether a tensor lives through the ends of two steps: one
// whole step at least.
func (h *History) outlivesStep(t *Tensor) bool {
	born, _ := slices.BinarySearch(h.Steps.Ends, t.Born)
	freed, _ := slices.BinarySearch(h.Steps.Ends, t.Freed)
	return freed-born >= 2
}

// afterStep reports whether the step in which a living tensor was born is over.
func (h *History) afterStep(t *Tensor, end int32) bool {
	i, _ := slices.BinarySearch(h.Steps.Ends, t.Born)
	return i < len(h.Steps.Ends) && h.Steps.Ends[i] < end && h.computes(h.Steps.Ends[i]+1, end)
}

// longBefore reports whether a tensor was born long before the end of the trace:
// what an optimizer or a backward keeps, not what it is about to drop.
func longBefore(t *Tensor, end int32) bool { return end-t.Born > shortLife }

// splitHeld tells weights, gradients and optimizer state apart among what lives
// through the whole trace, by sizes: a gradient has the size of its weight, and
// Adam keeps two states of that size for each. Only where each size comes a whole
// number of times as often as among the gradients is anything concluded.
func (h *History) splitHeld(gradients map[int64]int) {
	if len(gradients) == 0 {
		return
	}
	held := map[int64][]int32{}
	for i := range h.Tensors {
		if t := &h.Tensors[i]; t.Kind == Held && t.Born == Before {
			held[t.Bytes] = append(held[t.Bytes], int32(i))
		}
	}
	states := 0
	for i := range h.Tensors {
		if h.Tensors[i].Kind == OptimizerState {
			states++ // its own requests show it: nothing is left to guess
			break
		}
	}
	var agree, all int64
	for size, n := range gradients {
		all += size * int64(n)
		if m := len(held[size]); m >= n {
			agree += size * int64(n)
		}
	}
	if float64(agree) < 0.9*float64(all) {
		return
	}
	for size, ids := range held {
		n := gradients[size]
		if n == 0 {
			continue
		}
		for j, id := range ids {
			switch {
			case j < n:
				h.Tensors[id].Kind = Weights
			case states == 0 && j < 3*n:
				h.Tensors[id].Kind = OptimizerState
			}
		}
	}
}
