package cli

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"unoom/internal/diagnose"
	"unoom/internal/gpu"
	"unoom/internal/memory"
	"unoom/internal/model"
	"unoom/internal/oomlog"
	"unoom/internal/remedy"
	"unoom/internal/report"
	"unoom/internal/units"
	"unoom/internal/workload"
)

// explain holds the flags of the command.
type explain struct {
	*app
	given      diagnose.Given
	capacity   string
	framework  string
	config     string
	device     int // of a memory snapshot, -1 for the one that matters most
	list, full bool
}

func (a *app) explainCommand() *cobra.Command {
	e := &explain{app: a}
	c := &cobra.Command{
		Use:   "explain [LOG|FOLDER|SNAPSHOT|CODE|-]...",
		Short: "Say why memory ran out, and what helps here",
		Long: "explain reads the log of a failed run (a file, a folder with one log for each\n" +
			"rank, or standard input) and prints what ran out, who held the card, the cause\n" +
			"with its evidence, and the changes that help here, best first. Of a PyTorch\n" +
			"memory snapshot it says who holds the memory, what grows from step to step, what\n" +
			"lies in pieces, and what a setting of the allocator would save; of two snapshots,\n" +
			"what changed.\n\n" +
			"With the code of a remedy, or the label of a cause, it prints the page on it.",
		Example: "  unoom explain examples/oom.log\n" +
			"  python train.py 2>&1 | unoom explain\n" +
			"  unoom explain examples/snapshot.pickle\n" +
			"  unoom explain recompute.checkpointing",
		ValidArgsFunction: completeExplain,
		RunE:              func(_ *cobra.Command, args []string) error { return e.run(args) },
	}
	f := c.Flags()
	f.StringVar(&e.given.GPU, "gpu", "", "GPU of the run, such as rtx-4090")
	f.StringVar(&e.capacity, "capacity", "", "memory of the GPU, such as 24GiB")
	f.StringVar(&e.given.Model, "model", "", "model, such as Qwen2.5-7B")
	f.IntVar(&e.given.MicroBatch, "batch", 0, "samples for each GPU and forward pass")
	f.IntVar(&e.given.Accumulation, "accum", 0, "micro-batches for each optimizer step")
	f.IntVar(&e.given.Sequence, "seq", 0, "sequence length")
	f.StringVar(&e.framework, "framework", "", "write changes for: pytorch, hf_trainer, accelerate, lightning or deepspeed")
	f.StringVar(&e.config, "config", "", "read more of the setting from a file (YAML or JSON)")
	f.IntVar(&e.device, "device", -1, "device of a memory snapshot (default: where a request failed, or the largest peak)")
	f.BoolVar(&e.full, "all", false, "print every remedy that applies, not only the best")
	f.BoolVar(&e.list, "list", false, "list the codes of all remedies")
	_ = c.RegisterFlagCompletionFunc("framework", cobra.FixedCompletions(frameworkFlags(), cobra.ShellCompDirectiveNoFileComp))
	return c
}

// frameworkFlags are the values of --framework.
func frameworkFlags() []string {
	var list []string
	for _, f := range slices.Concat(remedy.Frameworks(), remedy.Stacks()) {
		list = append(list, string(f))
	}
	return list
}

// completeExplain offers the codes of remedies and causes, besides files.
func completeExplain(_ *cobra.Command, _ []string, start string) ([]string, cobra.ShellCompDirective) {
	var list []string
	for _, name := range topics() {
		if start != "" && strings.HasPrefix(name, start) {
			list = append(list, name)
		}
	}
	return list, cobra.ShellCompDirectiveDefault
}

// topics are all names that explain has a page for.
func topics() []string {
	var list []string
	for _, r := range remedy.All() {
		list = append(list, string(r.Code))
	}
	for _, c := range remedy.Causes() {
		list = append(list, string(c))
	}
	return list
}

// run answers by what the arguments are: nothing, a topic, or files.
func (e *explain) run(args []string) error {
	if e.list {
		return e.listCodes()
	}
	if err := e.flags(); err != nil {
		return err
	}
	if len(args) == 0 {
		if e.InTerminal {
			return withHint(fmt.Errorf("nothing to explain: no log is given and nothing is piped in"),
				"unoom explain train.log",
				"python train.py 2>&1 | unoom explain",
				"unoom explain --list prints what there are pages on")
		}
		args = []string{"-"}
	}
	if len(args) == 1 {
		if r, ok := remedy.Find(remedy.Code(args[0])); ok {
			return e.explainRemedy(r)
		}
		if c := remedy.Cause(args[0]); slices.Contains(remedy.Causes(), c) {
			return e.explainCause(c)
		}
	}
	in, err := e.read(args)
	if err != nil {
		return err
	}
	if len(in.snapshots) > 0 {
		return e.explainSnapshots(in)
	}
	return e.explainLogs(in)
}

// flags checks the values that cobra does not.
func (e *explain) flags() error {
	if e.capacity != "" {
		b, err := units.ParseBytes(e.capacity)
		if err != nil {
			return fmt.Errorf("--capacity: %w", err)
		}
		e.given.Capacity = b
	}
	if e.given.GPU != "" {
		if err := e.knowGPU(); err != nil {
			return err
		}
	}
	for name, n := range map[string]int{"batch": e.given.MicroBatch, "accum": e.given.Accumulation, "seq": e.given.Sequence} {
		if n < 0 {
			return withHint(fmt.Errorf("--%s %d: must be positive", name, n), "leave it out if it is not known")
		}
	}
	if e.framework != "" {
		if !slices.Contains(frameworkFlags(), e.framework) {
			return withHint(fmt.Errorf("--framework %q: not a choice", e.framework), "--framework "+strings.Join(frameworkFlags(), ", "))
		}
		e.given.Framework = remedy.Framework(e.framework)
	}
	return nil
}

// knowGPU takes from the catalogue what --gpu names: how many, and how large.
func (e *explain) knowGPU() error {
	cards, err := gpu.Published()
	if err != nil {
		return err
	}
	req, err := cards.Find(e.given.GPU)
	if err != nil {
		hints := []string{"leave --gpu out, or give the memory with --capacity 24GiB"}
		if name, ok := errors.AsType[*gpu.NameError](err); ok && len(name.Choices) > 0 {
			hints = slices.Insert(hints, 0, "it could be "+strings.Join(name.Choices, ", "))
		}
		return withHint(fmt.Errorf("--gpu: %w", err), hints...)
	}
	e.given.GPU = req.Card.Name
	if req.Count > 1 {
		e.given.WorldSize = req.Count
	}
	if e.given.Capacity == 0 {
		e.given.Capacity = req.Card.Total()
	}
	return nil
}

// explainLogs prints the diagnosis of what the logs hold.
func (e *explain) explainLogs(in *inputs) error {
	res := oomlog.Merge(in.logs...)
	if in.config != nil {
		// What the log says of the run stands; the file adds to it.
		res.Facts = slices.Concat(in.config.Facts, res.Facts)
	}
	d := diagnose.Log(res, e.given)
	if d.IsOOM() {
		knowModel(&d.Situation)
	}
	var advice []remedy.Advice
	var predicted *diagnose.Prediction
	if d.Verdict != diagnose.NothingFound {
		advice = remedy.Advise(d.Situation)
		if predicted = e.predict(&d, advice); predicted != nil {
			advice = remedy.Advise(d.Situation)
			if d.Next != nil && strings.HasPrefix(d.Next.Command, "unoom estimate") {
				d.Next = nil // it was asked
			}
		}
	}
	words := e.msgs
	if e.json {
		words = english()
	}
	view, err := report.Explain(&d, advice, res, words)
	if err != nil {
		return err
	}
	view.Predict(predicted, words)
	view.Warnings = slices.Concat(in.warnings, view.Warnings, e.contradictions(&d))
	if e.json {
		err = e.printExplainJSON(&d, view)
	} else {
		err = e.printExplanation(&d, view)
	}
	if err == nil && d.Verdict == diagnose.NothingFound {
		return answerNo{}
	}
	return err
}

// contradictions says where a flag and the log cannot both be right.
func (e *explain) contradictions(d *diagnose.Diagnosis) []string {
	if d.Account == nil || e.given.Capacity == 0 {
		return nil
	}
	if r := float64(e.given.Capacity) / float64(d.Account.Capacity); r > 0.9 && r < 1.1 {
		return nil
	}
	name := e.given.Capacity.String()
	if e.given.GPU != "" {
		name = e.given.GPU + " (" + name + ")"
	}
	return []string{e.msgs.Text("explain.contradicts", name, d.Account.Capacity)}
}

// predict plays the run where its model and setting are known, so that savings
// are of this run and not read off the message.
func (e *explain) predict(d *diagnose.Diagnosis, advice []remedy.Advice) *diagnose.Prediction {
	s := &d.Situation
	if !d.IsOOM() || s.Model == "" || s.MicroBatch == 0 || s.Sequence == 0 {
		return nil
	}
	published, err := model.Published()
	if err != nil {
		return nil // a test reads the catalogue
	}
	entry, err := published.Find(s.Model)
	if err != nil {
		return nil
	}
	m, err := entry.Model(model.Options{})
	if err != nil {
		return nil
	}
	engine, err := memory.New()
	if err != nil {
		return nil
	}
	var card workload.GPU
	if cards, err := gpu.Published(); err == nil && s.GPU != "" {
		if req, err := cards.Find(s.GPU); err == nil {
			card = workload.FromCard(&req.Card)
		}
	}
	var codes []remedy.Code
	for _, a := range advice {
		codes = append(codes, a.Code)
	}
	return diagnose.Predict(engine, m, card, s, codes)
}

// knowModel adds what the catalogue knows of a model that the log or the user
// names.
func knowModel(s *remedy.Situation) {
	if s.Model == "" || s.Params > 0 && s.Vocabulary > 0 {
		return
	}
	published, err := model.Published()
	if err != nil {
		return // a test reads the catalogue
	}
	entry, err := published.Find(s.Model)
	if err != nil {
		return
	}
	if s.Params == 0 {
		s.Params = entry.Params
	}
	if s.Vocabulary == 0 {
		if m, err := entry.Model(model.Options{}); err == nil {
			s.Vocabulary = int(m.Vocab)
		}
	}
}
