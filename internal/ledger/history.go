package ledger

import (
	"slices"
	"time"

	"unoom/internal/units"
)

// States of a run.
const (
	StateRunning = "running"
	StateDone    = "done"   // the command ended with status 0
	StateFailed  = "failed" // it ended otherwise
	StateLost    = "lost"   // the supervisor is gone and did not say how it ended
)

// A History is one run, folded from its lines.
type History struct {
	Run      Run       `json:"run"`
	Started  time.Time `json:"started"`
	Finished time.Time `json:"finished,omitzero"`
	State    string    `json:"state"`
	Tries    []Try     `json:"attempts"`
	End      *End      `json:"end,omitempty"`
	Lost     *Lost     `json:"lost,omitempty"`
	Skipped  int       `json:"skipped_lines,omitempty"`
}

// A Try is one attempt and what came of it.
type Try struct {
	Started  time.Time `json:"started"`
	Attempt  Attempt   `json:"attempt"`
	Ended    *Ended    `json:"ended,omitempty"`
	Decision *Decision `json:"decision,omitempty"`
}

// Fold makes a history of the lines of one run. alive tells whether a process
// still runs; it is asked only where the lines do not say how the run ended.
func Fold(recs []Record, skipped int, alive func(Run) bool) History {
	h := History{State: StateLost, Skipped: skipped}
	for _, r := range recs {
		switch {
		case r.Run != nil:
			if h.Started.IsZero() {
				h.Run, h.Started = *r.Run, r.Time
			} else { // requeued or another machine: the newest supervisor counts
				h.Run, h.End, h.Lost = *r.Run, nil, nil
			}
		case r.Attempt != nil:
			h.Tries = append(h.Tries, Try{Started: r.Time, Attempt: *r.Attempt})
		case r.Ended != nil:
			if t := h.try(r.Ended.N); t != nil {
				t.Ended = r.Ended
			}
		case r.Decision != nil:
			if n := len(h.Tries); n > 0 {
				h.Tries[n-1].Decision = r.Decision
			}
		case r.End != nil:
			h.End, h.Finished = r.End, r.Time
		case r.Lost != nil:
			h.Lost, h.Finished = r.Lost, r.Time
		}
	}
	switch {
	case h.End != nil && h.End.Status == 0:
		h.State = StateDone
	case h.End != nil:
		h.State = StateFailed
	case h.Lost == nil && h.Run.PID != 0 && alive != nil && alive(h.Run):
		h.State = StateRunning
	}
	return h
}

// try returns the newest attempt with number n.
func (h *History) try(n int) *Try {
	for i := len(h.Tries) - 1; i >= 0; i-- {
		if h.Tries[i].Attempt.N == n {
			return &h.Tries[i]
		}
	}
	return nil
}

// A Score compares what was predicted for an attempt with what was measured.
type Score struct {
	Run       string      `json:"run"`
	Attempt   int         `json:"attempt"`
	Host      string      `json:"host"`
	Source    string      `json:"source"`
	Predicted units.Bytes `json:"predicted_bytes"`
	Measured  units.Bytes `json:"measured_bytes"`
}

// Error returns how far the prediction was off, relative to the measurement:
// positive where it was too high.
func (s Score) Error() float64 {
	return float64(s.Predicted-s.Measured) / float64(s.Measured)
}

// Scores lists the attempts that have both figures. An attempt that ran out of
// memory did not show what it needs and has no score, nor has one that ended
// before its second optimizer step, when all state is there.
func (h History) Scores() []Score {
	var out []Score
	for _, t := range h.Tries {
		e := t.Ended
		if e == nil || e.Measured == nil || e.Measured.PeakAllocated == nil || e.Measured.Steps < 2 || e.Status != 0 {
			continue
		}
		for _, p := range []*Predicted{t.Attempt.Predicted, e.Engine} {
			if p != nil && (p != e.Engine || t.Attempt.Predicted == nil || t.Attempt.Predicted.Source != p.Source) {
				out = append(out, Score{h.Run.ID, t.Attempt.N, h.Run.Host, p.Source, p.Mid, *e.Measured.PeakAllocated})
			}
		}
	}
	return out
}

// A Calibration is how far the memory engine was off on one machine.
type Calibration struct {
	Host  string  `json:"host"`
	Runs  int     `json:"runs"`  // finished attempts that it rests on
	Ratio float64 `json:"ratio"` // measured over predicted, the median
}

// leastRuns are as many as a median of a machine should rest on.
const leastRuns = 3

// Calibrate compares what was measured on a machine with what the engine said,
// over the runs of a ledger; false where there are too few.
func Calibrate(list []History, host string) (Calibration, bool) {
	var ratios []float64
	for _, h := range list {
		for _, s := range h.Scores() {
			if s.Host == host && s.Source == "engine" && s.Predicted > 0 {
				ratios = append(ratios, float64(s.Measured)/float64(s.Predicted))
			}
		}
	}
	if len(ratios) < leastRuns {
		return Calibration{}, false
	}
	slices.Sort(ratios)
	n := len(ratios)
	return Calibration{host, n, (ratios[n/2] + ratios[(n-1)/2]) / 2}, true
}
