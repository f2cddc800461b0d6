package cli

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"unoom/internal/gpu"
	"unoom/internal/i18n"
	"unoom/internal/ledger"
	"unoom/internal/memory"
	"unoom/internal/plan"
	"unoom/internal/remedy"
	"unoom/internal/units"
	"unoom/internal/workload"
)

// estimateCommand holds the flags of the command.
type estimateCommand struct {
	*app
	workload workloadFlags
	explain  bool
}

func (a *app) estimateCommand() *cobra.Command {
	e := &estimateCommand{app: a}
	e.workload.cards = a.cards
	c := &cobra.Command{
		Use:   "estimate [--model MODEL] [--gpu GPUS] [FILE]... [-- COMMAND...]",
		Short: "Say how much memory a run needs, in which phase, and what holds it",
		Long: "estimate plays two training steps of the run, operation by operation, through\n" +
			"autograd's rules and the simulated CUDA caching allocator, and reports the peak\n" +
			"of every phase with its parts. Allocated is what tensors hold, reserved what\n" +
			"PyTorch takes from the card, device what nvidia-smi would show.\n\n" +
			"The run is said by flags, by your own configuration files, or by the command that\n" +
			"starts it, after --. Flags count most, then the command, then the files.\n" +
			"docs/configuration.md lists the forms that are read.\n\n" +
			"Exit status 0: it fits, or no card was named. 1: it does not fit.",
		Example: "  unoom estimate --model llama-3.1-8b --method lora --gpu rtx-4090 --micro-batch 2 --seq 2048\n" +
			"  unoom estimate --model ./my-model --gpu 8xh100-80gb --sharding fsdp --seq 8192\n" +
			"  unoom estimate --model gpt2 --capacity 8GiB --micro-batch 16 --seq 1024 --explain\n" +
			"  unoom estimate axolotl.yaml --gpu rtx-4090\n" +
			"  unoom estimate --gpu 8xa100-80gb -- torchrun --nproc-per-node 8 train.py --deepspeed ds.json ...",
		RunE: func(c *cobra.Command, args []string) error { return e.run(args, c.ArgsLenAtDash()) },
	}
	e.workload.add(c)
	c.Flags().BoolVar(&e.explain, "explain", false, "print every term with its source")
	return c
}

// estimated is what the command found out.
type estimated struct {
	workload *workload.Workload
	cards    gpu.Request
	device   units.Estimate
	phase    remedy.Phase
	verdict  string // "fits", "tight", "does_not_fit"; "" without a card
	// engine is nil where the closed form answered; missing says what the engine
	// lacks.
	engine  *memory.Estimate
	missing string

	perSample, perToken units.Bytes // of the device; 0: not known
	largest             int64       // micro-batch that fits; -1: not known

	machine *ledger.Calibration // how far the engine was off here; nil: not known
}

// here is the peak as the runs of this machine would have it.
func (r *estimated) here() units.Bytes {
	return units.Bytes(r.machine.Ratio * float64(r.engine.Allocated.Mid))
}

func (e *estimateCommand) run(args []string, dash int) error {
	w := &e.workload
	if err := w.state(args, dash); err != nil {
		return err
	}
	m, err := e.modelOf(w)
	if err != nil {
		return err
	}
	cards, err := e.cardsOf(w)
	if err != nil {
		return err
	}
	wl, err := w.build(m, cards)
	if err != nil {
		return err
	}
	engine, err := memory.New()
	if err != nil {
		return err
	}
	r := &estimated{workload: wl, cards: cards, largest: -1}
	if err := r.judge(engine); err != nil {
		return err
	}
	r.slopes(engine)
	if r.engine != nil {
		r.machine = e.thisMachine()
	}
	if e.json {
		err = e.printJSON("unoom/estimate/v1", append(warningTexts(i18n.Load(i18n.English), w.said), assumed(wl)...), e.jsonOf(r))
	} else {
		err = e.print(r)
	}
	if err == nil && r.verdict == "does_not_fit" {
		err = answerNo{}
	}
	return err
}

// assumed lists what nobody stated.
func assumed(w *workload.Workload) []warning {
	var out []warning
	for _, a := range w.Assumptions {
		out = append(out, warning{Code: "assumed", Msg: a.Field + " = " + a.Value + ": " + a.Why})
	}
	return out
}

// estimateOf plays a workload. From the second micro-batch of a step on all are
// alike, so two are played; a pipeline has more of them on their way.
func estimateOf(engine *memory.Engine, w *workload.Workload) (*memory.Estimate, error) {
	if w.Accumulation > 2 && w.Parallel.Pipeline <= 1 {
		w = w.Clone()
		w.Accumulation = 2
	}
	return engine.Estimate(w)
}

// judge asks the engine and, where it cannot play the run, the closed form.
func (r *estimated) judge(engine *memory.Engine) error {
	est, err := estimateOf(engine, r.workload)
	if lacks, ok := errors.AsType[*memory.NotModelled](err); ok {
		r.missing = lacks.What
		j, err := plan.ClosedForm(&plan.Request{Workload: r.workload, Hardware: plan.HardwareOf(&r.cards.Card, r.cards.Count)})
		if err != nil {
			return withHint(lacks, "this setting has no estimate yet")
		}
		r.device, r.phase = j.Device, j.Phase
	} else if err != nil {
		return err
	} else {
		r.engine, r.device, r.phase = est, est.Device, remedy.Phase(est.Phase)
	}
	r.verdict = verdictOf(r.device, r.workload.GPU.Capacity)
	if r.engine != nil && r.engine.Verdict != "" {
		r.verdict = r.engine.Verdict // by simulated allocation on the card
	}
	return nil
}

// verdictOf compares a need with a card: the whole interval has to fit.
func verdictOf(device units.Estimate, capacity units.Bytes) string {
	switch {
	case capacity == 0:
		return ""
	case device.High <= capacity:
		return "fits"
	case device.Mid <= capacity:
		return "tight"
	}
	return "does_not_fit"
}

// slopes finds what a further sample and a further token cost, and from that the
// largest micro-batch that fits, which the engine confirms.
func (r *estimated) slopes(engine *memory.Engine) {
	if r.engine == nil {
		return
	}
	// What happens beside the training steps has a batch of its own.
	steps := r.workload.StepsAlone()
	now := r.device
	high := func(micro, seq int64) (units.Estimate, bool) {
		w := steps.Clone()
		w.MicroBatch, w.Seq = micro, seq
		est, err := estimateOf(engine, w)
		if err != nil {
			return units.Estimate{}, false
		}
		return est.Device, true
	}
	micro, seq := r.workload.MicroBatch, r.workload.Seq
	if steps != r.workload {
		alone, ok := high(micro, seq)
		if !ok {
			return
		}
		now = alone
	}
	more, ok := high(2*micro, seq)
	if !ok {
		return
	}
	r.perSample = (more.Mid - now.Mid) / units.Bytes(micro)
	if longer, ok := high(micro, seq+seq/4); ok && seq >= 4 {
		r.perToken = (longer.Mid - now.Mid) / units.Bytes(micro*(seq/4))
	}
	capacity := r.workload.GPU.Capacity
	if now.High <= capacity && r.verdict == "does_not_fit" {
		return // not the micro-batch decides
	}
	if capacity == 0 || r.perSample <= 0 {
		return
	}
	// The slope gives the neighbourhood; the need is stepwise, so the engine
	// looks at each side of the guess until it has one that fits next to one
	// that does not.
	fits := func(n int64) bool {
		d, ok := high(n, seq)
		return ok && d.High <= capacity
	}
	lo, hi := int64(0), micro
	if now.High <= capacity {
		lo, hi = micro, micro+max(1, int64((capacity-now.High)/r.perSample))+1
		for tries := 0; tries < 4 && fits(hi); tries++ {
			lo, hi = hi, 2*hi
		}
	}
	for guess := lo + (hi-lo)/2; hi-lo > 1; guess = lo + (hi-lo)/2 {
		if fits(guess) {
			lo = guess
		} else {
			hi = guess
		}
	}
	r.largest = lo
}

// planCommandLine is the command that looks for a setting that does fit: the same
// sources, and the batch to keep.
func (r *estimated) planCommandLine(args []string, w *workloadFlags) string {
	line, tail := "unoom plan", ""
	if at := slices.Index(args, "estimate"); at >= 0 {
		args = slices.Delete(slices.Clone(args), at, at+1)
	}
	for i, a := range args {
		switch {
		case a == "--":
			for _, word := range args[i:] {
				tail += " " + quoted(word)
			}
		case tail == "" && a != "--explain" && a != "--json":
			line += " " + quoted(a)
		}
	}
	if w.said.Value(workload.FieldGlobalBatch) == "" {
		line += fmt.Sprintf(" --global-batch %d", r.workload.GlobalBatch())
	}
	return line + tail
}

// quoted makes one argument of a shell of text.
func quoted(text string) string {
	if text == "" || strings.ContainsAny(text, " '\"$&|;()<>*?") {
		return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'"
	}
	return text
}
