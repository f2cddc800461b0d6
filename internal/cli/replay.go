package cli

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"unoom/internal/alloc"
	"unoom/internal/replay"
	"unoom/internal/units"
)

// replayFlags are the flags of `unoom replay`.
type replayFlags struct {
	check   bool
	sweep   bool
	conf    string
	confSet bool
	card    workloadFlags // --gpu and --capacity
	outside string
	torch   string
}

func (a *app) replayCommand() *cobra.Command {
	var f replayFlags
	c := &cobra.Command{
		Use:   "replay SNAPSHOT",
		Short: "Run the CUDA caching allocator again on a memory snapshot",
		Long: "replay rebuilds the state before the trace of a PyTorch memory snapshot, runs the\n" +
			"caching allocator on it and compares every event. With a question it serves the\n" +
			"same requests under other settings, on another card or as another torch.\n\n" +
			"It exits with 1 if the trace is not reproduced, or if a request would fail.",
		Example: "  unoom replay snapshot.pickle\n" +
			"  unoom replay --alloc-conf expandable_segments:True snapshot.pickle\n" +
			"  unoom replay --capacity 24GiB --sweep snapshot.pickle",
		Args: oneArgument("the snapshot to replay, or - for stdin"),
		RunE: func(c *cobra.Command, args []string) error {
			f.confSet = c.Flags().Changed("alloc-conf")
			return a.replay(args[0], &f)
		},
	}
	flags := c.Flags()
	flags.BoolVar(&f.check, "check", false, "only compare with the trace, event by event, and the final layout")
	flags.StringVar(&f.conf, "alloc-conf", "", "what if: this `CONF`, as in PYTORCH_ALLOC_CONF")
	flags.StringVar(&f.card.gpu, "gpu", "", "what if: this `CARD`, such as rtx-4090 or h100-80gb")
	flags.StringVar(&f.card.capacity, "capacity", "", "what if: a card of this `SIZE`, as in 24GiB")
	flags.StringVar(&f.outside, "outside", "", "`SIZE` of the card outside the allocator: context, other processes (default: the context's, assumed)")
	flags.StringVar(&f.torch, "torch", "", "what if: this `VERSION` of torch, as in 2.9")
	flags.BoolVar(&f.sweep, "sweep", false, "try the settings worth trying, and rank them")
	c.MarkFlagsMutuallyExclusive("check", "sweep")
	c.MarkFlagsMutuallyExclusive("check", "alloc-conf")
	c.MarkFlagsMutuallyExclusive("check", "capacity")
	c.MarkFlagsMutuallyExclusive("check", "gpu")
	return c
}

// oneArgument accepts exactly one argument and says what it is.
func oneArgument(what string) cobra.PositionalArgs {
	return func(c *cobra.Command, args []string) error {
		if len(args) == 1 {
			return nil
		}
		return withHint(fmt.Errorf("%s takes one argument, not %d: %s", c.CommandPath(), len(args), what),
			"`"+c.CommandPath()+" --help` has examples")
	}
}

// assumedOutside is taken for what the CUDA context and the libraries hold on a
// card of which only the size is known: 300 to 600 MB are seen (NVML's figure
// for an idle process with a context). It is stated with every answer that rests
// on it.
const assumedOutside = 512 * units.MiB

// replayQuestion is what the flags ask, beyond the recording itself.
type replayQuestion struct {
	asked    bool
	conf     string
	confSet  bool
	torch    alloc.Version // zero: as recorded
	card     string        // its name, "" for none
	capacity units.Bytes   // of the card; 0: not asked
	outside  units.Bytes
	assumed  bool // outside is what a context takes, not what the user says
}

func (f *replayFlags) question() (*replayQuestion, error) {
	q := &replayQuestion{conf: f.conf, confSet: f.confSet, assumed: true}
	var err error
	if f.torch != "" {
		if q.torch, err = alloc.ParseVersion(f.torch); err != nil {
			return nil, withHint(err, "--torch 2.9")
		}
	}
	if f.card.gpu != "" || f.card.capacity != "" {
		cards, err := f.card.findGPU()
		if err != nil {
			return nil, err
		}
		q.capacity, q.outside = cards.Card.Total(), cards.Card.Context()
		if q.outside == 0 {
			q.outside = assumedOutside
		}
		if f.card.gpu != "" {
			q.card = cards.Card.Name
		}
	}
	if f.outside != "" {
		if q.capacity == 0 {
			return nil, withHint(errors.New("--outside says nothing without a card"), "add --gpu or --capacity")
		}
		if q.outside, err = units.ParseBytes(f.outside); err != nil {
			return nil, err
		}
		q.assumed = false
	}
	if q.capacity > 0 && q.outside >= q.capacity {
		return nil, fmt.Errorf("--outside %s leaves nothing of a card of %s", q.outside, q.capacity)
	}
	q.asked = f.confSet || f.torch != "" || q.capacity > 0
	return q, nil
}

// replayed is one device with all that was found out about it.
type replayed struct {
	*replay.Case
	check *replay.Result
	ask   replay.Question
	// answer is nil if nothing was asked.
	answer *replay.Answer
	trials []replay.Trial
}

func (a *app) replay(name string, f *replayFlags) error {
	q, err := f.question()
	if err != nil {
		return err
	}
	snap, err := a.readSnapshot(name)
	if err != nil {
		return err
	}
	var devices []*replayed
	for _, c := range replay.Cases(snap) {
		d := &replayed{Case: c, check: c.Check()}
		if err := d.answerTo(q, f.sweep); err != nil {
			return err
		}
		devices = append(devices, d)
	}
	if len(devices) == 0 {
		return withHint(fmt.Errorf("%s: the snapshot has no device", name),
			"record with torch.cuda.memory._record_memory_history() before the run")
	}
	if a.json {
		err = a.printJSON("unoom/replay/v1", snapshotWarnings(snap), replayJSON(devices, q))
	} else {
		err = a.printReplay(name, devices, q, f)
	}
	if err != nil {
		return err
	}
	for _, d := range devices {
		switch {
		case d.answer != nil && !d.answer.Fits(),
			d.answer == nil && d.trials == nil && (!d.check.Reproducible || d.check.Mismatches() > 0):
			return answerNo{}
		}
	}
	return nil
}

// answerTo runs what the flags ask for one device.
func (d *replayed) answerTo(q *replayQuestion, sweep bool) error {
	if len(d.Events) == 0 && len(d.Segments) == 0 {
		return nil
	}
	ask := replay.Question{Torch: d.check.Torch, Tie: d.check.Tie, Settings: d.Case.Settings, Capacity: d.check.Usable.Bytes()}
	if q.torch != (alloc.Version{}) {
		ask.Torch, ask.Tie = q.torch, alloc.TieByVersion
	}
	if q.confSet {
		set, err := alloc.ParseConf(q.conf, ask.Torch, alloc.Defaults())
		if err != nil {
			return confHint(err)
		}
		if set.Backend != "native" {
			return withHint(fmt.Errorf("alloc conf: backend: %s is CUDA's own allocator, of which nothing is recorded", set.Backend),
				"only the native backend can be replayed")
		}
		if set.MemoryFraction < 1 && q.capacity == 0 {
			return withHint(errors.New("alloc conf: per_process_memory_fraction: a part of what card?"), "add --gpu or --capacity")
		}
		ask.Settings = set
	}
	if q.capacity > 0 {
		ask.Capacity, ask.Total = int64(q.capacity-q.outside), int64(q.capacity)
	}
	d.ask = ask
	if q.asked {
		d.answer = d.WhatIf(d.check, ask)
	}
	if sweep {
		d.trials = d.Sweep(d.check, ask)
	}
	return nil
}

// confHint adds what to write instead to an error about --alloc-conf.
func confHint(err error) error {
	if e, ok := errors.AsType[*alloc.ConfError](err); ok && e.Hint != "" {
		return withHint(err, e.Hint)
	}
	return withHint(err, "--alloc-conf takes what PYTORCH_ALLOC_CONF takes: expandable_segments:True,max_split_size_mb:256")
}
