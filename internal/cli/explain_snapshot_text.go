package cli

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"unoom/internal/diagnose"
	"unoom/internal/i18n"
	"unoom/internal/lives"
	"unoom/internal/report"
	"unoom/internal/report/text"
	"unoom/internal/snapshot"
	"unoom/internal/units"
)

// How many rows are printed without --all.
const (
	holdersShown = 8
	labelsShown  = 6
	growthShown  = 5
	pinnedShown  = 4
	trialsShown  = 4
	// holderShare is the least share of the allocated memory worth a row.
	holderShare = 0.005
)

// heldWords phrases what a snapshot tells.
type heldWords struct {
	*i18n.Catalogue
	h *diagnose.Held
}

func (w heldWords) phase(p lives.Phase) string {
	if p == lives.PhaseUnknown {
		return ""
	}
	return w.Text("explain.in." + p.String())
}

func (w heldWords) headline() string {
	h := w.h
	switch m := h.Moment; m.Kind {
	case "oom":
		text := w.Text("snapshot.head.oom", h.Device, w.phase(m.Phase), h.Request.Bytes, h.Request.Free)
		if h.Request.Repeats > 1 {
			text += " " + w.Text("snapshot.head.repeats", h.Request.Repeats)
		}
		return text
	case "state":
		return w.Text("snapshot.head.state", h.Device, m.Allocated, m.Reserved)
	}
	return w.Text("snapshot.head.peak", h.Device, w.phase(h.Moment.Phase), h.Moment.Allocated, h.Moment.Reserved)
}

// lead keeps the sentence about the cause of a failure; without one it says what
// most of the memory is.
func (w heldWords) lead(cause string) string {
	h := w.h
	if h.Request != nil {
		return cause
	}
	most := lives.Unknown
	for k := range lives.Kinds {
		if h.Kinds[k] > h.Kinds[most] {
			most = lives.Kind(k)
		}
	}
	if most == lives.Unknown || h.Moment.Allocated == 0 {
		return ""
	}
	share := int(float64(h.Kinds[most])/float64(h.Moment.Allocated)*100 + 0.5)
	return w.Text("snapshot.lead", w.kind(most), units.Bytes(h.Kinds[most]), w.Text("explain.percent", share))
}

func (w heldWords) accountTitle() string {
	return w.Text("snapshot.account."+w.h.Moment.Kind, w.h.Device)
}

func (w heldWords) kind(k lives.Kind) string { return w.Text("snapshot.kind." + k.String()) }

// place names a place, or why there is none. each is the size of the tensors that
// have none, 0 if it is not known.
func (w heldWords) place(p lives.Place, phase lives.Phase, each units.Bytes) string {
	if text := p.String(); text != "" {
		return text
	}
	if each > 0 {
		return w.Text("snapshot.place.each", each)
	}
	if phase == lives.PhaseBackward {
		return w.Text("snapshot.place.backward")
	}
	return w.Text("snapshot.place.none")
}

// source sums up the file in one line.
func (w heldWords) source(s namedSnapshot) string {
	h := w.h
	parts := []string{w.Text("snapshot.source.torch", w.versions(s.Torch))}
	if n := len(h.History.Events); h.History.Recorded {
		parts = append(parts, w.Text("snapshot.source.events", thousands(n)))
	} else {
		parts = append(parts, w.Text("snapshot.source.no_events"))
	}
	if n := h.History.Steps.Whole(); n > 0 {
		parts = append(parts, w.Text("snapshot.source.steps", n))
	}
	if s.Settings != nil && s.Settings.Conf != "" {
		parts = append(parts, s.Settings.Conf)
	}
	return s.name + ": " + strings.Join(parts, w.Text("explain.separator"))
}

// printHeld prints the explanation of a snapshot.
func (e *explain) printHeld(s namedSnapshot, h *diagnose.Held, v *report.Explanation, w heldWords) {
	p := e.printer()
	role := text.Strong
	if h.Request != nil {
		role = text.Bad
	}
	p.Para(0, text.Style(role, v.Headline))
	if v.Lead != "" {
		p.Para(0, v.Lead)
	}
	p.Para(0, text.Style(text.Faint, w.source(s)))
	if v.Account != nil {
		v.Account.Asked = 0
		if h.Account.Capacity == h.Moment.Reserved {
			v.Account.TotalLabel = w.Text("snapshot.account.reserved")
		} else if e.given.Capacity == 0 {
			v.Account.TotalLabel = w.Text("snapshot.account.known")
		}
		e.printAccount(p, v.Account)
	}
	e.printHolders(p, h, w)
	e.printGrowth(p, h, w)
	e.printPieces(p, h, w)
	if h.Request != nil {
		e.printFailedRequest(p, h, w)
		e.printCauses(p, v)
	} else {
		for _, n := range v.Notes {
			p.Hanging("  "+text.Style(text.Caution, w.Text("explain.note")), n)
		}
	}
	e.printTrials(p, h, w)
	e.printRemedies(p, v)
	e.printDevices(p, h, w)
}

func (e *explain) printHolders(p *text.Printer, h *diagnose.Held, w heldWords) {
	if len(h.Holders) == 0 {
		return
	}
	p.Heading(w.Text("snapshot.holders"))
	t := &text.Table{Indent: 2, Align: []text.Align{text.Right, text.Right}}
	var rest units.Bytes
	left := 0
	for i, holder := range h.Holders {
		small := float64(holder.Bytes) < holderShare*float64(h.Moment.Allocated)
		if !e.full && (i >= holdersShown || small && i > 0) {
			rest += units.Bytes(holder.Bytes)
			left++
			continue
		}
		t.Row(units.Bytes(holder.Bytes).String(), "×"+strconv.Itoa(holder.Count),
			w.kind(holder.Kind), w.place(holder.Place, holder.Phase, units.Bytes(holder.Each)))
	}
	if left > 0 {
		t.Row(rest.String(), "", text.Style(text.Faint, w.Text("snapshot.others", left)), "")
	}
	p.Table(t)
	if e.full {
		e.printStack(p, h, w)
	}
	if len(h.Labels) == 0 {
		return
	}
	p.Heading(w.Text("snapshot.labels"))
	t = &text.Table{Indent: 2, Align: []text.Align{text.Right, text.Right}}
	for i, l := range h.Labels {
		if !e.full && i >= labelsShown {
			break
		}
		name := l.Name
		if name == "" {
			name = w.Text("snapshot.unlabelled")
		}
		t.Row(units.Bytes(l.Bytes).String(), "×"+strconv.Itoa(l.Count), name)
	}
	p.Table(t)
}

// printStack prints the stack of the largest holder: with --all only, since it is
// long.
func (e *explain) printStack(p *text.Printer, h *diagnose.Held, w heldWords) {
	stack := h.Snapshot.Stack(h.Holders[0].Stack)
	if len(stack) == 0 {
		return
	}
	p.Blank()
	p.Para(2, w.Text("snapshot.stack"))
	for _, f := range stack {
		p.Hanging("    ", f.String())
	}
}

func (e *explain) printGrowth(p *text.Printer, h *diagnose.Held, w heldWords) {
	if len(h.Growth) == 0 {
		return
	}
	id := "snapshot.growth"
	if h.Growth[0].Forever {
		id = "snapshot.growth.forever"
	}
	p.Heading(w.Text(id))
	t := &text.Table{Indent: 2, Align: []text.Align{text.Right, text.Right}}
	for i, g := range h.Growth {
		if !e.full && i >= growthShown {
			t.Row(text.Style(text.Faint, w.Text("snapshot.others", len(h.Growth)-i)), "", "")
			break
		}
		grown := units.Bytes(g.Held[len(g.Held)-1] - g.Held[0])
		t.Row(w.Text(id+".each", units.Bytes(g.PerStep)), w.Text(id+".steps", g.Steps, len(g.Held)-1, grown),
			w.place(g.Place, lives.PhaseUnknown, 0))
	}
	p.Table(t)
}

func (e *explain) printPieces(p *text.Printer, h *diagnose.Held, w heldWords) {
	pieces := h.Pieces
	if pieces.Cached == 0 || float64(pieces.Cached) < 0.01*float64(h.Moment.Reserved) && h.Request == nil {
		return
	}
	p.Heading(w.Text("snapshot.pieces"))
	p.Para(2, w.Text("snapshot.pieces.sum", pieces.Cached, pieces.Segments, pieces.Whole, pieces.Stuck, pieces.Largest))
	if h.Request != nil {
		p.Para(2, w.Text("snapshot.pieces.reachable", pieces.Reachable, h.Request.Bytes))
	}
	if pieces.OtherStreams > 0 {
		p.Para(2, w.Text("snapshot.pieces.streams", pieces.OtherStreams))
	}
	if pieces.PrivatePools > 0 {
		p.Para(2, w.Text("snapshot.pieces.private", pieces.PrivatePools))
	}
	t := &text.Table{Indent: 4, Align: []text.Align{text.Left, text.Right, text.Right}}
	for i := 0; i < len(pieces.Pinned); {
		pin := pieces.Pinned[i]
		alike := 1
		for i++; i < len(pieces.Pinned) && pin.Alike(pieces.Pinned[i]); i++ {
			alike++
		}
		if !e.full && (t.Len() >= pinnedShown || 2*pin.Free < pin.Total || float64(pin.Free) < holderShare*float64(h.Moment.Reserved)) {
			continue
		}
		free := w.Text("snapshot.pinned.free", pin.Free, pin.Total)
		if alike > 1 {
			free = strconv.Itoa(alike) + " × " + free
		}
		t.Row(free, pin.Held.String(), "×"+strconv.Itoa(pin.Blocks), w.kind(pin.Kind), w.place(pin.Place, lives.PhaseUnknown, 0))
	}
	if t.Len() > 0 {
		p.Para(2, w.Text("snapshot.pinned"))
		p.Table(t)
	}
}

func (e *explain) printFailedRequest(p *text.Printer, h *diagnose.Held, w heldWords) {
	r := h.Request
	p.Heading(w.Text("snapshot.request"))
	p.Para(2, w.Text("snapshot.request.where", r.Bytes, w.place(r.Place, r.Phase, 0)))
	if s := *h.Slack; s >= 0 {
		p.Para(2, w.Text("snapshot.request.slack", r.Free, h.Pieces.Cached, s))
	} else {
		p.Para(2, w.Text("snapshot.request.short", r.Free, h.Pieces.Cached, -s))
	}
	if stack := h.Snapshot.Stack(r.Stack); e.full && len(stack) > 0 {
		for _, f := range stack {
			p.Hanging("    ", f.String())
		}
	}
}

func (e *explain) printTrials(p *text.Printer, h *diagnose.Held, w heldWords) {
	was := h.Recorded()
	if was == nil {
		return
	}
	better := h.Better()
	p.Heading(w.Text("snapshot.trials"))
	if len(better) == 0 {
		p.Para(2, w.Text("snapshot.trials.none", len(h.Trials)-1))
		return
	}
	t := &text.Table{Indent: 2, Align: []text.Align{text.Left, text.Right, text.Right}}
	name := w.Text("snapshot.trials.recorded")
	if was.Conf != "" {
		name += " (" + was.Conf + ")"
	}
	failures := func(n int) string {
		if n == 0 {
			return ""
		}
		return text.Style(text.Bad, w.Text("snapshot.trials.fail", n))
	}
	t.Row(name, units.Bytes(was.Peaks.Reserved).String(), "", failures(was.OOMs+was.StartOOMs))
	for i, trial := range better {
		if !e.full && i >= trialsShown {
			break
		}
		conf := trial.Conf
		if conf == "" {
			conf = w.Text("snapshot.trials.defaults")
		}
		by := units.Bytes(trial.Peaks.Reserved - was.Peaks.Reserved)
		sign := ""
		if by > 0 {
			sign = "+"
		}
		t.Row(conf, units.Bytes(trial.Peaks.Reserved).String(), sign+by.String(), failures(trial.OOMs+trial.StartOOMs))
	}
	p.Table(t)
	if h.History.Start > 0 {
		p.Para(2, text.Style(text.Faint, w.Text("snapshot.trials.anew")))
	}
}

func (e *explain) printDevices(p *text.Printer, h *diagnose.Held, w heldWords) {
	if len(h.Devices) < 2 {
		return
	}
	p.Heading(w.Text("snapshot.devices"))
	t := &text.Table{Indent: 2, Align: []text.Align{text.Left, text.Right, text.Right, text.Right}}
	t.Row("", w.Text("snapshot.devices.peak"), w.Text("snapshot.devices.reserved"), w.Text("snapshot.devices.ooms"))
	for _, d := range h.Devices {
		name := strconv.Itoa(d.Device)
		if d.Device == h.Device {
			name += " *"
		}
		t.Row(name, d.PeakAllocated.String(), d.PeakMost.String(), strconv.Itoa(d.OOMs))
	}
	p.Table(t)
	p.Para(2, text.Style(text.Faint, w.Text("snapshot.devices.other")))
}

// explainChange prints what changed between two snapshots.
func (e *explain) explainChange(in *inputs, c *diagnose.Change) error {
	a, b := in.snapshots[0], in.snapshots[1]
	if e.json {
		warnings := slices.Concat(snapshotWarnings(a.Snapshot), snapshotWarnings(b.Snapshot))
		return e.printJSON("unoom/explain-change/v1", warnings, changeJSONOf(a, b, c))
	}
	p := e.printer()
	w := heldWords{e.msgs, c.After}
	grew := c.After.Moment.Allocated - c.Before.Moment.Allocated
	id := "snapshot.change.more"
	if grew < 0 {
		id = "snapshot.change.less"
	} else if grew == 0 {
		id = "snapshot.change.same"
	}
	p.Para(0, text.Style(text.Strong, w.Text(id, max(grew, -grew), c.Before.Moment.Allocated, c.After.Moment.Allocated)))
	for _, s := range []struct {
		named namedSnapshot
		held  *diagnose.Held
	}{{a, c.Before}, {b, c.After}} {
		words := heldWords{e.msgs, s.held}
		p.Para(0, text.Style(text.Faint, words.source(s.named)+w.Text("explain.separator")+w.Text("snapshot.change.at."+s.held.Moment.Kind)))
	}
	p.Heading(w.Text("snapshot.change.what"))
	t := &text.Table{Indent: 2, Align: []text.Align{text.Left, text.Right, text.Right, text.Right}}
	row := func(name string, before, after units.Bytes) {
		t.Row(name, before.String(), after.String(), signedBytes(after-before))
	}
	for _, k := range c.Kinds {
		row(w.kind(k.Kind), k.Before, k.After)
	}
	row(text.Style(text.Strong, w.Text("snapshot.change.allocated")), c.Before.Moment.Allocated, c.After.Moment.Allocated)
	row(w.Text("snapshot.change.reserved"), c.Before.Moment.Reserved, c.After.Moment.Reserved)
	row(w.Text("snapshot.change.peak"), c.Before.PeakAllocated, c.After.PeakAllocated)
	p.Table(t)
	if len(c.Holders) > 0 {
		p.Heading(w.Text("snapshot.change.who"))
		t := &text.Table{Indent: 2, Align: []text.Align{text.Right, text.Right, text.Right, text.Left}}
		for i, ch := range c.Holders {
			if !e.full && i >= holdersShown {
				break
			}
			t.Row(signedBytes(ch.By()), fmt.Sprintf("×%d", ch.CountBefore), fmt.Sprintf("→ ×%d", ch.CountAfter), w.kind(ch.Kind),
				w.place(ch.Place, lives.PhaseUnknown, ch.Each))
		}
		p.Table(t)
	}
	if a.Settings != nil && b.Settings != nil && a.Settings.Conf != b.Settings.Conf {
		p.Heading(w.Text("snapshot.change.settings"))
		p.Para(2, fmt.Sprintf("%q → %q", a.Settings.Conf, b.Settings.Conf))
	}
	return p.Err()
}

func signedBytes(b units.Bytes) string {
	if b > 0 {
		return "+" + b.String()
	}
	return b.String()
}

// versions writes a range of versions: "2.8-2.9", "2.12 or newer".
func (w heldWords) versions(r snapshot.Range) string {
	switch {
	case r.Newest == snapshot.Version{}:
		return w.Text("snapshot.version.newer", r.Oldest.String())
	case r.Oldest == snapshot.Version{}:
		return w.Text("snapshot.version.older", r.Newest.String())
	}
	return r.String()
}
