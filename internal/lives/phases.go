package lives

import (
	"slices"

	"unoom/internal/alloc"
)

// A Phase is a part of a training step.
type Phase uint8

// The phases.
const (
	PhaseUnknown Phase = iota
	PhaseLoad
	PhaseForward
	PhaseLoss
	PhaseBackward
	PhaseOptimizer
	PhaseEvaluation
)

// String returns the phase in the words of remedy.Phase.
func (p Phase) String() string {
	return [...]string{"", "load", "forward", "loss", "backward", "optimizer_step", "evaluation"}[p]
}

// findPhases gives each event the phase of the call it belongs to.
//
// A request tells its phase by its stack. On CUDA the backward runs in a thread
// of autograd's own, which has no Python frames: where other requests have some,
// one that has none is of the backward. A free has the phase of the requests
// around it.
func (h *History) findPhases() {
	h.phases = make([]Phase, len(h.Events))
	python := false
	for i := range h.Events {
		if h.Events[i].Action == alloc.Alloc && h.traitsOfStack(h.Events[i].Stack)&hasPython != 0 {
			python = true
			break
		}
	}
	phase := PhaseUnknown
	for i := range h.Events {
		e := &h.Events[i]
		if e.Action == alloc.Alloc || e.Action == alloc.OOM {
			phase = h.phaseOf(h.traitsOfStack(e.Stack), python, h.forward != nil && h.forward[i] != 0, phase)
		} else if t := h.traitsOfStack(e.Stack); t&(inZeroGrad|inStep) != 0 {
			phase = PhaseOptimizer
		} else if phase == PhaseBackward && t&hasPython != 0 && t&(inBackward|inEngine|inRecompute) == 0 {
			phase = PhaseUnknown // the program goes on: the backward is over
		}
		h.phases[i] = phase
	}
	for i := range h.Tensors {
		if t := &h.Tensors[i]; t.Born >= 0 {
			t.Within = h.phases[t.Born]
		}
	}
	h.backward = slices.Contains(h.phases, PhaseBackward)
	h.worked = make([]int32, len(h.Events)+1)
	for i := range h.Events {
		h.worked[i+1] = h.worked[i]
		if p := h.phases[i]; h.Events[i].Action == alloc.Alloc && (p == PhaseBackward || p.forwards()) {
			h.worked[i+1]++
		}
	}
	h.runEnd = make([]int32, len(h.Events))
	for i := len(h.Events) - 1; i >= 0; i-- {
		h.runEnd[i] = int32(i)
		if i+1 < len(h.Events) && (h.phases[i] == h.phases[i+1] || h.phases[i].forwards() && h.phases[i+1].forwards()) {
			h.runEnd[i] = h.runEnd[i+1]
		}
	}
}

// forwards reports whether a phase is a forward, of which the loss is the end.
func (p Phase) forwards() bool { return p == PhaseForward || p == PhaseLoss }

// computes reports whether a forward or backward asks for memory in the events
// from one to another, both included.
func (h *History) computes(from, to int32) bool { return h.worked[to+1] > h.worked[from] }

func (h *History) phaseOf(t trait, python, forwardStack bool, last Phase) Phase {
	switch {
	case t&(inEngine|inRecompute|inBackward) != 0, forwardStack:
		return PhaseBackward
	case t&inStep != 0, t&inOptimizer != 0 && t&inForward == 0, t&inZeroGrad != 0:
		return PhaseOptimizer
	case t&inEvaluation != 0:
		return PhaseEvaluation
	case t&inLoading != 0 && (t&inForward == 0 || last == PhaseLoad) && t&inData == 0:
		if last == PhaseForward || last == PhaseBackward || last == PhaseOptimizer || last == PhaseLoss {
			return PhaseForward // a tensor moved within a step
		}
		return PhaseLoad
	case t&inLoss != 0:
		return PhaseLoss
	case t&hasPython != 0:
		return PhaseForward
	case python:
		return PhaseBackward
	case t&hasNative != 0 && last != PhaseUnknown:
		return last
	}
	return PhaseUnknown
}

// PhaseAt returns the phase of the call to which an event belongs.
func (h *History) PhaseAt(event int32) Phase {
	if event < 0 || int(event) >= len(h.phases) {
		return PhaseUnknown
	}
	return h.phases[event]
}

// Training reports whether the history shows a training: a backward, or an
// optimizer's state.
func (h *History) Training() bool {
	if h.backward {
		return true
	}
	for i := range h.Tensors {
		if k := h.Tensors[i].Kind; k == OptimizerState || k == Gradients {
			return true
		}
	}
	return false
}
