package oomlog

import (
	"path"
	"regexp"
	"strings"
)

// A Frame is one call of a traceback.
type Frame struct {
	File string `json:"file"`
	Line int    `json:"line,omitempty"`
	Func string `json:"func,omitempty"`
	// Code is the source line, where the traceback quotes it.
	Code string `json:"code,omitempty"`
	// At is where the frame stands in the text.
	At Source `json:"-"`
}

// maxFrames bounds a traceback; a deeper one loses its middle.
const maxFrames = 200

// frameReader recognises the forms in which a call is printed.
type frameReader struct {
	python *regexp.Regexp // File "x.py", line 3, in f
	ipy    *regexp.Regexp // File ~/x.py:3, in f(a, b)   Cell In[2], line 3, in f
	rich   *regexp.Regexp // /path/x.py:3 in f
	arrow  *regexp.Regexp // x.py:3 f -> y.py:4 g
	old    *regexp.Regexp // ~/x.py in f(a, b)   [x.py](https://localhost:8080/#) in f(a, b)
	pytest *regexp.Regexp // path/x.py:3: OutOfMemoryError
}

func newFrameReader() *frameReader {
	return &frameReader{
		python: regexp.MustCompile(`File "([^"]+)", line (\d+)(?:, in (\S+))?`),
		ipy:    regexp.MustCompile(`^(?:File )?([\w~./\\-]+\.py|Cell In\s?\[\d+\]|Input In \[\d+\]):?(?:, line )?(\d+)?, in (?:<cell line: \d+>)?([\w.<>]*)`),
		rich:   regexp.MustCompile(`^(?:❱ ?)?((?:[A-Za-z]:)?[\w~./\\-]+\.pyx?):(\d+) in (\S+)`),
		arrow:  regexp.MustCompile(`([\w./\\-]+\.py):(\d+) (\w+)(?: ->|$|\s*$)`),
		old:    regexp.MustCompile(`^\[?(~?[\w./\\-]+\.py)(?:\]\([^)]*\))? in (\w+)\(`),
		pytest: regexp.MustCompile(`^([\w./\\-]+\.py):(\d+): (?:in (\w+)|\w*(?:Error|Exception)\s*$)`),
	}
}

// read returns the frames that a line prints, mostly none or one.
func (r *frameReader) read(text string, at Source) []Frame {
	if !strings.Contains(text, ".py") && !strings.Contains(text, "File \"") && !strings.Contains(text, "Cell In") && !strings.Contains(text, "Input In") {
		return nil
	}
	if m := r.python.FindAllStringSubmatch(text, 64); m != nil {
		return frames(m, at)
	}
	if m := r.rich.FindStringSubmatch(text); m != nil {
		return frames([][]string{m}, at)
	}
	if m := r.ipy.FindStringSubmatch(text); m != nil {
		return frames([][]string{m}, at)
	}
	if m := r.old.FindStringSubmatch(text); m != nil {
		return []Frame{{File: m[1], Func: m[2], At: at}}
	}
	if m := r.pytest.FindStringSubmatch(text); m != nil {
		return frames([][]string{m}, at)
	}
	if m := r.arrow.FindAllStringSubmatch(text, 64); m != nil && (len(m) > 1 || strings.Contains(text, "->")) {
		return frames(m, at)
	}
	return nil
}

func frames(matches [][]string, at Source) []Frame {
	out := make([]Frame, 0, len(matches))
	for _, m := range matches {
		f := Frame{File: m[1], At: at}
		if m[2] != "" {
			f.Line = atoi(m[2])
		}
		if len(m) > 3 {
			f.Func = strings.TrimSuffix(m[3], "(")
		}
		out = append(out, f)
	}
	return out
}

// libraries are the packages whose frames are never the user's own line, for
// paths that do not show a site-packages folder.
var libraries = [...]string{
	"torch", "transformers", "accelerate", "deepspeed", "pytorch_lightning", "lightning", "lightning_fabric", "trl", "peft", "diffusers", "datasets", "vllm", "sglang",
	"xformers", "bitsandbytes", "flash_attn", "apex", "megatron", "transformer_engine", "tensorflow", "keras", "jax", "jaxlib", "flax", "numpy", "torchvision", "torchmetrics",
	"torch_geometric", "mmcv", "mmengine", "fairscale", "colossalai", "unsloth", "unsloth_zoo", "ray", "sentence_transformers", "timm", "ultralytics", "triton", "einops",
	"torchaudio", "ignite", "fastai", "composer", "hydra", "click", "typer", "runpy", "multiprocessing", "concurrent", "asyncio", "llmcompressor", "axolotl", "llamafactory", "swift",
	"nemo", "safetensors", "gradio", "fire", "absl", "optimum", "liger_kernel", "torchrun", "pandas",
}

// IsLibrary reports whether the frame belongs to an installed package or to
// Python itself, not to the user's own code.
func (f Frame) IsLibrary() bool {
	p := strings.ReplaceAll(f.File, "\\", "/")
	if strings.HasPrefix(p, "<") || strings.HasPrefix(p, "Cell In") || strings.HasPrefix(p, "Input In") || strings.HasPrefix(p, "/tmp/ipykernel") {
		return strings.HasPrefix(p, "<frozen") || p == "<string>"
	}
	for _, part := range []string{"site-packages/", "dist-packages/", "/lib/python", "/lib64/python", "/Lib/", "torchinductor", "/opt/conda/lib/"} {
		if strings.Contains(p, part) {
			return true
		}
	}
	dir := strings.TrimPrefix(path.Dir(strings.TrimPrefix(p, "...")), "/")
	first, _, _ := strings.Cut(dir, "/")
	for _, l := range libraries {
		if first == l {
			return true
		}
	}
	return false
}

// own returns the innermost frame of the user's own code.
func own(trace []Frame) *Frame {
	for i := len(trace) - 1; i >= 0; i-- {
		if f := trace[i]; f.File != "" && !f.IsLibrary() {
			return &f
		}
	}
	return nil
}

// isCode tells a quoted source line from prose: a call, an assignment, a
// return, an arrow of IPython or pytest.
func isCode(text string) bool {
	if text == "" || len(text) > 400 || strings.HasPrefix(text, "File ") || strings.Contains(text, "Traceback") {
		return false
	}
	if strings.HasPrefix(text, "---->") || strings.HasPrefix(text, "❱") || isArrowed(text) {
		return true
	}
	open := strings.IndexByte(text, '(')
	if open <= 0 {
		return (strings.Contains(text, " = ") || strings.Contains(text, " += ")) && !strings.Contains(text, ": ")
	}
	word := text[:open]
	if strings.HasPrefix(word, "return ") || strings.HasPrefix(word, "with ") || strings.HasPrefix(word, "if ") || strings.HasPrefix(word, "for ") || strings.HasPrefix(word, "assert ") || strings.HasPrefix(word, "raise ") || strings.HasPrefix(word, "yield ") {
		return true
	}
	if _, value, ok := strings.Cut(word, " = "); ok {
		word = value
	}
	if _, value, ok := strings.Cut(word, " += "); ok {
		word = value
	}
	return !strings.ContainsAny(strings.TrimSpace(word), " :")
}
