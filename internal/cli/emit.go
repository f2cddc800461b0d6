package cli

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"unoom/internal/emit"
	"unoom/internal/model"
	"unoom/internal/plan"
	"unoom/internal/workload"
)

// emitFlags are the flags that say where files go and what surrounds the run.
// `unoom emit` and `unoom plan --emit` share them.
type emitFlags struct {
	folder, script, queue, repository string
	allocConf                         string
	transformers, torchtitan          string // versions to write for
	perNode                           int64
	force                             bool
}

func (e *emitFlags) add(c *cobra.Command) {
	f := c.Flags()
	f.StringVarP(&e.folder, "output", "o", "", "folder to write the files to")
	f.StringVar(&e.script, "script", "", "training program with its arguments (default train.py)")
	f.Int64Var(&e.perNode, "per-node", 0, "GPUs of one machine (default 8)")
	f.StringVar(&e.queue, "queue", "", "partition (slurm) or local queue (kubernetes, kubeflow)")
	f.StringVar(&e.repository, "repository", "", "the model on the hub or on disk (default: its published name)")
	f.StringVar(&e.transformers, "transformers", "", "version of transformers to write for (default: 5)")
	f.StringVar(&e.torchtitan, "torchtitan", "", "version of torchtitan to write for (default: 0.3)")
	f.StringVar(&e.allocConf, "alloc-conf", "", "PYTORCH_CUDA_ALLOC_CONF of the run, such as expandable_segments:True")
	f.BoolVar(&e.force, "force", false, "write over files that differ")
	_ = c.MarkFlagDirname("output")
}

// check refuses what no file can hold.
func (e *emitFlags) check() error {
	if e.perNode < 0 || e.perNode > 1<<10 {
		return withHint(fmt.Errorf("--per-node %d: not a number of GPUs", e.perNode), "give a number from 1 to 1024")
	}
	for flag, v := range e.versions() {
		if strings.Trim(v, "0123456789.") != "" || strings.Trim(v, ".") == "" {
			return withHint(fmt.Errorf("--%s %q: not a version", flag, v), "write it as 4.57 or 0.3")
		}
	}
	return nil
}

// versions are the libraries' versions that were asked for.
func (e *emitFlags) versions() map[string]string {
	out := map[string]string{}
	if e.transformers != "" {
		out["transformers"] = e.transformers
	}
	if e.torchtitan != "" {
		out["torchtitan"] = e.torchtitan
	}
	return out
}

// emitTargets finds the targets of a list such as "hf,slurm".
func (a *app) emitTargets(list string) ([]emit.Target, error) {
	var out []emit.Target
	for name := range strings.SplitSeq(list, ",") {
		t, err := emit.Find(name)
		if unknown, ok := errors.AsType[*emit.UnknownTargetError](err); ok {
			var hints []string
			if near := model.Nearest(name, unknown.Known, 2); len(near) > 0 {
				hints = append(hints, a.msgs.Text("emit_hint_nearest", strings.Join(near, ", ")))
			}
			return nil, withHint(err, append(hints, a.msgs.Text("emit_hint_targets", strings.Join(unknown.Known, ", ")))...)
		}
		out = append(out, t)
	}
	return out, nil
}

// job puts what surrounds a workload beside it.
func (a *app) emitJob(e *emitFlags, w *workload.Workload, asked string) *emit.Job {
	w = w.Clone()
	if e.allocConf != "" {
		w.AllocConf = e.allocConf
	}
	if versions := e.versions(); len(versions) > 0 {
		if w.Versions == nil {
			w.Versions = map[string]string{}
		}
		maps.Copy(w.Versions, versions)
	}
	j := &emit.Job{
		Workload: w, Command: a.typed(), Capacity: w.GPU.Capacity, Repository: e.repository, PerNode: e.perNode, Script: e.script, Queue: e.queue, Text: a.msgs.Text,
	}
	if j.Repository == "" {
		j.Repository = repositoryOf(asked)
	}
	return j
}

// repositoryOf is the name of a model on the hub where the catalogue knows it:
// the alias with an owner. A folder stays what it is.
func repositoryOf(asked string) string {
	if isFile(asked) {
		return asked
	}
	models, err := model.Published()
	if err != nil {
		return ""
	}
	entry, err := models.Find(asked)
	if err != nil {
		return asked
	}
	for _, alias := range entry.Aliases {
		if strings.Contains(alias, "/") {
			return alias
		}
	}
	return entry.Name
}

// typed is the command line, as a shell would read it again.
func (a *app) typed() string {
	words := []string{"unoom"}
	for _, w := range a.args {
		if w == "" || strings.ContainsAny(w, " '\"$`\\!*?[](){}<>|&;#~\t\n") {
			w = "'" + strings.ReplaceAll(w, "'", `'\''`) + "'"
		}
		words = append(words, w)
	}
	return strings.Join(words, " ")
}

// An owned is a file and the target that wants it.
type owned struct {
	emit.File
	target string
}

// allFiles makes the files of each target, or says which target cannot.
func (a *app) allFiles(targets []emit.Target, job *emit.Job) ([]owned, error) {
	var files []owned
	for _, t := range targets {
		made, err := emit.Write(job, t)
		if u, ok := errors.AsType[*emit.Unsupported](err); ok {
			hint := a.msgs.Text("emit_hint_nothing")
			if len(u.Instead) > 0 {
				hint = a.msgs.Text("emit_hint_instead", strings.Join(u.Instead, ", "))
			}
			return nil, withHint(errors.New(a.msgs.Text("emit_cannot", u.Target, u.Setting)), hint)
		}
		if err != nil {
			return nil, err
		}
		for _, f := range made {
			files = append(files, owned{f, t.Name})
		}
	}
	return files, nil
}

// writeFiles writes the files of a job: all of them, or none. A file that is
// there and reads otherwise may hold a person's changes: it stays.
func (a *app) writeFiles(e *emitFlags, files []owned) error {
	// Two targets may want one name for different texts.
	at := map[string]string{}
	for _, f := range files {
		if text, ok := at[f.Name]; ok && text != string(f.Data) {
			return withHint(fmt.Errorf("%s of %s differs from that of another target", f.Name, f.target), "emit the targets into folders of their own")
		}
		at[f.Name] = string(f.Data)
	}
	if err := os.MkdirAll(e.folder, 0o777); err != nil {
		return withHint(err, "name a folder that can be made, with -o")
	}
	for _, f := range files {
		name := filepath.Join(e.folder, f.Name)
		there, err := os.ReadFile(name)
		if err == nil && !e.force && string(there) != string(f.Data) {
			return withHint(errors.New(a.msgs.Text("emit_exists", name)), a.msgs.Text("emit_hint_force"))
		}
	}
	for _, f := range files {
		name := filepath.Join(e.folder, f.Name)
		if err := writeWhole(name, f.Data, f.Executable); err != nil {
			return err
		}
		fmt.Fprintf(a.Err, "unoom: %s\n", a.msgs.Text("emit_wrote", name))
	}
	return nil
}

// writeWhole writes a file under another name and renames it.
func writeWhole(name string, data []byte, executable bool) error {
	f, err := os.CreateTemp(filepath.Dir(name), ".unoom-*")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	mode := os.FileMode(0o644)
	if executable {
		mode = 0o755
	}
	_, err = f.Write(data)
	if err = errors.Join(err, f.Chmod(mode), f.Close()); err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	return os.Rename(f.Name(), name)
}

// emitCommand is `unoom emit`: files for a setting that is already chosen.
func (a *app) emitCommand() *cobra.Command {
	w := workloadFlags{cards: a.cards}
	var e emitFlags
	var names []string
	for _, t := range emit.Targets() {
		names = append(names, t.Name)
	}
	c := &cobra.Command{
		Use:   "emit TARGET[,TARGET...] --model MODEL --gpu GPUS",
		Short: "Write a setting as the files of your stack",
		Long: "emit writes the setting that the flags state, unchanged, as files of a training\n" +
			"stack. `unoom plan ... --emit TARGET -o DIR` looks for the fastest setting that\n" +
			"fits first. What a file cannot hold is a comment in it, or an error.\n\n" +
			"Targets: " + strings.Join(names[:8], ", ") + ";\n" + strings.Join(names[8:], ", ") + ".\n" +
			"Without -o the files are printed.",
		Example: "  unoom emit deepspeed --model llama-3.1-8b --gpu 8xa100-80gb --sharding zero2 --micro-batch 2 --accum 4 --seq 4096\n" +
			"  unoom emit hf,slurm -o run --model llama-3.1-8b --gpu 8xh100-80gb --sharding fsdp2 --micro-batch 1 --seq 4096\n" +
			"  unoom plan --model llama-3.1-8b --gpu 8xh100-80gb --global-batch 64 --seq 4096 --emit accelerate -o run",
		Args: oneArgument("the stack to write for, such as " + names[0] + " or " + names[1]), ValidArgs: names,
		RunE: func(_ *cobra.Command, args []string) error {
			targets, err := a.emitTargets(args[0])
			if err != nil {
				return err
			}
			if err := e.check(); err != nil {
				return err
			}
			if err := w.state(nil, -1); err != nil {
				return err
			}
			m, err := a.modelOf(&w)
			if err != nil {
				return err
			}
			cards, err := w.findGPU()
			if err != nil {
				return err
			}
			wl, err := w.build(m, cards)
			if err != nil {
				return err
			}
			return a.emitAll(&e, targets, a.emitJob(&e, wl, w.model))
		},
	}
	w.add(c)
	e.add(c)
	return c
}

// emitted is one file in --json.
type emitted struct {
	Target string `json:"target"`
	Name   string `json:"name"`
	Text   string `json:"text"`
}

// emitAll prints the files, or writes them where a folder is named.
func (a *app) emitAll(e *emitFlags, targets []emit.Target, job *emit.Job) error {
	files, err := a.allFiles(targets, job)
	if err != nil {
		return err
	}
	if e.folder != "" {
		if err := a.writeFiles(e, files); err != nil || !a.json {
			return err
		}
	}
	if a.json {
		out := []emitted{}
		for _, f := range files {
			out = append(out, emitted{f.target, f.Name, string(f.Data)})
		}
		return a.printJSON("unoom/emit/v1", nil, struct {
			Files []emitted `json:"files"`
		}{out})
	}
	for i, f := range files {
		if len(files) > 1 {
			if i > 0 {
				fmt.Fprintln(a.Out)
			}
			fmt.Fprintf(a.Out, "==> %s\n", f.Name)
		}
		fmt.Fprint(a.Out, string(f.Data))
	}
	return nil
}

// emitPlan writes the files of the first plan that all the targets can do: the
// recommended one, or a later one of the list, and says so.
func (a *app) emitPlan(e *emitFlags, list string, r *plan.Result, asked string) error {
	targets, err := a.emitTargets(list)
	if err != nil {
		return err
	}
	kinds, err := a.rented()
	if err != nil {
		return err
	}
	var first error
	for i := range r.Plans {
		p := &r.Plans[i]
		job := a.emitJob(e, p.Workload, asked)
		job.Capacity, job.Peak = r.Capacity, p.Need.Device.Mid
		if p.Workload.GPU.Name != "" {
			job.Accelerators = r.RunsAlso(p, kinds)
		}
		for _, s := range p.Steps {
			job.Steps = append(job.Steps, emit.Step{Code: string(s.Code), From: s.From, To: s.To, Saves: s.Saves})
		}
		files, err := a.allFiles(targets, job)
		if err == nil {
			if i > 0 {
				fmt.Fprintf(a.Err, "unoom: %s\n", a.msgs.Text("emit_other_plan", i+1, list, first))
			}
			return a.writeFiles(e, files)
		}
		if first == nil {
			first = err
		}
	}
	return first
}

// emitStacks are the stacks whose plans the asked files can hold; none: any.
func (p *planCommand) emitStacks() []string {
	var out []string
	for name := range strings.SplitSeq(p.emitTo, ",") {
		t, err := emit.Find(name)
		if err != nil {
			continue // checkEmit says so
		}
		stacks := map[string][]string{
			"hf": {"hf", "deepspeed"}, "accelerate": {"hf", "deepspeed"}, "axolotl": {"hf", "deepspeed"}, "llamafactory": {"hf", "deepspeed"},
			"deepspeed": {"deepspeed"}, "torchtitan": {"torchtitan"}, "megatron": {"megatron"}, "pytorch": {"hf"},
		}[t.Name]
		switch {
		case stacks == nil:
		case out == nil:
			out = stacks
		default:
			out = slices.DeleteFunc(slices.Clone(out), func(s string) bool { return !slices.Contains(stacks, s) })
		}
	}
	return out
}

// checkEmit refuses --emit without a place to write to, before the search.
func (p *planCommand) checkEmit() error {
	switch {
	case p.emitTo == "" && p.emit.folder != "":
		return withHint(errors.New("-o goes with --emit"), "name the files to write: --emit hf,slurm")
	case p.emitTo == "":
		return nil
	case p.emit.folder == "":
		return withHint(errors.New("--emit needs a folder"), "write -o DIR")
	case p.workload.gpu == "any":
		return withHint(errors.New("--emit and --gpu any contradict each other"), "choose one of the GPU sets that `--gpu any` lists, and emit for it")
	}
	if err := p.emit.check(); err != nil {
		return err
	}
	_, err := p.emitTargets(p.emitTo)
	return err
}
