package diagnose

import (
	"slices"
	"strings"

	"unoom/internal/alloc"
	"unoom/internal/remedy"
	"unoom/internal/replay"
	"unoom/internal/units"
)

// sweep replays the trace under other allocator settings, on the card of the
// recording as far as it is known.
func (h *Held) sweep(given Given) {
	if !h.History.Recorded || !h.Check.Reproducible || len(h.History.Events) == 0 {
		return
	}
	q := replay.Question{Torch: h.Check.Torch, Tie: h.Check.Tie, Capacity: h.Check.Usable.Bytes()}
	if q.Capacity == 0 && given.Capacity > 0 {
		q.Capacity = int64(given.Capacity)
	}
	if len(h.History.Events) <= sweepEvents {
		h.Trials = h.Case.Sweep(h.Check, q)
		return
	}
	q.Fresh = true
	try := func(conf string, set alloc.Settings, recorded bool) {
		q.Settings = set
		h.Trials = append(h.Trials, replay.Trial{Conf: conf, Recorded: recorded, Answer: h.Case.WhatIf(h.Check, q)})
	}
	try(h.Case.Settings.Conf(), h.Case.Settings, true)
	for _, conf := range []string{"expandable_segments:True", "max_split_size_mb:256"} {
		set, err := alloc.ParseConf(conf, q.Torch, alloc.Defaults())
		if err == nil && set.Normal() != h.Case.Settings.Normal() {
			try(conf, set, false)
		}
	}
}

// Recorded returns the trial with the settings of the recording, nil if nothing
// was replayed.
func (h *Held) Recorded() *replay.Trial {
	for i := range h.Trials {
		if h.Trials[i].Recorded {
			return &h.Trials[i]
		}
	}
	return nil
}

// leastGain is the share of the reserved peak that a setting must save to be
// worth a word.
const leastGain = 0.01

// Better returns the trials that serve more requests than the recorded settings
// do, or the same with a smaller reserved peak, best first.
func (h *Held) Better() []replay.Trial {
	was := h.Recorded()
	if was == nil {
		return nil
	}
	failed := was.OOMs + was.StartOOMs
	var list []replay.Trial
	for _, t := range h.Trials {
		now := t.OOMs + t.StartOOMs
		saved := was.Peaks.Reserved - t.Peaks.Reserved
		switch {
		case t.Recorded:
		case now < failed, now == failed && float64(saved) >= leastGain*float64(was.Peaks.Reserved):
			// Of settings that come out the same, the first is the simplest.
			if !slices.ContainsFunc(list, func(o replay.Trial) bool {
				return o.OOMs+o.StartOOMs == now && o.Peaks.Reserved == t.Peaks.Reserved
			}) {
				list = append(list, t)
			}
		}
	}
	return list
}

// replayedSavings is what allocator remedies would have saved of the reserved
// peak, as replayed.
func (h *Held) replayedSavings() map[remedy.Code]units.Bytes {
	saved := map[remedy.Code]units.Bytes{}
	was := h.Recorded()
	if was == nil {
		return saved
	}
	for _, t := range h.Trials {
		code, ok := codeOf(t.Conf)
		if by := units.Bytes(was.Peaks.Reserved - t.Peaks.Reserved); ok && !t.Recorded && by > saved[code] {
			saved[code] = by
		}
	}
	return saved
}

// codeOf returns the remedy that a setting is.
func codeOf(conf string) (remedy.Code, bool) {
	switch {
	case conf == "expandable_segments:True":
		return "allocator.expandable_segments", true
	case strings.HasPrefix(conf, "max_split_size_mb:") && !strings.Contains(conf, ","):
		return "allocator.max_split_size", true
	}
	return "", false
}

// Advise returns what helps: the remedies that follow from the situation, those
// of the allocator corrected by what the replay proved.
func (h *Held) Advise() []remedy.Advice {
	advice := remedy.Advise(h.Situation)
	was := h.Recorded()
	if was == nil {
		return advice
	}
	failed := was.OOMs + was.StartOOMs
	proved := map[remedy.Code]*bool{} // whether it serves what failed
	for _, t := range h.Trials {
		if code, ok := codeOf(t.Conf); ok && !t.Recorded && failed > 0 {
			serves := t.OOMs+t.StartOOMs < failed || proved[code] != nil && *proved[code]
			proved[code] = &serves
		}
	}
	better := h.Better()
	out := advice[:0]
	listed := map[remedy.Code]bool{}
	for _, a := range advice {
		if serves, ok := proved[a.Code]; ok {
			if !*serves && failed > 0 {
				continue // replayed, and it fails all the same
			}
			a.Sufficient = serves
		} else if _, tried := h.replayedSavings()[a.Code]; !tried && a.Code.Family() == "allocator" && h.triedCode(a.Code) {
			continue // replayed, and it saves nothing
		}
		listed[a.Code] = true
		out = append(out, a)
	}
	for _, t := range better {
		code, ok := codeOf(t.Conf)
		r, known := remedy.Find(code)
		if !ok || !known || listed[code] || failed > 0 && t.OOMs+t.StartOOMs >= failed {
			continue
		}
		listed[code] = true
		saves := units.Exactly(units.Bytes(max(0, was.Peaks.Reserved-t.Peaks.Reserved)))
		a := remedy.Advice{
			Remedy: r, Saves: &saves, Sufficient: proved[code],
			Why:   remedy.Reason{ID: "snapshot.why.replayed", Args: []any{units.Bytes(was.Peaks.Reserved), units.Bytes(t.Peaks.Reserved)}},
			Fill:  map[string]string{"other_options": h.otherOptions(), "max_split_mb": strings.TrimPrefix(t.Conf, "max_split_size_mb:")},
			Score: 1,
		}
		if len(out) > 0 {
			a.Score = out[0].Score * 0.9
		}
		out = append([]remedy.Advice{a}, out...)
		if len(out) > 1 && failed == 0 {
			out[0], out[1] = out[1], out[0] // the cause comes before the container
		}
	}
	return out
}

func (h *Held) triedCode(code remedy.Code) bool {
	for _, t := range h.Trials {
		if c, ok := codeOf(t.Conf); ok && c == code {
			return true
		}
	}
	return false
}

// otherOptions are the options that are set already, as they have to stand before
// another one.
func (h *Held) otherOptions() string {
	if h.Snapshot.Settings == nil || h.Snapshot.Settings.Conf == "" {
		return ""
	}
	return h.Snapshot.Settings.Conf + ","
}
