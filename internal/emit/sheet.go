package emit

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"unoom/internal/workload"
)

// A setting is one thing that a workload decides, in the words of the flags.
type setting struct{ name, value string }

// A note is a setting that a file does not hold, with what to do about it.
type note struct {
	setting
	id   string // of the message
	args []any
}

// sheet keeps account of a workload's settings while a file is written: each
// ends up in the file or in a note.
type sheet struct {
	job    *Job
	w      *workload.Workload
	target Target
	about  string // the stack and the version that the file is for
	all    []setting
	said   map[string]bool
	notes  []note
}

func newSheet(job *Job, t Target) *sheet {
	return &sheet{job: job, w: job.Workload, target: t, about: t.About, all: settings(job.Workload), said: map[string]bool{}}
}

// settings lists what a workload decides beyond the defaults that every stack
// shares.
func settings(w *workload.Workload) []setting {
	var out []setting
	add := func(name, value, otherwise string) {
		if value != "" && value != otherwise {
			out = append(out, setting{name, value})
		}
	}
	num := func(name string, n, otherwise int64) {
		add(name, strconv.FormatInt(n, 10), strconv.FormatInt(otherwise, 10))
	}
	flag := func(name string, on bool) { add(name, strconv.FormatBool(on), "false") }
	p := &w.Parallel
	add("method", string(w.Method), "")
	add("base", string(w.Base), "")
	if w.Method.Adapted() {
		num("rank", w.Adapter.Rank, 0)
		add("targets", strings.Join(w.Adapter.Targets, ","), "")
		add("lora-dropout", decimal(w.Adapter.Dropout), "0")
		add("adapter-dtype", string(w.Adapter.DType), "")
		flag("kbit", w.Adapter.KBit)
	}
	num("frozen-layers", w.FrozenLayers, 0)
	add("dtype", string(w.Precision), "")
	add("fp8", string(w.FP8), "")
	num("micro-batch", w.MicroBatch, 0)
	num("accum", w.Accumulation, 0)
	num("seq", w.Seq, 0)
	num("target-seq", w.TargetSeq, 0)
	if w.Image[0] > 0 {
		add("image", fmt.Sprintf("%dx%d", w.Image[0], w.Image[1]), "")
	}
	flag("padded", w.Padded)
	add("checkpointing", string(w.Checkpointing), string(workload.NoCheckpointing))
	if w.Checkpointing == workload.FullCheckpoint {
		num("checkpointed-layers", w.CheckpointLayers, 0)
	}
	if w.Reentrant != nil && w.Checkpointing != workload.NoCheckpointing {
		add("reentrant", strconv.FormatBool(*w.Reentrant), "")
	}
	add("attention", string(w.Attention), "")
	add("loss", string(w.Loss), "")
	num("loss-chunks", w.Kernels.ChunkedLoss, 0)
	add("norm-kernel", w.Kernels.FusedNorm, "")
	add("rope-kernel", w.Kernels.FusedRope, "")
	add("mlp-kernel", w.Kernels.FusedMLP, "")
	add("lora-kernel", w.Kernels.FusedLoRA, "")
	flag("compile", w.Compile)
	flag("ema", w.EMA)
	add("optimizer", w.Optimizer.Name, "")
	add("optimizer-impl", w.Optimizer.Impl, "")
	flag("optimizer-in-backward", w.Optimizer.InBackward)
	flag("paged", w.Optimizer.Paged)
	flag("no-decay", w.Optimizer.NoDecay)
	num("optimizer-rank", w.Optimizer.Rank, 0)
	flag("distributed-optimizer", w.Optimizer.Distributed)
	add("sharding", string(w.Sharding), string(workload.NoSharding))
	add("reshard-after-forward", w.ReshardAfterForward, "")
	flag("bucket-view", w.BucketView)
	num("gpus", world(w), 1)
	num("tp", p.Tensor, max(p.Tensor, 1)*boolInt(p.Tensor <= 1))
	flag("sequence-parallel", p.Sequence)
	num("pp", p.Pipeline, max(p.Pipeline, 1)*boolInt(p.Pipeline <= 1))
	num("vpp", p.Virtual, p.Virtual*boolInt(p.Virtual <= 1))
	num("cp", p.Context, p.Context*boolInt(p.Context <= 1))
	num("ep", p.Expert, p.Expert*boolInt(p.Expert <= 1))
	if p.Shard > 0 && p.Shard < p.Data*max(p.Context, 1) {
		num("shard", p.Shard, 0)
	}
	add("offload", string(w.Offload), string(workload.NoOffload))
	flag("eval", w.Eval)
	add("alloc-conf", w.AllocConf, "")
	return out
}

func boolInt(b bool) int64 {
	if b {
		return 1
	}
	return 0
}

func decimal(x float64) string { return strconv.FormatFloat(x, 'g', -1, 64) }

// world is the number of processes of a workload.
func world(w *workload.Workload) int64 {
	p := &w.Parallel
	inner := max(p.Data, 1) * max(p.Tensor, 1) * max(p.Pipeline, 1) * max(p.Context, 1)
	return max(p.World, inner)
}

// has reports whether the workload decides a setting.
func (s *sheet) has(name string) bool {
	return slices.ContainsFunc(s.all, func(x setting) bool { return x.name == name })
}

func (s *sheet) value(name string) string {
	for _, x := range s.all {
		if x.name == name {
			return x.value
		}
	}
	return ""
}

// say records that the file holds these settings.
func (s *sheet) say(names ...string) {
	for _, n := range names {
		s.said[n] = true
	}
}

// omit records that the file does not hold a setting, and what to do.
func (s *sheet) omit(name, id string, args ...any) {
	if !s.has(name) || s.said[name] {
		return
	}
	s.said[name] = true
	s.notes = append(s.notes, note{setting{name, s.value(name)}, id, args})
}

// unsay takes back what was said or noted of settings.
func (s *sheet) unsay(names ...string) {
	for _, name := range names {
		delete(s.said, name)
		s.notes = slices.DeleteFunc(s.notes, func(n note) bool { return n.name == name })
	}
}

// instead notes what to do about a setting, whatever was said of it.
func (s *sheet) instead(name, id string, args ...any) {
	s.unsay(name)
	s.omit(name, id, args...)
}

// cannot is the error that the target cannot express a setting.
func (s *sheet) cannot(name string) error {
	return &Unsupported{Target: s.target.Name, Setting: "--" + name + " " + s.value(name)}
}

// refuse returns an error for the first of these settings that the workload
// decides.
func (s *sheet) refuse(names ...string) error {
	for _, n := range names {
		if s.has(n) {
			return s.cannot(n)
		}
	}
	return nil
}

// sequenceNote accounts for sequence parallelism where a stack splits matrices
// alone.
func sequenceNote(s *sheet) {
	if s.w.Parallel.Tensor > 1 {
		s.omit("sequence-parallel", "emit_note_sequence")
	}
	s.say("sequence-parallel") // nothing without tensor parallelism
}

// learningRate stands where a library wants one: no plan decides it.
const learningRate = 1e-5

// yours is the comment that the file has values which no plan decides.
func (s *sheet) yours() string { return "# " + s.text("emit_yours") + "\n" }

// text translates, or returns the id where nothing translates.
func (s *sheet) text(id string, args ...any) string {
	if s.job.Text == nil {
		return id
	}
	return s.job.Text(id, args...)
}

// origin says which plan made the file.
func (s *sheet) origin() []string {
	w := s.w
	out := []string{s.text("emit_made", s.about)}
	if s.job.Command != "" {
		out = append(out, "  "+s.job.Command)
	}
	return append(out, s.text("emit_plan", s.repository(), w.MicroBatch, max(w.Accumulation, 1), max(w.Parallel.Data, 1), w.GlobalBatch(), w.Seq))
}

// header says which plan made the file, and closes the account: what no line of
// the file and no note has said is listed as not being in it.
func (s *sheet) header() []string {
	w := s.w
	out := s.origin()
	if s.job.Peak > 0 && s.job.Capacity > 0 {
		out = append(out, s.text("emit_peak", s.job.Peak, s.job.Capacity, w.GPU.Name))
	}
	if len(s.job.Steps) > 0 {
		out = append(out, s.text("emit_steps"))
		for _, st := range s.job.Steps {
			line := "  " + st.Code
			if st.From != "" || st.To != "" {
				line += ": " + st.From + " -> " + st.To
			}
			if st.Saves > 0 {
				line += s.text("emit_saves", st.Saves)
			}
			out = append(out, oneLine(line))
		}
	}
	var rest []string
	for _, x := range s.all {
		if !s.said[x.name] {
			rest = append(rest, "--"+x.name+" "+x.value)
		}
	}
	if len(s.notes) > 0 {
		out = append(out, s.text("emit_notes"))
		for _, n := range s.notes {
			out = append(out, "  --"+n.name+" "+n.value+": "+s.text(n.id, n.args...))
		}
	}
	if len(rest) > 0 {
		id := "emit_rest"
		if s.target.Kind == Launching {
			id = "emit_script"
		}
		out = append(out, s.text(id))
		for _, line := range rest {
			out = append(out, "  "+line)
		}
	}
	return out
}

func oneLine(text string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' {
			return ' '
		}
		return r
	}, text)
}

// comment returns the header with a mark in front of each line.
func (s *sheet) comment(mark string) string {
	var b strings.Builder
	for _, line := range s.header() {
		b.WriteString(strings.TrimRight(mark+" "+line, " ") + "\n")
	}
	return b.String()
}

// repository names the model as libraries load it.
func (s *sheet) repository() string {
	if s.job.Repository != "" {
		return s.job.Repository
	}
	return s.w.Name
}

// layout returns the machines and the processes on each.
func (s *sheet) layout() (nodes, per int64, err error) {
	n := world(s.w)
	per = s.job.PerNode
	if per <= 0 {
		per = 8
	}
	if n <= per {
		return 1, n, nil
	}
	if n%per != 0 {
		return 0, 0, fmt.Errorf("%d GPUs do not fill machines of %d: set --per-node to a number that divides", n, per)
	}
	return n / per, per, nil
}

// script is the training program with its arguments.
func (s *sheet) script() string {
	if s.job.Script != "" {
		return s.job.Script
	}
	return "train.py"
}
