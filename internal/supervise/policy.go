package supervise

import (
	"slices"
	"strconv"

	"unoom/internal/ledger"
	"unoom/internal/units"
)

// Remedies that a run can apply by itself, by their codes in package remedy.
const (
	remedyAccumulate    = "accumulate.split" // smaller pieces, more of them, the same batch
	remedyCheckpointing = "recompute.checkpointing"
	remedyExpandable    = "allocator.expandable_segments"
	remedyFraction      = "allocator.leave_headroom"
	remedyWorkers       = "host.fewer_workers"
	remedyPinned        = "host.pin_memory_off"
)

// Actions that follow an attempt.
const (
	ActionDone   = "done"
	ActionRetry  = "retry"
	ActionStop   = "stop"    // end with the command's own status
	ActionGiveUp = "give_up" // end with 78: it does not fit here
	ActionWait   = "wait"    // for the card to become free, then retry unchanged
)

// Abilities says which settings of a command can be changed, and by what.
type Abilities struct {
	// Batch: the micro-batch and the accumulation, by a template in the
	// command or in a framework that the shim knows ("" for neither).
	Batch string
	// Uneven: the micro-batches of a step may differ in size, since each is
	// weighted by what it holds.
	Uneven bool
	// Checkpointing likewise: template, a framework, or "shim" for any PyTorch
	// model with repeated blocks.
	Checkpointing string
	// Environment: PyTorch reads it.
	Environment bool
	// Predict asks the memory engine; nil where the workload is not known.
	Predict Predictor
}

// A Predictor says what an attempt with other settings needs on its fullest
// card, from the model itself; nil where it cannot.
type Predictor func(ledger.Settings) *ledger.Predicted

// A Past is an attempt that has ended, in the terms of the policy.
type Past struct {
	Settings ledger.Settings
	Verdict  Verdict
	// Micro and Accumulation that were really in force per rank, 0 unknown.
	Micro, Accumulation int
	Samples             int // rows of a step per rank, where they are unequal; else 0
	Steps               int64
	Broken              bool // it was ended since it did not train the same batch
	CheckpointAdvanced  bool // it wrote a newer checkpoint than it began with
}

// Limits bound the search.
type Limits struct {
	MaxRestarts int
	MinMicro    int  // never below this micro-batch; checkpointing comes first
	Exact       bool // only changes that leave the mathematics as they are
	Wait        bool // wait for other tenants instead of stopping
}

// A Next is the policy's answer.
type Next struct {
	Action    string
	Settings  ledger.Settings
	Remedies  []string
	Predicted *ledger.Predicted
	Why       string // message id
	Args      []string
	// Roomy is a micro-batch that is expected to fit too and is larger by more than
	// a tenth, but does not divide the rows of a step; 0: there is none.
	Roomy int
}

// margin is what a prediction keeps free: allocations at later steps are not
// laid out exactly as in the trial.
func margin(capacity units.Bytes) units.Bytes { return capacity / 100 }

// Decide says what follows the last of the attempts.
//
// The order is: what costs nothing first (the allocator), then what costs
// little (a smaller micro-batch with more accumulation), then what costs a
// third (recomputing activations). Each step is taken only where it is expected
// to be enough. A change of the micro-batch that changes the mathematics, as it
// does under BatchNorm, comes last, and not at all with Limits.Exact.
func Decide(past []Past, can Abilities, lim Limits) Next {
	last := past[len(past)-1]
	v := last.Verdict
	switch {
	case last.Broken:
		return Next{Action: ActionStop, Why: "run_why_counters"}
	case v.Outcome == Done:
		return Next{Action: ActionDone}
	}
	switch v.Outcome {
	case Stopped:
		return Next{Action: ActionStop, Why: "run_why_stopped"}
	case Failed, CascadeFailed:
		return Next{Action: ActionStop, Why: "run_why_bug"}
	case SharedMemory:
		return Next{Action: ActionStop, Why: "run_why_shm"}
	case OtherTenant: // neither of the rules below: others may hold a card for days
		if lim.Wait {
			return Next{Action: ActionWait, Settings: last.Settings, Why: "run_why_wait_tenant",
				Args: []string{v.Figures.Others.String()}}
		}
		return Next{Action: ActionStop, Why: "run_why_tenant", Args: []string{v.Figures.Others.String()}}
	}
	if n := noProgress(past); n >= 3 {
		return Next{Action: ActionGiveUp, Why: "run_why_no_progress", Args: []string{strconv.Itoa(n)}}
	}
	if failures(past) > lim.MaxRestarts {
		return Next{Action: ActionStop, Why: "run_why_restarts", Args: []string{strconv.Itoa(lim.MaxRestarts)}}
	}
	switch v.Outcome {
	case HostOOM:
		return decideHost(past)
	case OutsideOOM:
		return decideOutside(past, can, lim)
	case Fragmented:
		if n, ok := decideFragmented(last, can); ok {
			return n
		}
	}
	return decideDevice(past, can, lim)
}

// failures counts the attempts that failed by themselves, and not on a card that
// others held.
func failures(past []Past) int {
	n := 0
	for _, p := range past {
		if p.Verdict.Outcome != OtherTenant {
			n++
		}
	}
	return n
}

// noProgress counts the newest attempts in a row that failed in the same way at
// the same step although the settings had changed.
func noProgress(past []Past) int {
	n := 1
	for i := len(past) - 1; i > 0; i-- {
		a, b := past[i], past[i-1]
		if a.CheckpointAdvanced || a.Micro != b.Micro || a.Settings.Checkpointing != b.Settings.Checkpointing ||
			a.Verdict.Outcome != b.Verdict.Outcome || a.Steps > b.Steps {
			break
		}
		n++
	}
	return n
}

// decideHost: the card has nothing to do with it. DataLoader workers and pinned
// memory are the usual holders of host memory, and fewer of them change nothing
// but speed; a smaller micro-batch would not help.
func decideHost(past []Past) Next {
	last := past[len(past)-1]
	if last.Settings.Workers != 0 {
		return Next{Action: ActionStop, Why: "run_why_host_again"}
	}
	s := last.Settings
	s.Workers = 1
	return Next{Action: ActionRetry, Settings: s, Remedies: []string{remedyWorkers, remedyPinned}, Why: "run_why_host"}
}

// decideOutside: the allocator took so much that NCCL or a library got nothing.
// A cap makes it give cached blocks back in time; if that is not enough the job
// itself has to become smaller.
func decideOutside(past []Past, can Abilities, lim Limits) Next {
	last := past[len(past)-1]
	if can.Environment && last.Settings.Fraction == 0 {
		s := last.Settings
		s.Fraction = 0.9
		return Next{Action: ActionRetry, Settings: s, Remedies: []string{remedyFraction}, Why: "run_why_outside"}
	}
	return decideDevice(past, can, lim)
}

// decideFragmented answers only where joining the free pieces is enough.
func decideFragmented(last Past, can Abilities) (Next, bool) {
	v := last.Verdict
	if !can.Environment || last.Settings.AllocConf != "" {
		return Next{}, false
	}
	if fit, ok := fitOf(v, false); ok && fit.at(fit.fullRows) > usable(v) {
		return Next{}, false // the trials say that even one piece would be too small
	}
	s := last.Settings
	s.AllocConf = expandable
	return Next{Action: ActionRetry, Settings: s, Remedies: []string{remedyExpandable},
		Why: "run_why_fragmented", Args: []string{v.Figures.Cached().String(), v.Figures.Tried.String()}}, true
}

// decideDevice: the job needs more than there is.
func decideDevice(past []Past, can Abilities, lim Limits) Next {
	last := past[len(past)-1]
	v := last.Verdict
	if cal := v.calibration(); cal != nil && cal.Persistent+cal.StepMore > usable(v) && usable(v) > 0 {
		// Weights, gradients and optimizer state alone are too much: no batch
		// and no recomputation makes them smaller.
		return giveUp(last, "run_why_state", cal.Persistent.String(), usable(v).String())
	}
	batchNorm := v.Process != nil && v.Process.BatchNorm
	batch, hasBatch := smallerBatch(past, can)
	ckpt, hasCkpt := checkpointed(past, can, lim)
	switch {
	case batchNorm && hasCkpt:
		return ckpt
	case batchNorm && lim.Exact && hasBatch:
		return giveUp(last, "run_why_batch_norm")
	case hasBatch && batch.Settings.MicroBatch >= max(1, lim.MinMicro):
		if batchNorm {
			batch.Why = "run_why_batch_inexact"
		}
		return batch
	case hasCkpt:
		return ckpt
	case hasBatch:
		return batch
	case can.Batch == "" && can.Checkpointing == "":
		return giveUp(last, "run_why_no_handle")
	}
	return giveUp(last, "run_why_nothing_left")
}

func giveUp(last Past, why string, args ...string) Next {
	return Next{Action: ActionGiveUp, Settings: last.Settings, Why: why, Args: args}
}

// rowsOfStep returns the rows of an optimizer step on each rank; 0: not known.
func (p Past) rowsOfStep() int {
	if p.Samples > 0 {
		return p.Samples
	}
	return p.Micro * max(1, p.Accumulation)
}

// smallerBatch picks the largest micro-batch that is expected to fit and keeps
// the rows of a step.
func smallerBatch(past []Past, can Abilities) (Next, bool) {
	last := past[len(past)-1]
	if can.Batch == "" || last.Micro <= 1 {
		return Next{}, false
	}
	rows := last.rowsOfStep()
	pred := predictor(past, last.Settings.Checkpointing == "full", can.Predict)
	for _, m := range sizesBelow(rows, last.Micro, can.Uneven) {
		if failedBefore(past, m, last.Settings) {
			continue
		}
		p, fits := pred(m)
		if !fits {
			continue
		}
		next := Next{Action: ActionRetry, Settings: last.Settings, Remedies: []string{remedyAccumulate}, Predicted: p, Why: "run_why_batch"}
		cutInto(&next.Settings, rows, m)
		s := next.Settings
		if s.MicroBatch != m {
			next.Predicted, _ = pred(s.MicroBatch)
		}
		if s.Samples > 0 {
			next.Why = "run_why_batch_uneven"
		}
		easeTight(&next, last, can)
		if !can.Uneven {
			next.Roomy = roomy(pred, m, last.Micro)
		}
		next.Args = []string{strconv.Itoa(s.MicroBatch), strconv.Itoa(s.Accumulation), strconv.Itoa(last.Micro), strconv.Itoa(max(1, last.Accumulation))}
		return next, true
	}
	return Next{}, false
}

// roomy returns the largest micro-batch below limit that is expected to fit, if
// it is more than a tenth larger than the one that was chosen.
func roomy(pred func(int) (*ledger.Predicted, bool), chosen, limit int) int {
	for m := limit - 1; 10*m > 11*chosen; m-- {
		if p, fits := pred(m); fits && p != nil && p.Source != "attempts" { // that one is a guess
			return m
		}
	}
	return 0
}

// easeTight joins the free pieces from the start where a size was seen to fit with
// less than 2 % of the room left: later steps are laid out otherwise than the
// trial, and would fail on a piece that is too small.
func easeTight(next *Next, last Past, can Abilities) {
	p, room := next.Predicted, usable(last.Verdict)
	if p == nil || room == 0 || p.Source != "calibration" || !can.Environment || next.Settings.AllocConf != "" {
		return
	}
	if p.High+2*margin(room) > room && p.Mid+margin(room) <= room {
		next.Settings.AllocConf = expandable
		next.Remedies = append(next.Remedies, remedyExpandable)
	}
}

// expandable is the allocator's setting under which free pages are joined.
const expandable = "expandable_segments:True"

// cutInto cuts the rows of a step into as few micro-batches of at most m rows
// as possible. Where equal ones would be nearly as large as m they are equal:
// as many passes, with less memory.
func cutInto(s *ledger.Settings, rows, m int) {
	pieces := (rows + m - 1) / m
	s.MicroBatch, s.Accumulation, s.Samples = m, pieces, 0
	if rows%pieces == 0 && rows/pieces*20 >= m*19 {
		s.MicroBatch = rows / pieces
	}
	if s.MicroBatch*pieces != rows {
		s.Samples = rows
	}
}

// checkpointed switches recomputation on, with the largest micro-batch that is
// then expected to fit, starting from the one that the command asked for.
func checkpointed(past []Past, can Abilities, lim Limits) (Next, bool) {
	last := past[len(past)-1]
	if can.Checkpointing == "" || last.Settings.Checkpointing == "full" {
		return Next{}, false
	}
	s := last.Settings
	s.Checkpointing = "full"
	first := past[0]
	next := Next{Action: ActionRetry, Remedies: []string{remedyCheckpointing}, Why: "run_why_checkpointing"}
	pred := predictor(past, true, can.Predict)
	rows := first.rowsOfStep()
	if rows == 0 || can.Batch == "" {
		if p, fits := pred(max(1, last.Micro)); fits {
			next.Settings, next.Predicted = s, p
			return next, true
		}
		return Next{}, false
	}
	batchNorm := last.Verdict.Process != nil && last.Verdict.Process.BatchNorm
	for _, m := range append([]int{first.Micro}, sizesBelow(rows, first.Micro, can.Uneven)...) {
		p, fits := pred(m)
		if !fits {
			if batchNorm && lim.Exact {
				return Next{}, false
			}
			continue
		}
		if m == first.Micro {
			s.MicroBatch, s.Accumulation, s.Samples = m, max(1, first.Accumulation), first.Samples
		} else {
			cutInto(&s, rows, m)
			next.Remedies = append(next.Remedies, remedyAccumulate)
		}
		next.Settings, next.Predicted = s, p
		easeTight(&next, last, can)
		return next, true
	}
	return Next{}, false
}

// failedBefore reports whether a micro-batch was already too large under the
// same other settings.
func failedBefore(past []Past, micro int, s ledger.Settings) bool {
	for _, p := range past {
		if p.Verdict.Outcome.IsOOM() && p.Micro != 0 && micro >= p.Micro && p.Settings.Checkpointing == s.Checkpointing {
			return true
		}
	}
	return false
}

// sizesBelow lists the micro-batches below limit that keep the rows of a step,
// largest first: the divisors, or, where the last may be smaller, all numbers up
// to 25 and from there steps of 4 %. The shim tries the same ones.
func sizesBelow(rows, limit int, uneven bool) []int {
	var out []int
	step := 1
	for m := 1; m < limit && m <= rows; m += step {
		if uneven {
			step = max(1, m/25)
		} else if rows%m != 0 {
			continue
		}
		out = append(out, m)
	}
	slices.Reverse(out)
	return out
}
