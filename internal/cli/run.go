package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"unoom/internal/ledger"
	"unoom/internal/supervise"
	"unoom/internal/units"
	"unoom/python"
)

// exitStatus ends a command with a status of its own, everything said.
type exitStatus int

func (e exitStatus) Error() string { return fmt.Sprintf("exit status %d", int(e)) }

// runFlags are the flags of `unoom run`, as written.
type runFlags struct {
	globalBatch, microBatch, world int
	maxRestarts, minMicro          int
	grace, peerGrace, backoff      time.Duration
	dryRun, strict, exact, fresh   bool
	wait, snapshot                 bool
	share                          string
	queue                          bool
	need                           string
	runDir, rehearse, resumeDir    string
	configs                        []string
}

func (a *app) runCommand() *cobra.Command {
	var f runFlags
	c := &cobra.Command{
		Use:   "run [flags] -- COMMAND [ARGUMENT]...",
		Short: "Run a training command and keep it alive through an out-of-memory",
		Long: "run behaves exactly like the command alone: same streams, signals and exit\n" +
			"status. When it runs out of memory, run finds out why, changes what is cheapest\n" +
			"and sufficient, and starts it again from its newest checkpoint with the same\n" +
			"effective batch. A bug is never retried.\n\n" +
			"Trainer (transformers), Lightning and accelerate need no change. In any other\n" +
			"command, write {micro_batch}, {accum}, {checkpointing?--flag} and\n" +
			"{resume?--flag %s} where the values go, and give --global-batch.\n\n" +
			"Exit status: that of the command; 75 stopped, run it again; 78 does not fit\n" +
			"here (next.json in the run's folder says what would come next); 126 cannot be\n" +
			"executed; 127 not found; 128+N ended by signal N.",
		Example: "  unoom run -- torchrun --nproc-per-node 8 train.py\n" +
			"  unoom run --global-batch 64 -- python train.py --batch {micro_batch} --accum {accum}\n" +
			"  unoom run --dry-run --global-batch 64 -- ./train -b {micro_batch} -a {accum}",
		RunE: func(c *cobra.Command, args []string) error {
			if err := a.checkRun(f, args); err != nil {
				return err
			}
			return a.run(f, args)
		},
	}
	flags := c.Flags()
	flags.SetInterspersed(false)
	flags.IntVar(&f.globalBatch, "global-batch", 0, "samples in one optimizer step, over all processes; kept in every attempt")
	flags.IntVar(&f.microBatch, "micro-batch", 0, "first value of {micro_batch} (default: as large as the batch allows)")
	flags.IntVar(&f.world, "world", 0, "processes that share the batch (default: read from the launcher's flags)")
	flags.IntVar(&f.maxRestarts, "max-restarts", 8, "how often the command may be started again")
	flags.IntVar(&f.minMicro, "min-micro-batch", 1, "never a smaller micro-batch than this; recompute activations first")
	flags.DurationVar(&f.grace, "grace", 120*time.Second, "how long the ranks have to save after SIGTERM")
	flags.DurationVar(&f.peerGrace, "peer-grace", 60*time.Second, "how long the other ranks may go on after one ran out of memory")
	flags.DurationVar(&f.backoff, "backoff", time.Second, "pause before the second attempt; doubles each time")
	flags.BoolVar(&f.dryRun, "dry-run", false, "show what would be run, and run nothing")
	flags.BoolVar(&f.strict, "strict", false, "fail if unoom itself cannot do its part (otherwise the command runs without it)")
	flags.BoolVar(&f.exact, "exact", false, "only changes that leave the mathematics as they are, also under BatchNorm")
	flags.BoolVar(&f.fresh, "fresh", false, "start as written, whatever an earlier run of this command found out")
	flags.BoolVar(&f.wait, "wait", false, "when others hold the card, wait for it instead of stopping")
	flags.BoolVar(&f.snapshot, "snapshot", false, "at the first out-of-memory keep a memory snapshot, for unoom explain")
	flags.StringVar(&f.share, "cap", "", "share of the card that PyTorch's allocator may take, such as 0.5 or 50%; cooperative, no isolation")
	flags.BoolVar(&f.queue, "queue", false, "share the cards of this machine with other runs that do so: wait for one with room")
	flags.StringVar(&f.need, "need", "", "with --queue: what the run will hold on its card, such as 20GiB (default: a card of its own)")
	flags.StringVar(&f.runDir, "run-dir", "", "folder of this run (default: a new one; see unoom runs); several nodes agree in one that all see")
	flags.StringVar(&f.resumeDir, "resume-dir", "", "where the command puts its checkpoints, if it cannot be seen from its framework")
	flags.StringArrayVar(&f.configs, "config", nil, "a `FILE` of your stack that says what is trained, for predictions, where the command does not name it")
	flags.StringVar(&f.rehearse, "rehearse", "", "on a CPU: count memory as a card of this capacity would, such as 24GiB")
	return c
}

func (a *app) run(f runFlags, args []string) error {
	o := supervise.Options{
		Command: args, Env: os.Environ(), Version: version(), Root: ledger.Default(a.Getenv), RunDir: f.runDir,
		GlobalBatch: f.globalBatch, MicroBatch: f.microBatch, World: f.world, Node: supervise.NodeOf(args, os.Environ()),
		Limits:    supervise.Limits{MaxRestarts: f.maxRestarts, MinMicro: f.minMicro, Exact: f.exact, Wait: f.wait},
		ResumeDir: f.resumeDir, Grace: f.grace, PeerGrace: f.peerGrace, Backoff: f.backoff,
		Strict: f.strict, Fresh: f.fresh, Snapshot: f.snapshot, Shim: python.Files, ReadLog: readLog,
		Say: func(id string, args ...any) {
			fmt.Fprintf(a.Err, "unoom: %s\n", a.msgs.Text(id, args...))
		},
		Warn: func(what string, err error) {
			fmt.Fprintf(a.Err, "unoom: %s: %s: %s\n", a.msgs.Text("warning"), what, err)
		},
	}
	if f.share != "" {
		share, ok := shareOf(f.share)
		if !ok {
			return withHint(errors.New(a.msgs.Text("run_not_a_share", f.share)), "--cap 0.5, --cap 50%")
		}
		o.Fraction = share
	}
	if f.need != "" {
		need, err := units.ParseBytes(f.need)
		if err != nil {
			return err
		}
		o.Need = need
	}
	if f.queue {
		dir := a.Getenv("UNOOM_QUEUE")
		if dir == "" {
			dir = filepath.Join(o.Root.Dir, "queue")
		}
		visible := a.Getenv("CUDA_VISIBLE_DEVICES")
		o.Queue = &supervise.Queue{Dir: dir, Poll: 2 * time.Second, Cards: func(ctx context.Context) ([]supervise.CardState, error) {
			return supervise.SMICards(ctx, visible)
		}}
	}
	if f.rehearse != "" {
		capacity, err := units.ParseBytes(f.rehearse)
		if err != nil {
			return err
		}
		o.Rehearse = capacity
	}
	o.Predict = a.predictorOf(o, f.configs)
	if f.dryRun {
		return a.runDry(o)
	}
	if self, err := os.Executable(); err == nil {
		o.Self = self
	}
	status, err := supervise.Run(o)
	if startErr, ok := errors.AsType[*supervise.StartError](err); ok {
		a.sayCannotStart(args[0], startErr)
		return exitStatus(startErr.Status)
	}
	if err != nil && status != 0 {
		if errors.Is(err, supervise.ErrNoCard) {
			fmt.Fprintf(a.Err, "unoom: %s: %s\nunoom: %s: %s\n", a.msgs.Text("error"), a.msgs.Text("run_no_card"), a.msgs.Text("hint"), a.msgs.Text("run_hint_queue"))
			return exitStatus(status)
		}
		fmt.Fprintf(a.Err, "unoom: %s: %s\n", a.msgs.Text("error"), err)
		return exitStatus(status)
	}
	if err != nil {
		return a.templateError(err)
	}
	if status != 0 {
		return exitStatus(status)
	}
	return nil
}

// checkRun refuses what cannot be meant.
func (a *app) checkRun(f runFlags, args []string) error {
	if len(args) == 0 {
		return withHint(errors.New(a.msgs.Text("run_no_command")), "unoom run -- python train.py")
	}
	for _, n := range []struct {
		flag        string
		value, from int
	}{
		{"--global-batch", f.globalBatch, 0}, {"--micro-batch", f.microBatch, 0}, {"--world", f.world, 0},
		{"--max-restarts", f.maxRestarts, 0}, {"--min-micro-batch", f.minMicro, 1},
	} {
		if n.value < n.from {
			return withHint(errors.New(a.msgs.Text("run_negative", n.flag, n.value, n.from)), "unoom run --help")
		}
	}
	if f.need != "" && !f.queue {
		return withHint(errors.New(a.msgs.Text("run_need_alone")), a.msgs.Text("run_hint_need", f.need))
	}
	if supervise.ParseTemplate(args).Batch() {
		return nil
	}
	if f.globalBatch > 0 {
		fmt.Fprintf(a.Err, "unoom: %s: %s\n", a.msgs.Text("warning"), a.msgs.Text("run_batch_unused", "--global-batch"))
	} else if f.microBatch > 0 {
		fmt.Fprintf(a.Err, "unoom: %s: %s\n", a.msgs.Text("warning"), a.msgs.Text("run_batch_unused", "--micro-batch"))
	}
	return nil
}

// shareOf reads a share of the card: 0.5 or 50%.
func shareOf(text string) (float64, bool) {
	number, percent := strings.CutSuffix(text, "%")
	x, err := strconv.ParseFloat(number, 64)
	if percent {
		x /= 100
	}
	return x, err == nil && x > 0 && x <= 1
}

// templateError says what would be right in place of a command's placeholders.
func (a *app) templateError(err error) error {
	if e, ok := errors.AsType[*supervise.MicroBatchError](err); ok {
		var divisors []string
		for d := 1; d <= e.Rows; d++ {
			if e.Rows%d == 0 {
				divisors = append(divisors, strconv.Itoa(d))
			}
		}
		return withHint(err, a.msgs.Text("run_hint_divisors", strings.Join(divisors, " ")))
	}
	return withHint(err, a.msgs.Text("run_hint_template"))
}

func (a *app) sayCannotStart(name string, err *supervise.StartError) {
	reason := err.Err
	if pathErr, ok := errors.AsType[*fs.PathError](err.Err); ok {
		reason = pathErr.Err
	}
	if errors.Is(reason, syscall.ENOENT) {
		fmt.Fprintf(a.Err, "unoom: %s\n", a.msgs.Text("run_not_found", name))
		return
	}
	fmt.Fprintf(a.Err, "unoom: %s\n", a.msgs.Text("run_cannot_execute", name, reason))
}

// runDry prints the first command and what would be added to its environment.
func (a *app) runDry(o supervise.Options) error {
	dry, err := supervise.Dry(o)
	if err != nil {
		return a.templateError(err)
	}
	if a.json {
		return a.printJSON("unoom/run-dry/v1", nil, dry)
	}
	p := a.printer()
	p.Line(shellLine(dry.Command))
	p.Blank()
	p.Para(0, a.msgs.Text("run_dry_batch_"+dry.BatchBy, dry.MicroBatch, dry.Accumulation, dry.World, dry.GlobalBatch))
	p.Para(0, a.msgs.Text("run_dry_folder", dry.Folder))
	if dry.KnownFrom != "" {
		p.Para(0, a.msgs.Text("run_known", dry.KnownFrom))
	}
	return p.Err()
}

// shellLine writes a command so that it can be pasted into a shell.
func shellLine(argv []string) string {
	var out []string
	for _, s := range argv {
		if s == "" || strings.ContainsFunc(s, func(r rune) bool {
			return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("-_./=:,@%+", r))
		}) {
			s = "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
		}
		out = append(out, s)
	}
	return strings.Join(out, " ")
}

// internalCommand holds what unoom calls of itself; nobody else does.
func (a *app) internalCommand() *cobra.Command {
	c := &cobra.Command{Use: "internal", Hidden: true}
	c.AddCommand(&cobra.Command{
		Use: "keeper ID FOLDER", Args: cobra.ExactArgs(2), Hidden: true,
		RunE: func(_ *cobra.Command, args []string) error {
			supervise.Keep(os.NewFile(3, "watch"), args[0], args[1])
			return nil
		},
	})
	return c
}
