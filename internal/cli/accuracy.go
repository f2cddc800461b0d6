package cli

import (
	"bytes"
	"cmp"
	"encoding/csv"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"unoom/internal/accuracy"
	"unoom/internal/ledger"
	"unoom/internal/memory"
	"unoom/internal/model"
	"unoom/internal/report/text"
	"unoom/internal/supervise"
)

func (a *app) accuracyCommand() *cobra.Command {
	var out, host string
	var all, reasons, own bool
	c := &cobra.Command{
		Use:   "accuracy FILE.csv | --ledger",
		Short: "Compare predictions with a table of measured runs, or with your own",
		Long: "accuracy predicts each row of a table of measured runs and prints, for each source,\n" +
			"how far the predictions are from the measurements. With --ledger the runs are those\n" +
			"that `unoom run` has watched, with what it predicted for them then.",
		Example: "  unoom accuracy measured.csv\n" +
			"  unoom accuracy measured.csv --out predicted.csv\n" +
			"  unoom accuracy --ledger",
		Args: cobra.MaximumNArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			switch {
			case own && len(args) > 0:
				return withHint(errors.New("a table and --ledger are two questions"), "leave one of them out")
			case own:
				return a.ledgerAccuracy(out, host)
			case len(args) == 0:
				return withHint(errors.New("no table is given"), "unoom accuracy measured.csv (docs/accuracy.md has its columns)", "unoom accuracy --ledger compares your own runs")
			case host != "":
				return withHint(errors.New("--host goes with --ledger"), "leave it out")
			}
			return a.accuracy(args[0], out, all, reasons)
		},
	}
	c.Flags().BoolVar(&own, "ledger", false, "compare the runs of your own ledger (`unoom runs` lists them)")
	c.Flags().StringVar(&host, "host", "", "with --ledger: only runs of this machine")
	c.Flags().StringVarP(&out, "out", "o", "", "write the prediction of every row to a CSV file")
	c.Flags().BoolVar(&all, "all", false, "compare rows that are not marked strict, too")
	c.Flags().BoolVar(&reasons, "reasons", false, "list why rows are not covered")
	return c
}

func (a *app) accuracy(file, out string, all, reasons bool) error {
	data, err := os.ReadFile(file)
	if err != nil {
		return withHint(err, "the table is a CSV file; docs/accuracy.md has its columns")
	}
	rows, err := accuracy.ReadTable(bytes.NewReader(data))
	if err != nil {
		return withHint(fmt.Errorf("%s: %w", file, err), "docs/accuracy.md has the columns")
	}
	engine, err := memory.New()
	if err != nil {
		return err
	}
	models, err := model.Published()
	if err != nil {
		return err
	}
	cards, err := a.cards()
	if err != nil {
		return err
	}
	p := &accuracy.Predictor{Engine: engine, Models: models, Cards: cards}
	var buf bytes.Buffer
	w := csv.NewWriter(&buf)
	w.Write(predictedColumns)
	var cases []*accuracy.Case
	for _, r := range rows {
		c, est := p.Predict(r)
		cases = append(cases, c)
		rec := []string{c.ID, "", "", "", string(c.Verdict), c.WhyNot}
		if est != nil {
			rec[1], rec[2], rec[3] = gib(est.Allocated.Mid.GiB()), gib(est.Reserved.Mid.GiB()), gib(est.Device.Mid.GiB())
		}
		w.Write(rec)
	}
	w.Flush()
	if out != "" {
		if err := writeFileAtomically(out, buf.Bytes()); err != nil {
			return err
		}
	}
	compared := slices.DeleteFunc(slices.Clone(cases), func(c *accuracy.Case) bool { return !all && !c.Strict })
	if a.json {
		return a.accuracyJSON(compared, cases)
	}
	return a.printAccuracy(compared, cases, reasons)
}

// predictedColumns are those of --out.
var predictedColumns = []string{"id", "predicted_gib", "predicted_reserved_gib", "predicted_device_gib", "verdict", "why_not"}

// ledgerAccuracy compares what was predicted for the attempts of the user's own
// runs with what they needed.
func (a *app) ledgerAccuracy(out, host string) error {
	root := ledger.Default(a.Getenv)
	runs, err := root.List(supervise.Alive)
	if err != nil {
		return fmt.Errorf("ledger: %w", err)
	}
	var cases []*accuracy.Case
	for _, h := range runs {
		if host == "" || h.Run.Host == host {
			cases = append(cases, casesOf(h)...)
		}
	}
	if len(cases) == 0 {
		return withHint(fmt.Errorf("%s: no attempt has both a prediction and a measurement", root.Runs()),
			"start a run with `unoom run -- COMMAND`; it counts after two optimizer steps and a good end", "`unoom runs` lists what there is")
	}
	if out != "" {
		var buf bytes.Buffer
		w := csv.NewWriter(&buf)
		w.Write(predictedColumns)
		for _, c := range cases {
			w.Write([]string{c.ID, gib(c.Predicted), "", "", "", ""})
		}
		w.Flush()
		if err := writeFileAtomically(out, buf.Bytes()); err != nil {
			return err
		}
	}
	if a.json {
		return a.accuracyJSON(cases, cases)
	}
	return a.printAccuracy(cases, cases, false)
}

// casesOf are the attempts of one run that have both figures.
func casesOf(h ledger.History) []*accuracy.Case {
	var out []*accuracy.Case
	for _, s := range h.Scores() {
		c := &accuracy.Case{ID: fmt.Sprintf("%s#%d", s.Run, s.Attempt), Source: s.Source, Metric: accuracy.Allocated, Strict: true, Outcome: "fits",
			Model: filepath.Base(scriptOf(h.Run.Command)), Measured: s.Measured.GiB(), Predicted: s.Predicted.GiB()}
		for _, t := range h.Tries {
			if p := t.Attempt.Predicted; t.Attempt.N == s.Attempt && p != nil {
				c.Low, c.High = p.Low.GiB(), p.High.GiB()
			}
		}
		out = append(out, c)
	}
	return out
}

// scriptOf is the first word of a command that looks like a script, else its
// first word.
func scriptOf(command []string) string {
	for _, w := range command {
		if strings.HasSuffix(w, ".py") || strings.HasSuffix(w, ".sh") {
			return w
		}
	}
	if len(command) > 0 {
		return command[0]
	}
	return ""
}

func gib(v float64) string { return strconv.FormatFloat(v, 'f', 4, 64) }

// writeFileAtomically replaces a file in one step.
func writeFileAtomically(name string, data []byte) error {
	f, err := os.CreateTemp(filepath.Dir(name), ".unoom-*")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	_, err = f.Write(data)
	err = cmp.Or(err, f.Chmod(0o644), f.Close())
	if err != nil {
		return err
	}
	return os.Rename(f.Name(), name)
}

func (a *app) printAccuracy(compared, all []*accuracy.Case, reasons bool) error {
	p := a.printer()
	m := a.msgs.Text
	groups := accuracy.BySource(compared)
	t := &text.Table{Align: []text.Align{text.Left, text.Right, text.Right, text.Right, text.Right, text.Right, text.Right, text.Right, text.Right}}
	t.Row(m("accuracy.source"), m("accuracy.rows"), m("accuracy.covered"), m("accuracy.median"), m("accuracy.p95"), m("accuracy.bias"), m("accuracy.under"), m("accuracy.inside"), m("accuracy.width"))
	row := func(g accuracy.Group) {
		t.Row(g.Name, strconv.Itoa(g.Rows), strconv.Itoa(g.Covered), percent(g.Median, g.Covered), percent(g.P95, g.Covered), signed(g.Bias, g.Covered),
			percent(g.Under, g.Covered), percent(g.Inside, g.Covered), percent(g.Width, g.Covered))
	}
	for _, g := range groups {
		if g.Rows > 0 {
			row(g)
		}
	}
	row(accuracy.Score(m("accuracy.all"), compared))
	p.Table(t)
	split := func(vision bool) []*accuracy.Case {
		return slices.DeleteFunc(slices.Clone(compared), func(c *accuracy.Case) bool { return c.Vision != vision })
	}
	p.Blank()
	for _, kind := range []struct {
		id     string
		vision bool
	}{{"accuracy.transformers", false}, {"accuracy.vision", true}} {
		cs := split(kind.vision)
		g := accuracy.Score("", cs)
		if g.Rows == 0 {
			continue
		}
		p.Para(0, m(kind.id, strconv.Itoa(g.Covered), strconv.Itoa(g.Rows), percent(float64(g.Covered)/float64(g.Rows), 1),
			percent(accuracy.MeanOfMedians(accuracy.BySource(cs)), g.Covered), percent(g.P95, g.Covered)))
	}
	v := accuracy.Score("", all)
	if v.Verdicts > v.Tight {
		p.Para(0, m("accuracy.verdicts", percent(float64(v.Right)/float64(v.Verdicts-v.Tight), 1), strconv.Itoa(v.Verdicts-v.Tight), strconv.Itoa(v.FalseFits), strconv.Itoa(v.OOMs), strconv.Itoa(v.FalseThere), strconv.Itoa(v.Inferred), strconv.Itoa(v.Tight)))
	}
	worst := accuracy.Worst(compared, 10)
	if reasons || len(worst) == 0 && len(compared) > 0 {
		defer a.printReasons(p, compared)
	}
	if len(worst) == 0 {
		p.Para(0, m("accuracy.none"))
		return p.Err()
	}
	p.Heading(m("accuracy.worst"))
	w := &text.Table{Indent: 2, Align: []text.Align{text.Left, text.Left, text.Left, text.Right, text.Right, text.Right}}
	for _, c := range worst {
		w.Row(c.ID, shortened(c.Model, p.Width()-58), string(c.Metric), gib(c.Predicted), gib(c.Measured), signed(c.Error(), 1))
	}
	p.Table(w)
	return p.Err()
}

// printReasons lists why rows are not covered, the most frequent first.
func (a *app) printReasons(p *text.Printer, cases []*accuracy.Case) {
	count := map[string]int{}
	for _, c := range cases {
		if !c.Covered() {
			count[c.Source+": "+c.WhyNot]++
		}
	}
	var list []string
	for k := range count {
		list = append(list, k)
	}
	slices.SortFunc(list, func(x, y string) int { return cmp.Or(cmp.Compare(count[y], count[x]), cmp.Compare(x, y)) })
	p.Heading(a.msgs.Text("accuracy.reasons"))
	t := &text.Table{Indent: 2, Align: []text.Align{text.Right, text.Left}}
	for _, k := range list {
		t.Row(strconv.Itoa(count[k]), k)
	}
	p.Table(t)
}

// shortened cuts a text to a number of cells.
func shortened(s string, cells int) string {
	if cells < 8 || text.Cells(s) <= cells {
		return s
	}
	r := []rune(s)
	for len(r) > 1 && text.Cells(string(r))+1 > cells {
		r = r[:len(r)-1]
	}
	return strings.TrimRight(string(r), " ") + "…"
}

func percent(v float64, n int) string {
	if n == 0 {
		return "n/a"
	}
	return fmt.Sprintf("%.1f %%", 100*v)
}

func signed(v float64, n int) string {
	if n == 0 {
		return "n/a"
	}
	return fmt.Sprintf("%+.1f %%", 100*v)
}
