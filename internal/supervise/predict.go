package supervise

import (
	"unoom/internal/ledger"
	"unoom/internal/units"
)

// usable returns what the job can have of the card that ran full: all but what
// lies outside the allocator. 0: not known.
func usable(v Verdict) units.Bytes {
	f := v.Figures
	if f.Capacity == 0 {
		return 0
	}
	return f.Capacity - f.Outside()
}

func (v Verdict) calibration() *Event {
	if v.Process == nil {
		return nil
	}
	return v.Process.Calibration
}

// A fit is peak(rows) = base + slope*rows, from the trials of a dying process.
type fit struct {
	base, slope float64
	reserve     float64 // reserved above allocated, as a share of allocated
	fullRows    int     // rows of the batch that did not fit
	most, least int     // the largest that passed, the smallest that did not; 0 unknown
	passed      map[int]Trial
}

// fitOf reads the trials with or without checkpointing. At least two that
// passed are needed for a slope.
func fitOf(v Verdict, checkpointing bool) (fit, bool) {
	cal := v.calibration()
	if cal == nil || cal.BatchRows <= 0 {
		return fit{}, false
	}
	f := fit{fullRows: cal.BatchRows, passed: map[int]Trial{}}
	for _, t := range cal.Trials {
		switch {
		case t.Checkpointing != checkpointing:
		case t.OK:
			f.passed[t.Rows] = t
			f.most = max(f.most, t.Rows)
			if t.Peak > 0 {
				f.reserve = max(f.reserve, float64(t.Reserved-t.Peak)/float64(t.Peak))
			}
		case f.least == 0 || t.Rows < f.least:
			f.least = t.Rows
		}
	}
	if f.least == 0 && !checkpointing {
		f.least = cal.BatchRows
	}
	// Least squares over all that passed.
	var n, sx, sy, sxx, sxy float64
	for rows, t := range f.passed {
		x, y := float64(rows), float64(t.Peak)
		n, sx, sy, sxx, sxy = n+1, sx+x, sy+y, sxx+x*x, sxy+x*y
	}
	if n < 1 {
		return f, false
	}
	if d := n*sxx - sx*sx; d > 0 {
		f.slope = (n*sxy - sx*sy) / d
		f.base = (sy - f.slope*sx) / n
	} else { // one point: all that is not persistent grows with the rows
		f.base = float64(cal.Persistent)
		f.slope = (sy - f.base) / sx
	}
	return f, f.slope >= 0
}

// at returns the peak expected for a number of rows.
func (f fit) at(rows int) units.Bytes {
	if t, ok := f.passed[rows]; ok {
		return t.Peak
	}
	return units.Bytes(f.base + f.slope*float64(rows))
}

// predictor returns what a micro-batch is expected to need and whether that
// fits, from the best that is known:
//
//  1. trials of the process that died, on the very batch that did not fit;
//  2. the memory engine, where the workload is known;
//  3. attempts of this run, of which one measured its peak;
//  4. nothing but the figures of the failure: then the part of the memory that
//     grows with the batch is taken to be needed twice over, since the request
//     that failed was, on average, half-way.
func predictor(past []Past, checkpointing bool, engine Predictor) func(micro int) (*ledger.Predicted, bool) {
	last := past[len(past)-1]
	v := last.Verdict
	room := usable(v)
	if f, ok := fitOf(v, checkpointing); ok && last.Micro > 0 {
		perMicro := float64(f.fullRows) / float64(last.Micro)
		return func(micro int) (*ledger.Predicted, bool) {
			rows := int(float64(micro)*perMicro + 0.5)
			mid := f.at(rows)
			p := &ledger.Predicted{Low: mid, Mid: mid, High: units.Bytes(float64(mid) * (1 + f.reserve)), Source: "calibration"}
			if t, tried := f.passed[rows]; tried {
				p.High = max(mid, t.Reserved)
				return p, true
			}
			if f.least > 0 && (rows >= f.least || rows > f.most && 10*f.least <= 11*f.most) {
				return p, false // tried, or between neighbours that were
			}
			return p, rows <= f.most || p.High+margin(room) <= room
		}
	}
	if engine != nil && room > 0 && last.rowsOfStep() > 0 {
		s := last.Settings
		if checkpointing {
			s.Checkpointing = "full"
		}
		cutInto(&s, last.rowsOfStep(), max(1, last.Micro))
		if engine(s) != nil { // it knows this workload
			return func(micro int) (*ledger.Predicted, bool) {
				cutInto(&s, last.rowsOfStep(), micro)
				s.MicroBatch = micro
				p := engine(s)
				return p, p != nil && max(p.High, p.Reserved)+margin(room) <= room
			}
		}
	}
	if checkpointing {
		// Nothing measured: recomputing keeps so little of what grows with the
		// batch that the micro-batch which failed is worth a try.
		return func(micro int) (*ledger.Predicted, bool) { return nil, micro <= max(1, last.Micro) }
	}
	return func(micro int) (*ledger.Predicted, bool) {
		if last.Micro == 0 {
			return nil, false
		}
		floor := floorOf(v)
		f := v.Figures
		if f.Allocated == 0 || room == 0 || floor >= f.Allocated {
			return nil, micro <= last.Micro/2
		}
		// What the failed attempt needed at least, of which the part above the
		// floor grows with the batch. Where steps were already done the peak
		// was nearly reached; else the failure came, on average, half-way.
		grown := float64(f.Allocated + f.Tried - floor)
		if last.Steps < 2 {
			grown *= 2
		}
		need := units.Bytes(float64(floor) + grown*float64(micro)/float64(last.Micro))
		return &ledger.Predicted{Low: need / 2, Mid: need, High: need, Source: "attempts"}, need+margin(room) <= room
	}
}

// floorOf returns what stays allocated between steps, as far as it is known.
func floorOf(v Verdict) units.Bytes {
	if v.Process == nil {
		return 0
	}
	if s := v.Process.LastStep; s != nil {
		return s.Allocated
	}
	if c := v.Process.Calibration; c != nil {
		return c.Persistent
	}
	return 0
}
