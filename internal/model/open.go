package model

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"slices"
	"strings"
)

// A Source is a model read from files, with what the files say beside it.
type Source struct {
	*Model
	// Tensors are those of the safetensors headers, nil if there are none.
	Tensors []Tensor
	// Warnings are things that do not fit together.
	Warnings []string
}

// Open reads a model from a folder or a file: the folder of a Hugging Face
// model, a config.json, or a safetensors file alone. Of the last, only the
// tensors are known: the Source has no Stacks, and its Type is "safetensors".
func Open(fsys fs.FS, name string, opt Options) (*Source, error) {
	info, err := fs.Stat(fsys, name)
	if err != nil {
		return nil, err
	}
	if !info.IsDir() {
		if strings.HasSuffix(name, ".safetensors") {
			tensors, err := readTensors(fsys, name)
			if err != nil {
				return nil, err
			}
			return fromTensors(path.Base(name), tensors), nil
		}
		data, err := readConfig(fsys, name)
		if err != nil {
			return nil, err
		}
		m, err := Parse(name, data, opt)
		if err != nil {
			return nil, err
		}
		return &Source{Model: m}, nil
	}
	s := &Source{}
	tensors, errTensors := folderTensors(fsys, name)
	data, err := readConfig(fsys, path.Join(name, "config.json"))
	switch {
	case err == nil:
		if s.Model, err = Parse(path.Join(name, "config.json"), data, opt); err != nil {
			return nil, err
		}
	case !errors.Is(err, fs.ErrNotExist):
		return nil, err
	case errTensors != nil:
		return nil, errTensors
	case len(tensors) == 0:
		return nil, &ConfigError{Name: name, Msg: "the folder has neither a config.json nor safetensors files",
			Hint: "point at the folder that `from_pretrained` reads"}
	default:
		return fromTensors(name, tensors), nil
	}
	if base := path.Base(name); base != "." && base != "/" {
		s.Name = base
	}
	if errTensors != nil {
		s.Warnings = append(s.Warnings, errTensors.Error())
	}
	s.Tensors = tensors
	s.compare()
	return s, nil
}

func readConfig(fsys fs.FS, name string) ([]byte, error) {
	f, err := fsys.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, configLimit+1))
}

func readTensors(fsys fs.FS, name string) ([]Tensor, error) {
	f, err := fsys.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	size := int64(-1)
	if info, err := f.Stat(); err == nil {
		size = info.Size()
	}
	return ReadSafetensors(name, f, size)
}

// shardsMost bounds the files of one model.
const shardsMost = 4096

// folderTensors reads the headers of a folder's safetensors files: those of the
// index, else model.safetensors, else all.
func folderTensors(fsys fs.FS, dir string) ([]Tensor, error) {
	var files []string
	if f, err := fsys.Open(path.Join(dir, "model.safetensors.index.json")); err == nil {
		files, err = shardsOf(path.Join(dir, "model.safetensors.index.json"), f)
		f.Close()
		if err != nil {
			return nil, err
		}
	} else if _, err := fs.Stat(fsys, path.Join(dir, "model.safetensors")); err == nil {
		files = []string{"model.safetensors"}
	} else {
		found, err := fs.Glob(fsys, path.Join(escaped(dir), "*.safetensors"))
		if err != nil {
			return nil, err
		}
		for _, f := range found {
			files = append(files, path.Base(f))
		}
	}
	if len(files) > shardsMost {
		return nil, fmt.Errorf("%s: %d safetensors files are too many for one model", dir, len(files))
	}
	var all []Tensor
	for _, f := range files {
		t, err := readTensors(fsys, path.Join(dir, f))
		if err != nil {
			return nil, err
		}
		all = append(all, t...)
	}
	return all, nil
}

// escaped quotes the characters of a folder's name that a pattern would read.
func escaped(dir string) string {
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`).Replace(dir)
}

// fromTensors returns a model of which only the tensors are known.
func fromTensors(name string, tensors []Tensor) *Source {
	m := &Model{Name: name, Type: "safetensors", DType: commonType(tensors)}
	for _, t := range tensors {
		m.Embed = append(m.Embed, Module{Name: t.Name, Kind: ParamsAlone, Params: []Param{{Shape: t.Shape, DType: t.DType}}})
	}
	return &Source{Model: m, Tensors: tensors}
}

// commonType returns the dtype that most elements have.
func commonType(tensors []Tensor) DType {
	count := map[DType]int64{}
	for i := range tensors {
		count[tensors[i].DType] += tensors[i].Elements()
	}
	best := DType("")
	for d, n := range count {
		if best == "" || n > count[best] || n == count[best] && d < best {
			best = d
		}
	}
	return best
}

// compare holds the parameters that follow from the configuration against the
// tensors that are there.
func (s *Source) compare() {
	if len(s.Tensors) == 0 {
		return
	}
	var sum int64
	for i := range s.Tensors {
		sum += s.Tensors[i].Elements()
	}
	if d := commonType(s.Tensors); d != "" && s.Quantized == "" {
		s.DType = d
	}
	want := s.Params()
	// A tied head may be stored once or twice, BERT's checkpoints have a head or
	// none, and buffers are stored too: a twentieth is no contradiction.
	tied := sum - want
	if s.Quantized == "" && (sum < want-want/20 || sum > want+want/20) && !(s.TiedHead && tied == s.Vocab*s.Hidden) {
		s.Warnings = append(s.Warnings, fmt.Sprintf("config.json makes %d parameters, the safetensors files have %d", want, sum))
	}
}

// Describe lists the sizes of the first stack that a person names a model by, in
// a fixed order: layers, hidden, heads, kv_heads, head_dim, ffn, vocab.
func (m *Model) Describe() []Dim {
	var out []Dim
	add := func(name string, n int64) {
		if n > 0 {
			out = append(out, Dim{name, n})
		}
	}
	main := m.Main()
	switch {
	case main == nil || m.Family == EncoderDecoder:
		add("layers", int64(m.Layers()))
	default: // a tower for images stands apart
		add("layers", int64(len(main.Layers)))
		add("vision_layers", int64(m.Layers()-len(main.Layers)))
	}
	add("hidden", m.Hidden)
	if s := main; s != nil {
		if i := slices.IndexFunc(s.Layers, func(l *Layer) bool { return l.Attention != nil }); i >= 0 {
			a := s.Layers[i].Attention
			add("heads", a.Heads)
			add("kv_heads", a.KVHeads)
			add("head_dim", a.HeadDim)
		}
		if i := slices.IndexFunc(s.Layers, func(l *Layer) bool { return l.MLP != nil }); i >= 0 {
			add("ffn", s.Layers[i].MLP.FFN)
		}
		if i := slices.IndexFunc(s.Layers, func(l *Layer) bool { return l.MoE != nil }); i >= 0 {
			e := s.Layers[i].MoE
			add("experts", e.Experts)
			add("top_k", e.TopK)
			add("expert_ffn", e.FFN)
			add("shared_ffn", e.SharedFFN)
		}
		if i := slices.IndexFunc(s.Layers, func(l *Layer) bool { return l.SSM != nil }); i >= 0 {
			x := s.Layers[i].SSM
			add("ssm_inner", x.Inner)
			add("ssm_state", x.State)
		}
	}
	add("vocab", m.Vocab)
	add("max_seq", m.MaxSeq)
	return out
}

// A Dim is a named size.
type Dim struct {
	Name  string `json:"name"`
	Value int64  `json:"value"`
}
