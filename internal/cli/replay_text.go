package cli

import (
	"fmt"
	"strconv"
	"strings"

	"unoom/internal/alloc"
	"unoom/internal/replay"
	"unoom/internal/report/text"
	"unoom/internal/units"
)

// supposition is something that an answer rests on and the file does not say.
type supposition struct {
	code  string
	bytes *int64
	count *int
	args  []any // of the message
}

// assumptions lists what was rebuilt, deduced or assumed for a device.
func (d *replayed) assumptions(q *replayQuestion) []supposition {
	if len(d.Events) == 0 || !d.check.Reproducible {
		return nil
	}
	var out []supposition
	r, start := d.check, d.check.Start
	if n := len(start.Segments); n == 0 {
		out = append(out, supposition{code: "from_empty"})
	} else {
		live := start.Live()
		out = append(out, supposition{
			code: "rewound", bytes: &r.Begin.Reserved, count: &live,
			args: []any{thousands(live), units.Bytes(r.Begin.Allocated), units.Bytes(r.Begin.Reserved)},
		})
	}
	if start.Deduced > 0 {
		out = append(out, supposition{code: "deduced", count: &start.Deduced, args: []any{thousands(start.Deduced)}})
	}
	if start.InDoubt > 0 {
		out = append(out, supposition{
			code: "in_doubt", bytes: &start.InDoubtBytes, count: &start.InDoubt,
			args: []any{thousands(start.InDoubt), units.Bytes(start.InDoubtBytes)},
		})
	}
	if r.ByAge {
		out = append(out, supposition{code: "by_age", count: &r.AgesLearned})
	}
	if len(d.Events) == 1 {
		out = append(out, supposition{code: "ring_of_one"})
	}
	switch {
	case r.GuessedConf != "":
		out = append(out, supposition{code: "settings_guessed", args: []any{r.GuessedConf}})
	case !d.SettingsKnown:
		out = append(out, supposition{code: "settings_unknown"})
	}
	if d.answer == nil && d.trials == nil {
		return out
	}
	if start.Live() > 0 && (d.trials != nil || !d.answer.Rebuilt) {
		out = append(out, supposition{code: "recreated"})
	}
	switch {
	case q.capacity > 0 && q.assumed && q.outside > 0:
		n := int64(q.outside)
		out = append(out, supposition{code: "outside_assumed", bytes: &n, args: []any{q.outside}})
	case q.capacity > 0:
	case d.check.Usable.AtOOM > 0:
		out = append(out, supposition{code: "capacity_at_oom", bytes: &d.ask.Capacity, args: []any{units.Bytes(d.ask.Capacity)}})
	case d.ask.Capacity > 0:
		out = append(out, supposition{code: "capacity_refused", bytes: &d.ask.Capacity, args: []any{units.Bytes(d.ask.Capacity)}})
	default:
		out = append(out, supposition{code: "capacity_unbounded"})
	}
	if d.answer != nil && d.ask.Settings.GCThreshold > 0 && d.ask.Settings.MemoryFraction == 1 {
		out = append(out, supposition{code: "gc_without_fraction"})
	}
	if saved := d.saved(); saved > 0 {
		out = append(out, supposition{code: "saved_freed_at_once", count: &saved})
	}
	return out
}

// saved is the most requests that a what-if serves and the recording did not.
func (d *replayed) saved() int {
	n := 0
	if d.answer != nil {
		n = d.answer.Saved
	}
	for _, t := range d.trials {
		n = max(n, t.Saved)
	}
	return n
}

func (a *app) printReplay(name string, devices []*replayed, q *replayQuestion, f *replayFlags) error {
	p := a.printer()
	a.replayHeadline(p, devices, q)
	idle := []string{}
	for _, d := range devices {
		if len(d.Events) == 0 {
			idle = append(idle, strconv.Itoa(d.Device))
			if len(d.Segments) == 0 || len(devices) > 1 && !f.check {
				continue
			}
		}
		p.Heading(a.msgs.Text("replay.gpu", d.Device))
		switch {
		case !d.check.Reproducible:
			a.printWhyNot(p, d)
		default:
			a.printDifferences(p, d)
			a.printPeaks(p, d)
		}
		if d.answer != nil && d.answer.FirstErr != nil {
			a.printFailure(p, d.answer)
		}
		if d.trials != nil {
			a.printSweep(p, d)
		}
		a.printAssumptions(p, d, q)
	}
	if len(idle) > 0 && len(devices) > 1 {
		p.Blank()
		p.Para(0, text.Style(text.Faint, a.msgs.Text("replay.idle", strings.Join(idle, ", "))))
	}
	if !f.sweep && !q.asked && !f.check && replayReproduced(devices) && len(idle) < len(devices) {
		p.Blank()
		p.Para(0, a.msgs.Text("replay.next")+text.Style(text.Code, "unoom replay --sweep "+name))
	}
	return p.Err()
}

func replayReproduced(devices []*replayed) bool {
	for _, d := range devices {
		if !d.check.Reproducible || d.check.Mismatches() > 0 {
			return false
		}
	}
	return true
}

// replayHeadline is the answer in one line.
func (a *app) replayHeadline(p *text.Printer, devices []*replayed, q *replayQuestion) {
	events, checked, differ, failed, requests := 0, 0, 0, 0, 0
	reproducible, more := true, false
	var torch, askedTorch alloc.Version
	for _, d := range devices {
		events += len(d.Events)
		checked += d.check.Checked
		reproducible = reproducible && d.check.Reproducible
		differ += d.check.Mismatches()
		more = more || d.check.More
		if len(d.Events) > 0 || torch == (alloc.Version{}) {
			torch = d.check.Torch
		}
		if d.answer != nil {
			failed += d.answer.OOMs + d.answer.StartOOMs
			requests += countActions(d.Events, alloc.Alloc) + countActions(d.Events, alloc.OOM)
			askedTorch = d.answer.Torch
		}
	}
	switch {
	case events == 0:
		p.Para(0, text.Style(text.Caution, a.msgs.Text("replay.head.nothing"))+a.msgs.Text("replay.head.no_events"))
		return
	case q.asked && failed > 0:
		p.Para(0, text.Style(text.Bad, a.msgs.Text("replay.head.no"))+
			a.msgs.Text("replay.head.fail", thousands(failed), thousands(requests), a.questionText(q, askedTorch)))
	case q.asked:
		p.Para(0, text.Style(text.Good, a.msgs.Text("replay.head.yes"))+
			a.msgs.Text("replay.head.served", thousands(requests), a.questionText(q, askedTorch)))
	case !reproducible:
		p.Para(0, text.Style(text.Caution, a.msgs.Text("replay.head.irreproducible"))+a.msgs.Text("replay.head.made_up"))
		return
	case differ > 0:
		p.Para(0, text.Style(text.Bad, a.msgs.Text("replay.head.differs"))+
			a.msgs.Text("replay.head.differences", thousands(differ), thousands(events), torch))
	default:
		p.Para(0, text.Style(text.Good, a.msgs.Text("replay.head.reproduced"))+
			a.msgs.Text("replay.head.all", thousands(events), torch))
		return
	}
	if q.asked && !reproducible {
		p.Para(0, a.msgs.Text("replay.head.requests_only"))
	} else if q.asked && differ > 0 {
		p.Para(0, a.msgs.Text("replay.head.inexact", thousands(differ), thousands(events)))
	}
	if more {
		p.Para(0, a.msgs.Text("replay.head.more", thousands(checked)))
	}
}

// questionText says under what a what-if ran.
func (a *app) questionText(q *replayQuestion, torch alloc.Version) string {
	var parts []string
	if q.confSet {
		conf := q.conf
		if conf == "" {
			conf = a.msgs.Text("replay.defaults")
		}
		parts = append(parts, conf)
	}
	switch {
	case q.card != "":
		parts = append(parts, q.card)
	case q.capacity > 0:
		parts = append(parts, a.msgs.Text("replay.card", q.capacity))
	}
	if q.torch != (alloc.Version{}) {
		parts = append(parts, "torch "+torch.String())
	}
	return strings.Join(parts, a.msgs.Text("replay.comma"))
}

// printWhyNot says what in the file no allocator does.
func (a *app) printWhyNot(p *text.Printer, d *replayed) {
	if n := d.check.Skipped; n > 0 {
		p.Hanging("  - ", a.msgs.Text("replay.why.skipped", thousands(n)))
	}
	for _, w := range d.check.Why {
		where := ""
		if w.Event >= 0 {
			where = a.msgs.Text("replay.first_at", thousands(w.Event))
		}
		p.Hanging("  - ", a.msgs.Text("replay.why."+w.Code, thousands(w.Count))+where)
	}
	if d.answer != nil {
		a.printPeaks(p, d)
	}
}

// mostShown is how many differences are printed; --json has all.
const mostShown = 3

func (a *app) printDifferences(p *text.Printer, d *replayed) {
	r := d.check
	for i := range r.Differences[:min(mostShown, len(r.Differences))] {
		x := &r.Differences[i]
		p.Hanging("  - ", a.msgs.Text("replay.differ."+x.Code(), thousands(x.Event), a.eventText(x.Want), a.eventText(x.Got)))
	}
	if n := len(r.Differences) - mostShown; n > 0 {
		p.Hanging("  - ", a.msgs.Text("replay.differ_more", thousands(n)))
	}
	for _, m := range r.Misfits[:min(mostShown, len(r.Misfits))] {
		p.Hanging("  - ", a.msgs.Text("replay.misfit", fmt.Sprintf("%#x", m.Addr), a.blockText(m.Want), a.blockText(m.Got)))
	}
	if n := len(r.Misfits) - mostShown; n > 0 {
		p.Hanging("  - ", a.msgs.Text("replay.misfit_more", thousands(n)))
	}
}

func (a *app) eventText(e alloc.Event) string {
	if e == (alloc.Event{}) {
		return a.msgs.Text("replay.no_event")
	}
	s := fmt.Sprintf("%s %s", e.Action, units.Bytes(e.Size))
	if e.Action != alloc.OOM {
		s += fmt.Sprintf(" @ %#x", e.Addr)
	}
	if e.Stream != 0 {
		s += fmt.Sprintf(" stream %#x", e.Stream)
	}
	return s
}

func (a *app) blockText(b alloc.BlockState) string {
	if b.Size == 0 {
		return a.msgs.Text("replay.no_block")
	}
	return a.msgs.Text("replay.state."+b.State.String(), units.Bytes(b.Size))
}

// printPeaks prints the figures of the recording and, beside them, those of
// the what-if.
func (a *app) printPeaks(p *text.Printer, d *replayed) {
	t := &text.Table{Indent: 2, Align: []text.Align{text.Left, text.Right, text.Right}}
	rec := recordedFigures(d)
	var ans replayFigures
	asked := d.answer != nil
	if asked {
		ans = answerFigures(d.answer)
		t.Row("", a.msgs.Text("replay.recorded"), a.msgs.Text("replay.what_if"))
	}
	row := func(id, recorded, answer string) {
		cells := []string{a.msgs.Text(id), recorded}
		if asked {
			cells = append(cells, answer)
		}
		t.Row(cells...)
	}
	size := func(n *int64) string {
		if n == nil {
			return a.msgs.Text("not_available")
		}
		return units.Bytes(*n).String()
	}
	row("replay.row.events", thousands(len(d.Events)), "")
	row("replay.row.peak_allocated", size(rec.PeakAllocated), size(ans.PeakAllocated))
	row("replay.row.peak_reserved", size(rec.PeakReserved), size(ans.PeakReserved))
	row("replay.row.start_reserved", size(rec.StartReserved), size(ans.StartReserved))
	if rec.OOMs+ans.OOMs+ans.StartOOMs > 0 {
		row("replay.row.ooms", thousands(rec.OOMs), thousands(ans.OOMs+ans.StartOOMs))
	}
	if rec.OOMs > 0 && asked {
		row("replay.row.saved", "", thousands(ans.Saved))
	}
	if rec.Retries+ans.Retries > 0 {
		row("replay.row.retries", thousands(int(rec.Retries)), thousands(int(ans.Retries)))
	}
	row("replay.row.driver", thousands(int(rec.DeviceAllocs)), thousands(int(ans.DeviceAllocs)))
	p.Table(t)
}

func (a *app) printFailure(p *text.Printer, w *replay.Answer) {
	e := w.FirstErr
	free := a.msgs.Text("unknown")
	if e.Free >= 0 {
		free = units.Bytes(e.Free).String()
	}
	p.Para(2, a.msgs.Text("replay.failure", thousands(w.FirstOOM), units.Bytes(e.Tried),
		units.Bytes(e.Allocated), units.Bytes(e.Reserved-e.Allocated), free))
}

// printSweep ranks the settings.
func (a *app) printSweep(p *text.Printer, d *replayed) {
	bounded := d.ask.Capacity > 0
	t := &text.Table{Indent: 2, Align: []text.Align{text.Right, text.Right, text.Right, text.Left}}
	head := []string{a.msgs.Text("replay.sweep.reserved"), a.msgs.Text("replay.sweep.failed"), a.msgs.Text("replay.sweep.driver"), a.msgs.Text("replay.sweep.setting")}
	if bounded {
		head[2] = a.msgs.Text("replay.sweep.retries")
	}
	p.Blank()
	t.Row(head...)
	shown, seen := 0, map[string]bool{}
	for _, w := range d.trials {
		cells := []string{units.Bytes(w.Peaks.Reserved).String(), thousands(w.OOMs + w.StartOOMs), thousands(int(w.DeviceAllocs))}
		if bounded {
			cells[2] = thousands(int(w.Stats.NumAllocRetries))
		}
		key := strings.Join(cells, " ")
		if seen[key] && !w.Recorded {
			continue // as good as one above, which is simpler
		}
		if shown >= mostTrials && !w.Recorded {
			continue
		}
		seen[key] = true
		shown++
		conf := w.Conf
		if conf == "" {
			conf = a.msgs.Text("replay.defaults")
		}
		conf = strings.ReplaceAll(conf, ",", ", ") // so that it wraps there
		if w.Recorded {
			conf += "  " + text.Style(text.Strong, a.msgs.Text("replay.sweep.recorded"))
		}
		t.Row(append(cells, conf)...)
	}
	p.Table(t)
	best := replay.Simplest(d.trials)
	p.Blank()
	use := text.Style(text.Code, "export "+confVariable(d.ask.Torch)+"="+best.Conf)
	switch {
	case best.OOMs+best.StartOOMs > 0:
		p.Para(2, a.msgs.Text("replay.sweep.none")+use)
	case best.Recorded || best.Conf == "" && d.Case.Settings.Conf() == "":
		p.Para(2, a.msgs.Text("replay.sweep.keep"))
	default:
		p.Para(2, a.msgs.Text("replay.sweep.use")+use)
	}
}

// mostTrials is how many rows of a sweep are printed; --json has all.
const mostTrials = 8

// confVariable is the environment variable that a version of torch reads. The
// general name came with torch 2.9 (c10/core/AllocatorConfig.cpp).
func confVariable(v alloc.Version) string {
	if v.Before(alloc.Version{Major: 2, Minor: 9}) {
		return "PYTORCH_CUDA_ALLOC_CONF"
	}
	return "PYTORCH_ALLOC_CONF"
}

func (a *app) printAssumptions(p *text.Printer, d *replayed, q *replayQuestion) {
	list := d.assumptions(q)
	if len(list) == 0 {
		return
	}
	p.Blank()
	p.Line("  " + text.Style(text.Strong, a.msgs.Text("replay.assumed")))
	for _, s := range list {
		p.Hanging("  - ", a.msgs.Text("replay.assumed."+s.code, s.args...))
	}
}

// thousands writes a count with separators: 22,332.
func thousands(n int) string {
	s := strconv.Itoa(n)
	for i := len(s) - 3; i > 0 && s[i-1] != '-'; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}
