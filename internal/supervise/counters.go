package supervise

import "unoom/internal/ledger"

// counters are what every attempt must have in common, or training is not what
// it was: the rows that one process's model sees in an optimizer step. Trainers
// have brought the old batch back on resuming (transformers before 5.2 took it
// from trainer_state.json), and a script can overlook its flags.
type counters struct {
	rows int // as the first attempt had them; 0: not known
}

// learn takes the rows from the first attempt: counted over a whole step, or, if
// it did not get that far, those of the model's first call for each of the
// step's micro-batches.
func (c *counters) learn(settings ledger.Settings, processes []*Process) {
	if c.rows > 0 {
		return
	}
	for _, p := range processes {
		switch f := p.Framework; {
		case p.RowsPerStep > 0:
			c.rows = p.RowsPerStep
		case p.FirstRows == 0:
			continue
		case f != nil && f.MicroBatch > 0 && f.RowsOfStep == 0:
			c.rows = p.FirstRows * max(1, f.Accumulation)
		case settings.MicroBatch > 0 && settings.Samples == 0:
			c.rows = p.FirstRows * max(1, settings.Accumulation)
		}
		if c.rows > 0 {
			return
		}
	}
}

// check compares a later attempt with what was learned, and the step at which
// it says to have gone on with that of its checkpoint (-1: not known).
func (c *counters) check(from int64, processes []*Process) []ledger.Check {
	var out []ledger.Check
	for _, p := range processes {
		if p.RowsPerStep > 0 && c.rows > 0 && p.RowsPerStep != c.rows {
			out = append(out, ledger.Check{What: "rows_of_a_step", Want: int64(c.rows), Got: int64(p.RowsPerStep)})
			break
		}
	}
	for _, p := range processes {
		if from < 0 || p.Framework == nil || p.Framework.Name != "hf_trainer" || p.Steps == 0 {
			continue // the others do not say where they went on
		}
		var got int64
		if p.Resumed != nil {
			got = p.Resumed.Step
		}
		if got != from {
			out = append(out, ledger.Check{What: "resumed_step", Want: from, Got: got})
			break
		}
	}
	return out
}
