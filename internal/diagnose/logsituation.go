package diagnose

import (
	"strconv"
	"strings"

	"unoom/internal/oomlog"
	"unoom/internal/remedy"
)

// complete adds to a situation what the text says of the setting beyond what
// the rules look at.
func (s *signals) complete(sit *remedy.Situation) {
	facts := s.res.Facts
	text := func(kind oomlog.FactKind) string {
		v, _ := facts.Get(kind)
		return strings.ToLower(v.Value)
	}
	count := func(kind oomlog.FactKind) int {
		if n := facts.Int(kind); n < 1<<31 {
			return int(n)
		}
		return 0
	}
	sit.EvalBatch, sit.Platform = s.evalBatch, s.platform
	sit.Workers, sit.Vocabulary = count(oomlog.FactWorkers), count(oomlog.FactVocabulary)
	sit.Params = facts.Int(oomlog.FactParameters)
	sit.Versions = map[string]string{}
	for lib, kind := range map[string]oomlog.FactKind{"torch": oomlog.FactTorch, "transformers": oomlog.FactTransformers} {
		if v := text(kind); v != "" {
			sit.Versions[lib] = v
		}
	}
	if v, ok := facts.Get(oomlog.FactAllocConf); ok {
		sit.AllocatorConf = v.Value
	}
	if yes, known := facts.Is(oomlog.FactCompile); known {
		sit.Compile = &yes
	}
	if s.fail != nil {
		f := s.fail.Figures
		if s.fail.Device == "MPS" {
			sit.Platform = "macos" // whose limit is the system's, not the job's
		} else if f.Allowed.Known {
			sit.Cap = f.Allowed.Bytes
		}
		if s.class == oomlog.ClassOnChip {
			sit.SharedMemoryNeeded, sit.SharedMemoryLimit = f.Required.Bytes, f.Limit.Bytes
		}
	}
	if sit.Framework == remedy.PyTorch && s.otherStack() {
		sit.Framework = remedy.OtherStack
	}
	sit.Sharding = s.sharding(text)
	sit.Method = method(text)
	sit.Attention = attentionOf(text(oomlog.FactAttention))
	if strings.Contains(strings.ToLower(s.optimizer), "fused") {
		on := true
		sit.FusedOptimizer = &on
	}
}

// otherStack reports whether the failure is of JAX, TensorFlow or another
// framework that is not PyTorch.
func (s *signals) otherStack() bool {
	switch s.software {
	case "jax", "tensorflow", "paddle":
		return true
	}
	if s.fail == nil {
		return false
	}
	family, _, _ := strings.Cut(s.fail.Pattern, ".")
	return family == "xla" || family == "tf" || family == "tensorflow" || family == "paddle"
}

// sharding names how the job is spread over the ranks, "" if the text does not say.
func (s *signals) sharding(text func(oomlog.FactKind) string) string {
	switch zero := text(oomlog.FactZeROStage); zero {
	case "1", "2", "3":
		return "zero" + zero
	case "1_or_2":
		return "zero2"
	}
	switch v := text(oomlog.FactFSDP); v {
	case "", "false", "none", "null", "no", "[]", "no_shard":
	default:
		return "fsdp"
	}
	switch {
	case s.sees("data_parallel.py", "dataparallel") && !s.sees("distributed"):
		return "dp"
	case s.sees("nn/parallel/distributed.py", "distributeddataparallel"):
		return "ddp"
	}
	return ""
}

// method names what is trained, "" if the text does not say.
func method(text func(oomlog.FactKind) string) string {
	lora, quantized := text(oomlog.FactLoRA), text(oomlog.FactQuantization)
	switch lora {
	case "", "false", "none", "null", "0", "no":
		return ""
	case "full":
		return "full"
	}
	switch quantized {
	case "4", "true", "4bit", "nf4", "bitsandbytes":
		return "qlora"
	}
	return "lora"
}

// attentionOf maps what libraries call an implementation.
func attentionOf(value string) string {
	switch {
	case value == "eager" || value == "math":
		return "eager"
	case value == "sdpa":
		return "sdpa"
	case value == "true" || strings.Contains(value, "flash"):
		return "flash"
	}
	return ""
}

// estimateCommand is the command that computes what this setting needs, with
// what is known of it.
func (s *signals) estimateCommand() string {
	words := []string{"unoom estimate"}
	add := func(flag, value string) {
		if value != "" && value != "0" {
			if strings.ContainsAny(value, " \"'$&|;<>()") {
				value = "'" + strings.ReplaceAll(value, "'", "") + "'"
			}
			words = append(words, flag, value)
		}
	}
	add("--model", or(s.model, "MODEL"))
	add("--gpu", s.gpu)
	add("--micro-batch", strconv.Itoa(s.batch))
	add("--accum", strconv.Itoa(s.accumulation))
	add("--seq", strconv.Itoa(s.sequence))
	return strings.Join(words, " ")
}
