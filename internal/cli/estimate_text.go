package cli

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"unoom/internal/i18n"
	"unoom/internal/memory"
	"unoom/internal/report/text"
	"unoom/internal/units"
	"unoom/internal/workload"
)

func (e *estimateCommand) say(id string, args ...any) string {
	return e.msgs.Text("estimate."+id, args...)
}

// print writes the answer: the verdict, what the memory is for, the phases, the
// slope, and what it all rests on.
func (e *estimateCommand) print(r *estimated) error {
	p := e.printer()
	e.printVerdict(p, r)
	if r.engine != nil {
		e.printStages(p, r.engine.Stages)
		e.printParts(p, r)
		e.printPhases(p, r)
		e.printSlope(p, r)
		e.printMachine(p, r)
	} else {
		p.Blank()
		p.Para(0, e.say("closed_form", r.missing))
	}
	if r.verdict == "does_not_fit" || r.verdict == "tight" {
		p.Heading(e.say("next"))
		p.Hanging("  ", text.Style(text.Code, r.planCommandLine(e.args, &e.workload)))
	}
	e.printWarnings(p, e.workload.said)
	e.printBasis(p, r)
	return p.Err()
}

func (e *estimateCommand) printVerdict(p *text.Printer, r *estimated) {
	phase := e.msgs.Text("plan.phase_" + string(r.phase))
	where := r.cards.Card.Name
	if where == r.workload.GPU.Capacity.String() { // only --capacity was given
		where = e.say("a_card")
	}
	if r.cards.Count > 1 {
		where = e.say("each_of", r.cards.Count, where)
	}
	switch r.verdict {
	case "fits":
		p.Para(0, text.Style(text.Good, e.say("fits", r.device, r.workload.GPU.Capacity, where, phase)))
	case "tight":
		p.Para(0, text.Style(text.Caution, e.say("tight", r.device, r.workload.GPU.Capacity, where, phase)))
	case "does_not_fit":
		p.Para(0, text.Style(text.Bad, e.say("no", r.device, r.workload.GPU.Capacity, where, phase, r.device.Mid-r.workload.GPU.Capacity)))
	default:
		p.Para(0, text.Style(text.Strong, e.say("needs", r.device, phase)))
	}
}

// printStages says which stage of a pipeline the figures are of.
func (e *estimateCommand) printStages(p *text.Printer, stages []memory.Stage) {
	if len(stages) == 0 {
		return
	}
	line := e.say("fullest_stage", stages[0].Rank, stages[0].Allocated)
	for _, s := range stages[1:] {
		line += " " + e.say("other_stage", s.Rank, s.Allocated)
	}
	p.Para(0, line)
}

// barWidth is the width of the bars in cells.
const barWidth = 24

// kinds are the parts of the peak in the order of the table.
var kinds = []memory.Kind{memory.Weights, memory.Gradients, memory.OptimizerState, memory.Activations, memory.Temporaries, memory.Buffers, memory.Workspace}

// printParts is the table from what tensors hold to what nvidia-smi shows.
func (e *estimateCommand) printParts(p *text.Printer, r *estimated) {
	est := r.engine
	p.Heading(e.say("parts"))
	whole := max(r.device.Mid, r.workload.GPU.Capacity)
	t := &text.Table{Indent: 2, Align: []text.Align{text.Left, text.Right, text.Left}}
	bar := func(b units.Bytes) string {
		return text.Bar(float64(b)/float64(max(whole, 1)), barWidth)
	}
	sums := map[memory.Kind]units.Bytes{}
	for _, s := range est.Items {
		sums[s.Kind] += units.Bytes(s.Bytes)
	}
	for _, k := range kinds {
		if sums[k] == 0 {
			continue
		}
		t.Row(e.say("kind_"+string(k)), inGiB(sums[k]), bar(sums[k]))
		if e.explain {
			for _, s := range est.Items {
				if s.Kind == k {
					t.Row("  "+text.Style(text.Faint, e.termName(cmp.Or(s.Name, string(k)))), text.Style(text.Faint, inGiB(units.Bytes(s.Bytes))))
				}
			}
		}
	}
	t.Row(text.Style(text.Strong, e.say("allocated")), inGiB(est.Allocated.Mid), interval(est.Allocated))
	if d := est.Reserved.Mid - est.Allocated.Mid; d > 0 {
		t.Row(e.say("cached"), inGiB(d), bar(d))
	}
	t.Row(text.Style(text.Strong, e.say("reserved")), inGiB(est.Reserved.Mid), interval(est.Reserved))
	for _, o := range est.Outside {
		t.Row(e.termName(o.Name), inGiB(o.Bytes.Mid), bar(o.Bytes.Mid))
	}
	t.Row(text.Style(text.Strong, e.say("device")), inGiB(r.device.Mid), interval(r.device))
	p.Table(t)
}

// termName translates the name of a term, inside the allocator or outside.
func (e *estimateCommand) termName(name string) string {
	if id := "estimate.term_" + strings.ToLower(strings.ReplaceAll(name, " ", "_")); e.msgs.Has(id) {
		return e.msgs.Text(id)
	}
	return name
}

func (e *estimateCommand) printPhases(p *text.Printer, r *estimated) {
	p.Heading(e.say("phases"))
	t := &text.Table{Indent: 2, Align: []text.Align{text.Left, text.Right, text.Left}}
	most := slices.MaxFunc(r.engine.Phases, func(a, b memory.Peak) int { return cmp.Compare(a.Allocated, b.Allocated) })
	for _, ph := range r.engine.Phases {
		mark := ""
		if ph.Phase == most.Phase {
			mark = " " + e.say("peak")
		}
		t.Row(e.say("phase_"+string(ph.Phase)), inGiB(ph.Allocated), text.Bar(float64(ph.Allocated)/float64(max(most.Allocated, 1)), barWidth)+mark)
		if e.explain {
			for _, s := range ph.Items {
				if units.Bytes(s.Bytes) >= ph.Allocated/100 {
					t.Row("  "+text.Style(text.Faint, e.termName(cmp.Or(s.Name, string(s.Kind)))), text.Style(text.Faint, inGiB(units.Bytes(s.Bytes))))
				}
			}
		}
	}
	p.Table(t)
	for _, what := range r.engine.Unplayed {
		p.Para(0, e.say("unplayed", what))
	}
}

func (e *estimateCommand) printSlope(p *text.Printer, r *estimated) {
	if r.perSample <= 0 {
		return
	}
	p.Blank()
	lines := []string{e.say("per_sample", r.perSample)}
	if r.perToken > 0 {
		lines = append(lines, e.say("per_token", r.perToken))
	}
	switch {
	case r.largest == 0:
		lines = append(lines, e.say("none_fits"))
	case r.largest > 0:
		lines = append(lines, e.say("largest", r.largest))
	}
	space := " "
	if e.msgs.Lang() == i18n.Chinese {
		space = ""
	}
	p.Para(0, strings.Join(lines, space))
}

// printMachine says what earlier runs on this machine make of the estimate.
func (e *estimateCommand) printMachine(p *text.Printer, r *estimated) {
	if r.machine != nil {
		p.Blank()
		p.Para(0, e.say("this_machine", r.machine.Runs, fmt.Sprintf("%.2f", r.machine.Ratio), r.here()))
	}
}

// printBasis says what the numbers rest on.
func (e *estimateCommand) printBasis(p *text.Printer, r *estimated) {
	e.printAssumed(p, r.workload)
	if !e.explain || r.engine == nil {
		return
	}
	p.Heading(e.say("terms"))
	seen := map[string]bool{}
	items := slices.Clone(r.engine.Items)
	for _, ph := range r.engine.Phases {
		items = append(items, ph.Items...)
	}
	for _, s := range items {
		t, ok := memory.TermOf(s.Kind, s.Name)
		if ok && !seen[t.Name] {
			seen[t.Name] = true
			p.Hanging("  ", e.termName(t.Name)+"  "+text.Style(text.Faint, t.Source))
		}
	}
	for _, o := range r.engine.Outside {
		p.Hanging("  ", fmt.Sprintf("%s %s  %s", e.termName(o.Name), o.Bytes, text.Style(text.Faint, o.Source)))
	}
	p.Heading(e.say("choices"))
	for _, c := range r.engine.Choices {
		line := fmt.Sprintf("%s = %s", c.Setting, c.Value)
		var others []string
		for _, o := range c.Others {
			if o.Moves != 0 {
				others = append(others, fmt.Sprintf("%s: %+.2f GiB", o.Value, o.Moves.GiB()))
			}
		}
		switch {
		case len(others) > 0:
			line += " " + e.say("or_else", strings.Join(others, ", "))
		case len(c.Others) > 0:
			continue // it changes nothing here, whatever it is
		}
		p.Hanging("  ", line+"  "+text.Style(text.Faint, c.Source))
	}
	if said := e.workload.said.Settings; len(said) > 0 {
		p.Heading(e.say("stated"))
		for _, f := range workload.Fields() {
			if v, ok := said[f]; ok {
				p.Hanging("  ", fmt.Sprintf("%s = %s  %s", f, v.Value, text.Style(text.Faint, string(v.Origin()))))
			}
		}
	}
}

// printAssumed lists what nobody stated: what has a reason a line each, the rest
// in one.
func (a *app) printAssumed(p *text.Printer, w *workload.Workload) {
	if len(w.Assumptions) == 0 {
		return
	}
	p.Heading(a.msgs.Text("estimate.assumed"))
	var plain []string
	for _, s := range w.Assumptions {
		if s.Why == workload.NobodySaid {
			plain = append(plain, s.Field+" = "+s.Value)
			continue
		}
		p.Hanging("  ", fmt.Sprintf("%s = %s  %s", s.Field, s.Value, text.Style(text.Faint, a.reason(s.Why))))
	}
	if len(plain) > 0 {
		p.Hanging("  ", strings.Join(plain, ", "))
	}
}

// reason translates why something was assumed, where the reason is ours; what a
// framework documents stays as it is.
func (a *app) reason(why string) string {
	for id, text := range i18n.Load(i18n.English).Under("workload.why_") {
		if text == why {
			return a.msgs.Text("workload.why_" + id)
		}
	}
	return why
}

// interval writes the bounds, "" where there are none.
func interval(e units.Estimate) string {
	if e.Low == e.High {
		return ""
	}
	return fmt.Sprintf("%.2f–%.2f", e.Low.GiB(), e.High.GiB())
}
