package cli

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"unoom/internal/gpu"
	"unoom/internal/model"
	"unoom/internal/units"
	"unoom/internal/workload"
)

// workloadFlags are the flags that say what is trained, how and on what. They
// are the same on every command that takes a workload.
type workloadFlags struct {
	flags *pflag.FlagSet
	// cards is the catalogue that --gpu is looked up in, nil: the published one.
	cards func() (gpu.Catalogue, error)

	model, gpu, capacity                               string
	method, dtype, optimizer, framework                string
	checkpointing, sharding, offload, attention, loss  string
	image                                              string
	batch, micro, accum, seq, rank, tp, pp, vp, cp, ep int64
	compile, padded                                    bool
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
	f.StringVar(&w.model, "model", "", "model: a name of `unoom models`, or a folder or config.json")
	f.StringVar(&w.gpu, "gpu", "", "GPUs, such as rtx-4090 or 8xh100-80gb")
	f.StringVar(&w.capacity, "capacity", "", "memory of one GPU, such as 24GiB, in place of the catalogue's")
	f.StringVar(&w.method, "method", "full", "what is trained: full, lora or qlora")
	f.Int64Var(&w.rank, "rank", 16, "rank of the LoRA matrices")
	f.StringVar(&w.dtype, "dtype", "", "precision: fp32, amp-bf16, amp-fp16, bf16, fp16 or fp8 (default amp-bf16; bf16 with adapters)")
	f.StringVar(&w.optimizer, "optimizer", "adamw_torch_fused", "optimizer, as the field writes it: adamw_torch, adamw_8bit, adafactor, sgd …")
	f.Int64Var(&w.batch, "global-batch", 0, "samples of one optimizer step over all GPUs")
	f.Int64Var(&w.micro, "micro-batch", 0, "samples of one forward pass on one GPU")
	f.Int64Var(&w.accum, "accum", 0, "forward passes of one optimizer step")
	f.Int64Var(&w.seq, "seq", 2048, "tokens of a sample")
	f.StringVar(&w.image, "image", "", "pixels of an image network's input, such as 224 or 512x1024 (default: the published size)")
	f.StringVar(&w.checkpointing, "checkpointing", "none", "activation checkpointing: none, selective or full")
	f.StringVar(&w.sharding, "sharding", "", "none, ddp, zero1, zero2, zero3, fsdp or fsdp2 (default none on one GPU, else ddp)")
	f.Int64Var(&w.tp, "tp", 1, "tensor parallel degree")
	f.Int64Var(&w.pp, "pp", 1, "pipeline parallel degree")
	f.Int64Var(&w.vp, "vp", 1, "virtual stages of a pipeline rank")
	f.Int64Var(&w.cp, "cp", 1, "context parallel degree")
	f.Int64Var(&w.ep, "ep", 1, "expert parallel degree")
	f.StringVar(&w.offload, "offload", "none", "what lives in host memory: none, optimizer, params or activations")
	f.StringVar(&w.attention, "attention", "sdpa", "eager, sdpa or flash")
	f.StringVar(&w.loss, "loss", "", "loss over the vocabulary: plain, chunked, liger or cce (default: the framework's)")
	f.StringVar(&w.framework, "framework", "", "pytorch, hf, deepspeed, torchtitan or megatron (default hf)")
	f.BoolVar(&w.compile, "compile", false, "torch.compile is used")
	f.BoolVar(&w.padded, "padded", false, "batches have padding")
	for name, choices := range choicesOf() {
		_ = c.RegisterFlagCompletionFunc(name, cobra.FixedCompletions(choices, cobra.ShellCompDirectiveNoFileComp))
	}
}

// choicesOf are the values of the flags that have a few.
func choicesOf() map[string][]string {
	return map[string][]string{
		"method":        {"full", "lora", "qlora"},
		"dtype":         {"fp32", "amp-bf16", "amp-fp16", "bf16", "fp16", "fp8"},
		"checkpointing": {"none", "selective", "full"},
		"sharding":      {"none", "ddp", "zero1", "zero2", "zero3", "fsdp", "fsdp2"},
		"offload":       {"none", "optimizer", "params", "activations"},
		"attention":     {"eager", "sdpa", "flash"},
		"loss":          {"plain", "chunked", "liger", "cce"},
		"framework":     {"pytorch", "hf", "deepspeed", "torchtitan", "megatron"},
	}
}

// stated reports whether one of the flags was given.
func (w *workloadFlags) stated(names ...string) bool {
	return slices.ContainsFunc(names, w.flags.Changed)
}

// check finds a flag with a value it cannot have.
func (w *workloadFlags) check() error {
	for name, choices := range choicesOf() {
		v := w.flags.Lookup(name).Value.String()
		if v != "" && !slices.Contains(choices, v) {
			return withHint(fmt.Errorf("--%s %q: not a choice", name, v), "the choices are "+strings.Join(choices, ", "))
		}
	}
	for _, n := range []struct {
		name string
		v    int64
		set  bool
	}{
		{"global-batch", w.batch, w.stated("global-batch")}, {"micro-batch", w.micro, w.stated("micro-batch")}, {"accum", w.accum, w.stated("accum")},
		{"seq", w.seq, true}, {"rank", w.rank, true}, {"tp", w.tp, true}, {"pp", w.pp, true}, {"vp", w.vp, true}, {"cp", w.cp, true}, {"ep", w.ep, true},
	} {
		if n.set && (n.v < 1 || n.v > 1<<24) {
			return withHint(fmt.Errorf("--%s %d: has to be at least 1", n.name, n.v), "give a whole number from 1 up")
		}
	}
	return nil
}

// findModel returns the model of --model: a file or folder if there is one of
// that name, else the catalogue's.
func (a *app) findModel(name string) (*model.Model, error) {
	if name == "" {
		return nil, withHint(errors.New("--model is missing"), "name a model, such as --model llama-3.1-8b, or point at a folder with its config.json")
	}
	s, err := openModel(name)
	if err != nil {
		return nil, err
	}
	if len(s.Stacks) == 0 && s.Type == "safetensors" {
		return nil, withHint(fmt.Errorf("%s: has tensors but no architecture", name), "point at the folder with the config.json beside it")
	}
	return s.Model, nil
}

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
				return r, withHint(err, "nearest: "+strings.Join(e.Choices, ", "), "or give --capacity")
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
	return r, nil
}

// build makes the workload on a number of cards. What nobody stated becomes an
// assumption.
func (w *workloadFlags) build(m *model.Model, cards gpu.Request) (*workload.Workload, error) {
	if err := w.check(); err != nil {
		return nil, err
	}
	world := int64(cards.Count)
	inner := w.tp * w.pp * w.cp
	if world%inner != 0 {
		return nil, withHint(fmt.Errorf("--tp %d × --pp %d × --cp %d do not divide %d GPUs", w.tp, w.pp, w.cp, world), fmt.Sprintf("give the GPUs as a multiple of %d, such as --gpu %dx…", inner, inner))
	}
	out := &workload.Workload{
		Model: m, Name: m.Name, Framework: workload.Framework(w.framework), Method: workload.Method(w.method), Seq: w.seq,
		Checkpointing: workload.Checkpointing(w.checkpointing), Attention: workload.Attention(w.attention), Loss: workload.Loss(w.loss),
		Offload: workload.Offload(w.offload), Sharding: workload.Sharding(w.sharding), Compile: w.compile, Padded: w.padded, Origins: map[string]workload.Origin{},
		Optimizer: workload.Optimizer{Name: w.optimizer},
	}
	out.GPU = workload.FromCard(&cards.Card)
	w.flags.Visit(func(f *pflag.Flag) { out.Origins[f.Name] = workload.Origin("flag --" + f.Name) })
	if out.Framework == "" {
		out.Framework = workload.HFTrainer
		out.Assume("framework", "hf", "nobody said which")
	}
	if out.Loss == workload.LossChunked {
		out.Kernels.ChunkedLoss = 8
	}
	w.precision(out)
	if out.Method.Adapted() {
		out.Adapter = workload.Adapter{Rank: w.rank, Targets: []string{"all-linear"}}
	}
	if out.Method == workload.QLoRA {
		out.Base = workload.NF4Double
	}
	if strings.Contains(w.optimizer, "fused") {
		out.Optimizer.Impl = "fused"
	}
	out.Optimizer.Paged = strings.Contains(w.optimizer, "paged")
	if err := w.sample(out); err != nil {
		return nil, err
	}
	if err := w.spread(out, world, inner); err != nil {
		return nil, err
	}
	if m.MaxSeq > 0 && w.seq > m.MaxSeq && m.Position == model.Learned {
		return nil, withHint(fmt.Errorf("--seq %d: %s has positions for %d tokens", w.seq, m.Name, m.MaxSeq), fmt.Sprintf("at most --seq %d", m.MaxSeq))
	}
	return out, nil
}

// sample sets what a sample is: tokens, or an image.
func (w *workloadFlags) sample(out *workload.Workload) error {
	m := out.Model
	switch {
	case m.Image == nil && w.image != "":
		return withHint(fmt.Errorf("--image %s: %s does not take images of a size that can be chosen", w.image, m.Name), "leave --image out")
	case m.Image == nil:
		return nil
	case w.stated("seq"):
		return withHint(fmt.Errorf("--seq %d: %s takes images", w.seq, m.Name), "--image 224 sets their size")
	case w.method != "full":
		return withHint(fmt.Errorf("--method %s: adapters are for networks of tokens, %s takes images", w.method, m.Name), "leave --method out")
	case w.stated("checkpointing", "tp", "pp", "vp", "cp", "ep"):
		return withHint(fmt.Errorf("%s has no layers of one kind: checkpointing and model parallelism are not known for it", m.Name), "leave --checkpointing, --tp, --pp, --vp, --cp and --ep out")
	}
	out.Seq = 1
	out.Image[0], out.Image[1] = m.Image.Size()
	if w.image == "" {
		return nil
	}
	height, width, two := strings.Cut(strings.ToLower(w.image), "x")
	if !two {
		width = height
	}
	for i, text := range []string{height, width} {
		n, err := strconv.ParseInt(strings.TrimSpace(text), 10, 64)
		if err != nil || n < 1 || n > 1<<16 {
			return withHint(fmt.Errorf("--image %q: not a size in pixels", w.image), "write it as 224 or 512x1024 (height x width)")
		}
		out.Image[i] = n
	}
	if _, err := m.Graph(1, out.Image[0], out.Image[1]); err != nil {
		return withHint(err, "--image with another size")
	}
	return nil
}

// precision sets the number formats.
func (w *workloadFlags) precision(out *workload.Workload) {
	switch {
	case w.dtype == "fp8":
		out.Precision, out.FP8 = workload.AMPBF16, workload.FP8Tensorwise
	case w.dtype != "":
		out.Precision = workload.Precision(w.dtype)
	case out.Method.Adapted():
		out.Precision = workload.BF16
	default:
		out.Precision = workload.AMPBF16
		out.Assume("precision", string(workload.AMPBF16), "float32 weights under autocast, as bf16=True does")
	}
	if out.GPU.Compute > 0 && out.GPU.Compute < 80 && w.dtype == "" { // no bfloat16 before Ampere
		out.Precision = map[workload.Precision]workload.Precision{workload.AMPBF16: workload.AMPFP16, workload.BF16: workload.FP16}[out.Precision]
	}
}

// spread sets batch and parallelism, and finds what contradicts itself.
func (w *workloadFlags) spread(out *workload.Workload, world, inner int64) error {
	data := world / inner
	micro, accum := w.micro, w.accum
	switch {
	case w.batch == 0:
		micro, accum = max(micro, 1), max(accum, 1)
	case micro > 0 && accum > 0:
		if micro*accum*data != w.batch {
			return withHint(fmt.Errorf("--micro-batch %d × --accum %d × %d data-parallel GPUs = %d, which is not --global-batch %d", micro, accum, data, micro*accum*data, w.batch),
				"leave one of them out: it follows from the others")
		}
	default:
		if w.batch%data != 0 && !w.stated("micro-batch", "accum") {
			// The plain setting uses as many ranks as divide the batch.
			for data > 1 && w.batch%data != 0 {
				data--
			}
		}
		per := w.batch / data
		switch {
		case w.batch%data != 0, micro > 0 && per%micro != 0, accum > 0 && per%accum != 0:
			return withHint(fmt.Errorf("--global-batch %d does not divide over %d data-parallel GPUs with %s", w.batch, data, given(micro, accum)),
				fmt.Sprintf("the nearest batches are %d and %d", nearBatch(w.batch, data*max(micro, 1)*max(accum, 1), false), nearBatch(w.batch, data*max(micro, 1)*max(accum, 1), true)))
		case micro > 0:
			accum = per / micro
		case accum > 0:
			micro = per / accum
		case out.Model.Image != nil: // whose norms may see the whole batch of a GPU
			micro, accum = per, 1
			out.Assume("micro_batch", strconv.FormatInt(per, 10), "only the batch of all GPUs was given")
		default:
			micro, accum = 1, per
			out.Assume("micro_batch", "1", "only the batch of all GPUs was given")
		}
	}
	out.MicroBatch, out.Accumulation = micro, accum
	out.Parallel = workload.Parallel{World: data * inner, Data: data, Tensor: w.tp, Pipeline: w.pp, Virtual: w.vp, Context: w.cp, Expert: w.ep}
	switch {
	case w.sharding == "none" && data > 1:
		return withHint(fmt.Errorf("--sharding none with %d data-parallel GPUs: they would not train one model", data), "--sharding ddp, zero1, zero2, zero3 or fsdp")
	case w.sharding == "" && data == 1:
		out.Sharding = workload.NoSharding
	case w.sharding == "":
		out.Sharding = workload.DDP
		out.Assume("sharding", "ddp", "nobody said how the GPUs share the work")
	}
	if w.ep > 1 && !slices.ContainsFunc(out.Model.Stacks, hasExperts) {
		return withHint(fmt.Errorf("--ep %d: %s has no experts", w.ep, out.Model.Name), "leave --ep out")
	}
	return nil
}

func hasExperts(s *model.Stack) bool {
	return slices.ContainsFunc(s.Layers, func(l *model.Layer) bool { return l.MoE != nil })
}

func given(micro, accum int64) string {
	switch {
	case micro > 0:
		return fmt.Sprintf("--micro-batch %d", micro)
	case accum > 0:
		return fmt.Sprintf("--accum %d", accum)
	}
	return "whole samples"
}

// nearBatch is the multiple of unit next to a batch.
func nearBatch(batch, unit int64, up bool) int64 {
	n := batch / unit
	if up || n == 0 {
		n++
	}
	return n * unit
}
