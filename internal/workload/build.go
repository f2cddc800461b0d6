package workload

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"unoom/internal/gpu"
	"unoom/internal/model"
)

// A SettingError says which setting cannot be, and what could be.
type SettingError struct {
	Msg   string
	Hints []string
}

func (e *SettingError) Error() string { return e.Msg }

func wrong(hint, format string, args ...any) error {
	return &SettingError{fmt.Sprintf(format, args...), []string{hint}}
}

// Choices are the values of the fields that have a few.
func Choices() map[Field][]string {
	return map[Field][]string{
		FieldMethod:        {"full", "lora", "qlora", "dora", "qdora", "frozen"},
		FieldBase:          {"nf4", "nf4-double", "int8", "gptq-4bit"},
		FieldObjective:     {"sft", "dpo", "kto", "simpo", "orpo", "cpo", "reward", "ppo", "grpo"},
		FieldDType:         {"fp32", "amp-bf16", "amp-fp16", "bf16", "fp16", "fp8"},
		FieldWeights:       {"fp32", "bf16", "fp16"},
		FieldAutocast:      {"none", "bf16", "fp16", "fp8"},
		FieldCheckpointing: {"none", "selective", "full"},
		FieldSharding:      {"none", "ddp", "zero1", "zero2", "zero3", "fsdp", "fsdp2"},
		FieldReshard:       {"always", "never"},
		FieldOffload:       {"none", "optimizer", "params", "activations", "optimizer+activations"},
		FieldAttention:     {"eager", "sdpa", "flash", "mem-efficient", "math", "flex"},
		FieldLoss:          {"plain", "chunked", "liger", "cce", "inplace", "megatron"},
		FieldKernels:       {"liger", "unsloth", "apex"},
		FieldFramework:     {"pytorch", "hf", "deepspeed", "torchtitan", "torchtune", "megatron", "litgpt"},
		FieldCompile:       {"true", "false"},
		FieldPadded:        {"true", "false"},
		FieldEMA:           {"true", "false"},
		FieldEval:          {"true", "false"},
		FieldEvalKeep:      {"loss", "logits", "ids"},
		FieldEvalGraph:     {"true", "false"},
		FieldSave:          {"none", "full", "full-gpu", "sharded", "merged"},
		FieldResume:        {"none", "cpu", "gpu"},
		FieldReentrant:     {"true", "false"},
		FieldInBackward:    {"true", "false"},
		FieldSequence:      {"true", "false"},
		FieldBucketView:    {"true", "false"},
	}
}

// counts are the fields that hold a number from 1 up.
func counts() []Field {
	return []Field{FieldGlobalBatch, FieldMicroBatch, FieldAccumulation, FieldSeq, FieldTargetSeq, FieldRank, FieldTensor, FieldPipeline, FieldVirtual,
		FieldContext, FieldExpert, FieldShard, FieldGPUs, FieldFrozen, FieldEvalBatch, FieldEvalSamples, FieldEvalAccumulation, FieldNewTokens, FieldBeams}
}

// Check finds a value that its field cannot have.
func (s *Statement) Check() error {
	choices := Choices()
	for _, f := range Fields() {
		v, ok := s.Settings[f]
		if !ok {
			continue
		}
		if list, few := choices[f]; few && !slices.Contains(list, v.Value) {
			return wrong("the choices are "+strings.Join(list, ", "), "%s: not a choice", v.cite())
		}
		if slices.Contains(counts(), f) {
			if n, ok := wholeNumber(v.Value); !ok || n < 1 || n > 1<<24 {
				return wrong("give a whole number from 1 up", "%s: has to be at least 1, and a whole number", v.cite())
			}
		}
	}
	for _, w := range s.missing {
		if _, ok := s.Settings[FieldSharding]; !ok && len(w.Args) > 1 {
			return wrong("put the file beside it, or say the sharding: --sharding zero3",
				"%s: %v names %v, which cannot be read: how the GPUs share the work is not known", w.Where, w.Args[0], w.Args[1])
		}
	}
	return nil
}

// builder makes a workload of a statement.
type builder struct {
	*Statement
	w     *Workload
	m     *model.Model
	world int64
}

// Build makes the workload of a model on a number of cards. What nobody stated is
// the default of the framework, or ours, and listed as an assumption.
func (s *Statement) Build(m *model.Model, cards gpu.Request) (*Workload, error) {
	if err := s.Check(); err != nil {
		return nil, err
	}
	w := &Workload{Model: m, Name: m.Name, Origins: map[string]Origin{}, Versions: map[string]string{}, GPU: FromCard(&cards.Card),
		Assumptions: slices.Clone(s.Assumed)}
	if len(s.Options) > 0 {
		w.Options = maps.Clone(s.Options)
	}
	for f, v := range s.Settings {
		w.Origins[string(f)] = v.Origin()
	}
	for f, lib := range map[Field]string{FieldTorch: "torch", FieldTransformers: "transformers"} {
		if v := s.Value(f); v != "" {
			w.Versions[lib] = v
		}
	}
	if w.Versions["torch"] == "" {
		newest := torchReleases[len(torchReleases)-1].version
		w.Versions["torch"] = newest
		w.Assume("torch", newest, "the newest that is known")
	}
	b := &builder{s, w, m, int64(max(cards.Count, 1))}
	w.Framework = Framework(b.choose(FieldFramework, string(HFTrainer)))
	w.Method = Method(b.quiet(FieldMethod, string(Full)))
	if o := b.Value(FieldObjective); o != "sft" {
		w.Objective = Objective(o)
	}
	w.AllocConf = s.Value(FieldAllocConf)
	w.Compile, w.EMA, w.Eval, w.Padded = b.yes(FieldCompile), b.yes(FieldEMA), b.yes(FieldEval), b.yes(FieldPadded)
	for _, step := range []func() error{b.adapter, b.sample, b.batch, b.spread, b.memory, b.precision, b.optimizer, b.kernels, b.passages, b.fits} {
		if err := step(); err != nil {
			return nil, err
		}
	}
	return w, nil
}

// quiet returns a field's value, the framework's default, which is listed, or
// what everybody takes for granted, which is not.
func (b *builder) quiet(f Field, otherwise string) string {
	if v, ok := b.Settings[f]; ok {
		return v.Value
	}
	for _, d := range b.Defaults {
		if d.Field == f {
			b.w.Assume(string(f), d.Value, d.Source)
			return d.Value
		}
	}
	return otherwise
}

// choose is quiet, but lists also what was taken for granted.
func (b *builder) choose(f Field, otherwise string) string {
	before := len(b.w.Assumptions)
	v := b.quiet(f, otherwise)
	if _, ok := b.Settings[f]; !ok && len(b.w.Assumptions) == before {
		b.w.Assume(string(f), v, NobodySaid)
	}
	return v
}

// NobodySaid is the reason of an assumption that no framework's default backs.
const NobodySaid = "nobody said"

func (b *builder) count(f Field, otherwise int64) int64 {
	n, _ := wholeNumber(b.choose(f, strconv.FormatInt(otherwise, 10)))
	return n
}

func (b *builder) yes(f Field) bool { return b.quiet(f, "false") == "true" }

func (b *builder) said(fields ...Field) (Stated, bool) {
	for _, f := range fields {
		if v, ok := b.Settings[f]; ok {
			return v, true
		}
	}
	return Stated{}, false
}

// cite names a setting, also one that nobody stated.
func (b *builder) cite(f Field) string {
	if v, ok := b.Settings[f]; ok {
		return v.cite()
	}
	return string(f)
}

func (b *builder) adapter() error {
	w := b.w
	w.Base = Quantization(b.quiet(FieldBase, ""))
	switch {
	case w.Method == Full && w.Base != NotQuantised:
		return wrong("train adapters on it: --method qlora", "%s: quantised weights are not trained, but the method is full", b.cite(FieldBase))
	case w.Method == QLoRA || w.Method == QDoRA:
		if w.Base == NotQuantised {
			w.Base = NF4Double
			w.Assume(string(FieldBase), string(w.Base), "what QLoRA's paper and most scripts take")
		}
	case w.Method == LoRA && (w.Base == NF4 || w.Base == NF4Double):
		w.Method = QLoRA
	case w.Method == FrozenPart:
		w.FrozenLayers = b.count(FieldFrozen, 1)
	}
	if !w.Method.Adapted() {
		if v, ok := b.said(FieldRank, FieldTargets); ok && v.Place == "" {
			return wrong("--method lora trains adapters", "%s: there are no adapters with method %s", v.cite(), w.Method)
		}
		return nil
	}
	w.Adapter.Rank = b.count(FieldRank, 16)
	w.Adapter.Targets = strings.Split(b.choose(FieldTargets, "all-linear"), ",")
	if d := b.Value(FieldDropout); d != "" {
		f, err := strconv.ParseFloat(d, 64)
		if err != nil || f < 0 || f >= 1 {
			return wrong("write it as 0.05", "%s: a probability is between 0 and 1", b.cite(FieldDropout))
		}
		w.Adapter.Dropout = f
	}
	return nil
}

// sample sets what a sample is: tokens, or an image.
func (b *builder) sample() error {
	w, m := b.w, b.m
	size, image := b.said(FieldImage)
	if m.Image == nil {
		if image && m.Sight == nil {
			return wrong("leave "+size.Name+" out", "%s: %s does not take images of a size that can be chosen", size.cite(), m.Name)
		}
		def := int64(2048)
		if m.MaxSeq > 0 && m.MaxSeq < def {
			def = m.MaxSeq
		}
		w.Seq, w.TargetSeq = b.count(FieldSeq, def), b.number(FieldTargetSeq, 0)
		return b.seen(size, image)
	}
	if v, ok := b.said(FieldSeq); ok {
		return wrong("--image 224 sets their size", "%s: %s takes images", v.cite(), m.Name)
	}
	if w.Method != Full {
		return wrong("leave it out", "%s: adapters are for networks of tokens, %s takes images", b.cite(FieldMethod), m.Name)
	}
	if v, ok := b.said(FieldCheckpointing, FieldTensor, FieldPipeline, FieldVirtual, FieldContext, FieldExpert); ok {
		return wrong("leave "+v.Name+" out", "%s: %s has no layers of one kind: checkpointing and model parallelism are not known for it", v.cite(), m.Name)
	}
	w.Seq = 1
	w.Image[0], w.Image[1] = m.Image.Size()
	if !image {
		return nil
	}
	if err := b.pixels(size); err != nil {
		return err
	}
	if _, err := m.Graph(1, w.Image[0], w.Image[1]); err != nil {
		return wrong("--image with another size", "%s: %v", size.cite(), err)
	}
	return nil
}

// pixels reads a size of images.
func (b *builder) pixels(size Stated) error {
	w := b.w
	height, width, two := strings.Cut(strings.ToLower(size.Value), "x")
	if !two {
		width = height
	}
	for i, text := range []string{height, width} {
		n, err := strconv.ParseInt(strings.TrimSpace(text), 10, 64)
		if err != nil || n < 1 || n > 1<<16 {
			return wrong("write it as 224 or 512x1024 (height x width)", "%s: not a size in pixels", size.cite())
		}
		w.Image[i] = n
	}
	return nil
}

// seen sets what a vision-language model is shown: an image with each sample,
// whose tokens are part of the sample's length, or text alone.
func (b *builder) seen(size Stated, image bool) error {
	w, s := b.w, b.m.Sight
	switch {
	case s == nil:
		return nil
	case !image:
		w.Assume(string(FieldImage), "none", "no size of images was given: it is run on text alone")
		return nil
	}
	if err := b.pixels(size); err != nil {
		return err
	}
	w.ImagesPerSample = 1
	w.Assume("images", "1", "one image of that size with each sample")
	if _, tokens := s.Patches(w.Image[0], w.Image[1]); tokens > w.Seq {
		return wrong(fmt.Sprintf("--seq %d or more", tokens), "%s: an image of %d x %d pixels is %d tokens, which a sequence of %d does not hold", size.cite(), w.Image[0], w.Image[1], tokens, w.Seq)
	}
	return nil
}

// batch sets micro-batch and accumulation, and the parallelism.
func (b *builder) batch() error {
	w := b.w
	p := Parallel{World: b.world, Tensor: b.number(FieldTensor, 1), Pipeline: b.number(FieldPipeline, 1), Virtual: b.number(FieldVirtual, 1),
		Context: b.number(FieldContext, 1), Expert: b.number(FieldExpert, 1), Shard: b.number(FieldShard, 0)}
	inner := p.Tensor * p.Pipeline * p.Context
	if inner > 1<<24 || b.world%inner != 0 {
		return wrong(fmt.Sprintf("give the GPUs as a multiple of %d, such as --gpu %dx…", inner, inner), "tp %d × pp %d × cp %d do not divide %d GPUs", p.Tensor, p.Pipeline, p.Context, b.world)
	}
	data := b.world / inner
	global, micro, accum := b.number(FieldGlobalBatch, 0), b.number(FieldMicroBatch, 0), b.number(FieldAccumulation, 0)
	if global > 0 && micro > 0 && accum > 0 && micro*accum*data != global {
		last, ok := b.givesWay(FieldAccumulation, FieldMicroBatch, FieldGlobalBatch)
		if !ok {
			return wrong("leave one of them out: it follows from the others", "%s × %s × %d data-parallel GPUs = %d, which is not %s",
				b.cite(FieldMicroBatch), b.cite(FieldAccumulation), data, micro*accum*data, b.cite(FieldGlobalBatch))
		}
		b.Warnings = append(b.Warnings, Warning{WarnNoEffect, b.Settings[last].Place, []any{b.Settings[last].Name, b.Value(last)}})
		switch last {
		case FieldGlobalBatch:
			global = 0
		case FieldMicroBatch:
			micro = 0
		default:
			accum = 0
		}
	}
	if global == 0 {
		if micro == 0 {
			micro = b.count(FieldMicroBatch, 1)
		}
		if accum == 0 {
			accum, _ = wholeNumber(b.quiet(FieldAccumulation, "1"))
		}
	} else {
		if global%data != 0 && micro == 0 && accum == 0 {
			for data > 1 && global%data != 0 { // the plain setting uses as many ranks as divide the batch
				data--
			}
		}
		per, unit := global/data, data*max(micro, 1)*max(accum, 1)
		switch {
		case global%data != 0, micro > 0 && per%micro != 0, accum > 0 && per%accum != 0:
			given := "whole samples"
			if v, ok := b.said(FieldMicroBatch, FieldAccumulation); ok {
				given = v.cite()
			}
			return wrong(fmt.Sprintf("the nearest batches are %d and %d", nearBatch(global, unit, false), nearBatch(global, unit, true)),
				"%s does not divide over %d data-parallel GPUs with %s", b.cite(FieldGlobalBatch), data, given)
		case micro > 0:
			accum = per / micro
		case accum > 0:
			micro = per / accum
		case b.m.Image != nil: // whose norms may see the whole batch of a GPU
			micro, accum = per, 1
			w.Assume(string(FieldMicroBatch), strconv.FormatInt(per, 10), "only the batch of all GPUs was given")
		default:
			micro, accum = 1, per
			w.Assume(string(FieldMicroBatch), "1", "only the batch of all GPUs was given")
		}
	}
	w.MicroBatch, w.Accumulation = micro, accum
	p.Data, p.World = data, data*inner
	p.Sequence = b.yes(FieldSequence) && p.Tensor > 1
	w.Parallel = p
	return nil
}

// givesWay returns the least important of several fields that contradict each
// other, the first of equals; false if all are as important.
func (b *builder) givesWay(fields ...Field) (Field, bool) {
	last, different := fields[0], false
	for _, f := range fields[1:] {
		different = different || b.rank[f] != b.rank[fields[0]]
		if b.rank[f] > b.rank[last] {
			last = f
		}
	}
	return last, different
}

// spread sets how data-parallel ranks share the states.
func (b *builder) spread() error {
	w := b.w
	p := &w.Parallel
	if p.Data > 1 || b.Says(FieldSharding) {
		w.Sharding = Sharding(b.quiet(FieldSharding, ""))
	}
	switch {
	case w.Sharding == NoSharding && p.Data > 1:
		if v, ok := b.said(FieldSharding); ok {
			return wrong("--sharding ddp, zero1, zero2, zero3 or fsdp", "%s with %d data-parallel GPUs: they would not train one model", v.cite(), p.Data)
		}
		w.Sharding = DDP
	case w.Sharding == "" && p.Data == 1:
		w.Sharding = NoSharding
	case w.Sharding == "":
		w.Sharding = DDP
		w.Assume(string(FieldSharding), "ddp", "nobody said how the GPUs share the work")
	}
	switch {
	case p.Pipeline > 1 && (w.Sharding == ZeRO2 || w.Sharding == ZeRO3):
		return wrong("--sharding zero1 goes with a pipeline; so does --pp 1", "%s with %s: ZeRO-2 and ZeRO-3 do not go with pipeline parallelism", b.cite(FieldSharding), b.cite(FieldPipeline))
	case p.Shard > 0 && (p.Data*p.Context)%p.Shard != 0:
		return wrong(fmt.Sprintf("give a divisor of %d", p.Data*p.Context), "%s: %d data-parallel GPUs do not divide into groups of %d", b.cite(FieldShard), p.Data*p.Context, p.Shard)
	case p.Shard == p.Data*p.Context:
		p.Shard = 0
	}
	w.ReshardAfterForward = b.quiet(FieldReshard, "")
	w.BucketView = b.yes(FieldBucketView)
	w.Optimizer.Distributed = w.Framework == Megatron && w.Sharding == ZeRO1
	if p.Expert > 1 && !slices.ContainsFunc(b.m.Stacks, hasExperts) {
		return wrong("leave it out", "%s: %s has no experts", b.cite(FieldExpert), b.m.Name)
	}
	return nil
}

// memory sets what is kept elsewhere or computed again.
func (b *builder) memory() error {
	w := b.w
	w.Checkpointing = b.checkpointing()
	w.Offload = Offload(b.quiet(FieldOffload, string(NoOffload)))
	if w.Offload == OffloadParams && !w.Sharding.Sharded() {
		return wrong("--sharding zero3 or fsdp, which can; or --offload optimizer", "%s with sharding %s: only ZeRO-3 and FSDP keep parameters in host memory", b.cite(FieldOffload), w.Sharding)
	}
	if v, ok := b.said(FieldReentrant); ok {
		is := v.Value == "true"
		w.Reentrant = &is
	}
	return nil
}

// checkpointing is what was stated, or the framework's default. Quantised weights
// are prepared by peft, which turns it on.
// Source: peft utils/other.py, prepare_model_for_kbit_training.
func (b *builder) checkpointing() Checkpointing {
	_, said := b.Settings[FieldCheckpointing]
	ofFile := slices.ContainsFunc(b.Defaults, func(d Default) bool { return d.Field == FieldCheckpointing })
	switch w := b.w; {
	case said, ofFile, b.m.Image != nil:
		return Checkpointing(b.quiet(FieldCheckpointing, string(NoCheckpointing)))
	case w.Framework == HFTrainer && w.Base != NotQuantised:
		w.Assume(string(FieldCheckpointing), string(FullCheckpoint), "peft's prepare_model_for_kbit_training turns it on")
		return FullCheckpoint
	}
	return Checkpointing(b.choose(FieldCheckpointing, string(NoCheckpointing)))
}

// precision puts together in which dtype weights are loaded and what autocast
// does, unless the precision is stated as one word.
func (b *builder) precision() error {
	w := b.w
	old := w.GPU.Compute > 0 && w.GPU.Compute < 80 && w.GPU.Vendor != "amd" // no bfloat16 before Ampere
	zero := w.Sharding == ZeRO1 || w.Sharding == ZeRO2 || w.Sharding == ZeRO3 || w.Framework == DeepSpeed || w.Framework == Megatron
	if v, ok := b.Settings[FieldDType]; ok {
		switch v.Value {
		case "fp8":
			w.Precision, w.FP8 = AMPBF16, FP8Tensorwise
		default:
			w.Precision = Precision(v.Value)
		}
		b.upcast()
		return nil
	}
	_, weightsSaid := b.Settings[FieldWeights]
	_, autocastSaid := b.Settings[FieldAutocast]
	fromFile := slices.ContainsFunc(b.Defaults, func(d Default) bool { return d.Field == FieldAutocast })
	if !weightsSaid && !autocastSaid && !fromFile {
		w.Precision = AMPBF16
		if w.Method.Adapted() || zero {
			w.Precision = BF16
		}
		if old {
			w.Precision = map[Precision]Precision{AMPBF16: AMPFP16, BF16: FP16}[w.Precision]
		}
		why := "float32 weights under autocast, as bf16=True does"
		switch {
		case w.Method.Adapted():
			why = "frozen weights need no float32"
		case zero:
			why = "16-bit weights; the optimizer keeps float32 copies"
		}
		w.Assume("precision", string(w.Precision), why)
		b.upcast()
		return nil
	}
	autocast := b.quiet(FieldAutocast, "none")
	loaded := b.quiet(FieldWeights, "")
	if loaded == "" {
		loaded = "fp32"
		if w.Method.Adapted() && autocast != "none" {
			loaded = strings.Replace(autocast, "fp8", "bf16", 1)
			w.Assume(string(FieldWeights), loaded, "frozen weights need no float32")
		} else if !zero {
			w.Assume(string(FieldWeights), loaded, "from_pretrained's default before transformers 5, which takes the checkpoint's dtype")
		}
	}
	half := func(name string) Precision {
		return map[string]Precision{"bf16": BF16, "fp16": FP16, "fp8": BF16}[name]
	}
	switch {
	case autocast == "none" && loaded == "fp32":
		w.Precision = FP32
	case autocast == "none":
		w.Precision = half(loaded)
	case zero || loaded != "fp32" || w.Method.Adapted():
		w.Precision = half(autocast)
	default:
		w.Precision = map[string]Precision{"bf16": AMPBF16, "fp16": AMPFP16, "fp8": AMPBF16}[autocast]
	}
	if autocast == "fp8" {
		w.FP8 = FP8Tensorwise
	}
	if w.Base != NotQuantised && w.Precision == FP32 {
		w.Precision = BF16
	}
	if autocast != "none" {
		b.upcast()
	}
	return nil
}

// upcast notes that accelerate's FSDP keeps trained weights in float32 and
// gathers them in 16 bits wherever mixed precision is on.
// Source: accelerate accelerator.py, prepare_model for FSDP.
func (b *builder) upcast() {
	w := b.w
	dtype := b.Value(FieldDType)
	if w.Framework != HFTrainer || w.Sharding != FSDP && w.Sharding != FSDP2 || w.Method.Adapted() || dtype == "bf16" || dtype == "fp16" {
		return
	}
	switch w.Precision {
	case AMPBF16, BF16:
		w.Precision = BF16
	case AMPFP16, FP16:
		w.Precision = FP16
	default:
		return
	}
	if w.Options == nil {
		w.Options = map[string]string{}
	}
	w.Options["upcast"] = "fp32"
}

func (b *builder) optimizer() error {
	w := b.w
	name := b.choose(FieldOptimizer, "adamw_torch_fused")
	if known := Optimizers(); !slices.Contains(known, OptimizerName(name)) {
		hint := "name one that keeps as much for each weight, such as adamw, sgd_momentum or adamw_8bit"
		if near := model.Nearest(OptimizerName(name), known, 3); len(near) > 0 {
			hint = "nearest: " + strings.Join(near, ", ")
		}
		return wrong(hint, "%s: this optimizer is not known", b.cite(FieldOptimizer))
	}
	w.Optimizer.Name = name
	low := strings.ToLower(name)
	switch {
	case strings.Contains(low, "fused"):
		w.Optimizer.Impl = "fused"
	case low == "adamw_torch" && w.Framework == HFTrainer:
		w.Optimizer.Impl = "foreach"
	}
	w.Optimizer.Paged = strings.Contains(low, "paged")
	w.Optimizer.InBackward = b.yes(FieldInBackward)
	return nil
}

func (b *builder) kernels() error {
	w := b.w
	w.Attention = Attention(b.choose(FieldAttention, string(SDPA)))
	w.Loss = Loss(b.quiet(FieldLoss, ""))
	if w.Loss == LossChunked {
		w.Kernels.ChunkedLoss = 8
	}
	switch k := b.Value(FieldKernels); k {
	case "liger":
		w.Kernels.FusedNorm, w.Kernels.FusedRope, w.Kernels.FusedMLP = k, k, k
		if w.Loss == LossDefault {
			w.Loss = LossLiger
		}
	case "unsloth":
		w.Kernels.FusedNorm, w.Kernels.FusedRope = k, k
		if w.Method.Adapted() {
			w.Kernels.FusedLoRA = k
		}
		if w.Loss == LossDefault {
			w.Loss = LossInPlace
		}
	case "apex":
		w.Kernels.FusedNorm = k
	}
	return nil
}
