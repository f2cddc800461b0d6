package workload

import (
	"regexp"
	"slices"
	"strings"
)

// A Field is one thing that can be said of a run. The names are those of the
// flags with underscores, and the keys of unoom.yaml.
type Field string

// The fields. The values are texts in the terms of the flags.
const (
	FieldModel            Field = "model"
	FieldGPU              Field = "gpu"
	FieldCapacity         Field = "capacity"
	FieldGPUs             Field = "gpus" // how many, where the launcher says so
	FieldFramework        Field = "framework"
	FieldMethod           Field = "method"
	FieldRank             Field = "rank"
	FieldTargets          Field = "targets" // separated by commas
	FieldDropout          Field = "lora_dropout"
	FieldBase             Field = "base"
	FieldObjective        Field = "objective"
	FieldDType            Field = "dtype"
	FieldWeights          Field = "weights"  // dtype in which weights are loaded: fp32, bf16, fp16
	FieldAutocast         Field = "autocast" // none, bf16, fp16, fp8
	FieldOptimizer        Field = "optimizer"
	FieldInBackward       Field = "optimizer_in_backward"
	FieldGlobalBatch      Field = "global_batch"
	FieldMicroBatch       Field = "micro_batch"
	FieldAccumulation     Field = "accum"
	FieldSeq              Field = "seq"
	FieldTargetSeq        Field = "target_seq"
	FieldImage            Field = "image"
	FieldCheckpointing    Field = "checkpointing"
	FieldReentrant        Field = "reentrant"
	FieldSharding         Field = "sharding"
	FieldReshard          Field = "reshard_after_forward"
	FieldBucketView       Field = "gradient_as_bucket_view"
	FieldTensor           Field = "tp"
	FieldSequence         Field = "sequence_parallel"
	FieldPipeline         Field = "pp"
	FieldVirtual          Field = "vp"
	FieldContext          Field = "cp"
	FieldExpert           Field = "ep"
	FieldShard            Field = "shard" // ranks that share one copy under FSDP
	FieldOffload          Field = "offload"
	FieldAttention        Field = "attention"
	FieldLoss             Field = "loss"
	FieldKernels          Field = "kernels" // liger, unsloth, apex
	FieldCompile          Field = "compile"
	FieldPadded           Field = "padded"
	FieldEMA              Field = "ema"
	FieldFrozen           Field = "frozen_layers"
	FieldEval             Field = "eval"
	FieldEvalBatch        Field = "eval_batch"
	FieldEvalSamples      Field = "eval_samples"
	FieldEvalKeep         Field = "eval_keep"         // loss, logits or ids
	FieldEvalAccumulation Field = "eval_accumulation" // batches until what is kept goes to the host
	FieldEvalGraph        Field = "eval_graph"        // gradients are recorded
	FieldNewTokens        Field = "new_tokens"        // generated for a sample in the evaluation
	FieldBeams            Field = "beams"
	FieldSave             Field = "save"
	FieldResume           Field = "resume"
	FieldAllocConf        Field = "alloc_conf"
	FieldTorch            Field = "torch"
	FieldTransformers     Field = "transformers"
)

// Fields lists the fields in the order of the manual.
func Fields() []Field {
	return []Field{
		FieldModel, FieldGPU, FieldCapacity, FieldGPUs, FieldFramework, FieldMethod, FieldRank, FieldTargets, FieldDropout, FieldBase, FieldObjective,
		FieldDType, FieldWeights, FieldAutocast, FieldOptimizer, FieldInBackward, FieldGlobalBatch, FieldMicroBatch, FieldAccumulation,
		FieldSeq, FieldTargetSeq, FieldImage, FieldCheckpointing, FieldReentrant, FieldSharding, FieldReshard, FieldBucketView, FieldTensor,
		FieldSequence, FieldPipeline, FieldVirtual, FieldContext, FieldExpert, FieldShard, FieldOffload, FieldAttention, FieldLoss,
		FieldKernels, FieldCompile, FieldPadded, FieldEMA, FieldFrozen, FieldEval, FieldEvalBatch, FieldEvalSamples,
		FieldEvalKeep, FieldEvalAccumulation, FieldEvalGraph, FieldNewTokens, FieldBeams, FieldSave, FieldResume, FieldAllocConf, FieldTorch, FieldTransformers,
	}
}

// Stated is a value that somebody stated.
type Stated struct {
	Value string
	// Name is what it is called where it stands: "--seq", "sequence_len".
	Name string
	// Place is the file and line, or the command; "" for a flag.
	Place string
	// Raw is the value as it is written there, where that differs.
	Raw string
}

// Origin is the place for a reader of the result.
func (s Stated) Origin() Origin {
	if s.Place == "" {
		return Origin("flag " + s.Name)
	}
	return Origin(s.Place + ": " + s.Name)
}

// cite names the setting in an error: "--tp 3", "ds.json:4: stage 7".
func (s Stated) cite() string {
	v := s.Raw
	if v == "" {
		v = s.Value
	}
	if s.Place == "" {
		return s.Name + " " + v
	}
	return s.Place + ": " + s.Name + " " + v
}

// Settings is what one source says.
type Settings map[Field]Stated

// A Warning is something that a reader noticed: a key that matters and is not
// modelled, two sources that contradict each other. The text is the caller's, by
// the code.
type Warning struct {
	Code  string
	Where string
	Args  []any
}

// The codes of warnings.
const (
	WarnContradiction = "contradiction"  // field, taken value and origin, other value and origin
	WarnNotModelled   = "not_modelled"   // key, value
	WarnUnread        = "unread"         // keys
	WarnMissingFile   = "missing_file"   // key, name
	WarnUnresolved    = "unresolved"     // key, value
	WarnUnknownValue  = "unknown_value"  // key, value
	WarnFollowed      = "followed"       // a file that was read on behalf of another
	WarnNoEffect      = "no_effect"      // key, value
	WarnSeveral       = "several_launch" // a script launches more than once
)

// A Reading is what a file or a command says, in our terms.
type Reading struct {
	// Name is the file's name, or "command line".
	Name string
	Kind Kind
	// Settings are this source's own; Also are what it refers to, which counts
	// less.
	Settings Settings
	Also     []*Reading
	Warnings []Warning
	// Options are settings of one framework by its own names.
	Options map[string]string
	// Defaults are what the framework does where nothing is said.
	Defaults []Default
}

// A Default is what a framework does where nobody says anything.
type Default struct {
	Field  Field
	Value  string
	Name   string // the framework's own: "TrainingArguments.per_device_train_batch_size"
	Source string
}

// flat lists the reading and what it refers to, the more important first.
func (r *Reading) flat() []*Reading {
	out := []*Reading{r}
	for _, a := range r.Also {
		out = append(out, a.flat()...)
	}
	return out
}

// below is 1 for what only surrounds a training program.
func (k Kind) below() int {
	if k == KindAccelerate || k == KindDeepSpeed {
		return 1
	}
	return 0
}

// A Statement is what all sources say together: for each field the value of the
// most important source.
type Statement struct {
	Settings Settings
	Options  map[string]string
	Defaults []Default
	Warnings []Warning
	Kinds    []Kind
	// Assumed are assumptions of the caller, which found the model.
	Assumed []Assumption
	// rank is the position of the source of each field; less counts more.
	rank map[Field]int
	// missing are files that were referred to and not found.
	missing []Warning
}

// Combine puts sources together: flags count most, then commands, then files, of
// which a later one counts more than an earlier one, and those of accelerate and
// DeepSpeed less than those of a training program, whose own arguments win. Two
// files, or a file and a command, that say different things are warned of; a flag
// may say something else without a word.
func Combine(flags Settings, commands, files []*Reading) *Statement {
	out := &Statement{Settings: Settings{}, Options: map[string]string{}, rank: map[Field]int{}}
	for f, s := range flags {
		out.Settings[f], out.rank[f] = s, 0
	}
	var sources []*Reading
	for _, c := range commands {
		sources = append(sources, c.flat()...)
	}
	for i := len(files) - 1; i >= 0; i-- {
		sources = append(sources, files[i].flat()...)
	}
	slices.SortStableFunc(sources, func(a, b *Reading) int { return a.Kind.below() - b.Kind.below() })
	for i, r := range sources {
		out.Kinds = append(out.Kinds, r.Kind)
		out.Warnings = append(out.Warnings, r.Warnings...)
		for _, w := range r.Warnings {
			if w.Code == WarnMissingFile {
				out.missing = append(out.missing, w)
			}
		}
		for k, v := range r.Options {
			if _, ok := out.Options[k]; !ok {
				out.Options[k] = v
			}
		}
		for _, d := range r.Defaults {
			if !slices.ContainsFunc(out.Defaults, func(o Default) bool { return o.Field == d.Field }) {
				out.Defaults = append(out.Defaults, d)
			}
		}
		for _, f := range Fields() {
			s, ok := r.Settings[f]
			if !ok {
				continue
			}
			have, taken := out.Settings[f]
			switch {
			case !taken:
				out.Settings[f], out.rank[f] = s, i+1
			case have.Value != s.Value && out.rank[f] > 0 && f != FieldFramework:
				out.Warnings = append(out.Warnings, Warning{WarnContradiction, s.Place, []any{string(f), have.Value, string(have.Origin()), s.Value, string(s.Origin())}})
			}
		}
	}
	return out
}

// Value returns what is said of a field, "" if nothing is.
func (s *Statement) Value(f Field) string { return s.Settings[f].Value }

// number returns a count, or what to take in its place.
func (s *Statement) number(f Field, otherwise int64) int64 {
	if n, ok := wholeNumber(s.Value(f)); ok {
		return n
	}
	return otherwise
}

// Says reports whether somebody stated one of the fields.
func (s *Statement) Says(fields ...Field) bool {
	return slices.ContainsFunc(fields, func(f Field) bool { _, ok := s.Settings[f]; return ok })
}

// endings are what follows a model's name without changing its sizes.
var endings = regexp.MustCompile(`(?i)-(hf|instruct|chat|it|pt|base|fp16|bf16|fp8|nf4|bnb|4bit|8bit|unsloth|\d{4}|safeguard)$`)

// ModelNames are the names under which the model may be known: as it is written,
// without what stands before it in a path, without the ending of a tuned one. A
// flag is taken at its word.
func (s *Statement) ModelNames() []string {
	whole := strings.TrimRight(s.Value(FieldModel), "/")
	out := []string{whole}
	if s.Settings[FieldModel].Place == "" {
		return out
	}
	base := whole[strings.LastIndexByte(whole, '/')+1:]
	for base != "" && !slices.Contains(out, base) {
		out = append(out, base)
		base = endings.ReplaceAllString(base, "")
	}
	return out
}

// Canonical writes a value in our terms where the field has another word for it:
// --gradient-checkpointing true, --attn-implementation flash_attention_2.
func Canonical(f Field, value string) string {
	low := strings.ToLower(strings.TrimSpace(value))
	var words map[string]string
	switch f {
	case FieldCheckpointing:
		words = map[string]string{"true": "full", "on": "full", "yes": "full", "false": "none", "off": "none", "no": "none", "op": "selective"}
	case FieldAttention:
		words = attentionWords
	case FieldSharding:
		words = map[string]string{"zero-1": "zero1", "zero-2": "zero2", "zero-3": "zero3", "full_shard": "fsdp", "fsdp1": "fsdp", "no": "none"}
	case FieldDType:
		words = map[string]string{"float32": "fp32", "bfloat16": "bf16", "float16": "fp16", "bf16-mixed": "amp-bf16", "16-mixed": "amp-fp16", "bf16-true": "bf16", "16-true": "fp16", "32-true": "fp32"}
	}
	if v, ok := words[low]; ok {
		return v
	}
	if _, few := Choices()[f]; few {
		return low
	}
	return value
}
