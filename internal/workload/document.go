package workload

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
)

// Bounds of a configuration: what people write by hand is far below them.
const (
	documentMost = 4 << 20 // bytes
	nodesMost    = 100_000
	keysMost     = 10_000 // of one object
	depthMost    = 64
)

// A shape is what a node of a configuration is.
type shape uint8

const (
	null shape = iota
	scalar
	list
	object
)

// A node is one value of a configuration, of whatever syntax, with the line on
// which it stands.
type node struct {
	shape shape
	text  string // of a scalar, as it is written, without quotes
	line  int    // from 1; 0: not from a file
	where string // in place of a line: "--seq_len" of a command
	keys  []string
	items []*node // of a list; of an object, beside keys
	read  bool    // a reader has taken it
}

// A SyntaxError says where a configuration cannot be read.
type SyntaxError struct {
	File   string
	Line   int // 0: not known
	Column int
	Msg    string
}

func (e *SyntaxError) Error() string {
	switch {
	case e.Line == 0:
		return fmt.Sprintf("%s: %s", e.File, e.Msg)
	case e.Column == 0:
		return fmt.Sprintf("%s:%d: %s", e.File, e.Line, e.Msg)
	}
	return fmt.Sprintf("%s:%d:%d: %s", e.File, e.Line, e.Column, e.Msg)
}

// get returns the value of a key, nil if it is absent or null.
func (n *node) get(key string) *node {
	v := n.child(key)
	if v == nil || v.shape == null {
		return nil
	}
	return v
}

// child returns the value of a key, nil if it is absent.
func (n *node) child(key string) *node {
	if n == nil || n.shape != object {
		return nil
	}
	for i := len(n.keys) - 1; i >= 0; i-- { // the last one counts
		if n.keys[i] == key {
			return n.items[i]
		}
	}
	return nil
}

// at follows a dotted path.
func (n *node) at(path string) *node {
	for key := range strings.SplitSeq(path, ".") {
		if n = n.get(key); n == nil {
			return nil
		}
	}
	return n
}

func (n *node) has(keys ...string) bool {
	for _, k := range keys {
		if n.child(k) == nil {
			return false
		}
	}
	return true
}

// set puts a value under a dotted path, in place of what is there.
func (n *node) set(path string, v *node) {
	key, rest, deeper := strings.Cut(path, ".")
	c := n.child(key)
	if !deeper {
		if c != nil {
			*c = *v
			return
		}
		n.keys, n.items = append(n.keys, key), append(n.items, v)
		return
	}
	if c == nil {
		c = &node{line: v.line, where: v.where}
		n.keys, n.items = append(n.keys, key), append(n.items, c)
	}
	if c.shape != object {
		*c = node{shape: object, line: v.line, where: v.where}
	}
	c.set(rest, v)
}

// str returns the text of a scalar.
func (n *node) str() (string, bool) {
	if n == nil || n.shape != scalar {
		return "", false
	}
	return strings.TrimSpace(n.text), true
}

// truth reads a boolean as YAML, JSON, TOML and Python write it.
func (n *node) truth() (value, ok bool) {
	s, _ := n.str()
	switch strings.ToLower(s) {
	case "true", "yes", "on", "1":
		return true, true
	case "false", "no", "off", "0":
		return false, true
	}
	return false, false
}

// integer reads a whole number: 4096, 1e9, 4_096.
func (n *node) integer() (int64, bool) {
	s, ok := n.str()
	if !ok {
		return 0, false
	}
	return wholeNumber(s)
}

func wholeNumber(s string) (int64, bool) {
	s = strings.ReplaceAll(s, "_", "")
	if v, err := strconv.ParseInt(s, 10, 64); err == nil {
		return v, true
	}
	f, err := strconv.ParseFloat(s, 64)
	if err != nil || f != math.Trunc(f) || math.Abs(f) > 1<<53 {
		return 0, false
	}
	return int64(f), true
}

// texts returns a list of strings; a scalar is split at commas and spaces.
func (n *node) texts() []string {
	if n == nil {
		return nil
	}
	if s, ok := n.str(); ok {
		return strings.FieldsFunc(s, func(r rune) bool { return r == ',' || r == ' ' })
	}
	var out []string
	for _, item := range n.items {
		if s, ok := item.str(); ok && n.shape == list {
			out = append(out, s)
		}
	}
	return out
}

// walk visits every node with its dotted path.
func (n *node) walk(path string, visit func(path string, n *node)) {
	visit(path, n)
	for i, item := range n.items {
		p := path
		if n.shape == object {
			p = strings.TrimPrefix(path+"."+n.keys[i], ".")
		}
		item.walk(p, visit)
	}
}

// parse reads a document; its syntax is told by its first character and by what
// its lines look like.
func parse(name string, data []byte) (*node, error) {
	if len(data) > documentMost {
		return nil, &SyntaxError{File: name, Msg: fmt.Sprintf("%d bytes are too many for a configuration", len(data))}
	}
	data = bytes.TrimPrefix(data, []byte("\xef\xbb\xbf"))
	text := bytes.TrimSpace(data)
	switch {
	case len(text) == 0:
		return nil, &SyntaxError{File: name, Msg: "the file is empty"}
	case bytes.IndexByte(data, 0) >= 0:
		return nil, &SyntaxError{File: name, Msg: "this is binary, not a configuration"}
	case text[0] == '{':
		return parseJSON(name, data)
	case looksTOML(text):
		return parseTOML(name, data)
	}
	return parseYAML(name, data)
}

// looksTOML reports whether the first line that says anything is a table's
// header or an assignment.
func looksTOML(text []byte) bool {
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' {
			continue
		}
		if line[0] == '[' {
			return strings.Contains(line, "]") && !strings.Contains(line, ":")
		}
		key, _, ok := strings.Cut(line, "=")
		return ok && !strings.ContainsAny(strings.TrimSpace(key), ": ")
	}
	return false
}

// jsonReader keeps the offsets of the decoder's tokens for their lines.
type jsonReader struct {
	name  string
	data  []byte
	dec   *json.Decoder
	count int
	line  int
	upTo  int64 // offset up to which lines are counted
}

func parseJSON(name string, data []byte) (*node, error) {
	r := &jsonReader{name: name, data: data, dec: json.NewDecoder(bytes.NewReader(data)), line: 1}
	r.dec.UseNumber()
	n, err := r.value(0)
	if err != nil {
		return nil, err
	}
	if _, err := r.dec.Token(); !errors.Is(err, io.EOF) {
		return nil, r.fail(r.dec.InputOffset(), "something follows the closing brace")
	}
	return n, nil
}

func (r *jsonReader) fail(offset int64, msg string) error {
	offset = min(max(offset, 0), int64(len(r.data)))
	head := r.data[:offset]
	line := 1 + bytes.Count(head, []byte("\n"))
	return &SyntaxError{File: r.name, Line: line, Column: int(offset) - bytes.LastIndexByte(head, '\n'), Msg: msg}
}

// here counts the lines up to the end of the newest token.
func (r *jsonReader) here() int {
	to := r.dec.InputOffset()
	r.line += bytes.Count(r.data[r.upTo:to], []byte("\n"))
	r.upTo = to
	return r.line
}

func (r *jsonReader) token() (json.Token, error) {
	t, err := r.dec.Token()
	if err == nil {
		return t, nil
	}
	if s, ok := errors.AsType[*json.SyntaxError](err); ok {
		at := s.Offset // of the character, or behind it: the decoder has both
		if at >= int64(len(r.data)) || !strings.Contains(s.Error(), "'"+string(r.data[at])+"'") {
			at--
		}
		return nil, r.fail(at, "this is not JSON: "+s.Error())
	}
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return nil, r.fail(int64(len(bytes.TrimRight(r.data, " \t\r\n"))), "the file ends within a value: a closing brace or bracket is missing")
	}
	return nil, r.fail(r.dec.InputOffset(), "this is not JSON: "+err.Error())
}

func (r *jsonReader) value(depth int) (*node, error) {
	t, err := r.token()
	if err != nil {
		return nil, err
	}
	if r.count++; r.count > nodesMost || depth > depthMost {
		return nil, r.fail(r.dec.InputOffset(), "too deep or too large for a configuration")
	}
	n := &node{line: r.here()}
	switch v := t.(type) {
	case nil:
	case bool:
		n.shape, n.text = scalar, strconv.FormatBool(v)
	case json.Number:
		n.shape, n.text = scalar, v.String()
	case string:
		n.shape, n.text = scalar, v
	case json.Delim:
		n.shape = list
		if v == '{' {
			n.shape = object
		}
		for r.dec.More() {
			if n.shape == object {
				k, err := r.token()
				if err != nil {
					return nil, err
				}
				key, ok := k.(string)
				if !ok {
					return nil, r.fail(r.dec.InputOffset(), "this is not JSON: a key has to be a string")
				}
				n.keys = append(n.keys, key)
			}
			item, err := r.value(depth + 1)
			if err != nil {
				return nil, err
			}
			n.items = append(n.items, item)
		}
		if _, err := r.token(); err != nil {
			return nil, err
		}
	}
	return n, nil
}
