package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"unoom/internal/gpu"
	"unoom/internal/gpu/smi"
	"unoom/internal/i18n"
	"unoom/internal/model"
	"unoom/internal/report/text"
	"unoom/internal/units"
	"unoom/internal/workload"
)

// workloadFlags are the flags that say what is trained, how and on what. They
// are the same on every command that takes a workload. Beside them stand the
// user's own files (--config, or as an argument) and the command that starts the
// run (after --); flags count most, then the command, then files.
type workloadFlags struct {
	flags *pflag.FlagSet
	// cards is the catalogue that --gpu is looked up in, nil: the published one.
	cards func() (gpu.Catalogue, error)

	// model, gpu, capacity, framework and batch are what all sources together say
	// once read has been called.
	model, gpu, capacity, framework string
	batch                           int64

	configs []string
	// said is what all sources say together.
	said *workload.Statement
	// live says that the cards are those of this machine.
	live bool
}

// aliases are the field's own names of our flags.
var aliases = map[string]string{
	"per-device-train-batch-size":    "micro-batch",
	"per-device-batch-size":          "micro-batch",
	"micro-batch-size":               "micro-batch",
	"train-micro-batch-size-per-gpu": "micro-batch",
	"batch-size":                     "micro-batch",
	"gradient-accumulation-steps":    "accum",
	"grad-accum":                     "accum",
	"accumulation":                   "accum",
	"global-batch-size":              "global-batch",
	"train-batch-size":               "global-batch",
	"effective-batch":                "global-batch",
	"max-seq-length":                 "seq",
	"max-length":                     "seq",
	"seq-len":                        "seq",
	"seq-length":                     "seq",
	"model-name-or-path":             "model",
	"model-id":                       "model",
	"optim":                          "optimizer",
	"image-size":                     "image",
	"img-size":                       "image",
	"resolution":                     "image",
	"lora-rank":                      "rank",
	"lora-r":                         "rank",
	"gradient-checkpointing":         "checkpointing",
	"activation-checkpointing":       "checkpointing",
	"tensor-parallel-size":           "tp",
	"tensor-model-parallel-size":     "tp",
	"pipeline-parallel-size":         "pp",
	"pipeline-model-parallel-size":   "pp",
	"context-parallel-size":          "cp",
	"expert-model-parallel-size":     "ep",
	"attn-implementation":            "attention",
	"precision":                      "dtype",
	"gpu-memory":                     "capacity",
	"per-device-eval-batch-size":     "eval-batch",
	"eval-batch-size":                "eval-batch",
	"eval-accumulation-steps":        "eval-accumulation",
	"max-eval-samples":               "eval-samples",
	"max-new-tokens":                 "new-tokens",
	"num-beams":                      "beams",
}

// add registers the flags on a command.
func (w *workloadFlags) add(c *cobra.Command) {
	f := c.Flags()
	w.flags = f
	f.SetNormalizeFunc(func(_ *pflag.FlagSet, name string) pflag.NormalizedName {
		name = strings.ReplaceAll(name, "_", "-")
		if ours, ok := aliases[name]; ok {
			name = ours
		}
		return pflag.NormalizedName(name)
	})
	f.StringArrayVar(&w.configs, "config", nil, "read the setting from a `FILE` of your stack (may be repeated): transformers, accelerate,\nDeepSpeed, Axolotl, LLaMA-Factory, torchtune, litgpt, torchtitan, peft, a script, unoom.yaml")
	f.String("model", "", "model: a name of `unoom models`, or a folder or config.json")
	f.StringVar(&w.gpu, "gpu", "", "GPUs, such as rtx-4090 or 8xh100-80gb (default: those of this machine)")
	f.StringVar(&w.capacity, "capacity", "", "memory of one GPU, such as 24GiB, in place of the catalogue's")
	f.String("method", "full", "what is trained: full, lora, qlora, dora")
	f.Int64("rank", 16, "rank of the LoRA matrices")
	f.String("targets", "all-linear", "modules that get LoRA matrices, such as q_proj,v_proj")
	f.String("dtype", "", "precision: fp32, amp-bf16, amp-fp16, bf16, fp16 or fp8 (default amp-bf16; bf16 with adapters)")
	f.String("optimizer", "adamw_torch_fused", "optimizer, as the field writes it: adamw_torch, adamw_8bit, adafactor, sgd …")
	f.Int64("global-batch", 0, "samples of one optimizer step over all GPUs")
	f.Int64("micro-batch", 0, "samples of one forward pass on one GPU")
	f.Int64("accum", 0, "forward passes of one optimizer step")
	f.Int64("seq", 2048, "tokens of a sample")
	f.String("image", "", "pixels of an image network's input, such as 224 or 512x1024 (default: the published size), or of the image with each sample of a vision-language model (default: text alone)")
	f.String("checkpointing", "", "activation checkpointing: none, selective or full (default none; full with qlora)")
	f.String("sharding", "", "none, ddp, zero1, zero2, zero3, fsdp or fsdp2 (default none on one GPU, else ddp)")
	f.Int64("tp", 1, "tensor parallel degree")
	f.Int64("pp", 1, "pipeline parallel degree")
	f.Int64("vp", 1, "virtual stages of a pipeline rank")
	f.Int64("cp", 1, "context parallel degree")
	f.Int64("ep", 1, "expert parallel degree")
	f.String("offload", "none", "what lives in host memory: none, optimizer, params or activations")
	f.String("attention", "sdpa", "eager, sdpa or flash")
	f.String("loss", "", "loss over the vocabulary: plain, chunked, liger or cce (default: the framework's)")
	f.String("framework", "", "pytorch, hf, deepspeed, torchtitan, torchtune or megatron (default hf)")
	f.String("torch", "", "version of torch (default: the newest that is known)")
	f.Bool("compile", false, "torch.compile is used")
	f.Bool("padded", false, "batches have padding")
	f.Bool("eval", false, "the run evaluates between its steps")
	f.Int64("eval-batch", 0, "samples of one forward pass of the evaluation on one GPU (default --micro-batch)")
	f.Int64("eval-samples", 0, "samples of the evaluation over all GPUs")
	f.String("eval-keep", "loss", "what of each batch stays on the card: loss, logits (compute_metrics), ids")
	f.Int64("eval-accumulation", 0, "batches after which what stays goes to the host (default at the end)")
	f.Bool("eval-graph", false, "the evaluation lacks no_grad")
	f.Int64("new-tokens", 0, "tokens that the evaluation generates for a sample")
	f.Int64("beams", 1, "beams of that generation")
	f.String("save", "none", "what a checkpoint gathers: none, full, full-gpu, sharded or merged")
	f.String("resume", "none", "where a checkpoint is read to: none, cpu or gpu (torch.load without map_location)")
	choices := workload.Choices()
	f.VisitAll(func(flag *pflag.Flag) {
		if list, few := choices[fieldOf(flag.Name)]; few && flag.Value.Type() != "bool" {
			_ = c.RegisterFlagCompletionFunc(flag.Name, cobra.FixedCompletions(list, cobra.ShellCompDirectiveNoFileComp))
		}
	})
}

// fieldOf is the field that a flag states.
func fieldOf(flag string) workload.Field {
	return workload.Field(strings.ReplaceAll(flag, "-", "_"))
}

// state puts together what the flags, the files and the command say. args are the
// command's arguments, of which those from dash on are the command of the run,
// dash < 0: there is none; the others are files.
func (w *workloadFlags) state(args []string, dash int) error {
	if dash < 0 {
		dash = len(args)
	}
	var commands, files []*workload.Reading
	for _, name := range slices.Concat(args[:dash], w.configs) {
		r, err := workload.ReadFile(filepath.ToSlash(name), openConfig)
		if err != nil {
			return configHint(name, err)
		}
		files = append(files, r)
	}
	if dash < len(args) {
		r, err := workload.ReadCommand(args[dash:], openConfig)
		if err != nil {
			return configHint("command line", err)
		}
		commands = append(commands, r)
	}
	flags := workload.Settings{}
	w.flags.Visit(func(f *pflag.Flag) {
		if field := fieldOf(f.Name); slices.Contains(workload.Fields(), field) {
			flags[field] = workload.Stated{Value: workload.Canonical(field, f.Value.String()), Name: "--" + f.Name, Raw: f.Value.String()}
		}
	})
	w.said = workload.Combine(flags, commands, files)
	if err := w.said.Check(); err != nil {
		return err
	}
	w.model, w.gpu, w.capacity, w.framework = w.said.Value(workload.FieldModel), w.said.Value(workload.FieldGPU), w.said.Value(workload.FieldCapacity), w.said.Value(workload.FieldFramework)
	w.batch, _ = strconv.ParseInt(w.said.Value(workload.FieldGlobalBatch), 10, 64)
	return nil
}

// configMost bounds a configuration file.
const configMost = 4 << 20

// openConfig opens a configuration, or what one refers to.
func openConfig(name string) ([]byte, error) {
	f, err := os.Open(filepath.FromSlash(name))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if info, err := f.Stat(); err == nil && info.IsDir() {
		return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrNotExist}
	}
	return io.ReadAll(io.LimitReader(f, configMost+1))
}

// configHint says what to do about a file that cannot be read as a configuration.
func configHint(name string, err error) error {
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return withHint(fmt.Errorf("%s: there is no such file", name), "give a configuration of your stack, or the setting as flags: --model …")
	case len(hintsOf(err)) > 0:
		return err
	}
	if _, ok := errors.AsType[*workload.UnknownKindError](err); ok {
		return withHint(err, "docs/configuration.md lists the forms that are read; or give the setting as flags")
	}
	if _, ok := errors.AsType[*workload.SyntaxError](err); ok {
		return withHint(err, "correct the file there, or give the setting as flags")
	}
	return fmt.Errorf("%s: %w", name, cause(err))
}

// warningTexts lists what the readers noticed, for a person or, in English, for JSON.
func warningTexts(m *i18n.Catalogue, s *workload.Statement) []warning {
	var out []warning
	for _, w := range s.Warnings {
		out = append(out, warning{Code: "config." + w.Code, Msg: m.Text("workload.warn_"+w.Code, w.Args...), Where: w.Where})
	}
	return out
}

// modelOf returns the model that the sources name: a file or folder if there is
// one of that name, else the catalogue's; of Megatron the one that its arguments
// describe.
func (a *app) modelOf(w *workloadFlags) (*model.Model, error) {
	if w.model == "" && w.said.Options["num-layers"] != "" {
		return a.megatronModel(w.said)
	}
	if w.model == "" {
		if len(w.said.Kinds) > 0 {
			return nil, withHint(errors.New("no source says which model is trained"), "add --model, such as --model llama-3.1-8b, or the folder with its config.json")
		}
		return nil, withHint(errors.New("--model is missing"), "name a model, such as --model llama-3.1-8b, or point at a folder with its config.json,", "or give a configuration file of your stack")
	}
	at := w.said.Settings[workload.FieldModel]
	var first error
	for i, name := range w.said.ModelNames() {
		s, err := openModel(name)
		if err != nil && first == nil {
			first = err
		}
		if _, unknown := errors.AsType[*model.UnknownModelError](err); unknown {
			continue
		}
		if err != nil {
			break
		}
		if len(s.Stacks) == 0 && s.Type == "safetensors" {
			return nil, withHint(fmt.Errorf("%s: has tensors but no architecture", name), "point at the folder with the config.json beside it")
		}
		if i > 1 {
			w.said.Assumed = append(w.said.Assumed, workload.Assumption{Field: "model", Value: s.Name, Why: "has the sizes of " + w.model + ", which the catalogue does not have"})
		}
		return s.Model, nil
	}
	if at.Place != "" {
		return nil, hinted{fmt.Errorf("%s: %w", at.Place, first), append(hintsOf(first), "or say it with --model")}
	}
	return nil, first
}

// megatronModel is the network that Megatron's arguments describe. No argument
// states the vocabulary, unless it is padded by hand.
func (a *app) megatronModel(s *workload.Statement) (*model.Model, error) {
	const gpt2 = 50257
	vocab := int64(gpt2)
	if v, err := strconv.ParseInt(s.Options["vocab-size"], 10, 64); err == nil {
		vocab = v
	} else if m, err := openModel(s.Options["tokenizer-model"]); err == nil && m.Vocab > 0 {
		vocab = m.Vocab
	} else {
		s.Assumed = append(s.Assumed, workload.Assumption{Field: "vocab", Value: strconv.Itoa(gpt2), Why: "no argument states the size of the vocabulary; this is GPT-2's"})
	}
	m, err := model.FromMegatron("megatron", vocab, func(name string) (string, bool) { v, ok := s.Options[name]; return v, ok })
	if err != nil {
		return nil, modelHint(err)
	}
	return m, nil
}

// cardsOf returns the cards: of --gpu and --capacity, else those of this
// machine, else none.
func (a *app) cardsOf(w *workloadFlags) (gpu.Request, error) {
	if w.gpu != "" || w.capacity != "" {
		return w.findGPU()
	}
	devices, err := smi.List(context.Background(), a.Getenv("CUDA_VISIBLE_DEVICES"))
	if err != nil || len(devices) == 0 {
		if err != nil {
			fmt.Fprintf(a.Err, "unoom: %s: %s\n", a.msgs.Text("warning"), err)
		}
		return w.counted(gpu.Request{Count: 1}), nil
	}
	cards, err := a.cards()
	if err != nil {
		return gpu.Request{}, err
	}
	d := devices[0]
	r, err := cards.Find(d.Name)
	if err != nil {
		r = gpu.Request{Card: gpu.Custom(d.Total)}
		r.Card.Name = d.Name
	}
	r.Count = 0
	for _, other := range devices {
		if other.Name == d.Name {
			r.Count++
		}
	}
	if w.said.Value(workload.FieldGPUs) == "" && w.said.Value(workload.FieldTensor) == "" && len(w.said.Kinds) == 0 {
		r.Count = 1 // nobody said that more than one is used
	}
	w.live = true
	fmt.Fprintln(a.Err, "unoom: "+a.msgs.Text("estimate.live", len(devices), d.Name))
	if others := slices.MaxFunc(devices, func(x, y smi.Device) int { return cmp.Compare(x.Used, y.Used) }); others.Used > busy {
		fmt.Fprintln(a.Err, "unoom: "+a.msgs.Text("estimate.live_busy", others.Index, others.Used))
	}
	if n, err := strconv.Atoi(w.said.Value(workload.FieldGPUs)); err == nil && n > 0 {
		r.Count = n
	}
	return r, nil
}

// busy is more than a driver and a desktop hold of a card.
const busy = 1 * units.GiB

// openModel reads a model from a file or folder if there is one of that name,
// else from the catalogue or a naming convention.
func openModel(name string) (*model.Source, error) {
	if strings.ContainsAny(name, "./\\") || isFile(name) {
		if _, err := os.Stat(name); err == nil {
			dir, base := filepath.Split(filepath.Clean(name))
			if dir == "" {
				dir = "."
			}
			s, err := model.Open(os.DirFS(dir), base, model.Options{})
			if err != nil {
				return nil, modelHint(err)
			}
			return s, nil
		} else if !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
	}
	models, err := model.Published()
	if err != nil {
		return nil, err
	}
	m, err := models.Named(name, model.Options{})
	if err != nil {
		return nil, modelHint(err)
	}
	return &model.Source{Model: m}, nil
}

func isFile(name string) bool {
	_, err := os.Stat(name)
	return err == nil
}

// modelHint says what to write instead.
func modelHint(err error) error {
	if e, ok := errors.AsType[*model.UnknownModelError](err); ok {
		switch {
		case len(e.Several) > 0:
			return withHint(err, "name one of them")
		case len(e.Nearest) > 0:
			return withHint(err, "nearest: "+strings.Join(e.Nearest, ", "), "or point at a folder with a config.json")
		}
		return withHint(err, "point at a folder with a config.json")
	}
	if e, ok := errors.AsType[*model.UnknownTypeError](err); ok && len(e.Nearest) > 0 {
		return withHint(err, "nearest: "+strings.Join(e.Nearest, ", "))
	}
	if e, ok := errors.AsType[*model.ConfigError](err); ok && e.Hint != "" {
		return withHint(err, e.Hint)
	}
	return err
}

// printWarnings lists what the readers noticed.
func (a *app) printWarnings(p *text.Printer, s *workload.Statement) {
	if len(s.Warnings) == 0 {
		return
	}
	p.Heading(a.msgs.Text("workload.warnings"))
	for _, w := range warningTexts(a.msgs, s) {
		line := text.Style(text.Caution, w.Msg)
		if w.Where != "" {
			line += "  " + text.Style(text.Faint, w.Where)
		}
		p.Hanging("  ", line)
	}
}

// capacityHint is how the memory that a text names is written, or an example.
func capacityHint(gpu string) string {
	if b, err := units.ParseBytes(strings.Replace(strings.ToUpper(gpu), "GB", "GiB", 1)); err == nil {
		return fmt.Sprintf("%gGiB", b.GiB())
	}
	return "24GiB"
}

// findGPU returns the cards of --gpu and --capacity.
func (w *workloadFlags) findGPU() (gpu.Request, error) {
	var r gpu.Request
	if w.gpu != "" {
		list := w.cards
		if list == nil {
			list = gpu.Published
		}
		cards, err := list()
		if err != nil {
			return r, err
		}
		if r, err = cards.Find(w.gpu); err != nil {
			if e, ok := errors.AsType[*gpu.NameError](err); ok && len(e.Choices) > 0 {
				return r, withHint(err, "nearest: "+strings.Join(e.Choices, ", "), "or give the memory alone: --capacity "+capacityHint(w.gpu))
			}
			return r, withHint(err, "`unoom gpus` lists the cards; any other has --capacity")
		}
	}
	if w.capacity != "" {
		b, err := units.ParseBytes(w.capacity)
		if err != nil {
			return r, fmt.Errorf("--capacity: %w", err)
		}
		if b < 64*units.MiB {
			return r, withHint(fmt.Errorf("--capacity %s: no GPU has so little", b), "write it as 24GiB")
		}
		if w.gpu == "" {
			r = gpu.Request{Count: 1, Card: gpu.Custom(b)}
		}
		r.Card.TorchMiB = int64(b / units.MiB)
	}
	if r.Count == 0 {
		return r, withHint(errors.New("--gpu is missing"), "name the GPUs, such as --gpu rtx-4090 or --gpu 8xh100-80gb, or their memory with --capacity")
	}
	return w.counted(r), nil
}

// counted takes the number of cards from the launcher where --gpu does not say
// it.
func (w *workloadFlags) counted(r gpu.Request) gpu.Request {
	if w.said == nil {
		return r
	}
	n, err := strconv.Atoi(w.said.Value(workload.FieldGPUs))
	switch {
	case err != nil || n == r.Count:
	case r.Count <= 1:
		r.Count = n
	default:
		s := w.said.Settings[workload.FieldGPUs]
		w.said.Warnings = append(w.said.Warnings, workload.Warning{Code: workload.WarnContradiction, Where: s.Place,
			Args: []any{string(workload.FieldGPUs), strconv.Itoa(r.Count), "--gpu", s.Value, string(s.Origin())}})
	}
	return r
}

// build makes the workload on a number of cards. What nobody stated becomes an
// assumption.
func (w *workloadFlags) build(m *model.Model, cards gpu.Request) (*workload.Workload, error) {
	return w.said.Build(m, cards)
}
