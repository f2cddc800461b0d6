package oomlog

import (
	"slices"
	"strconv"
	"strings"
)

// A FactKind is what a fact is about.
type FactKind string

// The kinds of facts. Values are as written in the text.
const (
	FactBatch         FactKind = "batch"        // per device and step
	FactGlobalBatch   FactKind = "global_batch" // over devices and accumulation
	FactEvalBatch     FactKind = "eval_batch"
	FactAccumulation  FactKind = "accumulation"
	FactSequence      FactKind = "sequence"
	FactImage         FactKind = "image_size"
	FactDType         FactKind = "dtype"
	FactOptimizer     FactKind = "optimizer"
	FactCheckpointing FactKind = "checkpointing"
	FactModel         FactKind = "model"
	FactFramework     FactKind = "framework" // pytorch, hf_trainer, accelerate, lightning, deepspeed, jax, tensorflow …
	FactLauncher      FactKind = "launcher"
	FactWorldSize     FactKind = "world_size"
	FactWorkers       FactKind = "num_workers"
	FactPinMemory     FactKind = "pin_memory"
	FactQuantization  FactKind = "quantization"
	FactLoRA          FactKind = "lora"
	FactZeROStage     FactKind = "zero_stage"
	FactFSDP          FactKind = "fsdp"
	FactOffload       FactKind = "offload"
	FactCompile       FactKind = "compile"
	FactAttention     FactKind = "attention"
	FactAllocConf     FactKind = "alloc_conf"
	FactVisible       FactKind = "visible_devices"
	FactEngineShare   FactKind = "engine_memory_share" // vLLM, SGLang
	FactPreallocation FactKind = "preallocation"       // XLA_PYTHON_CLIENT_*, allow_growth
	FactTorch         FactKind = "torch_version"
	FactTransformers  FactKind = "transformers_version"
	FactCUDA          FactKind = "cuda_version"
	FactDriver        FactKind = "driver_version"
	FactGPU           FactKind = "gpu"
	FactPlatform      FactKind = "platform" // wsl, windows, jetson
	FactParameters    FactKind = "parameters"
	FactTrainable     FactKind = "trainable_parameters"
	FactResume        FactKind = "resume_from"
	FactVocabulary    FactKind = "vocabulary"
	FactHidden        FactKind = "hidden_size"
	FactLayers        FactKind = "layers"
	FactMaxSteps      FactKind = "max_steps"
	FactImbalance     FactKind = "imbalance"      // unlike cards, by PyTorch's own warning
	FactSkipped       FactKind = "skipped"        // the program drops a batch that does not fit and goes on
	FactPinThread     FactKind = "pin_thread"     // an error came out of the pin-memory thread
	FactVersionChange FactKind = "version_change" // somebody writes that an update came before
	FactNested        FactKind = "nested"         // an exception in the handler of another
	FactPhase         FactKind = "phase"          // somebody writes when it fails
	FactPool          FactKind = "pool"           // bytes that TensorFlow's allocator may take in all
)

// A Fact is one thing that the text says of the setting.
type Fact struct {
	Kind   FactKind
	Key    string // as written: per_device_train_batch_size
	Value  string // as written: 8
	Source Source
	rank   int // how telling the key is; 0 is the best
}

// Facts are in the order of the text. A value that is said again is not kept
// twice.
type Facts []Fact

// Last returns the most telling fact of a kind before an offset, of equals the
// last; 0 means the end of the text.
func (f Facts) Last(kind FactKind, before int64) (Fact, bool) {
	best := -1
	for i := range f {
		if f[i].Kind == kind && (before <= 0 || f[i].Source.Offset < before) && (best < 0 || f[i].rank <= f[best].rank) {
			best = i
		}
	}
	if best < 0 {
		return Fact{}, false
	}
	return f[best], true
}

// Get returns the most telling fact of a kind, of equals the last.
func (f Facts) Get(kind FactKind) (Fact, bool) { return f.Last(kind, 0) }

// Int returns the value of Get as a number, or 0.
func (f Facts) Int(kind FactKind) int64 {
	v, ok := f.Get(kind)
	if !ok {
		return 0
	}
	n, _ := count(v.Value)
	return n
}

// count reads a number of things: 8, 7,000,000.
func count(value string) (int64, bool) {
	n, err := strconv.ParseInt(strings.ReplaceAll(strings.ReplaceAll(value, ",", ""), "_", ""), 10, 64)
	return n, err == nil && n >= 0
}

// Is reports whether the last fact of a kind has a value that means yes or no.
func (f Facts) Is(kind FactKind) (yes, known bool) {
	v, ok := f.Get(kind)
	if !ok {
		return false, false
	}
	return Truth(v.Value)
}

// Truth reads a switch as Python, YAML and command lines write it.
func Truth(value string) (yes, known bool) {
	switch strings.ToLower(value) {
	case "true", "yes", "on", "1", "full", "selective", "always":
		return true, true
	case "false", "no", "off", "0", "none", "null", "never", "":
		return false, true
	}
	return false, false
}

// factReader reads settings from lines.
type factReader struct {
	keys   map[string]key
	seen   map[string]bool
	values map[string]int // distinct values by kind and key
	frame  bool           // the line before was a call of a traceback
}

func newFactReader() *factReader {
	return &factReader{keys: keys(), seen: map[string]bool{}, values: map[string]int{}}
}

// maxValues is how many values a setting can take in one text. A name with more
// is a counter (batch=120, batch=121 …), no setting.
const maxValues = 8

// ownBatchFlag ranks a train_batch_size after every name that says "per device".
const ownBatchFlag = 99

// maxFacts bounds the facts of one text.
const maxFacts = 2000

// read appends what a line says.
func (r *factReader) read(to Facts, text string, at Source) Facts {
	if len(to) >= maxFacts {
		return to
	}
	add := func(kind FactKind, name, value string, rank int) {
		value = strings.Trim(value, "\"'`")
		if kind == FactOptimizer {
			value = constructor(value)
		}
		if slices.Contains(counted[:], kind) {
			if _, ok := count(value); !ok {
				return
			}
		}
		if name == "bf16" || name == "fp16" {
			if yes, _ := Truth(value); !yes {
				return
			}
			name, value = "mixed_precision", name
		}
		if value == "" || strings.ContainsAny(value, "({") || len(value) > 200 {
			return
		}
		by := string(kind) + "\x00" + name
		if r.seen[by+"\x00"+value] || r.values[by] > maxValues || len(to) >= maxFacts {
			return
		}
		r.seen[by+"\x00"+value] = true
		if r.values[by]++; r.values[by] > maxValues {
			to = slices.DeleteFunc(to, func(f Fact) bool { return f.Kind == kind && f.Key == name })
			return
		}
		to = append(to, Fact{kind, name, value, at, rank})
	}
	after := r.frame
	r.frame = strings.HasPrefix(text, "File \"")
	for _, s := range &signs {
		if strings.Contains(text, s.words) {
			add(s.kind, s.words, s.value, 0)
		}
	}
	if strings.ContainsAny(text, "=:") {
		said := FactKind("")
		for _, p := range &phrases {
			if p.kind == said { // "Instantaneous batch size per device" has the shorter phrase in it
				continue
			}
			if _, rest, ok := strings.Cut(text, p.words); ok {
				if cut := strings.IndexAny(rest, "=:"); cut >= 0 && cut < 64 {
					add(p.kind, p.words, firstToken(rest[cut+1:]), 0)
					said = p.kind
				}
			}
		}
	}
	for _, gpu := range [...]string{"NVIDIA A", "NVIDIA H", "NVIDIA L", "NVIDIA B", "NVIDIA GeForce ", "Tesla ", "GeForce ", "Quadro ", "RTX ", "AMD Instinct ", "NVIDIA RTX "} {
		if at := strings.Index(text, gpu); at >= 0 {
			add(FactGPU, "name", gpuName(text[at:]), 0)
			break
		}
	}
	for _, lib := range [...]struct {
		name string
		kind FactKind
	}{{"transformers", FactTransformers}, {"torch", FactTorch}} {
		if v := versionAfter(text, lib.name); v != "" {
			add(lib.kind, lib.name, v, 1)
		}
	}
	if _, rest, ok := strings.Cut(text, ":print]"); ok { // DeepSpeed: "[config.py:1000:print]   zero_optimization_stage ...... 2"
		if words := strings.Fields(rest); len(words) >= 2 {
			if k, ok := r.lookup(words[0]); ok {
				add(k.kind, words[0], words[len(words)-1], k.rank)
			}
		}
		return to
	}
	if name, ok := pretrained(text); ok {
		add(FactModel, "from_pretrained", name, 1)
	}
	if strings.Contains(text, "try setting") || !strings.ContainsAny(text, "=:-") || after && isCode(text) {
		return to
	}
	r.pairs(text, add)
	return to
}

// versionAfter returns the version that follows the name of a library: 4.56.1 in
// "transformers 4.56.1", "transformers==4.56.1" and "transformers version: 4.56.1".
func versionAfter(text, name string) string {
	for from := 0; ; {
		at := strings.Index(text[from:], name)
		if at < 0 {
			return ""
		}
		at += from
		from = at + len(name)
		if at > 0 && (isNameByte(text[at-1]) || text[at-1] == '/' || text[at-1] == '.') {
			continue
		}
		rest := strings.TrimLeft(text[from:], " =:\"'`(v")
		rest = strings.TrimLeft(strings.TrimPrefix(rest, "ersion"), " =:\"'`(v")
		n := digits([]byte(rest))
		if n == 0 || n > 2 || len(rest) < n+2 || rest[n] != '.' || digits([]byte(rest[n+1:])) == 0 || len(text[from:])-len(rest) == 0 {
			continue
		}
		end := n
		for end < len(rest) && (rest[end] == '.' || rest[end] == '+' || isNameByte(rest[end])) {
			end++
		}
		return strings.TrimRight(rest[:end], ".")
	}
}

// pretrained reads the name in from_pretrained("name").
func pretrained(text string) (string, bool) {
	_, rest, ok := strings.Cut(text, "from_pretrained(")
	if !ok || rest == "" || rest[0] != '"' && rest[0] != '\'' {
		return "", false
	}
	name, _, ok := strings.Cut(rest[1:], rest[:1])
	return name, ok && name != ""
}

// constructor returns the name of what a source line makes: AdamW for
// torch.optim.AdamW(model.parameters().
func constructor(value string) string {
	name, _, call := strings.Cut(value, "(")
	if !call {
		return value
	}
	if i := strings.LastIndexByte(name, '.'); i >= 0 {
		name = name[i+1:]
	}
	if strings.HasPrefix(name, "get_") || strings.HasPrefix(name, "create_") || strings.HasPrefix(name, "build_") {
		return ""
	}
	return name
}

// gpuName cuts the product name from the start of a text.
func gpuName(s string) string {
	if cut := strings.IndexAny(s, "|,;()[]'\""); cut >= 0 {
		s = s[:cut]
	}
	if cut := strings.Index(s, "  "); cut >= 0 {
		s = s[:cut]
	}
	if words := strings.Fields(s); len(words) > 5 {
		s = strings.Join(words[:5], " ")
	}
	return strings.TrimSpace(s)
}

// pairs finds name=value, name: value, 'name': value, --name value and
// --name=value, whatever dump they stand in.
func (r *factReader) pairs(text string, add func(FactKind, string, string, int)) {
	for i := 0; i < len(text); {
		if !isNameByte(text[i]) {
			i++
			continue
		}
		start := i
		for i < len(text) && (isNameByte(text[i]) || text[i] == '.') {
			i++
		}
		raw := text[start:i]
		name := strings.TrimLeft(raw, "-")
		if len(name) < 2 || len(name) > 48 {
			continue
		}
		k, ok := r.lookup(name)
		if !ok {
			continue
		}
		flag := strings.HasPrefix(raw, "--") || len(raw)-len(name) == 1 && (start == 0 || text[start-1] == ' ')
		j := i
		quoted := j < len(text) && (text[j] == '"' || text[j] == '\'')
		if quoted {
			j++
		}
		for j < len(text) && text[j] == ' ' {
			j++
		}
		assigned := j < len(text) && (text[j] == '=' || text[j] == ':') && !(j+1 < len(text) && (text[j+1] == '=' || text[j+1] == ':' || text[j+1] == '/'))
		if name == "train_batch_size" && (flag || assigned && !quoted && text[j] == '=') {
			// DeepSpeed's JSON means the batch of all GPUs; scripts that take it as a
			// flag (diffusers, sd-scripts) that of one.
			k = key{kind: FactBatch, rank: ownBatchFlag}
		}
		switch {
		case assigned:
			value := firstToken(text[j+1:])
			i = j + 1
			if k.kind == FactVisible || k.kind == FactAllocConf { // 2,3 is one value
				value, _, _ = strings.Cut(strings.Trim(strings.TrimSpace(text[j+1:]), "\"'[]() "), " ")
			}
			alone := start == 0 && strings.TrimSpace(text[j+1:]) == value
			set := text[j] == '=' && (start == 0 || j == start+len(raw)) && (name != "dtype" || !strings.HasPrefix(value, "torch.")) // tensors print dtype=torch.float32
			if k.kind == FactResume && isCode(text) && isName(value) {                                                               // a variable in a call says nothing
				continue
			}
			if !k.weak || flag || quoted || alone || set {
				add(k.kind, name, value, k.rank)
			}
		case flag && j < len(text) && text[j] != '-' && j > i:
			add(k.kind, name, firstToken(text[j:]), k.rank)
			i = j
		case flag && !k.weak:
			add(k.kind, name, "true", k.rank)
		}
	}
}

// isName reports whether a value is the name of a variable and no path, number
// or switch.
func isName(value string) bool {
	if _, known := Truth(value); known {
		return false
	}
	for i := range len(value) {
		if !isNameByte(value[i]) || value[i] == '-' || value[i] >= '0' && value[i] <= '9' {
			return false
		}
	}
	return true
}

func (r *factReader) lookup(name string) (key, bool) {
	var buf [48]byte
	small := buf[:0]
	for k := range len(name) {
		c := name[k]
		switch {
		case c >= 'A' && c <= 'Z':
			c += 'a' - 'A'
		case c == '-':
			c = '_'
		case c == '.': // trainer.batch_size, or a dotted override
			small = small[:0]
			continue
		}
		small = append(small, c)
	}
	k, ok := r.keys[string(small)]
	return k, ok
}

func isNameByte(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '_' || c == '-'
}

// firstToken returns the value at the start of a text: a quoted string, or what
// stands before a separator.
func firstToken(s string) string {
	s = strings.TrimLeft(s, " \t")
	if s == "" {
		return ""
	}
	if q := s[0]; q == '"' || q == '\'' {
		if end := strings.IndexByte(s[1:], q); end >= 0 {
			return s[1 : 1+end]
		}
		return s[1:]
	}
	if end := strings.IndexByte(s, ']'); s[0] == '[' && end > 0 { // [0, 1]
		return strings.TrimSpace(s[1:end])
	}
	if s[0] == '<' { // <OptimizerNames.ADAMW_TORCH: 'adamw_torch'>
		if a := strings.IndexByte(s, '\''); a >= 0 {
			if b := strings.IndexByte(s[a+1:], '\''); b >= 0 {
				return s[a+1 : a+1+b]
			}
		}
	}
	if end := strings.IndexAny(s, " \t,)}]|;\"'"); end >= 0 {
		// 7,000,000 is one number
		for end < len(s) && s[end] == ',' && end+3 < len(s) && digits([]byte(s[end+1:])) == 3 && end > 0 && digits([]byte(s[:end])) > 0 {
			next := strings.IndexAny(s[end+1:], " \t,)}]|;\"'")
			if next < 0 {
				return s
			}
			end += 1 + next
		}
		return s[:end]
	}
	return s
}
