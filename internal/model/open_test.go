package model

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"testing/fstest"
)

// safetensorsFile returns a file with the header and as much data as size says.
func safetensorsFile(header string, data int) []byte {
	b := binary.LittleEndian.AppendUint64(nil, uint64(len(header)))
	return append(append(b, header...), make([]byte, data)...)
}

const twoTensors = `{"__metadata__":{"format":"pt"},"b":{"dtype":"BF16","shape":[2,3],"data_offsets":[16,28]},"a":{"dtype":"F32","shape":[4],"data_offsets":[0,16]}}`

func TestReadSafetensors(t *testing.T) {
	file := safetensorsFile(twoTensors, 28)
	tensors, err := ReadSafetensors("m", bytes.NewReader(file), int64(len(file)))
	if err != nil {
		t.Fatal(err)
	}
	if len(tensors) != 2 || tensors[0].Name != "a" || tensors[1].DType != BFloat16 || tensors[1].Elements() != 6 {
		t.Errorf("%+v", tensors)
	}
}

func TestBrokenSafetensorsAreRefusedWithTheirPlace(t *testing.T) {
	for name, c := range map[string]struct {
		file []byte
		want string
	}{
		"empty":             {nil, "before the length"},
		"short":             {[]byte("12345"), "before the length"},
		"a zip":             {[]byte("PK\x03\x04 not a safetensors file at all"), "more than the format allows"},
		"cut in the header": {safetensorsFile(twoTensors, 0)[:40], "only"},
		"cut in the data":   {safetensorsFile(twoTensors, 20), "copied whole"},
		"no JSON":           {safetensorsFile("hello world", 0), "not JSON"},
		"a list":            {safetensorsFile("[]", 0), "begin with {"},
		"unknown type":      {safetensorsFile(`{"a":{"dtype":"F4","shape":[1],"data_offsets":[0,1]}}`, 1), "unknown type"},
		"wrong range":       {safetensorsFile(`{"a":{"dtype":"F32","shape":[4],"data_offsets":[0,12]}}`, 12), "takes 16 bytes"},
		"backwards":         {safetensorsFile(`{"a":{"dtype":"F32","shape":[4],"data_offsets":[16,0]}}`, 16), "not a range"},
		"negative size":     {safetensorsFile(`{"a":{"dtype":"F32","shape":[-4],"data_offsets":[0,16]}}`, 16), "no tensor"},
		"overflow":          {safetensorsFile(`{"a":{"dtype":"F32","shape":[4611686018427387904,8],"data_offsets":[0,16]}}`, 16), "no tensor"},
		"overlap":           {safetensorsFile(`{"a":{"dtype":"U8","shape":[8],"data_offsets":[0,8]},"b":{"dtype":"U8","shape":[8],"data_offsets":[4,12]}}`, 12), "expected"},
		"twice":             {safetensorsFile(`{"a":{"dtype":"U8","shape":[8],"data_offsets":[0,8]},"a":{"dtype":"U8","shape":[8],"data_offsets":[0,8]}}`, 8), "twice"},
	} {
		_, err := ReadSafetensors("m.safetensors", bytes.NewReader(c.file), int64(len(c.file)))
		if err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), "offset") {
			t.Errorf("%s: %v; want an offset and %q", name, err, c.want)
		}
	}
}

func TestAWrongLengthDoesNotAllocate(t *testing.T) {
	file := binary.LittleEndian.AppendUint64(nil, headerLimit)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	if _, err := ReadSafetensors("m", bytes.NewReader(file), -1); err == nil {
		t.Error("no error")
	}
	runtime.ReadMemStats(&after)
	if got := after.TotalAlloc - before.TotalAlloc; got > 1<<20 {
		t.Errorf("%d bytes were allocated for a file of 8", got)
	}
}

// tinyLlama is a model of one layer with its tensors.
func tinyLlama(t *testing.T) (config string, header []byte, size int) {
	config = `{"model_type":"llama","hidden_size":8,"intermediate_size":16,"num_hidden_layers":1,"num_attention_heads":2,"vocab_size":32,"torch_dtype":"float32"}`
	m, err := Parse("tiny", []byte(config), Options{})
	if err != nil {
		t.Fatal(err)
	}
	entries := map[string]any{}
	at := int64(0)
	for place, mod := range m.Modules() {
		n := 2 * mod.Count()
		entries[fmt.Sprint(place.Part, mod.Name)] = map[string]any{"dtype": "BF16", "shape": []int64{mod.Count()}, "data_offsets": []int64{at, at + n}}
		at += n
	}
	header, err = json.Marshal(entries)
	if err != nil {
		t.Fatal(err)
	}
	return config, header, int(at)
}

func TestOpenAFolder(t *testing.T) {
	config, header, size := tinyLlama(t)
	fsys := fstest.MapFS{
		"m/config.json":                        {Data: []byte(config)},
		"m/model.safetensors":                  {Data: safetensorsFile(string(header), size)},
		"bare/model.safetensors":               {Data: safetensorsFile(string(header), size)},
		"other/config.json":                    {Data: []byte(strings.Replace(config, `"num_hidden_layers":1`, `"num_hidden_layers":9`, 1))},
		"other/model.safetensors":              {Data: safetensorsFile(string(header), size)},
		"sharded/config.json":                  {Data: []byte(config)},
		"sharded/model-1.safetensors":          {Data: safetensorsFile(string(header), size)},
		"sharded/model.safetensors.index.json": {Data: []byte(`{"weight_map":{"a":"model-1.safetensors","b":"model-1.safetensors"}}`)},
		"escape/config.json":                   {Data: []byte(config)},
		"escape/model.safetensors.index.json":  {Data: []byte(`{"weight_map":{"a":"../../etc/passwd"}}`)},
		"empty/readme":                         {},
	}
	s, err := Open(fsys, "m", Options{})
	if err != nil || s.Name != "m" || s.DType != BFloat16 || len(s.Warnings) != 0 {
		t.Errorf("m: %+v, %v; want the dtype of the tensors and no warning", s, err)
	}
	if s, err := Open(fsys, "sharded", Options{}); err != nil || len(s.Tensors) == 0 || len(s.Warnings) != 0 {
		t.Errorf("sharded: %+v, %v", s, err)
	}
	if s, err := Open(fsys, "bare", Options{}); err != nil || s.Type != "safetensors" || len(s.Stacks) != 0 || s.Params() == 0 {
		t.Errorf("bare: %+v, %v", s, err)
	}
	if s, err := Open(fsys, "other", Options{}); err != nil || len(s.Warnings) != 1 {
		t.Errorf("other: %+v, %v; want a warning that the parameters differ", s, err)
	}
	if s, err := Open(fsys, "escape", Options{}); err != nil || len(s.Warnings) != 1 || !strings.Contains(s.Warnings[0], "not the name of a file") {
		t.Errorf("escape: %+v, %v; want a warning", s, err)
	}
	if _, err := Open(fsys, "empty", Options{}); err == nil || !strings.Contains(err.Error(), "neither") {
		t.Errorf("empty: %v", err)
	}
	if s, err := Open(fsys, "m/config.json", Options{}); err != nil || s.Params() == 0 {
		t.Errorf("config.json: %v", err)
	}
}

func TestAConfigurationSaysWhatIsWrongAndWhere(t *testing.T) {
	for config, want := range map[string]string{
		`{"model_type":"llama"`:           "line 1",
		"{\n\"model_type\":\n\"llama\",}": "line 3",
		`[]`:                              "line 1",
		`{}`:                              "model_type: is missing",
		`{"model_type":"llama"}`:          "hidden_size: is missing",
		`{"model_type":"llama","hidden_size":"4096","vocab_size":1,"num_hidden_layers":1,"num_attention_heads":1,"intermediate_size":1}`:                                                                           `hidden_size: want an integer, have "4096"`,
		`{"model_type":"llama","hidden_size":-1,"vocab_size":1,"num_hidden_layers":1,"num_attention_heads":1,"intermediate_size":1}`:                                                                               "hidden_size: -1 is not a size",
		`{"model_type":"llama","hidden_size":4096,"vocab_size":1,"num_hidden_layers":1,"num_attention_heads":3,"intermediate_size":1}`:                                                                             "num_attention_heads: 3 heads do not divide",
		`{"model_type":"mixtral","hidden_size":64,"vocab_size":8,"num_hidden_layers":1,"num_attention_heads":4,"num_key_value_heads":4,"intermediate_size":8,"num_local_experts":6,"num_experts_per_tok":8}`:       "num_experts_per_tok: a token cannot go to 8 of 6 experts",
		`{"model_type":"llama","hidden_size":4096,"vocab_size":1,"num_hidden_layers":1,"num_attention_heads":32,"num_key_value_heads":5,"intermediate_size":1}`:                                                    "num_key_value_heads: 5 key/value heads do not divide 32",
		`{"model_type":"llama","hidden_size":16777216,"vocab_size":16777216,"num_hidden_layers":16000,"num_attention_heads":1,"intermediate_size":16777216}`:                                                       "which no model has",
		`{"model_type":"llama","hidden_size":64,"vocab_size":1,"num_hidden_layers":1,"num_attention_heads":1,"intermediate_size":1,"hidden_act":"sillu"}`:                                                          `activation "sillu" is not known`,
		`{"model_type":"qwen3","hidden_size":64,"vocab_size":1,"num_hidden_layers":2,"num_attention_heads":1,"intermediate_size":1,"use_sliding_window":true,"sliding_window":4,"layer_types":["full_attention"]}`: "layer_types: has 1 entries for 2 layers",
	} {
		_, err := Parse("config.json", []byte(config), Options{})
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "config.json") {
			t.Errorf("%s: %v; want %q", config, err, want)
		}
	}
}

func TestAnUnknownTypeNamesTheNearest(t *testing.T) {
	_, err := Parse("m", []byte(`{"model_type":"lama"}`), Options{})
	if e, ok := errors.AsType[*UnknownTypeError](err); !ok || len(e.Nearest) == 0 || e.Nearest[0] != "llama" {
		t.Errorf("%+v; want llama among the nearest", err)
	}
	_, err = Parse("m", []byte(`{"model_type":"quantum_transformer_9000"}`), Options{})
	if e, ok := errors.AsType[*UnknownTypeError](err); !ok || e.Type != "quantum_transformer_9000" {
		t.Errorf("%+v", err)
	}
}

func FuzzParse(f *testing.F) {
	c, err := Published()
	if err != nil {
		f.Fatal(err)
	}
	for i := range c {
		f.Add([]byte(c[i].Config))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		m, err := Parse("fuzz", data, Options{})
		if err != nil {
			return
		}
		if m.Params() <= 0 || m.ActiveParams() > m.Params() {
			t.Fatalf("%d parameters, %d active", m.Params(), m.ActiveParams())
		}
		if m.Layers() > 3*listMost {
			t.Fatalf("%d layers", m.Layers())
		}
	})
}

func FuzzReadSafetensors(f *testing.F) {
	f.Add(safetensorsFile(twoTensors, 28))
	f.Add(safetensorsFile(`{}`, 0))
	f.Add([]byte("PK\x03\x04 not a safetensors"))
	f.Fuzz(func(t *testing.T, data []byte) {
		tensors, err := ReadSafetensors("fuzz", bytes.NewReader(data), int64(len(data)))
		if err != nil {
			return
		}
		var sum int64
		for i := range tensors {
			sum += tensors[i].Elements() * tensors[i].DType.Size()
		}
		if sum > int64(len(data)) {
			t.Fatalf("tensors of %d bytes in a file of %d", sum, len(data))
		}
	})
}
