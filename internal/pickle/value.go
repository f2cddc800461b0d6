package pickle

import (
	"math/big"
	"strings"
	"unicode/utf8"
)

// A Value is one Python object in eight bytes: its kind in the top byte, and in
// the other seven the value itself or where the Heap keeps it. The zero Value
// is no object.
type Value uint64

// A Kind is the type of a Value.
type Kind uint8

// The kinds. Those from KindUser up are a Builder's own.
const (
	KindNothing Kind = iota
	KindNone
	KindBool
	KindInt  // fits 56 bits, as addresses and microseconds do
	KindWide // any other integer
	KindFloat
	KindStr
	KindList
	KindDict
	KindTuple
	kindRaw // what the heap keeps of a container that no builder took

	KindUser Kind = 64
)

const payloadBits = 56

// Make returns a Value of a Builder's own kind. Of n, 56 bits are kept.
func Make(k Kind, n uint64) Value { return Value(k)<<payloadBits | Value(n&(1<<payloadBits-1)) }

// Kind returns the type of v.
func (v Value) Kind() Kind { return Kind(v >> payloadBits) }

// Payload returns what a Value made with Make carries.
func (v Value) Payload() uint64 { return uint64(v) & (1<<payloadBits - 1) }

// small returns the integer of a KindInt.
func (v Value) small() int64 { return int64(v<<8) >> 8 }

func makeInt(n int64) (Value, bool) {
	if n>>(payloadBits-1) != 0 && n>>(payloadBits-1) != -1 {
		return 0, false
	}
	return Make(KindInt, uint64(n)), true
}

// A Heap holds what Values refer to: interned strings, integers and floats that
// do not fit a Value, and containers. It counts what it holds and refuses to
// grow past what the input justifies.
type Heap struct {
	strings []string
	ids     map[string]uint32
	floats  []float64
	wides   [][]byte // two's complement, little endian
	objs    []Value  // by container id: nothing, kindRaw, or a Builder's value
	raws    [][]Value
	held    int64
	budget  int64
}

// NewHeap returns an empty heap.
func NewHeap() *Heap {
	h := &Heap{ids: map[string]uint32{}, budget: baseBudget}
	h.Intern(nil) // id 0 is the empty string
	return h
}

// baseBudget and budgetPerByte bound what is held: a snapshot needs less than
// its own size, and a small hostile file gets nowhere near 100 MB.
const (
	baseBudget    = 24 << 20
	budgetPerByte = 3
)

// Charge records that n more bytes are held, by a Builder or by the heap, and
// fails where the input is too small to justify it.
func (h *Heap) Charge(n int) error {
	h.held += int64(n)
	if h.held > h.budget {
		return errBomb
	}
	return nil
}

// Allow lets the heap grow in proportion to read bytes of input.
func (h *Heap) Allow(read int64) { h.budget = baseBudget + budgetPerByte*read }

// stringOverhead is about what one interned string costs beside its bytes: the
// header, the map's key and value.
const stringOverhead = 48

// Intern returns the id of a text. Bytes that are not UTF-8 (lone surrogates,
// which Python may write) become U+FFFD.
func (h *Heap) Intern(text []byte) (uint32, error) {
	if id, ok := h.ids[string(text)]; ok {
		return id, nil
	}
	if err := h.Charge(len(text) + stringOverhead); err != nil {
		return 0, err
	}
	id, s := uint32(len(h.strings)), string(text)
	h.ids[s] = id
	if !utf8.ValidString(s) {
		s = strings.ToValidUTF8(s, "\uFFFD")
	}
	h.strings = append(h.strings, s)
	return id, nil
}

// String returns the text of a string id.
func (h *Heap) String(id uint32) string {
	if int(id) >= len(h.strings) {
		return ""
	}
	return h.strings[id]
}

// Strings returns every interned text, by id.
func (h *Heap) Strings() []string { return h.strings }

// Str returns the text of v, and false if v is not a string.
func (h *Heap) Str(v Value) (string, bool) {
	if v.Kind() != KindStr {
		return "", false
	}
	return h.strings[v.Payload()], true
}

// StrID returns the id of the text of v, and false if v is not a string.
func StrID(v Value) (uint32, bool) {
	return uint32(v.Payload()), v.Kind() == KindStr
}

// Int returns an integer (or a bool, as in Python) that fits an int64.
func (h *Heap) Int(v Value) (int64, bool) {
	switch v.Kind() {
	case KindInt:
		return v.small(), true
	case KindBool:
		return int64(v.Payload()), true
	case KindWide:
		n := h.Big(v)
		return n.Int64(), n.IsInt64()
	}
	return 0, false
}

// Uint returns an integer that fits a uint64, as addresses do.
func (h *Heap) Uint(v Value) (uint64, bool) {
	switch v.Kind() {
	case KindInt:
		return uint64(v.small()), v.small() >= 0
	case KindWide:
		n := h.Big(v)
		return n.Uint64(), n.IsUint64()
	}
	return 0, false
}

// Big returns an integer of any size, nil if v is not one.
func (h *Heap) Big(v Value) *big.Int {
	switch v.Kind() {
	case KindInt:
		return big.NewInt(v.small())
	case KindWide:
		return bigFromLE(h.wides[v.Payload()])
	}
	return nil
}

// bigFromLE reads two's complement, little endian.
func bigFromLE(le []byte) *big.Int {
	be := make([]byte, len(le))
	for i, b := range le {
		be[len(le)-1-i] = b
	}
	n := new(big.Int).SetBytes(be)
	if len(le) > 0 && le[len(le)-1]&0x80 != 0 {
		n.Sub(n, new(big.Int).Lsh(big.NewInt(1), uint(8*len(le))))
	}
	return n
}

// Float returns a float, or an integer as one.
func (h *Heap) Float(v Value) (float64, bool) {
	switch v.Kind() {
	case KindFloat:
		return h.floats[v.Payload()], true
	case KindInt:
		return float64(v.small()), true
	}
	return 0, false
}

// Bool returns a bool.
func (h *Heap) Bool(v Value) (value, ok bool) {
	return v.Payload() != 0, v.Kind() == KindBool
}

// NewInt returns the Value of n.
func (h *Heap) NewInt(n int64) (Value, error) {
	if v, ok := makeInt(n); ok {
		return v, nil
	}
	le := make([]byte, 8)
	for i := range le {
		le[i] = byte(n >> (8 * i))
	}
	return h.newWide(le)
}

// NewFloat returns the Value of f.
func (h *Heap) NewFloat(f float64) (Value, error) {
	if err := h.Charge(8); err != nil {
		return 0, err
	}
	h.floats = append(h.floats, f)
	return Make(KindFloat, uint64(len(h.floats)-1)), nil
}

// NewStr returns the Value of a text.
func (h *Heap) NewStr(text []byte) (Value, error) {
	id, err := h.Intern(text)
	return Make(KindStr, uint64(id)), err
}

// NewBool returns the Value of a bool.
func NewBool(b bool) Value {
	if b {
		return Make(KindBool, 1)
	}
	return Make(KindBool, 0)
}

// newWide keeps an integer; le is kept, not copied.
func (h *Heap) newWide(le []byte) (Value, error) {
	if err := h.Charge(len(le) + 24); err != nil {
		return 0, err
	}
	h.wides = append(h.wides, le)
	return Make(KindWide, uint64(len(h.wides)-1)), nil
}

// NewContainer returns a new, empty KindList, KindDict or KindTuple.
func (h *Heap) NewContainer(k Kind) (Value, error) {
	if len(h.objs) == cap(h.objs) {
		if err := h.Charge(8 * max(64, len(h.objs)/2)); err != nil {
			return 0, err
		}
		h.objs = append(make([]Value, 0, len(h.objs)+max(64, len(h.objs)/2)), h.objs...)
	}
	h.objs = append(h.objs, 0)
	return Make(k, uint64(len(h.objs)-1)), nil
}

// Resolve returns what a Builder made of the container v; v itself where it is
// not a container or the Builder did not take it.
func (h *Heap) Resolve(v Value) Value {
	if k := v.Kind(); k == KindDict || k == KindList || k == KindTuple {
		if o := h.objs[v.Payload()]; o.Kind() >= KindUser {
			return o
		}
	}
	return v
}

// Items returns the elements of a list or tuple, or the keys and values of a
// dict in turn, that no Builder took. It is nil for anything else.
func (h *Heap) Items(v Value) []Value {
	if k := v.Kind(); k == KindDict || k == KindList || k == KindTuple {
		if o := h.objs[v.Payload()]; o.Kind() == kindRaw {
			return h.raws[o.Payload()]
		}
	}
	return nil
}

// Get returns the value of a key of a dict that no Builder took, the last one
// where the key is there twice.
func (h *Heap) Get(dict Value, key string) (Value, bool) {
	id, ok := h.ids[key]
	if !ok || dict.Kind() != KindDict {
		return 0, false
	}
	items := h.Items(dict)
	for i := len(items) - 2; i >= 0; i -= 2 {
		if items[i] == Make(KindStr, uint64(id)) {
			return items[i+1], true
		}
	}
	return 0, false
}

// Fill adds items to the container v, through the builder or, where it declines,
// as they are.
func (h *Heap) Fill(b Builder, v Value, items []Value) error {
	if len(items) == 0 {
		return nil
	}
	at := v.Payload()
	was := h.objs[at]
	if was.Kind() == kindRaw {
		n := was.Payload()
		old := cap(h.raws[n])
		h.raws[n] = append(h.raws[n], items...)
		return h.Charge(8 * (cap(h.raws[n]) - old))
	}
	var made Value
	var took bool
	var err error
	switch v.Kind() {
	case KindList:
		made, took, err = b.List(was, items)
	case KindDict:
		made, took, err = b.Dict(was, items)
	default:
		made, took, err = b.Tuple(items)
	}
	switch {
	case err != nil:
		return err
	case took:
		h.objs[at] = made
		return nil
	case was != 0:
		return errChanged
	}
	h.raws = append(h.raws, append([]Value(nil), items...))
	h.objs[at] = Make(kindRaw, uint64(len(h.raws)-1))
	return h.Charge(8*len(items) + 24)
}

// A Builder turns containers into something smaller while the input is read, so
// that no tree of the whole is ever held.
//
// Each method is given the items of one container and returns what replaces it,
// a Value of a kind from KindUser up, or false to have the heap keep the items.
// Containers may come in batches: was is then what the earlier items were
// turned into, else 0. What was returned once must never change: other
// containers may hold it. items is valid only during the call.
type Builder interface {
	List(was Value, items []Value) (Value, bool, error)
	Dict(was Value, items []Value) (Value, bool, error)
	Tuple(items []Value) (Value, bool, error)
}
