// Package diagnose turns evidence into causes: from what a log (or a memory
// snapshot) shows it makes the account of the card, ranks the causes, and says
// what supports each and what would settle the doubt.
//
// Invariants: every cause carries the evidence that put it there; the account's
// parts sum to the capacity; confidences of the listed causes sum to at most 1,
// and the rest is what the evidence leaves open. Sentences are message ids with
// arguments (internal/i18n/messages/diagnose.*), so a diagnosis has no language.
// What to do about a cause is package remedy's.
//
// # What a confidence means
//
// A confidence is the share of failures with this evidence in which the label is
// the true cause. Each rule adds points, in natural-log odds, to the labels that
// it speaks for and takes them from those that it speaks against; a label's
// confidence is exp(points) over the sum for all labels and for "something
// else", which always has otherPoints. One decisive message (6 points) therefore
// stands near 0.99, a strong hint (4) near 0.9, a fair one (2) near 0.6 when
// alone, and labels that the same evidence supports share. `make score` prints
// how often the first label was right per band of confidence.
package diagnose

import (
	"unoom/internal/account"
	"unoom/internal/oomlog"
	"unoom/internal/remedy"
	"unoom/internal/units"
)

// A Verdict says whether an accelerator ran out of memory.
type Verdict string

// The verdicts.
const (
	OutOfMemory    Verdict = "out_of_memory"
	NotOutOfMemory Verdict = "not_out_of_memory" // something else failed, and we know what
	NothingFound   Verdict = "nothing_found"     // no message that we know; see OtherError
	// TraceOnly: a traceback whose error line is missing. The causes are what
	// they would be if it had ended in an out-of-memory.
	TraceOnly Verdict = "trace_only"
)

// A Sentence is something said to the reader: Text(ID, Args...) of the catalogue.
// Args are strings, ints and units.Bytes.
type Sentence struct {
	ID   string
	Args []any
	// At is the place in the text that shows it; Line 0 means none.
	At oomlog.Source
}

// A Cause is a label with what speaks for it.
type Cause struct {
	Label      remedy.Cause
	Confidence float64 // 0 to 1
	Evidence   []Sentence
	Against    []Sentence
}

// A Check is the one thing to run or to look at next.
type Check struct {
	Reason  Sentence // what it settles
	Command string   // to paste into a shell; "" where there is only something to look at
}

// A Diagnosis is what is known of one failure.
type Diagnosis struct {
	Verdict Verdict
	// Failure is the first cause in the text, nil where there is none. Its
	// Source, Text, Rank, Figures, Frames and Where are for display.
	Failure *oomlog.Failure
	// Resource is what ran out: vram, limit, host, shared_memory, pinned,
	// kv_cache, disk, on_chip, or none.
	Resource string
	Account  *account.Account // nil where the message has no figures
	Tried    units.Bytes      // 0 unknown
	Slack    *units.Bytes     // free + cached - tried; nil unknown
	Phase    oomlog.Phase     // finer than Situation.Phase
	Where    *oomlog.Frame    // the user's own line
	Causes   []Cause          // ranked; the first is the answer
	Next     *Check           // what would settle the doubt; nil where there is none
	Notes    []Sentence       // what a reader often gets wrong about these figures
	// OtherError is the last error line of a text without a failure of ours.
	OtherError *oomlog.ErrorLine
	// Later are the failures that came after and followed from the first.
	Later []oomlog.Failure
	// Situation is what the remedies need to know.
	Situation remedy.Situation
	Warnings  []Sentence // what in the text could not be read
}

// IsOOM reports whether an accelerator's memory ran out (`data.is_oom`).
func (d *Diagnosis) IsOOM() bool { return d.Verdict == OutOfMemory || d.Verdict == TraceOnly }

// Given are facts that the user states with flags; they overrule the text.
type Given struct {
	GPU           string
	Model         string
	MicroBatch    int
	Accumulation  int
	Sequence      int
	WorldSize     int
	DType         string
	Optimizer     string
	Framework     remedy.Framework
	Checkpointing *bool
	Capacity      units.Bytes
}
