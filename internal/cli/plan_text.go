package cli

import (
	"fmt"
	"slices"
	"strings"

	"unoom/internal/plan"
	"unoom/internal/remedy"
	"unoom/internal/report/text"
	"unoom/internal/speed"
	"unoom/internal/workload"
)

// printPlan writes the answer: the setting, the proof, how it is reached, what
// else there is.
func (c *planCommand) printPlan(r *plan.Result) error {
	p := c.printer()
	if len(r.Plans) == 0 {
		c.printNoPlan(p, r)
		return p.Err()
	}
	best := &r.Plans[0]
	c.printBest(p, r, best)
	c.printSteps(p, r, best)
	c.printOthers(p, r)
	if c.why {
		c.printWhy(p, r)
	}
	c.printNotes(p, r, best)
	c.printWarnings(p, c.workload.said)
	return p.Err()
}

func (c *planCommand) say(id string, args ...any) string { return c.msgs.Text("plan."+id, args...) }

func (c *planCommand) printBest(p *text.Printer, r *plan.Result, b *plan.Plan) {
	head := "fits"
	if r.Present.Fits && len(b.Steps) == 0 {
		head = "already"
	}
	args := []any{b.Need.Device.Mid, r.Capacity, c.gpus(b.Choice.GPUs), c.seconds(b.Time.Mid)}
	if b.Need.Host > 0 {
		head, args = head+"_host", append(args, b.Need.Host)
		if b.Choice.GPUs == 1 {
			head += "_one"
		}
	}
	p.Para(0, text.Style(text.Good, c.say(head, args...)))
	p.Blank()
	t := &text.Table{Indent: 2}
	row := func(id, value string) { t.Row(text.Style(text.Faint, c.say(id)), value) }
	ch := &b.Choice
	row("row_batch", c.say("batch", ch.Micro, ch.Accumulation, ch.Data, r.Batch))
	row("row_layout", c.layout(ch))
	if r.Tokens() {
		row("row_recompute", c.recompute(ch, b.Workload.Model.Layers()))
	}
	if name := c.offload(ch); name != "" {
		row("row_offload", name)
	}
	row("row_memory", c.say("memory", b.Need.Device, fmt.Sprintf("%.1f", 100*b.Headroom(r.Capacity)), c.phase(b.Need.Phase)))
	if b.Need.Host > 0 {
		row("row_host", c.hostMemory(r, b))
	}
	timed := "time"
	if !r.Tokens() {
		timed = "time_images"
	}
	row("row_time", c.say(timed, c.seconds(b.Time.Mid), c.seconds(b.Time.Low), c.seconds(b.Time.High), c.thousands(b.Time.TokensPerSecond())))
	row("row_stacks", joinTargets(b.Targets))
	p.Table(t)
}

// hostMemory is what a plan keeps in host memory, of what there is.
func (c *planCommand) hostMemory(r *plan.Result, b *plan.Plan) string {
	switch {
	case r.Host == 0:
		return c.say("host", b.Need.Host)
	case r.HostAssumed:
		return c.say("host_assumed", b.Need.Host, r.Host)
	}
	return c.say("host_of", b.Need.Host, r.Host)
}

func (c *planCommand) gpus(n int) string {
	if n == 1 {
		return c.say("one_gpu", c.gpuName)
	}
	return c.say("gpus", n, c.gpuName)
}

// seconds writes a time in the unit that suits it.
func (c *planCommand) seconds(micros float64) string {
	switch {
	case micros < 10e3:
		return fmt.Sprintf("%.2f ms", micros/1e3)
	case micros < 1e6:
		return fmt.Sprintf("%.0f ms", micros/1e3)
	case micros < 10e6:
		return fmt.Sprintf("%.2f s", micros/1e6)
	case micros < 100e6:
		return fmt.Sprintf("%.1f s", micros/1e6)
	}
	return fmt.Sprintf("%.0f s", micros/1e6)
}

// thousands writes a large number with the digits that are meant.
func (c *planCommand) thousands(v float64) string {
	switch {
	case v >= 1e6:
		return fmt.Sprintf("%.2fM", v/1e6)
	case v >= 10e3:
		return fmt.Sprintf("%.0fk", v/1e3)
	case v >= 1e3:
		return fmt.Sprintf("%.1fk", v/1e3)
	case v < 10:
		return fmt.Sprintf("%.2g", v)
	}
	return fmt.Sprintf("%.0f", v)
}

func (c *planCommand) layout(ch *plan.Choice) string {
	var parts []string
	switch {
	case ch.Sharding == speed.NoSharding || ch.Data*ch.Context == 1:
		if ch.GPUs == 1 {
			parts = append(parts, c.say("layout_one"))
		}
	case ch.Sharding == speed.FSDP && ch.Shard < ch.Data:
		parts = append(parts, c.say("layout_hybrid", ch.Shard, ch.Data/ch.Shard))
	default:
		parts = append(parts, c.say("layout_"+string(ch.Sharding), ch.Data*ch.Context))
	}
	for _, d := range []struct {
		id string
		n  int
	}{{"tensor", ch.Tensor}, {"pipeline", ch.Pipeline}, {"chunks", ch.Chunks}, {"context", ch.Context}, {"expert", ch.Expert}} {
		if d.n > 1 {
			parts = append(parts, c.say("layout_"+d.id, d.n))
		}
	}
	return strings.Join(parts, ", ")
}

func (c *planCommand) recompute(ch *plan.Choice, layers int) string {
	per := (layers + ch.Pipeline - 1) / ch.Pipeline
	switch {
	case ch.Recompute == plan.RecomputeNone:
		return c.say("recompute_none")
	case ch.Recompute == plan.RecomputeSelective:
		return c.say("recompute_selective")
	case ch.Layers < per:
		return c.say("recompute_some", ch.Layers, per)
	}
	return c.say("recompute_full")
}

func (c *planCommand) offload(ch *plan.Choice) string {
	switch {
	case ch.OffloadWeights:
		return c.say("offload_params")
	case ch.OffloadOptimizer:
		return c.say("offload_optimizer")
	case ch.OffloadActivations:
		return c.say("offload_activations")
	}
	return ""
}

func (c *planCommand) phase(ph remedy.Phase) string { return c.say("phase_" + string(ph)) }

func joinTargets(t []plan.Target) string {
	var names []string
	for _, x := range t {
		names = append(names, string(x))
	}
	return strings.Join(names, ", ")
}

// printSteps writes the ladder from the present setting to the plan.
func (c *planCommand) printSteps(p *text.Printer, r *plan.Result, b *plan.Plan) {
	now := &r.Present
	switch {
	case now.Broken != "":
		p.Heading(c.say("present"))
		p.Para(2, c.say("broken_"+now.Broken))
	case !now.Fits:
		title := "present"
		if !c.workload.said.Says(workload.FieldMicroBatch, workload.FieldAccumulation, workload.FieldCheckpointing, workload.FieldSharding, workload.FieldOptimizer,
			workload.FieldOffload, workload.FieldLoss, workload.FieldTensor, workload.FieldPipeline, workload.FieldContext) {
			title = "plain" // nobody has such a setting yet
		}
		p.Heading(c.say(title))
		p.Para(2, c.say("present_short", now.Need.Device.High, c.phase(now.Need.Phase), now.Short, r.Budget))
	}
	if len(b.Steps) == 0 {
		return
	}
	p.Heading(c.say("steps"))
	t := &text.Table{Indent: 2, Align: []text.Align{text.Left, text.Right, text.Right, text.Right, text.Left}}
	faint := func(id string) string { return text.Style(text.Faint, c.say(id)) }
	t.Row(faint("col_step"), faint("col_saves"), faint("col_peak"), faint("col_time"), faint("col_change"))
	t.Row(c.say("now"), "", inGiB(now.Need.Device.High), c.seconds(now.Time.Mid), "")
	loose := false
	for _, s := range b.Steps {
		name := string(s.Code)
		if !s.Exact {
			name += " *"
			loose = true
		}
		t.Row(text.Style(text.Code, name), inGiB(s.Saves), inGiB(s.Peak), fmt.Sprintf("×%.2f", s.Slowdown), c.changed(&s))
	}
	p.Table(t)
	if loose {
		id := "loose"
		if r.Explain().BatchNorm && b.Choice.Micro != r.Present.Choice.Micro {
			id = "loose_batchnorm"
		}
		p.Para(2, text.Style(text.Caution, c.say(id)))
	}
}

// changed is what a step changes, and what the host has to hold after it where
// the step moves something there.
func (c *planCommand) changed(s *plan.Step) string {
	change := s.From + " → " + s.To
	if s.Moved > 0 {
		return c.say("host_change", change, s.Host)
	}
	return change
}

// printOthers lists the other plans, each by what it trades.
func (c *planCommand) printOthers(p *text.Printer, r *plan.Result) {
	if len(r.Plans) < 2 {
		return
	}
	p.Heading(c.say("others"))
	t := &text.Table{Indent: 2, Align: []text.Align{text.Right, text.Right, text.Right, text.Right, text.Left}}
	faint := func(id string) string { return text.Style(text.Faint, c.say(id)) }
	t.Row("", faint("col_time"), faint("col_peak"), faint("col_free"), faint("col_setting"))
	for i := range r.Plans {
		x := &r.Plans[i]
		mark := ""
		if !x.Exact {
			mark = " *"
		}
		t.Row(fmt.Sprint(i+1), c.seconds(x.Time.Mid), inGiB(x.Need.Device.High), fmt.Sprintf("%.0f %%", 100*x.Headroom(r.Capacity)), c.short(x)+mark)
	}
	p.Table(t)
}

// short is a plan in a few words.
func (c *planCommand) short(x *plan.Plan) string {
	ch := &x.Choice
	parts := []string{c.say("short_batch", ch.BatchName()), ch.LayoutName()}
	if ch.Recompute != plan.RecomputeNone {
		parts = append(parts, c.say("short_recompute", ch.RecomputeName((x.Workload.Model.Layers()+ch.Pipeline-1)/ch.Pipeline)))
	}
	if name := ch.OffloadName(); name != "none" {
		parts = append(parts, c.say("short_offload", name))
	}
	if ch.Method != plan.FullTune {
		parts = append(parts, string(x.Workload.Method)) // DoRA is a LoRA to the search
	}
	if len(x.Targets) > 0 {
		parts = append(parts, string(x.Targets[0]))
	}
	return strings.Join(parts, ", ")
}

// printNoPlan says what is missing, and the nearest requests that would do.
func (c *planCommand) printNoPlan(p *text.Printer, r *plan.Result) {
	p.Para(0, text.Style(text.Bad, c.say("none", r.Capacity, c.gpus(c.count))))
	if r.Present.Broken == "" {
		p.Para(0, c.say("present_short", r.Present.Need.Device.High, c.phase(r.Present.Need.Phase), r.Present.Short, r.Budget))
	}
	if len(r.Needs) == 0 {
		p.Para(0, c.say("nothing_helps"))
		return
	}
	p.Heading(c.say("needs"))
	for i := range r.Needs {
		p.Hanging("  - ", c.need(&r.Needs[i]))
	}
}

func (c *planCommand) need(n *plan.Need) string {
	ch := &n.Choice
	tail := c.say("need_tail", n.Peak, c.seconds(n.Time))
	if n.Host > 0 && n.Kind != plan.NeedHost {
		tail = c.say("need_tail_host", n.Peak, c.seconds(n.Time), n.Host)
	}
	switch n.Kind {
	case plan.NeedGPUs:
		return c.say("need_more_gpus", n.GPUs, n.GPU, ch.LayoutName()) + " " + tail
	case plan.NeedBigger:
		return c.say("need_bigger_gpu", n.GPUs, n.GPU) + " " + tail
	case plan.NeedHost:
		return c.say("need_host", n.Host) + " " + tail
	case plan.NeedOptimizer:
		return c.say("need_optimizer", string(ch.Optimizer)) + " " + tail
	case plan.NeedPrecision:
		return c.say("need_precision", string(ch.Precision)) + " " + tail
	case plan.NeedPEFT:
		return c.say("need_peft", strings.ReplaceAll(strings.ToUpper(string(ch.Method)), "ORA", "oRA"), n.GPUs, n.GPU) + " " + tail
	case plan.NeedSequence:
		return c.say("need_sequence", ch.Seq) + " " + tail
	case plan.NeedHeadroom:
		return c.say("need_less_headroom") + " " + tail
	}
	return c.say("need_target", joinTargets([]plan.Target{n.Target})) + " " + tail
}

// printWhy answers the usual questions with this run's numbers.
func (c *planCommand) printWhy(p *text.Printer, r *plan.Result) {
	w := r.Explain()
	p.Heading(c.say("why"))
	ask := func(q string, answers ...string) {
		p.Blank()
		p.Para(2, text.Style(text.Strong, c.say(q)))
		for _, a := range answers {
			p.Para(4, a)
		}
	}
	batch := "why_batch_answer"
	if !r.Tokens() {
		batch = "why_batch_images"
	}
	ask("why_batch", c.say(batch, w.Fixed, w.Sample, w.Token, w.Micro, c.seconds(w.MicroTime), w.Other, c.seconds(w.OtherTime)))
	answers := []string{c.say("why_accumulation_answer", w.Accumulation)}
	if w.Accumulation == 1 {
		answers[0] = c.say("why_accumulation_none")
	}
	if w.Padded || w.MultiRank {
		answers = append(answers, c.say("why_accumulation_tokens"))
	}
	if w.BatchNorm {
		answers = append(answers, c.say("why_batchnorm"))
	} else {
		answers = append(answers, c.say("why_no_batchnorm"))
	}
	ask("why_accumulation", answers...)
	if w.Rate != nil {
		id := "why_rate_sgd"
		if w.Rate.Adaptive {
			id = "why_rate_adam"
		}
		ask("why_rate", c.say(id, w.Rate.OldBatch, w.Rate.NewBatch, fmt.Sprintf("%.2f", w.Rate.Sqrt), fmt.Sprintf("%.2f", w.Rate.Linear)))
	} else {
		ask("why_rate", c.say("why_rate_same", r.Batch))
	}
	if !r.Tokens() {
		return
	}
	ask("why_recompute", c.say("why_recompute_answer", w.RecomputeSaves, fmt.Sprintf("%.0f", 100*(w.RecomputeSlowdown-1))))
}

// printNotes says how far the figures can be trusted.
func (c *planCommand) printNotes(p *text.Printer, r *plan.Result, b *plan.Plan) {
	var notes []string
	var closed []string
	for i := range r.Plans {
		if r.Plans[i].Need.Engine == nil {
			closed = append(closed, fmt.Sprint(i+1))
		}
	}
	switch {
	case len(closed) > 0 && len(r.Plans) > 1:
		notes = append(notes, c.say("note_closed_plans", strings.Join(closed, ", ")))
	case len(closed) > 0:
		notes = append(notes, c.say("note_closed"))
	}
	notes = append(notes, c.say("note_time"))
	if used := b.Choice.GPUs; used < c.count {
		id := "note_idle"
		if r.Batch%c.count != 0 {
			id = "note_idle_batch"
		}
		notes = append(notes, c.say(id, used, c.count, r.Batch))
	}
	if b.Choice.Accumulation > 1 && r.Present.Choice.Accumulation != b.Choice.Accumulation {
		notes = append(notes, c.say("note_accumulation"))
	}
	p.Blank()
	for _, n := range notes {
		p.Hanging("  "+text.Style(text.Faint, c.say("note"))+" ", text.Style(text.Faint, n))
	}
}

// printOffers writes the answer to "which hardware do I need".
func (c *planCommand) printOffers(o *plan.Offers, nearest *plan.Offer) error {
	p := c.printer()
	if o.Smallest == nil {
		none := c.say("market_none", o.Considered)
		if o.Considered == 0 && c.maxPrice > 0 {
			none = c.say("market_none_price", fmt.Sprintf("%.2f", c.maxPrice))
		}
		p.Para(0, text.Style(text.Bad, none))
		if nearest != nil {
			price := c.say("market_no_price")
			if nearest.USDPerHour > 0 {
				price = c.say("market_price", fmt.Sprintf("%.2f", nearest.USDPerHour))
			}
			p.Para(0, c.say("market_nearest", c.set(&nearest.Hardware), price, c.seconds(nearest.Plan.Time.Mid)))
		}
		return p.Err()
	}
	p.Para(0, text.Style(text.Good, c.say("market", o.Fitting, o.Considered)))
	p.Blank()
	type answer struct {
		id string
		o  *plan.Offer
	}
	var found []answer
	for _, x := range []answer{{"smallest", o.Smallest}, {"cheapest", o.Cheapest}, {"fastest", o.Fastest}} {
		if x.o != nil {
			found = append(found, x)
		}
	}
	t := &text.Table{Indent: 2, Align: []text.Align{text.Left, text.Right, text.Right, text.Right, text.Left}}
	faint := func(id string) string { return text.Style(text.Faint, c.say(id)) }
	t.Row("", faint("col_time"), faint("col_hour"), faint("col_step_price"), faint("col_gpus"))
	for _, x := range found {
		hour, step := c.msgs.Text("not_available"), c.msgs.Text("not_available")
		if x.o.USDPerHour > 0 {
			hour = fmt.Sprintf("$%.2f", x.o.USDPerHour)
			step = fmt.Sprintf("$%.5f", x.o.USDPerStep)
		}
		t.Row(text.Style(text.Strong, c.say("market_"+x.id)), c.seconds(x.o.Plan.Time.Mid), hour, step, c.set(&x.o.Hardware))
	}
	p.Table(t)
	p.Blank()
	settings := &text.Table{Indent: 2}
	for _, x := range found {
		settings.Row(text.Style(text.Strong, c.say("market_"+x.id)), c.short(&x.o.Plan))
	}
	p.Table(settings)
	p.Blank()
	id := "market_prices"
	if len(c.clouds) > 0 {
		id = "cloud_prices"
	}
	var said []string
	for _, x := range found {
		price := &x.o.Hardware.Price
		if price.Date == "" {
			continue
		}
		if note := c.say(id, price.Source, price.Date); !slices.Contains(said, note) {
			said = append(said, note)
			p.Hanging("  ", text.Style(text.Faint, note))
		}
	}
	if c.batchless {
		p.Hanging("  ", text.Style(text.Faint, c.say("market_batch", found[0].o.Plan.Choice.Batch())))
	}
	return p.Err()
}

// set names a set of accelerators, and the machines they come in.
func (c *planCommand) set(h *plan.Hardware) string {
	if h.PerMachine == 0 {
		return fmt.Sprintf("%d × %s", h.Count, h.Name)
	}
	if n := h.Count / h.PerMachine; n > 1 {
		return fmt.Sprintf("%d × %s (%d × %s)", n, h.Machine, h.Count, h.Name)
	}
	return fmt.Sprintf("%s (%d × %s)", h.Machine, h.Count, h.Name)
}
