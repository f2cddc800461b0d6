package snapshot

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"unicode/utf8"

	"unoom/internal/pickle"
)

// jsonReader reads the JSON form: the same dicts and lists, tuples as lists. It
// feeds the same builder as the pickle machine, so that it needs as little
// memory.
type jsonReader struct {
	r     *bufio.Reader
	h     *pickle.Heap
	b     *builder
	at    int64 // bytes read
	text  []byte
	stack []pickle.Value
}

// Limits against hostile files.
const (
	maxJSONDepth = 200
	maxJSONText  = 4 << 20
	maxJSONBlank = 1 << 20
	jsonBatch    = 1000 // items handed to the builder at once, as Python's pickler does
)

func readJSON(r io.Reader, size int64, around []string) (*Snapshot, error) {
	h := pickle.NewHeap()
	h.Expect(size)
	j := &jsonReader{r: bufio.NewReaderSize(r, 64<<10), h: h, b: newBuilder(h)}
	j.skipBOM()
	root, err := j.value(0)
	if err == nil {
		if c, e := j.next(); e == nil {
			err = j.fail("%q follows the end", c)
		} else if !errors.Is(e, io.ErrUnexpectedEOF) {
			err = e
		}
	}
	if err != nil {
		if errors.Is(err, io.ErrUnexpectedEOF) {
			err = &FormatError{Msg: fmt.Sprintf("JSON: the file ends at byte %d, before the value does", j.at), Mistake: CutOff}
		}
		return nil, err
	}
	s, err := j.b.finish(root)
	if err != nil {
		return nil, err
	}
	s.Form = Form{Container: strings.Join(append(around, "json"), "+")}
	return s, nil
}

func (j *jsonReader) fail(format string, args ...any) error {
	return &FormatError{Msg: fmt.Sprintf("JSON, byte %d: ", j.at) + fmt.Sprintf(format, args...), Mistake: Damaged}
}

// heap turns an error of the heap or the builder into one with a place.
func (j *jsonReader) heap(err error) error {
	if err == nil {
		return nil
	}
	return j.fail("%v", err)
}

func (j *jsonReader) skipBOM() {
	if head, _ := j.r.Peek(len(bom)); string(head) == string(bom) {
		_, _ = j.r.Discard(len(bom))
		j.at += int64(len(bom))
	}
}

func (j *jsonReader) byte() (byte, error) {
	c, err := j.r.ReadByte()
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	j.at++
	return c, err
}

// next returns the next byte that is not blank.
func (j *jsonReader) next() (byte, error) {
	for range maxJSONBlank {
		c, err := j.byte()
		if err != nil || c > ' ' {
			return c, err
		}
	}
	return 0, j.fail("more than %d blanks", maxJSONBlank)
}

func (j *jsonReader) back() {
	_ = j.r.UnreadByte()
	j.at--
}

func (j *jsonReader) value(depth int) (pickle.Value, error) {
	if depth > maxJSONDepth {
		return 0, j.fail("nested more than %d deep", maxJSONDepth)
	}
	c, err := j.next()
	if err != nil {
		return 0, err
	}
	switch {
	case c == '{':
		return j.object(depth)
	case c == '[':
		return j.array(depth)
	case c == '"':
		if err := j.string(); err != nil {
			return 0, err
		}
		v, err := j.h.NewStr(j.text)
		return v, j.heap(err)
	case c == '-' || c >= '0' && c <= '9':
		return j.number(c)
	}
	return j.word(c)
}

func (j *jsonReader) array(depth int) (pickle.Value, error) {
	list, err := j.h.NewContainer(pickle.KindList)
	if err != nil {
		return 0, j.heap(err)
	}
	base := len(j.stack)
	c, err := j.next()
	if err != nil {
		return 0, err
	}
	if c == ']' {
		return list, nil
	}
	j.back()
	for {
		v, err := j.value(depth + 1)
		if err != nil {
			return 0, err
		}
		j.stack = append(j.stack, v)
		if c, err = j.next(); err != nil {
			return 0, err
		}
		if len(j.stack)-base == jsonBatch || c == ']' {
			j.h.Allow(j.at)
			if err := j.h.Fill(j.b, list, j.stack[base:]); err != nil {
				return 0, j.heap(err)
			}
			j.stack = j.stack[:base]
		}
		switch c {
		case ']':
			return list, nil
		case ',':
		default:
			return 0, j.fail("%q where a comma or ] is due", c)
		}
	}
}

func (j *jsonReader) object(depth int) (pickle.Value, error) {
	dict, err := j.h.NewContainer(pickle.KindDict)
	if err != nil {
		return 0, j.heap(err)
	}
	base := len(j.stack)
	c, err := j.next()
	if err != nil {
		return 0, err
	}
	if c == '}' {
		return dict, nil
	}
	for {
		if c != '"' {
			return 0, j.fail("%q where a key is due", c)
		}
		if err := j.string(); err != nil {
			return 0, err
		}
		key, err := j.h.NewStr(j.text)
		if err != nil {
			return 0, j.heap(err)
		}
		if c, err = j.next(); err != nil {
			return 0, err
		}
		if c != ':' {
			return 0, j.fail("%q where a colon is due", c)
		}
		v, err := j.value(depth + 1)
		if err != nil {
			return 0, err
		}
		j.stack = append(j.stack, key, v)
		if c, err = j.next(); err != nil {
			return 0, err
		}
		switch c {
		case '}':
			j.h.Allow(j.at)
			if err := j.h.Fill(j.b, dict, j.stack[base:]); err != nil {
				return 0, j.heap(err)
			}
			j.stack = j.stack[:base]
			return dict, nil
		case ',':
		default:
			return 0, j.fail("%q where a comma or } is due", c)
		}
		if c, err = j.next(); err != nil {
			return 0, err
		}
	}
}

// string reads the rest of a string into j.text.
func (j *jsonReader) string() error {
	j.text = j.text[:0]
	for {
		if len(j.text) > maxJSONText {
			return j.fail("a text of more than %d bytes", maxJSONText)
		}
		c, err := j.byte()
		if err != nil {
			return err
		}
		switch c {
		case '"':
			return nil
		case '\\':
			if err := j.escape(); err != nil {
				return err
			}
		default:
			j.text = append(j.text, c)
		}
	}
}

func (j *jsonReader) escape() error {
	c, err := j.byte()
	if err != nil {
		return err
	}
	switch c {
	case 'n':
		c = '\n'
	case 't':
		c = '\t'
	case 'r':
		c = '\r'
	case 'b':
		c = '\b'
	case 'f':
		c = '\f'
	case 'u':
		r, err := j.hex4()
		if err != nil {
			return err
		}
		if r >= 0xd800 && r < 0xdc00 { // the first half of a pair
			if next, _ := j.r.Peek(2); string(next) == `\u` {
				_, _ = j.r.Discard(2)
				j.at += 2
				low, err := j.hex4()
				if err != nil {
					return err
				}
				r = 0x10000 + (r-0xd800)<<10 + (low - 0xdc00)
			}
		}
		j.text = utf8.AppendRune(j.text, r)
		return nil
	}
	j.text = append(j.text, c)
	return nil
}

func (j *jsonReader) hex4() (rune, error) {
	var digits [4]byte
	for i := range digits {
		c, err := j.byte()
		if err != nil {
			return 0, err
		}
		digits[i] = c
	}
	n, err := strconv.ParseUint(string(digits[:]), 16, 32)
	if err != nil {
		return 0, j.fail("\\u%q is not hexadecimal", digits)
	}
	return rune(n), nil
}

func (j *jsonReader) number(c byte) (pickle.Value, error) {
	var digits [64]byte
	text, ended := digits[:0], false
	for c == '-' || c == '+' || c == '.' || c == 'e' || c == 'E' || c >= '0' && c <= '9' || c == 'I' {
		if c == 'I' { // -Infinity, as Python writes
			return j.word(c)
		}
		if len(text) == cap(text) {
			return 0, j.fail("a number of more than %d digits", cap(text))
		}
		text = append(text, c)
		var err error
		if c, err = j.byte(); errors.Is(err, io.ErrUnexpectedEOF) {
			ended = true
			break
		} else if err != nil {
			return 0, err
		}
	}
	if !ended {
		j.back()
	}
	if n, err := strconv.ParseInt(string(text), 10, 64); err == nil {
		v, err := j.h.NewInt(n)
		return v, j.heap(err)
	}
	if n, err := strconv.ParseUint(string(text), 10, 64); err == nil {
		v, err := j.h.NewUint(n)
		return v, j.heap(err)
	}
	f, err := strconv.ParseFloat(string(text), 64)
	if err != nil {
		return 0, j.fail("%q is not a number", text)
	}
	v, err := j.h.NewFloat(f)
	return v, j.heap(err)
}

// word reads true, false, null, NaN or Infinity, of which c is the first byte.
func (j *jsonReader) word(c byte) (pickle.Value, error) {
	for _, w := range []string{"true", "false", "null", "NaN", "Infinity"} {
		if w[0] != c {
			continue
		}
		for i := 1; i < len(w); i++ {
			got, err := j.byte()
			if err != nil {
				return 0, err
			}
			if got != w[i] {
				return 0, j.fail("%q where a value is due", w[:i]+string(rune(got)))
			}
		}
		switch w {
		case "true", "false":
			return pickle.NewBool(w == "true"), nil
		}
		return pickle.Make(pickle.KindNone, 0), nil
	}
	return 0, j.fail("%q where a value is due", c)
}
