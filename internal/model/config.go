package model

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strings"
)

// configLimit is the largest config.json that is read. Real ones have a few
// KiB; quantised ones with a list of every module reach one MiB.
const configLimit = 4 << 20

// A ConfigError says what in a model's configuration cannot be used.
type ConfigError struct {
	Name string // the file or catalogue entry
	Key  string // the key, "" if it is the file as a whole
	Msg  string
	Hint string
}

func (e *ConfigError) Error() string {
	if e.Key == "" {
		return fmt.Sprintf("model %s: %s", e.Name, e.Msg)
	}
	return fmt.Sprintf("model %s: %s: %s", e.Name, e.Key, e.Msg)
}

// An UnknownTypeError says that a model_type is not one that is known.
type UnknownTypeError struct {
	Name    string   // the file or catalogue entry
	Type    string   // what it says
	Nearest []string // the known types that are spelled most like it
}

func (e *UnknownTypeError) Error() string {
	return fmt.Sprintf("model %s: model_type %q is not one that unoom knows", e.Name, e.Type)
}

// Options choose what is put on top of a network and, where a configuration
// does not say, how it is implemented.
type Options struct {
	// Head overrides what the configuration's architectures say.
	Head HeadKind
	// Labels is the number of classes of HeadClassify, 0: what the
	// configuration says, else 2.
	Labels int64
}

// Parse reads a Hugging Face config.json. name is used in errors and as the
// model's name.
func Parse(name string, data []byte, opt Options) (*Model, error) {
	if len(data) > configLimit {
		return nil, &ConfigError{Name: name, Msg: fmt.Sprintf("%d bytes are too many for a config.json", len(data))}
	}
	c := &config{name: name, opt: opt, raw: map[string]json.RawMessage{}}
	dec := json.NewDecoder(bytes.NewReader(withoutInfinity(data)))
	if err := dec.Decode(&c.raw); err != nil {
		return nil, jsonError(name, data, err)
	}
	kind := c.textOr("", "model_type")
	if kind == "" {
		if c.has("_class_name") {
			kind = c.textOr("", "_class_name") // diffusers
		} else {
			return nil, &ConfigError{Name: name, Key: "model_type", Msg: "is missing: this is not the config.json of a transformers model",
				Hint: "point at the folder of the model, or give its dimensions"}
		}
	}
	build := builderOf(kind)
	if build == nil {
		return nil, &UnknownTypeError{name, kind, Nearest(kind, KnownTypes(), 3)}
	}
	m := build(c)
	m.Name, m.Type = name, kind
	if q := c.object("quantization_config"); q != c {
		m.Quantized = q.textOr("bitsandbytes", "quant_method")
	}
	if m.DType == "" {
		m.DType = c.dtype()
	}
	if err := c.err(); err != nil {
		return nil, err
	}
	return m, m.check()
}

// withoutInfinity puts null, and blanks, where Python's json writes what JSON has
// not: the limits of Mamba's time step are [0.0, Infinity].
func withoutInfinity(data []byte) []byte {
	return bare.ReplaceAllFunc(data, func(m []byte) []byte {
		if m[0] == '"' {
			return m
		}
		return append([]byte("null"), bytes.Repeat([]byte(" "), len(m)-len("null"))...)
	})
}

// bare matches a whole string, so that nothing within one is seen, or a number
// that JSON has not.
var bare = regexp.MustCompile(`"(?:[^"\\]|\\.)*"|-?Infinity`)

// jsonError says where JSON is broken.
func jsonError(name string, data []byte, err error) error {
	var at int64 = -1
	var syntax *json.SyntaxError
	var typ *json.UnmarshalTypeError
	switch {
	case errors.As(err, &syntax):
		at = syntax.Offset
	case errors.As(err, &typ):
		at = typ.Offset
	default:
		at = int64(len(data))
	}
	at = min(max(at, 0), int64(len(data)))
	line := 1 + bytes.Count(data[:at], []byte("\n"))
	return &ConfigError{Name: name, Msg: fmt.Sprintf("line %d (offset %d): %s", line, at, strings.TrimPrefix(err.Error(), "json: "))}
}

// config reads values and collects what is wrong with them, so that a builder
// is written without an error check for each key.
type config struct {
	name  string
	path  string // of a nested object: "text_config."
	opt   Options
	raw   map[string]json.RawMessage
	outer *config
	errs  []error
}

func (c *config) err() error {
	for c.outer != nil {
		c = c.outer
	}
	if len(c.errs) == 0 {
		return nil
	}
	return c.errs[0]
}

func (c *config) fail(key, format string, args ...any) {
	e := &ConfigError{Name: c.name, Key: c.path + key, Msg: fmt.Sprintf(format, args...)}
	for c.outer != nil {
		c = c.outer
	}
	c.errs = append(c.errs, e)
}

// find returns the first of the keys that is there and not null.
func (c *config) find(keys ...string) (string, json.RawMessage, bool) {
	for _, k := range keys {
		if v, ok := c.raw[k]; ok && string(v) != "null" {
			return k, v, true
		}
	}
	return keys[0], nil, false
}

func (c *config) has(keys ...string) bool { _, _, ok := c.find(keys...); return ok }

// dimensionMost bounds every size in a configuration, so that no product of a
// few of them overflows before check sees the sum.
const dimensionMost = 1 << 24

// dim returns a size that must be there.
func (c *config) dim(keys ...string) int64 {
	if k, _, ok := c.find(keys...); !ok {
		c.fail(k, "is missing")
		return 1
	}
	return c.dimOr(1, keys...)
}

// dimOr returns a size, def if it is not there. Sizes are at least 1.
func (c *config) dimOr(def int64, keys ...string) int64 {
	n := c.intOr(def, keys...)
	if c.has(keys...) && (n < 1 || n > dimensionMost) {
		k, _, _ := c.find(keys...)
		c.fail(k, "%d is not a size a model can have", n)
		return 1
	}
	return n
}

// countOr returns a size that may be 0, def if it is not there.
func (c *config) countOr(def int64, keys ...string) int64 {
	if c.intOr(def, keys...) == 0 {
		return 0
	}
	return c.dimOr(def, keys...)
}

// firstOr returns a size that may be given for each layer, in which case it is
// that of the first, def if it is not there.
func (c *config) firstOr(def int64, key string) int64 {
	if _, v, ok := c.find(key); !ok || !bytes.HasPrefix(v, []byte("[")) {
		return c.dimOr(def, key)
	}
	l := c.ints(key)
	if len(l) == 0 || l[0] < 1 || l[0] > dimensionMost {
		c.fail(key, "does not begin with a size")
		return 1
	}
	return l[0]
}

// intOr returns an integer, def if it is not there.
func (c *config) intOr(def int64, keys ...string) int64 {
	k, v, ok := c.find(keys...)
	if !ok {
		return def
	}
	var f float64
	if err := json.Unmarshal(v, &f); err != nil || f != math.Trunc(f) || math.Abs(f) > 1<<52 {
		c.fail(k, "want an integer, have %s", short(v))
		return def
	}
	return int64(f)
}

func (c *config) floatOr(def float64, keys ...string) float64 {
	k, v, ok := c.find(keys...)
	if !ok {
		return def
	}
	var f float64
	if err := json.Unmarshal(v, &f); err != nil {
		c.fail(k, "want a number, have %s", short(v))
		return def
	}
	return f
}

func (c *config) boolOr(def bool, keys ...string) bool {
	k, v, ok := c.find(keys...)
	if !ok {
		return def
	}
	var b bool
	if err := json.Unmarshal(v, &b); err != nil {
		c.fail(k, "want true or false, have %s", short(v))
		return def
	}
	return b
}

func (c *config) textOr(def string, keys ...string) string {
	k, v, ok := c.find(keys...)
	if !ok {
		return def
	}
	var s string
	if err := json.Unmarshal(v, &s); err != nil {
		c.fail(k, "want a text, have %s", short(v))
		return def
	}
	return s
}

// listMost bounds the lists of a configuration (layer types, expert layers).
const listMost = 1 << 14

func (c *config) ints(keys ...string) []int64 {
	k, v, ok := c.find(keys...)
	if !ok {
		return nil
	}
	var l []int64
	if err := json.Unmarshal(v, &l); err != nil || len(l) > listMost {
		c.fail(k, "want a list of integers, have %s", short(v))
		return nil
	}
	return l
}

func (c *config) texts(keys ...string) []string {
	k, v, ok := c.find(keys...)
	if !ok {
		return nil
	}
	var l []string
	if err := json.Unmarshal(v, &l); err != nil || len(l) > listMost {
		c.fail(k, "want a list of texts, have %s", short(v))
		return nil
	}
	return l
}

// object returns a nested configuration, c itself if it is not there.
func (c *config) object(key string) *config {
	_, v, ok := c.find(key)
	if !ok {
		return c
	}
	o := &config{name: c.name, path: c.path + key + ".", opt: c.opt, outer: c, raw: map[string]json.RawMessage{}}
	if err := json.Unmarshal(v, &o.raw); err != nil {
		c.fail(key, "want an object, have %s", short(v))
	}
	return o
}

// act returns the activation function under a key.
func (c *config) act(def Act, keys ...string) Act {
	name := c.textOr(string(def), keys...)
	switch a := Act(name); a {
	case SiLU, GELU, GELUTanh, GELUNew, GELUFast, GELUPython, BloomGELU, QuickGELU, ReLU, SquaredReLU, Tanh:
		return a
	case "swish":
		return SiLU
	case "gelu_python_tanh", "gelu_accurate":
		return GELUNew
	case "gelu_tanh":
		return GELUTanh
	case "mish", "linear", "selu", "laplace", "gelu_10":
		c.fail(keys[0], "activation %q is not modelled", name)
		return def
	}
	c.fail(keys[0], "activation %q is not known", name)
	return def
}

// dtype returns the dtype of the published weights.
func (c *config) dtype() DType {
	d := DType(strings.TrimPrefix(c.textOr("", "torch_dtype", "dtype"), "torch."))
	if d.Size() == 0 {
		return ""
	}
	return d
}

// head returns what stands on top: the option, else what the architectures say,
// else def.
func (c *config) head(def HeadKind) HeadKind {
	if c.opt.Head != "" {
		return c.opt.Head
	}
	for _, a := range c.texts("architectures") {
		switch {
		case strings.HasSuffix(a, "ForSequenceClassification"), strings.HasSuffix(a, "ForImageClassification"):
			return HeadClassify
		case strings.HasSuffix(a, "ForMaskedLM"), strings.HasSuffix(a, "ForPreTraining"):
			return HeadMaskedLM
		case strings.HasSuffix(a, "ForCausalLM"), strings.HasSuffix(a, "LMHeadModel"),
			strings.HasSuffix(a, "ForConditionalGeneration"):
			return HeadLM
		case strings.HasSuffix(a, "Model"):
			return HeadNone
		}
	}
	return def
}

// labels returns the number of classes of a classification head.
func (c *config) labels() int64 {
	if c.opt.Labels > 0 {
		return c.opt.Labels
	}
	if n := c.intOr(0, "num_labels"); n > 0 {
		return min(n, dimensionMost)
	}
	if _, v, ok := c.find("id2label"); ok {
		names := map[string]json.RawMessage{}
		if json.Unmarshal(v, &names) == nil && len(names) > 0 {
			return int64(len(names))
		}
	}
	return 2 // PretrainedConfig's default
}

func short(v json.RawMessage) string {
	if len(v) > 40 {
		return string(v[:40]) + "…"
	}
	return string(v)
}

// paramsMost is more than any network has; a larger sum comes from a broken
// configuration.
const paramsMost = 1 << 50

// check finds what cannot be: sizes whose product is absurd, heads that do not
// divide, more experts for a token than there are.
func (m *Model) check() error {
	var sum float64
	for place, mod := range m.Modules() {
		for i := range mod.Params {
			n := float64(place.Times) * float64(max(mod.Copies, 1))
			for _, d := range mod.Params[i].Shape {
				if d < 1 {
					return &ConfigError{Name: m.Name, Key: mod.Name, Msg: fmt.Sprintf("its %s would have the shape %v", mod.Params[i].Name, mod.Params[i].Shape)}
				}
				n *= float64(d)
			}
			sum += n
		}
	}
	if sum > paramsMost {
		return &ConfigError{Name: m.Name, Msg: fmt.Sprintf("the sizes make %.3g parameters, which no model has", sum)}
	}
	for _, s := range m.Stacks {
		for _, l := range s.Layers {
			if a := l.Attention; a != nil && (a.Heads < 1 || a.KVHeads < 1 || a.Heads%a.KVHeads != 0) {
				return &ConfigError{Name: m.Name, Key: "num_key_value_heads",
					Msg:  fmt.Sprintf("%d key/value heads do not divide %d heads", a.KVHeads, a.Heads),
					Hint: fmt.Sprintf("valid choices are %s", divisors(a.Heads))}
			}
			if e := l.MoE; e != nil && (e.TopK < 1 || e.TopK > e.Experts) {
				return &ConfigError{Name: m.Name, Key: "num_experts_per_tok",
					Msg:  fmt.Sprintf("a token cannot go to %d of %d experts", e.TopK, e.Experts),
					Hint: fmt.Sprintf("valid choices are 1 to %d", e.Experts)}
			}
		}
	}
	return nil
}

// divisors lists the divisors of n.
func divisors(n int64) string {
	var d []string
	for i := int64(1); i <= min(n, 4096); i++ {
		if n%i == 0 {
			d = append(d, fmt.Sprint(i))
		}
	}
	return strings.Join(d, ", ")
}

// Nearest returns up to n of the names, those spelled most like text first, and
// none that is too far from it to be a slip.
func Nearest(text string, names []string, n int) []string {
	type scored struct {
		name string
		d    int
	}
	text = strings.ToLower(text)
	if len(text) > 64 {
		text = text[:64]
	}
	var found []scored
	for _, name := range names {
		low := strings.ToLower(name)
		d := distance(text, low)
		if strings.Contains(low, text) || strings.Contains(text, low) {
			d = min(d, 2)
		}
		if d <= max(2, len(text)/2) {
			found = append(found, scored{name, d})
		}
	}
	slices.SortStableFunc(found, func(a, b scored) int { return a.d - b.d })
	var out []string
	for _, f := range found[:min(n, len(found))] {
		out = append(out, f.name)
	}
	return out
}

// distance is the number of edits between two short texts.
func distance(a, b string) int {
	prev := make([]int, len(b)+1)
	next := make([]int, len(b)+1)
	for j := range prev {
		prev[j] = j
	}
	for i := range len(a) {
		next[0] = i + 1
		for j := range len(b) {
			cost := 1
			if a[i] == b[j] {
				cost = 0
			}
			next[j+1] = min(prev[j]+cost, prev[j+1]+1, next[j]+1)
		}
		prev, next = next, prev
	}
	return prev[len(b)]
}
