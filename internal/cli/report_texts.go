package cli

import (
	"fmt"
	"slices"
	"strconv"

	"unoom/internal/i18n"
	"unoom/internal/lives"
	"unoom/internal/replay"
	"unoom/internal/report/html"
	"unoom/internal/units"
)

// texts writes what a page says of a device, in every language.
func (d *shown) texts() map[i18n.Lang]html.Texts {
	out := map[i18n.Lang]html.Texts{}
	for _, lang := range []i18n.Lang{i18n.English, i18n.Chinese} {
		m := i18n.Load(lang)
		out[lang] = html.Texts{
			Headline: d.headline(m), Lead: d.lead(m), Figures: d.figures(m), Advice: d.advice(m), Notes: d.notes(m),
		}
	}
	return out
}

// peaks are the exact ones of the replay, or else those of the history.
func (d *shown) peaks() (allocated, reserved units.Bytes) {
	if r := d.check; r.Reproducible && r.Mismatches() == 0 && len(d.Events) > 0 {
		return units.Bytes(r.Peaks.Allocated), units.Bytes(r.Peaks.Reserved)
	}
	return units.Bytes(d.history.Peak.Allocated), units.Bytes(d.history.PeakReserved)
}

func (d *shown) headline(m *i18n.Catalogue) string {
	h := d.history
	allocated, _ := d.peaks()
	if len(h.OOMs) > 0 {
		e := &h.Events[h.OOMs[0]]
		return m.Text("report.head.oom", units.Bytes(e.Size), units.Bytes(h.At(h.OOMs[0]).Allocated), units.Bytes(e.Addr))
	}
	if len(h.Events) < 2 {
		return m.Text("report.head.state", allocated)
	}
	if phase := h.PhaseAt(h.Peak.Event).String(); phase != "" && h.Peak.Event >= 0 {
		return m.Text("report.head.peak_in", allocated, m.Text("html.phase_"+phase))
	}
	return m.Text("report.head.peak", allocated)
}

// lead says what the memory of the moment is.
func (d *shown) lead(m *i18n.Catalogue) string {
	kinds := d.history.KindsAfter(d.moment)
	var total int64
	order := []int{}
	for k, n := range kinds {
		total += n
		if n > 0 {
			order = append(order, k)
		}
	}
	if total == 0 {
		return m.Text("html.nothing_allocated")
	}
	slices.SortFunc(order, func(a, b int) int { return int(min(max(kinds[b]-kinds[a], -1), 1)) })
	text := ""
	for i, k := range order[:min(3, len(order))] {
		if i > 0 {
			text += m.Text("report.list")
		}
		text += m.Text("report.lead_part", m.Text("html.kind_"+lives.Kind(k).String()), units.Bytes(kinds[k]),
			strconv.FormatFloat(100*float64(kinds[k])/float64(total), 'f', 1, 64))
	}
	return m.Text("report.lead", text)
}

func (d *shown) figures(m *i18n.Catalogue) []html.Figure {
	allocated, reserved := d.peaks()
	out := []html.Figure{
		{Value: allocated.String(), Label: m.Text("report.peak_allocated")},
		{Value: reserved.String(), Label: m.Text("report.peak_reserved")},
	}
	if reserved > 0 {
		idle := float64(reserved-allocated) / float64(reserved)
		tone := ""
		if idle > 0.15 {
			tone = "bad"
		}
		out = append(out, html.Figure{Value: fmt.Sprintf("%.1f %%", 100*idle), Label: m.Text("report.idle"), Tone: tone})
	}
	if n := len(d.history.OOMs); n > 0 {
		out = append(out, html.Figure{Value: thousands(n), Label: m.Text("report.failed"), Tone: "bad"})
	}
	out = append(out, html.Figure{Value: thousands(len(d.Events)), Label: m.Text("report.events")})
	if n := d.history.Steps.Whole(); n > 0 {
		out = append(out, html.Figure{Value: thousands(n), Label: m.Text("report.steps")})
	}
	switch r := d.check; {
	case len(d.Events) == 0:
	case !r.Reproducible:
		out = append(out, html.Figure{Value: m.Text("report.not_reproducible"), Label: m.Text("report.replay", r.Torch)})
	case r.Mismatches() > 0:
		out = append(out, html.Figure{Value: m.Text("report.differs", thousands(r.Mismatches())), Label: m.Text("report.replay", r.Torch), Tone: "bad"})
	default:
		out = append(out, html.Figure{Value: m.Text("report.reproduced"), Label: m.Text("report.replay", r.Torch), Tone: "good"})
	}
	return out
}

// advice says what the replay found to be better than the recorded settings.
func (d *shown) advice(m *i18n.Catalogue) []html.Advice {
	if len(d.trials) == 0 {
		return nil
	}
	best := replay.Simplest(d.trials)
	i := slices.IndexFunc(d.trials, func(t replay.Trial) bool { return t.Recorded })
	if best.Recorded || i < 0 {
		return nil
	}
	was := &d.trials[i]
	var lines []string
	if was.OOMs+was.StartOOMs > best.OOMs+best.StartOOMs {
		lines = append(lines, m.Text("report.fewer_fail", thousands(best.OOMs+best.StartOOMs), thousands(was.OOMs+was.StartOOMs)))
	}
	if was.Stats.NumAllocRetries > best.Stats.NumAllocRetries {
		lines = append(lines, m.Text("report.fewer_retries", thousands(int(best.Stats.NumAllocRetries)), thousands(int(was.Stats.NumAllocRetries))))
	}
	if saved := units.Bytes(was.Peaks.Reserved - best.Peaks.Reserved); 50*saved > units.Bytes(was.Peaks.Reserved) { // two percent
		lines = append(lines, m.Text("report.less_reserved", units.Bytes(best.Peaks.Reserved), units.Bytes(was.Peaks.Reserved), saved))
	}
	if lines == nil {
		return nil
	}
	return []html.Advice{{Title: "export " + confVariable(d.ask.Torch) + "=" + best.Conf, Lines: lines}}
}

func (d *shown) notes(m *i18n.Catalogue) []string {
	var out []string
	for _, w := range d.check.Why {
		out = append(out, m.Text("replay.why."+w.Code, thousands(w.Count)))
	}
	for _, s := range d.assumptions(&replayQuestion{}) {
		out = append(out, m.Text("replay.assumed."+s.code, s.args...))
	}
	out = append(out, m.Text("report.deduced"))
	if by := d.history.Steps.By; by != "" {
		out = append(out, m.Text("report.steps_by."+by))
	}
	return out
}
