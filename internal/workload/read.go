package workload

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"maps"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// A Kind is a form of configuration. It is told by the keys, never by the name
// of the file.
type Kind string

// The kinds.
const (
	KindUnoom        Kind = "unoom"
	KindTransformers Kind = "transformers" // TrainingArguments, TRL, the arguments of run_clm.py
	KindAccelerate   Kind = "accelerate"
	KindDeepSpeed    Kind = "deepspeed"
	KindAxolotl      Kind = "axolotl"
	KindLLaMAFactory Kind = "llamafactory"
	KindTorchtune    Kind = "torchtune"
	KindLitGPT       Kind = "litgpt"
	KindTorchtitan   Kind = "torchtitan"
	KindPEFT         Kind = "peft"
	KindMegatron     Kind = "megatron"
	KindModel        Kind = "model" // a model's config.json
	KindScript       Kind = "script"
)

// Open reads a file by the name under which a user or another file names it. A
// name that does not exist gives an error that is fs.ErrNotExist.
type Open func(name string) ([]byte, error)

// OpenFS opens names in a file system.
func OpenFS(fsys fs.FS) Open {
	return func(name string) ([]byte, error) { return fs.ReadFile(fsys, path.Clean(name)) }
}

// An UnknownKindError says that a file is in no known form.
type UnknownKindError struct {
	File string
	Keys []string // its first ones
}

func (e *UnknownKindError) Error() string {
	if len(e.Keys) == 0 {
		return e.File + ": is no configuration of a training run that unoom knows"
	}
	return fmt.Sprintf("%s: is no configuration of a training run that unoom knows; its keys are %s", e.File, strings.Join(e.Keys, ", "))
}

// form is one kind: how its keys are told, and its reader.
type form struct {
	kind Kind
	// looks returns how many tell-tale keys are there, 0: it is not of this kind.
	looks func(n *node) int
	read  func(r *reader, n *node)
}

// forms lists the kinds. Of several that a file looks like, the one with the most
// tell-tale keys is meant, of equals the first.
func forms() []form {
	return []form{
		{KindUnoom, looksUnoom, (*reader).unoom},
		{KindPEFT, among(1, "peft_type"), (*reader).peft},
		{KindTorchtune, looksTorchtune, (*reader).torchtune},
		{KindAxolotl, looksAxolotl, (*reader).axolotl},
		{KindLLaMAFactory, looksLLaMAFactory, (*reader).llamaFactory},
		{KindAccelerate, among(2, "distributed_type", "compute_environment", "num_processes", "num_machines", "mixed_precision", "machine_rank", "fsdp_config", "deepspeed_config"), (*reader).accelerate},
		{KindDeepSpeed, looksDeepSpeed, (*reader).deepSpeed},
		{KindLitGPT, looksLitGPT, (*reader).litGPT},
		{KindTorchtitan, looksTorchtitan, (*reader).torchtitan},
		{KindTransformers, looksTransformers, (*reader).transformers},
		{KindModel, looksModel, (*reader).modelConfig},
	}
}

// among counts keys, and wants at least so many.
func among(least int, keys ...string) func(*node) int {
	return func(n *node) int {
		count := 0
		for _, k := range keys {
			if n.child(k) != nil {
				count++
			}
		}
		if count < least {
			return 0
		}
		return count
	}
}

// kindOf tells a configuration by its keys.
func kindOf(n *node) (form, bool) {
	var best form
	most := 0
	for _, f := range forms() {
		if c := f.looks(n); c > most {
			best, most = f, c
		}
	}
	return best, most > 0
}

// reader reads one configuration.
type reader struct {
	open  Open
	name  string // of the file, "" for a command
	out   *Reading
	depth int
	root  *node
}

// followMost bounds how deep files refer to files.
const followMost = 4

// ReadFile reads a configuration of any known kind, and what it refers to.
func ReadFile(name string, open Open) (*Reading, error) { return readFile(name, open, 0, nil) }

// readFile reads a file, with settings of a command on top of it.
func readFile(name string, open Open, depth int, overrides []override) (*Reading, error) {
	data, err := open(name)
	if err != nil {
		return nil, err
	}
	if len(data) > documentMost {
		return nil, &SyntaxError{File: name, Msg: fmt.Sprintf("%d bytes are too many for a configuration", len(data))}
	}
	if looksScript(name, data) {
		return readScript(name, data, open, depth)
	}
	n, err := parse(name, data)
	if err != nil {
		return nil, err
	}
	if n.shape != object {
		return nil, &UnknownKindError{File: name}
	}
	for _, o := range overrides {
		n.set(o.path, &node{shape: scalar, text: o.value, where: o.where})
	}
	f, ok := kindOf(n)
	if !ok {
		return nil, &UnknownKindError{File: name, Keys: n.keys[:min(len(n.keys), 8)]}
	}
	r := newReader(name, f.kind, open, depth)
	r.take(n, f)
	return r.out, nil
}

func newReader(name string, k Kind, open Open, depth int) *reader {
	return &reader{open: open, name: name, depth: depth, out: &Reading{Name: name, Kind: k, Settings: Settings{}, Options: map[string]string{}}}
}

// sorted yields a map by its keys, so that the same file is always read the same
// way.
func sorted[K cmp.Ordered, V any](m map[K]V) iter.Seq2[K, V] {
	return func(yield func(K, V) bool) {
		for _, k := range slices.Sorted(maps.Keys(m)) {
			if !yield(k, m[k]) {
				return
			}
		}
	}
}

// take reads a tree and lists what was left unread.
func (r *reader) take(n *node, f form) {
	r.root = n
	r.interpolate(n)
	f.read(r, n)
	r.unread(n)
}

// place is where a node stands.
func (r *reader) place(n *node) string {
	switch {
	case n != nil && n.where != "":
		return n.where
	case n != nil && n.line > 0:
		return r.name + ":" + strconv.Itoa(n.line)
	}
	return r.name
}

// put states a field.
func (r *reader) put(f Field, value, name string, n *node) {
	s := Stated{Value: value, Name: name, Place: r.place(n)}
	if raw, ok := n.str(); ok && raw != value {
		s.Raw = raw
	}
	r.out.Settings[f] = s
}

func (r *reader) warn(code string, n *node, args ...any) {
	r.out.Warnings = append(r.out.Warnings, Warning{code, r.place(n), args})
}

// assume adds what the framework does where the key is not there.
func (r *reader) assume(f Field, value, name, source string) {
	r.out.Defaults = append(r.out.Defaults, Default{f, value, name, source})
}

// use marks a value as read and returns it; nil where it is absent, null or left
// to the framework ("auto").
func (r *reader) use(n *node, keys ...string) (*node, string) {
	for _, key := range keys {
		v := n.at(key)
		if v == nil {
			if c := n.child(key); c != nil {
				c.read = true
			}
			continue
		}
		v.read = true
		if v.shape == scalar {
			switch s, _ := v.str(); {
			case s == "" || s == "auto" || s == "None" || s == "null":
				continue
			case strings.Contains(s, "${"), strings.HasPrefix(s, "$"):
				r.warn(WarnUnresolved, v, key, s)
				continue
			}
		}
		return v, key
	}
	return nil, ""
}

// number states a count.
func (r *reader) number(f Field, n *node, keys ...string) (int64, bool) {
	v, key := r.use(n, keys...)
	if v == nil {
		return 0, false
	}
	i, ok := v.integer()
	if !ok {
		s, _ := v.str()
		r.warn(WarnUnknownValue, v, key, s)
		return 0, false
	}
	r.put(f, strconv.FormatInt(i, 10), key, v)
	return i, true
}

// words states one of a few values, by what stands for it here. Values in lower
// case.
func (r *reader) words(f Field, n *node, means map[string]string, keys ...string) string {
	v, key := r.use(n, keys...)
	if v == nil {
		return ""
	}
	s, _ := v.str()
	m, ok := means[strings.ToLower(s)]
	if !ok {
		r.warn(WarnUnknownValue, v, key, s)
		return ""
	}
	if m != "" {
		r.put(f, m, key, v)
	}
	return m
}

// text states a value as it stands.
func (r *reader) text(f Field, n *node, keys ...string) string {
	v, key := r.use(n, keys...)
	s, ok := v.str()
	if !ok || s == "" {
		return ""
	}
	r.put(f, s, key, v)
	return s
}

// flag returns a boolean.
func (r *reader) flag(n *node, keys ...string) (is, said bool, at *node, key string) {
	v, key := r.use(n, keys...)
	if v == nil {
		return false, false, nil, ""
	}
	b, ok := v.truth()
	if !ok {
		if v.shape == scalar {
			r.warn(WarnUnknownValue, v, key, v.text)
		}
		return false, false, nil, ""
	}
	return b, true, v, key
}

// either states one of two values by a boolean; "" states nothing.
func (r *reader) either(f Field, n *node, yes, no string, keys ...string) bool {
	is, said, v, key := r.flag(n, keys...)
	if !said {
		return false
	}
	value := no
	if is {
		value = yes
	}
	if value != "" {
		r.put(f, value, key, v)
	}
	return is
}

// notModelled warns of keys whose effect on memory the estimate does not have.
func (r *reader) notModelled(n *node, keys ...string) {
	for _, key := range keys {
		v, _ := r.use(n, key)
		if v == nil {
			continue
		}
		s, _ := v.str()
		if b, ok := v.truth(); ok && !b || s == "0" || s == "0.0" || s == "none" || v.shape != scalar && len(v.items) == 0 {
			continue // it is off
		}
		if v.shape != scalar {
			s = "…"
		}
		markAll(v)
		r.warn(WarnNotModelled, v, key, s)
	}
}

// quiet marks keys, with all below them, as of no matter for memory.
func (r *reader) quiet(n *node, keys ...string) {
	for _, key := range keys {
		if v := n.child(key); v != nil {
			markAll(v)
		}
	}
}

func markAll(n *node) { n.walk("", func(_ string, n *node) { n.read = true }) }

// unread warns of what is left, in one line: nothing is lost without a word.
func (r *reader) unread(n *node) {
	var left []string
	n.walk("", func(p string, v *node) {
		if v.read || p == "" || v.shape == object || v.shape == null || v.shape == list && len(v.items) == 0 {
			return
		}
		for seg := range strings.SplitSeq(p, ".") {
			if harmless(seg) {
				return
			}
		}
		if !slices.Contains(left, p) {
			left = append(left, p)
		}
	})
	if len(left) == 0 {
		return
	}
	const most = 8
	text := strings.Join(left[:min(len(left), most)], ", ")
	if len(left) > most {
		text += fmt.Sprintf(", … (%d)", len(left))
	}
	r.warn(WarnUnread, nil, text)
}

// follow reads a file that this one names: as it is written, beside this file,
// or beside a folder above it.
func (r *reader) follow(n *node, key, name string) *Reading {
	if r.depth >= followMost {
		return nil
	}
	found, ok := r.find(name)
	if !ok {
		r.warn(WarnMissingFile, n, key, name)
		return nil
	}
	also, err := readFile(found, r.open, r.depth+1, nil)
	if err != nil {
		r.warn(WarnMissingFile, n, key, name+": "+err.Error())
		return nil
	}
	r.out.Also = append(r.out.Also, also)
	return also
}

// find returns under which name a file can be opened.
func (r *reader) find(name string) (string, bool) {
	tries := []string{name}
	if !path.IsAbs(name) && r.name != "" {
		for dir, n := path.Dir(r.name), 0; n < 8; dir, n = path.Dir(dir), n+1 {
			tries = append(tries, path.Join(dir, name))
			if dir == "." || dir == "/" {
				break
			}
		}
	}
	for _, t := range tries {
		if _, err := r.open(t); err == nil || !errors.Is(err, fs.ErrNotExist) {
			return t, true
		}
	}
	return "", false
}

// model states the model: a folder or a file beside the configuration where there
// is one, else a name.
func (r *reader) model(n *node, keys ...string) string {
	v, key := r.use(n, keys...)
	s, ok := v.str()
	if !ok || s == "" {
		return ""
	}
	for _, file := range []string{path.Join(s, "config.json"), s} {
		if found, ok := r.find(file); ok && (file != s || path.Ext(s) == ".json") {
			r.put(FieldModel, strings.TrimSuffix(found, "/config.json"), key, v)
			return s
		}
	}
	r.put(FieldModel, s, key, v)
	return s
}

var reference = regexp.MustCompile(`^\$\{([\w.]+)\}$`)

// interpolate puts in what "${batch_size}" refers to, as OmegaConf does.
func (r *reader) interpolate(n *node) {
	n.walk("", func(_ string, v *node) {
		if v.shape != scalar {
			return
		}
		for range 4 {
			m := reference.FindStringSubmatch(strings.TrimSpace(v.text))
			if m == nil {
				return
			}
			t := n.at(m[1])
			if t == nil || t.shape != scalar || t == v {
				return
			}
			v.text = t.text
		}
	})
}

// modelConfig is a model's own config.json.
func (r *reader) modelConfig(n *node) {
	r.put(FieldModel, r.name, "model_type", n.child("model_type"))
	markAll(n)
}

func looksModel(n *node) int {
	if n.get("model_type") == nil || n.get("architectures") == nil && n.get("hidden_size") == nil && n.get("n_embd") == nil && n.get("d_model") == nil {
		return 0
	}
	return 4
}
