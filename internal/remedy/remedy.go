// Package remedy is the one home of what can be done about memory: every
// change that saves some, when it applies, how much it frees here, what it
// costs, whether it changes the mathematics, and how to make it in the user's
// framework. explain, plan, run, report and the docs draw on this list.
//
// Facts are here: predicates and arithmetic. Prose is in the pages of
// catalog/remedies, one for each code and language, and in the messages of the
// room "remedy". A remedy is offered only if it follows from the Situation; one
// that needs an unknown fact says so instead of guessing.
package remedy

import (
	"cmp"
	"slices"
	"strings"

	"unoom/internal/units"
)

// A Code names a remedy: family.name, such as "recompute.checkpointing". Codes
// are stable.
type Code string

// Family returns the part of the code before the point.
func (c Code) Family() string {
	family, _, _ := strings.Cut(string(c), ".")
	return family
}

// A Range is an interval of a ratio, such as step time after over before. The
// zero Range means that the ratio is not known or does not apply.
type Range struct{ Low, High float64 }

// Known reports whether r says anything.
func (r Range) Known() bool { return r.High > 0 }

// Mid returns the middle of r.
func (r Range) Mid() float64 { return (r.Low + r.High) / 2 }

// An Effort is how much a person has to do to make a change.
type Effort int

// The efforts, from least to most.
const (
	Setting  Effort = iota // a flag, a variable, a config key, a command
	Edit                   // a few lines of the training script
	Rework                 // another way to train, another launcher
	Purchase               // other hardware
)

// A Remedy is one change that saves memory, or the fix of a failure that only
// looks like a shortage of it.
type Remedy struct {
	Code  Code
	Cures []Cause // it removes the cause
	Eases []Cause // it makes room although the cause stays
	// Exact says that the training computes the same as before, up to rounding.
	Exact bool
	// Slowdown is step time after over step time before. {1, 1}: no change.
	Slowdown Range
	Effort   Effort
	judge    func(*facts) verdict
}

// A verdict is what a remedy says of a situation.
type verdict struct {
	applies bool
	why     Reason
	saves   *units.Estimate
	// enough overrides the comparison of saves with the shortfall.
	enough *bool
	fill   map[string]string
	// weight scales the rank: 1 where it is zero.
	weight float64
}

// A Reason is a message id of the room "remedy" with its arguments.
type Reason struct {
	ID   string
	Args []any
}

// All returns every remedy, sorted by code.
func All() []Remedy {
	var all []Remedy
	for _, family := range []func() []Remedy{
		batchRemedies, releaseRemedies, parallelRemedies, recomputeRemedies,
		allocatorRemedies, hardwareRemedies, precisionRemedies, optimizerRemedies,
		offloadRemedies, modelRemedies, sequenceRemedies, hostRemedies, fixRemedies,
	} {
		all = append(all, family()...)
	}
	slices.SortFunc(all, func(a, b Remedy) int { return cmp.Compare(a.Code, b.Code) })
	return all
}

// Find returns the remedy with a code.
func Find(code Code) (Remedy, bool) {
	for _, r := range All() {
		if r.Code == code {
			return r, true
		}
	}
	return Remedy{}, false
}

// For returns the remedies that answer a cause, those that cure it first.
func For(cause Cause) []Remedy {
	var cures, eases []Remedy
	for _, r := range All() {
		switch {
		case slices.Contains(r.Cures, cause):
			cures = append(cures, r)
		case slices.Contains(r.Eases, cause):
			eases = append(eases, r)
		}
	}
	return append(cures, eases...)
}

// capacity lists the causes that are a job too big for its card, where any
// saving of the job's own memory helps.
var capacity = []Cause{
	BatchTooLarge, ActivationsNoCheckpointing, SequenceTooLong, LogitsVocab,
	GPUTooSmall, LongestBatch, InputTooLarge,
}

// state lists the causes where weights, gradients and optimizer state are what
// does not fit.
var state = []Cause{TrainStateTooLarge, OptimizerState, GPUTooSmall}
