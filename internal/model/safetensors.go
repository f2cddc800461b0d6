package model

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
)

// headerLimit is the largest header that is read; the format's own library has
// the same bound.
//
// Source: huggingface/safetensors safetensors/src/tensor.rs, MAX_HEADER_SIZE.
const headerLimit = 100_000_000

// A Tensor is one entry of a safetensors header.
type Tensor struct {
	Name  string
	DType DType
	Shape []int64
	// Begin and End are offsets into the data that follows the header.
	Begin, End int64
}

// Elements returns the number of elements.
func (t *Tensor) Elements() int64 { return (&Param{Shape: t.Shape}).Elements() }

// A FormatError says where a safetensors file is broken.
type FormatError struct {
	Name   string
	Offset int64
	Msg    string
}

func (e *FormatError) Error() string {
	return fmt.Sprintf("%s: offset %d: %s", e.Name, e.Offset, e.Msg)
}

// tensorType maps the header's types to torch's names. Types of less than a
// byte have no torch name and are refused.
func tensorType(name string) DType {
	switch name {
	case "F64":
		return Float64
	case "F32":
		return Float32
	case "F16":
		return Float16
	case "BF16":
		return BFloat16
	case "F8_E4M3", "F8_E5M2", "F8_E8M0":
		return Float8
	case "I64", "U64":
		return Int64
	case "I32", "U32":
		return Int32
	case "I16", "U16":
		return Int16
	case "I8":
		return Int8
	case "U8":
		return UInt8
	case "BOOL":
		return Bool
	}
	return ""
}

// ReadSafetensors reads the header of a safetensors file and checks it; the data
// is not read. size is the file's size, -1 if it is not known.
func ReadSafetensors(name string, r io.Reader, size int64) ([]Tensor, error) {
	bad := func(at int64, format string, args ...any) error {
		return &FormatError{name, at, fmt.Sprintf(format, args...)}
	}
	var first [8]byte
	if _, err := io.ReadFull(r, first[:]); err != nil {
		return nil, bad(0, "the file ends before the length of its header")
	}
	n := binary.LittleEndian.Uint64(first[:])
	switch {
	case n > headerLimit:
		return nil, bad(0, "a header of %d bytes is more than the format allows: this is not a safetensors file", n)
	case size >= 0 && int64(n) > size-8:
		return nil, bad(0, "the header has %d bytes, the file only %d more", n, size-8)
	}
	// Read through a limit, so that a wrong length does not decide how much is
	// allocated.
	text, err := io.ReadAll(io.LimitReader(r, int64(n)))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	if uint64(len(text)) < n {
		return nil, bad(8+int64(len(text)), "the file ends within its header")
	}
	entries, err := headerEntries(text)
	if err != nil {
		at := int64(len(text))
		if s, ok := errors.AsType[*json.SyntaxError](err); ok {
			at = s.Offset
		}
		return nil, bad(8+at, "the header is not JSON of tensors: %s", strings.TrimPrefix(err.Error(), "json: "))
	}
	var tensors []Tensor
	for _, e := range entries {
		t := Tensor{Name: e.name, DType: tensorType(e.DType), Shape: e.Shape}
		if t.DType == "" {
			return nil, bad(8, "tensor %q: unknown type %q", e.name, e.DType)
		}
		want := t.DType.Size()
		for _, d := range t.Shape {
			if d < 0 || d > 0 && want > (1<<62)/d {
				return nil, bad(8, "tensor %q: no tensor has the shape %v", e.name, t.Shape)
			}
			want *= d
		}
		if len(e.Offsets) != 2 || e.Offsets[0] < 0 || e.Offsets[1] < e.Offsets[0] {
			return nil, bad(8, "tensor %q: offsets %v are not a range", e.name, e.Offsets)
		}
		t.Begin, t.End = e.Offsets[0], e.Offsets[1]
		if t.End-t.Begin != want {
			return nil, bad(8, "tensor %q: %v of %s takes %d bytes, its range has %d", e.name, t.Shape, t.DType, want, t.End-t.Begin)
		}
		if size >= 0 && t.End > size-8-int64(n) {
			return nil, bad(8, "tensor %q: its range ends at %d, the data has %d bytes (a file that was not copied whole?)", e.name, t.End, size-8-int64(n))
		}
		tensors = append(tensors, t)
	}
	slices.SortFunc(tensors, func(a, b Tensor) int {
		switch {
		case a.Begin != b.Begin:
			return int(min(max(a.Begin-b.Begin, -1), 1))
		case a.End != b.End:
			return int(min(max(a.End-b.End, -1), 1))
		}
		return strings.Compare(a.Name, b.Name)
	})
	at := int64(0)
	for i := range tensors {
		if tensors[i].Begin != at {
			return nil, bad(8, "tensor %q: its range begins at %d, where %d is expected", tensors[i].Name, tensors[i].Begin, at)
		}
		at = tensors[i].End
	}
	return tensors, nil
}

// headerEntry is one tensor as the header writes it.
type headerEntry struct {
	name    string
	DType   string  `json:"dtype"`
	Shape   []int64 `json:"shape"`
	Offsets []int64 `json:"data_offsets"`
}

// headerEntries decodes the header one entry at a time, so that the memory taken
// is a small multiple of the header's length, and repeated names are seen.
func headerEntries(text []byte) ([]headerEntry, error) {
	dec := json.NewDecoder(bytes.NewReader(text))
	if t, err := dec.Token(); err != nil {
		return nil, err
	} else if t != json.Delim('{') {
		return nil, errors.New("it does not begin with {")
	}
	var out []headerEntry
	seen := map[string]bool{}
	for dec.More() {
		key, err := dec.Token()
		if err != nil {
			return nil, err
		}
		name, _ := key.(string)
		if seen[name] {
			return nil, fmt.Errorf("tensor %q is there twice", name)
		}
		seen[name] = true
		if name == "__metadata__" {
			var skip json.RawMessage
			if err := dec.Decode(&skip); err != nil {
				return nil, err
			}
			continue
		}
		e := headerEntry{name: name}
		if err := dec.Decode(&e); err != nil {
			return nil, fmt.Errorf("tensor %q: %w", name, err)
		}
		out = append(out, e)
	}
	if _, err := dec.Token(); err != nil {
		return nil, err
	}
	return out, nil
}

// indexLimit is the largest index of a sharded model that is read.
const indexLimit = 64 << 20

// shardsOf reads model.safetensors.index.json and returns the names of the
// files, in order, without paths that leave the folder.
func shardsOf(name string, r io.Reader) ([]string, error) {
	data, err := io.ReadAll(io.LimitReader(r, indexLimit+1))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	if len(data) > indexLimit {
		return nil, &ConfigError{Name: name, Msg: "is too large for an index"}
	}
	var index struct {
		WeightMap map[string]string `json:"weight_map"`
	}
	if err := json.Unmarshal(data, &index); err != nil {
		return nil, jsonError(name, data, err)
	}
	var files []string
	for _, f := range index.WeightMap {
		if strings.ContainsAny(f, "/\\") || f == "" || f == ".." {
			return nil, &ConfigError{Name: name, Key: "weight_map", Msg: fmt.Sprintf("%q is not the name of a file beside it", f)}
		}
		files = append(files, f)
	}
	slices.Sort(files)
	return slices.Compact(files), nil
}
