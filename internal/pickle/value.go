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

// A Kind is the type of a Value. A Builder has kinds KindUser to KindUser+14.
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
	objs    []packed // by container id: nothing, kindRaw, or a Builder's value
	objsCol Column
	raws    [][]Value
	wide    []Value // what does not fit a packed
	shapes  []*Shape
	held    int64
	budget  int64
	read    int64 // bytes of input so far
	size    int64 // of the input, -1 if not known
}

// packed is a Value in four bytes, of which a heap and the memo hold millions:
// five bits for the kind, the rest for the payload or, if it is larger, for
// where the whole Value is.
type packed uint32

const (
	packedBits = 27
	packedMask = 1<<packedBits - 1
	packedWide = 31 // KindUser + 15, which no Builder uses
)

func (h *Heap) unpack(p packed) Value {
	code := Value(p >> packedBits)
	if code == packedWide {
		return h.wide[p&packedMask]
	}
	// 16 and up stand for KindUser, which is 64, and up.
	return (code&15|code&16<<2)<<payloadBits | Value(p&packedMask)
}

func (h *Heap) pack(v Value) packed {
	if v.Payload() > packedMask {
		return h.packWide(v)
	}
	k := packed(v.Kind())
	return (k&15|k>>2&16)<<packedBits | packed(v.Payload())
}

func (h *Heap) packWide(v Value) packed {
	h.held += 8
	h.wide = append(h.wide, v)
	return packedWide<<packedBits | packed(len(h.wide)-1)
}

// NewHeap returns an empty heap.
func NewHeap() *Heap {
	h := &Heap{ids: map[string]uint32{}, budget: baseBudget, size: -1}
	h.Intern(nil) // id 0 is the empty string
	return h
}

// baseBudget and budgetPerByte bound what is held: a snapshot needs less than
// its own size, and a small hostile file gets nowhere near 100 MB.
const (
	baseBudget    = 12 << 20
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
func (h *Heap) Allow(read int64) {
	h.read = read
	h.budget = baseBudget + budgetPerByte*read
}

// Expect says how long the input is, -1 if that is not known.
func (h *Heap) Expect(size int64) { h.size = size }

// A Column tells how far a growing slice should grow: to what the whole input
// will need if it goes on as it did. Growing step by step would hold every entry
// twice while it moves. Memory that is never filled is never touched, so that
// only what is filled needs to be charged for.
type Column struct {
	n    int // at the last growth
	read int64
}

// Room returns the capacity that a full column of n entries should grow to.
func (c *Column) Room(h *Heap, n int) int {
	const least = 1024
	enough := max(1<<20, h.size/64) // bytes over which the rate is trusted
	room := n + max(least, n/2)
	if span := h.read - c.read; h.size > h.read && span >= enough {
		rate := float64(n-c.n) / float64(span)
		room = n + least + int(rate*float64(h.size-h.read)*1.15)
	}
	c.n, c.read = n, h.read
	return max(room, n+least+n/16)
}

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

// NewUint returns the Value of n.
func (h *Heap) NewUint(n uint64) (Value, error) {
	if n < 1<<(payloadBits-1) {
		return Make(KindInt, n), nil
	}
	le := make([]byte, 9)
	for i := range 8 {
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
	if h.held += 4; h.held > h.budget {
		return 0, errBomb
	}
	if len(h.objs) == cap(h.objs) {
		h.objs = append(make([]packed, 0, h.objsCol.Room(h, len(h.objs))), h.objs...)
	}
	h.objs = append(h.objs, 0)
	return Make(k, uint64(len(h.objs)-1)), nil
}

// Resolve returns what a Builder made of the container v; v itself where it is
// not a container or the Builder did not take it.
func (h *Heap) Resolve(v Value) Value {
	if k := v.Kind(); k == KindDict || k == KindList || k == KindTuple {
		if o := h.unpack(h.objs[v.Payload()]); o.Kind() >= KindUser {
			return o
		}
	}
	return v
}

// Items returns the elements of a list or tuple, or the keys and values of a
// dict in turn, that no Builder took. It is nil for anything else.
func (h *Heap) Items(v Value) []Value {
	if k := v.Kind(); k == KindDict || k == KindList || k == KindTuple {
		if o := h.unpack(h.objs[v.Payload()]); o.Kind() == kindRaw {
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
	was := h.unpack(h.objs[at])
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
		if was == 0 {
			return h.fillNew(b, v, h.shapeOf(items), items)
		}
		return errChanged
	default:
		made, took, err = b.Tuple(items)
	}
	switch {
	case err != nil:
		return err
	case took:
		h.objs[at] = h.pack(made)
		return nil
	case was != 0:
		return errChanged
	}
	return h.keep(v, items)
}

// fillNew adds items to a dict that has none yet.
func (h *Heap) fillNew(b Builder, dict Value, s *Shape, items []Value) error {
	made, took, err := b.Dict(s, items)
	if err != nil {
		return err
	}
	if took {
		h.objs[dict.Payload()] = h.pack(made)
		return nil
	}
	return h.keep(dict, items)
}

// keep holds the items of a container as they are.
func (h *Heap) keep(v Value, items []Value) error {
	if err := h.Charge(8*len(items) + 24); err != nil {
		return err
	}
	h.raws = append(h.raws, append([]Value(nil), items...))
	h.objs[v.Payload()] = h.pack(Make(kindRaw, uint64(len(h.raws)-1)))
	return nil
}

// Reduce gives a dict that no builder took, because it was filled key by key, to
// the builder once more. It returns what v stands for.
func (h *Heap) Reduce(b Builder, v Value) (Value, error) {
	v = h.Resolve(v)
	items := h.Items(v)
	if v.Kind() != KindDict || items == nil {
		return v, nil
	}
	made, took, err := b.Dict(h.shapeOf(items), items)
	if !took {
		made = v
	}
	return made, err
}

// A Builder turns containers into something smaller while the input is read, so
// that no tree of the whole is ever held.
//
// Each method is given the items of one container and returns what replaces it,
// a Value of a kind from KindUser up, or false to have the heap keep the items.
// Lists may come in batches: was is then what the earlier items were turned
// into, else 0. What was returned once must never change: other
// containers may hold it. items is valid only during the call.
type Builder interface {
	List(was Value, items []Value) (Value, bool, error)
	Dict(s *Shape, items []Value) (Value, bool, error)
	Tuple(items []Value) (Value, bool, error)
}
