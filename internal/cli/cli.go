// Package cli is the command line: one file for each command, the streams, the
// exit statuses and the help. It is the only caller of the process's standard
// streams; a command reads its inputs, calls the pure packages, and prints.
package cli

import (
	"errors"
	"fmt"
	"runtime/debug"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"unoom/internal/i18n"
)

// Exit statuses (docs/architecture.md has the table; `run` adds its own).
const (
	exitDone = 0 // done, or: it fits
	exitNo   = 1 // the answer is no: does not fit, no plan, the replay differs
	exitFail = 2 // could not answer: usage, unreadable input, a missing GPU or tool
)

// app is what the commands share: the streams and the flags of the root.
type app struct {
	Streams
	json  bool
	lang  string
	color string
	msgs  *i18n.Catalogue
	args  []string // the command line, without the program
}

// Main runs the command line and returns the exit status. It is the whole
// program: main adds only os.Exit.
func Main(args []string, streams Streams) int {
	a := &app{Streams: streams, msgs: i18n.Load(i18n.English), args: args}
	root := a.rootCommand()
	root.SetArgs(args)
	root.SetIn(streams.In)
	root.SetOut(streams.Out)
	root.SetErr(streams.Err)
	return a.status(root.Execute())
}

func (a *app) rootCommand() *cobra.Command {
	root := &cobra.Command{
		Use:   "unoom",
		Short: "Make a training run fit its GPU",
		Long: "unoom explains a CUDA out-of-memory, predicts it before it happens, plans the\n" +
			"fastest setting that fits, and keeps a run alive through it.",
		Example: "  python train.py 2>&1 | tee train.log\n" +
			"  unoom explain train.log\n" +
			"  unoom explain --lang zh train.log",
		Version:       version(),
		SilenceUsage:  true,
		SilenceErrors: true,
		PersistentPreRunE: func(c *cobra.Command, _ []string) error {
			if err := swallowed(c.Flags()); err != nil {
				return err
			}
			return a.chooseLanguage()
		},
	}
	flags := root.PersistentFlags()
	flags.BoolVar(&a.json, "json", false, "print one JSON object (stable keys, never translated)")
	flags.StringVar(&a.lang, "lang", "", "language of the output: en or zh (default: from the locale)")
	flags.StringVar(&a.color, "color", "auto", "colour: auto, always or never")
	root.SetFlagErrorFunc(func(c *cobra.Command, err error) error {
		return withHint(err, fmt.Sprintf("`%s --help` lists the flags", c.CommandPath()))
	})
	root.SetVersionTemplate("unoom {{.Version}}\n")
	root.AddCommand(a.commands()...)
	return root
}

// swallowed refuses a flag whose value is the next flag, which was forgotten.
func swallowed(flags *pflag.FlagSet) (err error) {
	flags.Visit(func(f *pflag.Flag) {
		next, found := strings.CutPrefix(strings.TrimPrefix(f.Value.String(), "["), "--")
		if next, _, _ = strings.Cut(strings.TrimSuffix(next, "]"), "="); found && flags.Lookup(next) != nil {
			err = withHint(fmt.Errorf("--%s has no value: --%s follows", f.Name, next), "give a value, or leave the flag out")
		}
	})
	return err
}

// commands lists every command of the program.
func (a *app) commands() []*cobra.Command {
	return []*cobra.Command{
		a.accuracyCommand(),
		a.runCommand(),
		a.runsCommand(),
		a.internalCommand(),
		a.explainCommand(),
		a.estimateCommand(),
		a.planCommand(),
		a.emitCommand(),
		a.replayCommand(),
		a.reportCommand(),
		a.gpusCommand(),
		a.modelsCommand(),
	}
}

func (a *app) chooseLanguage() error {
	lang := i18n.FromLocale(a.Getenv)
	if a.lang != "" {
		var err error
		if lang, err = i18n.Parse(a.lang); err != nil {
			return withHint(err, "--lang en or --lang zh")
		}
	}
	if lang != i18n.English {
		a.msgs = i18n.Load(lang)
	}
	switch a.color {
	case "auto", "always", "never":
		return nil
	}
	return withHint(fmt.Errorf("--color %q: not a choice", a.color), "--color auto, always or never")
}

// status prints an error, if there is one, and returns the exit status.
func (a *app) status(err error) int {
	if err == nil {
		return exitDone
	}
	if answer, ok := errors.AsType[answerNo](err); ok {
		_ = answer // the answer is already on stdout
		return exitNo
	}
	if own, ok := errors.AsType[exitStatus](err); ok {
		return int(own) // of the command that was run; all is said
	}
	fmt.Fprintf(a.Err, "unoom: %s: %s\n", a.msgs.Text("error"), err)
	for _, h := range hintsOf(err) {
		fmt.Fprintf(a.Err, "unoom: %s: %s\n", a.msgs.Text("hint"), h)
	}
	return exitFail
}

// version is the module's version or, in a working tree, its commit.
func version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	v := strings.TrimPrefix(info.Main.Version, "v")
	if v == "" || v == "(devel)" {
		v = "devel"
	}
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" && len(s.Value) >= 12 {
			v += " (" + s.Value[:12] + ")"
		}
	}
	return v
}
