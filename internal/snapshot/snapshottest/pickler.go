// Package snapshottest writes memory snapshots for tests and benchmarks: as
// Python's pickle module does, as torch's C++ pickler does, or as JSON. It
// knows nothing of the allocator; what it is told to write, it writes.
package snapshottest

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"math"
)

// A Style is a way to write a snapshot down.
type Style int

// The styles. Protocol numbers are pickle's.
const (
	Python4 Style = iota // MEMOIZE, frames, batches of 1000
	Python2              // BINPUT, no frames
	Python5              // as Python4, from Python 3.14 on
	CPP                  // torch::jit::Pickler: one batch, texts memoised by value
	JSON
)

// Dict is a dict: keys, which are texts, and values in turn.
type Dict []any

// Set changes the value of a key that is there.
func (d Dict) Set(key string, value any) {
	for i := 0; i < len(d); i += 2 {
		if d[i] == key {
			d[i+1] = value
		}
	}
}

// Get returns the value of a key, nil if it is not there.
func (d Dict) Get(key string) any {
	for i := 0; i < len(d); i += 2 {
		if d[i] == key {
			return d[i+1]
		}
	}
	return nil
}

// Without returns d without a key.
func (d Dict) Without(key string) Dict {
	var rest Dict
	for i := 0; i < len(d); i += 2 {
		if d[i] != key {
			rest = append(rest, d[i], d[i+1])
		}
	}
	return rest
}

// List is a list; Lazy one whose items are made while it is written.
type (
	List  []any
	Tuple []any
	Lazy  struct {
		N  int
		At func(i int) any
	}
)

// Interned is a text that is one object wherever it occurs, as keys are.
// A plain string is a new object each time.
type Interned string

// Shared is an object that occurs in several places; it is the same object
// where the pointer is the same.
type Shared struct{ value any }

// Share returns an object that may be put into several places.
func Share(value any) *Shared { return &Shared{value} }

// Raw is opcodes, written as they are.
type Raw []byte

// Write writes v, built of the types above and of int, int64, uint64, float64, bool
// and nil.
func Write(w io.Writer, v any, style Style) error {
	if style == JSON {
		return writeJSON(w, v)
	}
	p := &pickler{w: bufio.NewWriterSize(w, 1<<20), style: style, memo: map[any]int{}}
	switch style {
	case Python4:
		p.op(0x80, 4)
	case Python5:
		p.op(0x80, 5)
	default:
		p.op(0x80, 2)
	}
	p.value(v)
	p.op('.')
	p.flushFrame()
	return p.w.Flush()
}

type pickler struct {
	w     *bufio.Writer
	style Style
	memo  map[any]int // by *Shared, or by text where that is shared
	n     int         // entries of the memo
	frame []byte      // of the framing styles: what is not written yet
}

// frameTarget is the size from which pickle ends a frame.
// Source: CPython Lib/pickle.py, _Framer._FRAME_SIZE_TARGET.
const frameTarget = 64 * 1024

func (p *pickler) framing() bool { return p.style == Python4 || p.style == Python5 }

func (p *pickler) op(b ...byte) {
	if !p.framing() || (len(p.frame) == 0 && p.n == 0 && b[0] == 0x80) {
		p.w.Write(b)
		return
	}
	p.frame = append(p.frame, b...)
}

// boundary ends a frame that is full.
func (p *pickler) boundary() {
	if len(p.frame) >= frameTarget {
		p.flushFrame()
	}
}

func (p *pickler) flushFrame() {
	if len(p.frame) == 0 {
		return
	}
	if len(p.frame) >= 4 { // shorter ones are not worth a header
		p.w.WriteByte(0x95)
		p.w.Write(binary.LittleEndian.AppendUint64(nil, uint64(len(p.frame))))
	}
	p.w.Write(p.frame)
	p.frame = p.frame[:0]
}

// memoize gives the object on top the next number.
func (p *pickler) memoize(key any) {
	if key != nil {
		p.memo[key] = p.n
	}
	switch {
	case p.framing():
		p.op(0x94)
	case p.n < 256:
		p.op('q', byte(p.n))
	default:
		p.op(binary.LittleEndian.AppendUint32([]byte{'r'}, uint32(p.n))...)
	}
	p.n++
}

func (p *pickler) get(key any) bool {
	i, ok := p.memo[key]
	if !ok {
		return false
	}
	if i < 256 {
		p.op('h', byte(i))
	} else {
		p.op(binary.LittleEndian.AppendUint32([]byte{'j'}, uint32(i))...)
	}
	return true
}

func (p *pickler) value(v any) { p.shared(v, nil) }

// shared writes v, an object that key stands for if it is not nil.
func (p *pickler) shared(v, key any) {
	p.boundary()
	switch v := v.(type) {
	case *Shared:
		if !p.get(v) {
			p.shared(v.value, v)
		}
	case Interned:
		if !p.get(v) {
			p.text(string(v))
			p.memoize(v)
		}
	case string:
		if p.style == CPP {
			p.shared(Interned(v), nil)
			return
		}
		p.text(v)
		p.memoize(key)
	case Dict:
		p.op('}')
		p.early(key)
		p.batches(len(v)/2, 's', 'u', func(i int) {
			p.value(Interned(v[2*i].(string)))
			p.value(v[2*i+1])
		})
		p.late(key)
	case List:
		p.list(len(v), key, func(i int) any { return v[i] })
	case Lazy:
		p.list(v.N, key, v.At)
	case Tuple:
		for _, it := range v {
			p.value(it)
		}
		p.op([]byte{')', 0x85, 0x86, 0x87}[len(v)])
		if len(v) > 0 && (p.style != CPP || key != nil) {
			p.memoize(key)
		}
	case Raw:
		p.op(v...)
	case nil:
		p.op('N')
	case bool:
		if v {
			p.op(0x88)
		} else {
			p.op(0x89)
		}
	case float64:
		p.op(binary.BigEndian.AppendUint64([]byte{'G'}, math.Float64bits(v))...)
	case int:
		p.int(int64(v))
	case int64:
		p.int(v)
	case uint64:
		if v > math.MaxInt64 {
			p.op(binary.LittleEndian.AppendUint64([]byte{0x8a, 9}, v)...)
			p.op(0)
			return
		}
		p.int(int64(v))
	default:
		panic(fmt.Sprintf("snapshottest: cannot write %T", v))
	}
}

// early memoises a container before its content, as Python does; late after it
// and only where needed, as C++ does.
func (p *pickler) early(key any) {
	if p.style != CPP {
		p.memoize(key)
	}
}

func (p *pickler) late(key any) {
	if p.style == CPP && key != nil {
		p.memoize(key)
	}
}

func (p *pickler) list(n int, key any, at func(int) any) {
	p.op(']')
	p.early(key)
	p.batches(n, 'a', 'e', func(i int) { p.value(at(i)) })
	p.late(key)
}

// batches writes n items, in batches of 1000 as Python does or in one.
func (p *pickler) batches(n int, one, many byte, item func(int)) {
	size := 1000
	if p.style == CPP {
		p.op('(')
		for i := range n {
			item(i)
		}
		p.op(many)
		return
	}
	for from := 0; from < n; from += size {
		to := min(n, from+size)
		if to-from == 1 {
			item(from)
			p.op(one)
			continue
		}
		p.op('(')
		for i := from; i < to; i++ {
			item(i)
		}
		p.op(many)
	}
}

func (p *pickler) text(s string) {
	switch {
	case p.framing() && len(s) < 256:
		p.op(0x8c, byte(len(s)))
	default:
		p.op(binary.LittleEndian.AppendUint32([]byte{'X'}, uint32(len(s)))...)
	}
	p.op([]byte(s)...)
}

func (p *pickler) int(n int64) {
	switch {
	case n >= 0 && n < 1<<8:
		p.op('K', byte(n))
	case n >= 0 && n < 1<<16:
		p.op('M', byte(n), byte(n>>8))
	case n >= math.MinInt32 && n <= math.MaxInt32:
		p.op(binary.LittleEndian.AppendUint32([]byte{'J'}, uint32(n))...)
	default:
		le := binary.LittleEndian.AppendUint64(nil, uint64(n))
		if p.style != CPP {
			for len(le) > 1 && (le[len(le)-1] == 0 && le[len(le)-2] < 0x80 || le[len(le)-1] == 0xff && le[len(le)-2] >= 0x80) {
				le = le[:len(le)-1]
			}
		}
		p.op(append([]byte{0x8a, byte(len(le))}, le...)...)
	}
}

// writeJSON writes v as json.dump does.
func writeJSON(w io.Writer, v any) error {
	out := bufio.NewWriter(w)
	jsonValue(out, v)
	return out.Flush()
}

func jsonValue(w *bufio.Writer, v any) {
	list := func(n int, at func(int) any) {
		w.WriteByte('[')
		for i := range n {
			if i > 0 {
				w.WriteString(", ")
			}
			jsonValue(w, at(i))
		}
		w.WriteByte(']')
	}
	switch v := v.(type) {
	case *Shared:
		jsonValue(w, v.value)
	case Dict:
		w.WriteByte('{')
		for i := 0; i < len(v); i += 2 {
			if i > 0 {
				w.WriteString(", ")
			}
			jsonValue(w, v[i])
			w.WriteString(": ")
			jsonValue(w, v[i+1])
		}
		w.WriteByte('}')
	case List:
		list(len(v), func(i int) any { return v[i] })
	case Tuple:
		list(len(v), func(i int) any { return v[i] })
	case Lazy:
		list(v.N, v.At)
	case float64:
		if math.IsNaN(v) || math.IsInf(v, 0) { // JSON has neither
			w.WriteString("null")
			return
		}
		jsonText(w, v)
	default:
		jsonText(w, v)
	}
}

func jsonText(w *bufio.Writer, v any) {
	text, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	w.Write(text)
}
