package cli

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"unoom/internal/ledger"
	"unoom/internal/report/text"
	"unoom/internal/supervise"
	"unoom/internal/units"
)

func (a *app) runsCommand() *cobra.Command {
	var all bool
	c := &cobra.Command{
		Use:   "runs",
		Short: "List earlier runs: what happened, and how good the predictions were",
		Example: "  unoom runs\n" +
			"  unoom runs show last",
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error { return a.runsList(all) },
	}
	c.Flags().BoolVar(&all, "all", false, "all runs, not only the newest 20")
	c.AddCommand(&cobra.Command{
		Use:     "show RUN",
		Short:   "Show one run: every attempt, its settings, its measurements",
		Example: "  unoom runs show last\n  unoom runs show 20261130-1530",
		Args:    cobra.ExactArgs(1),
		RunE:    func(_ *cobra.Command, args []string) error { return a.runsShow(args[0]) },
	})
	return c
}

func (a *app) runsList(all bool) error {
	root := ledger.Default(a.Getenv)
	list, err := root.List(supervise.Alive)
	if err != nil {
		return fmt.Errorf("runs: %w", err)
	}
	if !all && len(list) > 20 {
		list = list[len(list)-20:]
	}
	if a.json {
		if list == nil {
			list = []ledger.History{}
		}
		return a.printJSON("unoom/runs/v1", nil, map[string]any{"runs": list})
	}
	p := a.printer()
	if len(list) == 0 {
		p.Line(a.msgs.Text("runs_none", root.Runs()))
		return p.Err()
	}
	t := text.Table{Align: []text.Align{text.Left, text.Left, text.Right}}
	var head []string
	for _, id := range []string{"id", "state", "tries", "outcome", "command"} {
		head = append(head, text.Style(text.Faint, a.msgs.Text("runs_col_"+id)))
	}
	rows := [][]string{head}
	for _, h := range list {
		outcome := ""
		if n := len(h.Tries); n > 0 && h.Tries[n-1].Ended != nil {
			outcome = a.msgs.Text("runs_outcome_" + h.Tries[n-1].Ended.Outcome)
		}
		rows = append(rows, []string{h.Run.ID, a.stateWord(h.State), strconv.Itoa(len(h.Tries)), outcome, shellLine(h.Run.Command)})
	}
	// A line for each run: the command takes the room that the others leave.
	room := p.Width()
	for i := range len(head) - 1 {
		widest := slices.MaxFunc(rows, func(x, y []string) int { return cmp.Compare(text.Cells(x[i]), text.Cells(y[i])) })
		room -= text.Cells(widest[i]) + 2
	}
	for _, row := range rows {
		if last := len(row) - 1; room > 8 {
			row[last] = text.Cut(row[last], room)
		}
		t.Row(row...)
	}
	p.Table(&t)
	a.sayAccuracy(p, list)
	return p.Err()
}

// sayAccuracy says how good the predictions were, by what they rested on.
func (a *app) sayAccuracy(p *text.Printer, list []ledger.History) {
	off := map[string][]float64{}
	for _, h := range list {
		for _, s := range h.Scores() {
			off[s.Source] = append(off[s.Source], math.Abs(s.Error()))
		}
	}
	if len(off) > 0 {
		p.Blank()
	}
	for _, source := range slices.Sorted(maps.Keys(off)) {
		errors := off[source]
		slices.Sort(errors)
		p.Para(0, a.msgs.Text("runs_accuracy", source, len(errors), fmt.Sprintf("%.1f", 100*errors[len(errors)/2])))
	}
}

func (a *app) stateWord(state string) string {
	role := map[string]text.Role{
		ledger.StateDone: text.Good, ledger.StateFailed: text.Bad, ledger.StateLost: text.Bad, ledger.StateRunning: text.Caution,
	}[state]
	return text.Style(role, a.msgs.Text("runs_"+state))
}

func (a *app) runsShow(prefix string) error {
	root := ledger.Default(a.Getenv)
	dir, err := root.Find(prefix)
	if err != nil {
		return withHint(err, "unoom runs --all")
	}
	recs, skipped, err := ledger.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("run %s: %w", filepath.Base(dir), err)
	}
	h := ledger.Fold(recs, skipped, supervise.Alive)
	if a.json {
		return a.printJSON("unoom/run/v1", nil, map[string]any{"run": h, "folder": dir, "scores": h.Scores()})
	}
	p := a.printer()
	p.Line(h.Run.ID + "  " + a.stateWord(h.State))
	p.Hanging("  ", shellLine(h.Run.Command))
	p.Para(2, a.msgs.Text("runs_started", h.Started.Local().Format("2006-01-02 15:04:05"), h.Run.Host))
	for _, t := range h.Tries {
		a.showTry(p, h, t)
	}
	p.Blank()
	switch {
	case h.Lost != nil && h.End == nil:
		p.Line(a.msgs.Text("runs_ended_lost", h.Lost.Swept))
	case h.End != nil:
		p.Line(a.msgs.Text("runs_ended", h.End.Status, h.End.Attempts))
	case h.State == ledger.StateRunning:
		p.Line(a.msgs.Text("runs_still"))
	}
	p.Line(text.Style(text.Faint, dir))
	return p.Err()
}

func (a *app) showTry(p *text.Printer, h ledger.History, t ledger.Try) {
	title := a.msgs.Text("runs_attempt", t.Attempt.N)
	if t.Ended != nil {
		title += ": " + a.msgs.Text("runs_outcome_"+t.Ended.Outcome)
		if t.Ended.Phase != "" {
			title += " (" + t.Ended.Phase + ")"
		}
	}
	p.Heading(title)
	s := t.Attempt.Settings
	switch {
	case s.Samples > 0:
		p.Para(2, a.msgs.Text("runs_settings_uneven", s.MicroBatch, s.Accumulation, s.Samples))
	case s.MicroBatch > 0:
		p.Para(2, a.msgs.Text("runs_settings", s.MicroBatch, s.Accumulation))
	case s.Checkpointing == "" && s.AllocConf == "":
		p.Para(2, a.msgs.Text("runs_as_written"))
	}
	if s.Checkpointing == "full" {
		p.Para(2, a.msgs.Text("runs_checkpointing"))
	}
	if s.AllocConf != "" {
		p.Para(2, s.AllocConf)
	}
	if s.Resume != "" {
		p.Para(2, a.msgs.Text("runs_resumed", s.Resume))
	}
	pred := t.Attempt.Predicted
	if pred != nil {
		p.Para(2, a.msgs.Text("runs_predicted", units.Estimate{Low: pred.Low, Mid: pred.Mid, High: pred.High}, pred.Source))
	}
	e := t.Ended
	if e == nil {
		return
	}
	if m := e.Measured; m != nil && m.PeakAllocated != nil {
		p.Para(2, a.msgs.Text("runs_measured", a.bytesOr(m.PeakAllocated), a.bytesOr(m.PeakReserved), a.bytesOr(m.Capacity)))
		p.Para(2, a.msgs.Text("runs_steps", m.Steps, (time.Duration(e.DurationMs)*time.Millisecond).Round(100*time.Millisecond)))
	}
	if g := e.Engine; g != nil && (pred == nil || pred.Source != g.Source) {
		p.Para(2, a.msgs.Text("runs_predicted", units.Estimate{Low: g.Low, Mid: g.Mid, High: g.High}, g.Source))
	}
	for _, score := range h.Scores() {
		if score.Attempt == e.N && score.Run == h.Run.ID {
			p.Para(2, a.msgs.Text("runs_off", fmt.Sprintf("%+.1f", 100*score.Error()), score.Source))
		}
	}
	for _, line := range e.Evidence {
		p.Hanging("  ", text.Style(text.Faint, line))
	}
	for _, f := range e.Failed {
		p.Para(2, text.Style(text.Bad, a.msgs.Text("run_check_"+f.What, f.Got, f.Want)))
	}
	if e.Snapshot != "" {
		p.Para(2, a.msgs.Text("run_snapshot", e.Snapshot))
	}
	if e.Swept > 0 {
		p.Para(2, a.msgs.Text("runs_swept", e.Swept))
	}
	if d := t.Decision; d != nil && d.Why != "" {
		p.Para(2, a.msgs.Text(d.Why, anyList(d.Args)...))
	}
}

func (a *app) bytesOr(b *units.Bytes) string {
	if b == nil {
		return a.msgs.Text("not_available")
	}
	return b.String()
}

func anyList(list []string) []any {
	out := make([]any, len(list))
	for i, x := range list {
		out[i] = x
	}
	return out
}
