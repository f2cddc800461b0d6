package memory

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"unoom/catalog"
	"unoom/internal/workload"
)

// A Variant is one way in which a library, in a range of versions, differs from
// others where it shows in memory. It is data: an entry of catalog/variants.
type Variant struct {
	Name       string   `json:"name"`
	Frameworks []string `json:"frameworks"`
	Flavour    string   `json:"flavour"`
	Library    string   `json:"library"`
	From       string   `json:"from"`
	Before     string   `json:"before"`
	// Stated says that the entry is only about workloads that state the version.
	Stated    bool     `json:"stated"`
	Attention []string `json:"attention"`
	Families  []string `json:"families"`
	Methods   []string `json:"methods"`
	Shardings []string `json:"shardings"`
	Kernels   []string `json:"kernels"`
	// Passage says that the entry is only about runs that do this beside their
	// training steps: evaluate, or resume.
	Passage string            `json:"passage"`
	Set     map[string]string `json:"set"`
	// Otherwise is what a setting that no version decides is elsewhere: the
	// interval spans it.
	Otherwise map[string]string `json:"otherwise"`
	Source    string            `json:"source"`
}

// Variants is the list, in the order in which later entries win over earlier
// ones that are no more specific.
type Variants []Variant

// PublishedVariants returns the list that the program carries. Callers keep it.
func PublishedVariants() (Variants, error) {
	var vs Variants
	if err := json.Unmarshal([]byte(catalog.Variants), &vs); err != nil {
		return nil, fmt.Errorf("catalogue of variants: %w", err)
	}
	for i := range vs {
		for k, v := range vs[i].Set {
			var l library
			if err := l.set(k, v); err != nil {
				return nil, fmt.Errorf("catalogue of variants: %s: %w", vs[i].Name, err)
			}
		}
	}
	return vs, nil
}

// applies reports whether v is about the workload, leaving versions aside.
func (v *Variant) applies(w *workload.Workload) bool {
	in := func(list []string, value string) bool { return len(list) == 0 || slices.Contains(list, value) }
	if v.Flavour != "" {
		return v.Flavour == w.Options["flavour"]
	}
	switch {
	case v.Passage == "evaluation" && !w.Eval, v.Passage == "resume" && w.Resume == workload.ResumeNothing:
		return false
	}
	return in(v.Frameworks, string(w.Framework)) && in(v.Attention, string(w.Attention)) &&
		in(v.Methods, string(w.Method)) && in(v.Shardings, string(w.Sharding)) && (len(v.Families) == 0 || w.Model != nil && in(v.Families, w.Model.Type))
}

// holds reports whether the version of the library is within the entry's range,
// and whether that is known.
func (v *Variant) holds(w *workload.Workload) (yes, known bool) {
	if v.Library == "" || v.From == "" && v.Before == "" {
		return true, true
	}
	version := w.Version(v.Library)
	if version == "" {
		return false, false
	}
	if v.Library == "date" && (vague(version, v.From) || vague(version, v.Before)) {
		return true, false
	}
	return (v.From == "" || !before(version, v.From)) && (v.Before == "" || before(version, v.Before)), true
}

// vague reports whether a date is a year alone that leaves open on which side
// of a month it is.
func vague(date, month string) bool {
	return len(date) == 4 && strings.HasPrefix(month, date)
}

// before reports whether version a is earlier than b, comparing as many numbers
// as b has.
func before(a, b string) bool {
	x, y := numbers(a), numbers(b)
	for i := range y {
		n := 0
		if i < len(x) {
			n = x[i]
		}
		if n != y[i] {
			return n < y[i]
		}
	}
	return false
}

func numbers(version string) []int {
	var out []int
	for _, f := range strings.FieldsFunc(version, func(r rune) bool { return r == '.' || r == '-' }) {
		end := strings.IndexFunc(f, func(r rune) bool { return r < '0' || r > '9' })
		if end < 0 {
			end = len(f)
		}
		n, err := strconv.Atoi(f[:end])
		if err != nil {
			break
		}
		out = append(out, n)
		if end < len(f) {
			break
		}
	}
	return out
}

// choice is the value of one setting of the library, and what else it could be.
type choice struct {
	key    string
	value  string
	from   *Variant
	others []string // values of other versions, where the version is not known
}

// choose returns the choices that the list makes for a workload.
func (vs Variants) choose(w *workload.Workload) []choice {
	var out []choice
	at := map[string]int{}
	for i := range vs {
		v := &vs[i]
		if !v.applies(w) {
			continue
		}
		yes, known := v.holds(w)
		if known && !yes || v.Stated && !known {
			continue
		}
		for _, k := range sortedKeys(v.Set) {
			c := choice{key: k, value: v.Set[k], from: v}
			if o, ok := v.Otherwise[k]; ok {
				c.others = append(c.others, o)
			}
			j, seen := at[k]
			if !seen {
				at[k] = len(out)
				out = append(out, c)
				continue
			}
			old := &out[j]
			if old.from.Flavour != "" && v.Flavour == "" {
				continue // what a distribution sets stands above the library's default
			}
			if !known && old.value != c.value {
				// A version that nobody stated: the later entry is the newer
				// code and is taken, the other stays possible.
				c.others = append(slices.Clone(old.others), old.value)
			}
			*old = c
		}
	}
	// What only older code does is not taken where the version is not known.
	return slices.DeleteFunc(out, func(c choice) bool {
		_, known := c.from.holds(w)
		return !known && c.from.From == "" && c.from.Before != ""
	})
}

func sortedKeys(m map[string]string) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

// choose sets a setting to the style that has a name.
func choose[T ~uint8 | ~int](to *T, names []string, key, value string) error {
	i := slices.Index(names, value)
	if i < 0 {
		return fmt.Errorf("%s: %q is not one of %v", key, value, names)
	}
	*to = T(i)
	return nil
}

// set changes one setting of the library, by the names that the catalogue uses.
func (l *library) set(key, value string) error {
	flag := func(to *bool) error {
		switch value {
		case "true", "on":
			*to = true
		case "false", "off":
			*to = false
		default:
			return fmt.Errorf("%s: %q is neither true nor false", key, value)
		}
		return nil
	}
	switch key {
	case "loss":
		return choose(&l.loss, lossNames, key, value)
	case "norm":
		return choose(&l.norm, normNames, key, value)
	case "rope":
		return choose(&l.rope, ropeNames, key, value)
	case "adam":
		return choose(&l.adam, implNames, key, value)
	case "repeat_kv":
		return flag(&l.repeatKV)
	case "contiguous":
		return flag(&l.contiguous)
	case "copy_output":
		return flag(&l.copyOutput)
	case "shared_rope":
		return flag(&l.sharedRope)
	case "reentrant":
		return flag(&l.reentrant)
	case "outputs_float":
		return flag(&l.outputsFloat)
	case "autocast":
		return flag(&l.autocast)
	case "lora_dropout":
		return flag(&l.loraDropout)
	case "alloc_conf":
		l.allocConf = value
	case "adapter_dtype":
		l.adapterBase = value == "base"
	case "inputs":
		n, err := strconv.Atoi(value)
		if err != nil || n < 1 {
			return fmt.Errorf("inputs: %q is not a count", value)
		}
		l.inputs = n
	case "shard_outside":
		return flag(&l.shardOutside)
	case "zero_overlap":
		return flag(&l.zeroOverlap)
	case "zero_apart":
		return flag(&l.zeroApart)
	case "zero_copy_back":
		return flag(&l.zeroCopyBack)
	case "reduce_bucket":
		n, err := strconv.ParseInt(value, 10, 64)
		if err != nil || n < 1 {
			return fmt.Errorf("reduce_bucket: %q is not a number of elements", value)
		}
		l.reduceBucket = n
	case "log_probs":
		return choose(&l.logProbs, logProbNames, key, value)
	case "answers_float":
		return flag(&l.answersFloat)
	case "holds_answers":
		return flag(&l.holdsAnswers)
	case "fsdp2_frozen_float":
		return flag(&l.fsdp2FrozenFloat)
	case "fsdp_upcast":
		return flag(&l.fsdpUpcast)
	case "layer_norm":
		l.pythonNorm, l.lowNorm = value == "python", value == "low"
	case "gelu":
		l.pythonGELU = value == "python"
	case "zero_grad":
		l.keepGrads = value == "zeros"
		return l.images.set(key, value)
	case "keep_logits":
		return flag(&l.keepLogits)
	case "chunked_head":
		return flag(&l.chunkedHead)
	case "compiled_loss":
		return flag(&l.compiledLoss)
	case "float_in_model":
		return flag(&l.floatInModel)
	case "grouped_ends":
		return flag(&l.groupedEnds)
	case "nf4":
		l.nf4Double = value == "double"
	case "modules":
		l.eagerModules = value == "eager"
	case "eval_cache":
		return flag(&l.evalCache)
	case "eval_skip_logits":
		return flag(&l.skipLogits)
	case "generate_all_logits":
		return flag(&l.allLogits)
	case "deep_copies":
		return flag(&l.deepCopies)
	case "kbit":
		l.kbitNormsOnly = value == "norms-only"
	default:
		return l.images.set(key, value)
	}
	return nil
}

// The names of settings in the catalogue, in the order of their constants.
var (
	lossNames = []string{"shift-copy", "forward-copy", "shift-labels", "fused-linear", "kernel"}
	normNames = []string{"eager", "fused", "in-place", "liger"}
	ropeNames = []string{"python", "in-place", "kernel", "complex"}
	implNames = []string{"open", "foreach", "loop", "fused"}

	logProbNames = []string{"rows", "whole", "halves"}
)
