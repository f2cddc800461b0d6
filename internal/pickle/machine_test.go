package pickle

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"math"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"testing/iotest"
	"time"
)

// keepAll is a Builder that takes nothing.
type keepAll struct{}

func (keepAll) List(Value, []Value) (Value, bool, error)  { return 0, false, nil }
func (keepAll) Dict(*Shape, []Value) (Value, bool, error) { return 0, false, nil }
func (keepAll) Tuple([]Value) (Value, bool, error)        { return 0, false, nil }

// show writes a value so that Python can write it too; see differential_test.
func show(h *Heap, v Value, depth int, nodes *int, out *strings.Builder) {
	if *nodes++; depth > 30 || *nodes > 1<<14 { // it holds itself, or nearly
		out.WriteString("…")
		return
	}
	items := h.Items(v)
	switch v.Kind() {
	case KindNone:
		out.WriteString("None")
	case KindBool:
		b, _ := h.Bool(v)
		fmt.Fprintf(out, "b%v", b)
	case KindInt, KindWide:
		out.WriteString("i" + h.Big(v).String())
	case KindFloat:
		f, _ := h.Float(v)
		fmt.Fprintf(out, "f%016x", math.Float64bits(f))
	case KindStr:
		s, _ := h.Str(v)
		out.WriteString("s" + hex.EncodeToString([]byte(s)))
	case KindList, KindTuple:
		out.WriteString(map[Kind]string{KindList: "[", KindTuple: "("}[v.Kind()])
		for _, it := range items {
			show(h, it, depth+1, nodes, out)
			out.WriteByte(',')
		}
		out.WriteString("]")
	case KindDict:
		out.WriteString("{")
		// As in Python: a repeated key keeps its place and takes the last value.
		var keys []string
		values := map[string]Value{}
		for i := 0; i < len(items); i += 2 {
			var k strings.Builder
			show(h, items[i], depth+1, nodes, &k)
			if _, twice := values[k.String()]; !twice {
				keys = append(keys, k.String())
			}
			values[k.String()] = items[i+1]
		}
		for _, k := range keys {
			out.WriteString(k + ":")
			show(h, values[k], depth+1, nodes, out)
			out.WriteByte(',')
		}
		out.WriteString("}")
	default:
		out.WriteString("?")
	}
}

func decode(data []byte) (string, error) {
	h := NewHeap()
	root, _, err := Decode(bytes.NewReader(data), int64(len(data)), h, keepAll{})
	if err != nil {
		return "", err
	}
	var out strings.Builder
	show(h, root, 0, new(int), &out)
	return out.String(), nil
}

func TestWhatIsRefused(t *testing.T) {
	long := func(n int) string { return strings.Repeat("(", n) }
	for _, c := range []struct {
		name, data string
		fault      Fault
		offset     int64
		msg        string
	}{
		{"an empty file", "", Truncated, 0, "empty"},
		{"a GLOBAL", "\x80\x02cos\nsystem\n.", Forbidden, 2, "os.system"},
		{"a STACK_GLOBAL", "\x80\x04\x8c\x05torch\x8c\x06Tensor\x93.", Forbidden, 17, "torch.Tensor"},
		{"an INST", "\x80\x02(ios\nsystem\n.", Forbidden, 3, "os.system"},
		{"a REDUCE", "\x80\x02N)R.", Forbidden, 4, "REDUCE"},
		{"a BUILD", "\x80\x02N}b.", Forbidden, 4, "BUILD"},
		{"an extension", "\x80\x02\x82\x01.", Forbidden, 2, "EXT1"},
		{"a persistent id", "\x80\x02NQ.", Forbidden, 3, "BINPERSID"},
		{"bytes", "\x80\x03C\x01a.", Forbidden, 2, "SHORT_BINBYTES"},
		{"a bytearray", "\x80\x05\x96\x01\x00\x00\x00\x00\x00\x00\x00a.", Forbidden, 2, "BYTEARRAY8"},
		{"a control character in a name", "\x80\x02cos\x1b[2J\nsystem\n.", Forbidden, 2, "os?[2J.system"},
		{"protocol 0", "(lp0\n.", Text, 0, "protocol 0 or 1"},
		{"a text opcode in protocol 2", "\x80\x02I1\n.", Text, 2, "INT"},
		{"protocol 6", "\x80\x06N.", NotAPickle, 0, "protocol 6"},
		{"something else", "Traceback", NotAPickle, 0, "0x54"},
		{"no opcode", "\x80\x02\xff", NotAPickle, 2, "0xff"},
		{"a missing STOP", "\x80\x02N", Truncated, 3, "ends before"},
		{"a cut operand", "\x80\x02J\x01\x02", Truncated, 5, "ends before"},
		{"a text longer than the file", "\x80\x04\x8d\x00\x00\x00\x00\x10\x00\x00\x00a.", Truncated, 2, "announced"},
		{"a frame longer than the file", "\x80\x04\x95\x00\x00\x00\x00\x10\x00\x00\x00N.", Truncated, 2, "frame"},
		{"an integer longer than the file", "\x80\x02\x8b\x00\x00\x00\x7fN.", Truncated, 2, "announced"},
		{"a negative length", "\x80\x02\x8b\xff\xff\xff\xffN.", Malformed, 2, "negative"},
		{"a memo entry that was never set", "\x80\x02h\x05.", Malformed, 2, "never set"},
		{"a memo entry out of proportion", "\x80\x02Nr\xff\xff\xff\xff.", Malformed, 3, "proportion"},
		{"an empty stack", "\x80\x02.", Malformed, 2, "0 values"},
		{"two values", "\x80\x02NN.", Malformed, 4, "2 values"},
		{"a MARK left over", "\x80\x02N(.", Malformed, 4, ""},
		{"APPENDS on a dict", "\x80\x02}(Ne.", Malformed, 5, "not a list"},
		{"a key without a value", "\x80\x02}(Nu.", Malformed, 5, "without a value"},
		{"SETITEMS without a MARK", "\x80\x02}u.", Malformed, 3, "no MARK"},
		{"APPENDS below its own MARK", "\x80\x02((Ne.", Malformed, 5, "nothing to fill"},
		{"marks without end", "\x80\x02" + long(maxMarks+1) + ".", Malformed, 2 + maxMarks, "nested"},
		{"something after the end", "\x80\x02N.x", Malformed, 4, "follows"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := decode([]byte(c.data))
			e, ok := err.(*SyntaxError)
			if !ok {
				t.Fatalf("got %v, want a SyntaxError", err)
			}
			if e.Fault != c.fault || e.Offset != c.offset || !strings.Contains(e.Msg, c.msg) {
				t.Errorf("got %s at %d: %s; want %s at %d with %q", e.Fault, e.Offset, e.Msg, c.fault, c.offset, c.msg)
			}
		})
	}
}

func TestWhatIsRead(t *testing.T) {
	for _, c := range []struct{ name, data, want string }{
		{"zeros after the end", "\x80\x02N.\x00\x00\x00", "None"},
		{"integers", "\x80\x02(K\x07M\x00\x01J\xff\xff\xff\xff\x8a\x00\x8a\x02\xff\xfft.", "(i7,i256,i-1,i0,i-1,]"},
		{"an address with its top bit set", "\x80\x02\x8a\x09\x00\x00\x00\x00\x00\x00\x00\x80\x00.", "i9223372036854775808"},
		{"padded integers", "\x80\x02\x8a\x09\x05\x00\x00\x00\x00\x00\x00\x00\x00.", "i5"},
		{"LONG4", "\x80\x02\x8b\x02\x00\x00\x00\x01\x80.", "i-32767"},
		{"tuples", "\x80\x02(N\x85N\x88\x86\x89NN\x87)t.", "((None,],(None,btrue,],(bfalse,None,None,],(],]"},
		{"POP takes a MARK", "\x80\x02N(0.", "None"},
		{"POP_MARK", "\x80\x02N(NN1.", "None"},
		{"DUP", "\x80\x02]N2\x86a.", "[(None,None,],]"},
		{"LIST and DICT", "\x80\x02(K\x01K\x02l(K\x03K\x04d\x86.", "([i1,i2,],{i3:i4,},]"},
		{"the last of equal keys", "\x80\x02}(K\x01K\x02K\x01K\x03u.", "{i1:i3,}"},
		{"batches", "\x80\x02](K\x01e(K\x02K\x03eK\x04a.", "[i1,i2,i3,i4,]"},
		{"a memo", "\x80\x04\x8c\x01a\x94h\x00h\x00\x87.", "(s61,s61,s61,]"},
		{"BINPUT", "\x80\x02X\x01\x00\x00\x00aq\x00h\x00\x86.", "(s61,s61,]"},
		{"a memo entry set twice", "\x80\x02](K\x01q\x00h\x00K\x02q\x00h\x00e.", "[i1,i1,i2,i2,]"},
		{"lone surrogates", "\x80\x04\x8c\x03\xed\xa0\x80.", "s" + hex.EncodeToString([]byte("\uFFFD"))},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := decode([]byte(c.data))
			if err != nil || got != c.want {
				t.Errorf("got %q, %v; want %q", got, err, c.want)
			}
		})
	}
}

// Reading byte by byte moves the window at every place it can move.
func TestTheWindowMayEndAnywhere(t *testing.T) {
	var b bytes.Buffer
	b.WriteString("\x80\x04](")
	for range 70_000 {
		fmt.Fprintf(&b, "}\x94(\x8c\x04name\x8c\x03abcu](K\x01J\x01\x02\x03\x04e")
	}
	b.WriteString("e.")
	want, err := decode(b.Bytes())
	if err != nil {
		t.Fatal(err)
	}
	h := NewHeap()
	root, _, err := Decode(iotest.OneByteReader(&b), -1, h, keepAll{})
	if err != nil {
		t.Fatal(err)
	}
	var got strings.Builder
	show(h, root, 0, new(int), &got)
	if got.String() != want {
		t.Error("reading in pieces gives another value")
	}
}

func TestErrorsOfTheReaderAreReturned(t *testing.T) {
	_, _, err := Decode(iotest.TimeoutReader(iotest.OneByteReader(strings.NewReader("\x80\x02N."))), -1, NewHeap(), keepAll{})
	if err != iotest.ErrTimeout {
		t.Errorf("got %v", err)
	}
}

// A hostile file costs little time and memory, whatever it asks for.
func TestBombs(t *testing.T) {
	repeat := func(head, unit string, n int, tail string) []byte {
		return []byte(head + strings.Repeat(unit, n) + tail)
	}
	for _, c := range []struct {
		name string
		data []byte
	}{
		{"nested tuples that double", repeat("\x80\x04K\x01\x94", "h\x00h\x00\x86\x94h\x01h\x01\x86\x94", 100_000, ".")},
		{"values without end", repeat("\x80\x04", "N", 8<<20, ".")},
		{"lists without end", repeat("\x80\x04", "]\x94", 4<<20, ".")},
		{"dicts without end", repeat("\x80\x04](", "}", 8<<20, "e.")},
		{"tuples without end", repeat("\x80\x04N", "\x85", 8<<20, ".")},
		{"marks without end", repeat("\x80\x04", "(", 8<<20, ".")},
		{"a list that holds itself", []byte("\x80\x04]\x94(h\x00h\x00e.")},
		{"texts without end", func() []byte {
			var b bytes.Buffer
			b.WriteString("\x80\x04](")
			for i := range 1 << 20 {
				fmt.Fprintf(&b, "\x8c\x05%05x", i&0xfffff)
			}
			b.WriteString("e.")
			return b.Bytes()
		}()},
		{"big integers without end", repeat("\x80\x04](", "\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7f", 1<<20, "e.")},
		{"one list repeated", repeat("\x80\x04]\x94(", "h\x00h\x00h\x00h\x00", 2<<20, "e.")},
		{"a shape for each dict", func() []byte {
			var b bytes.Buffer
			b.WriteString("\x80\x04](")
			for i := range 1 << 17 {
				fmt.Fprintf(&b, "}(\x8c\x05%05xNu", i)
			}
			b.WriteString("e.")
			return b.Bytes()
		}()},
	} {
		t.Run(c.name, func(t *testing.T) {
			runtime.GC()
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			start := cpuTime(t)
			h := NewHeap()
			_, _, err := Decode(bytes.NewReader(c.data), int64(len(c.data)), h, keepAll{})
			took := cpuTime(t) - start // the machine may be busy with other things
			runtime.ReadMemStats(&after)
			if took > time.Second {
				t.Errorf("took %v", took)
			}
			// What was allocated in all is more than what was held at once.
			if mb := (after.TotalAlloc - before.TotalAlloc) >> 20; mb > 180 {
				t.Errorf("allocated %d MiB for %d KiB of input", mb, len(c.data)>>10)
			}
			if limit := int64(baseBudget + budgetPerByte*len(c.data)); h.held > limit+limit/4 {
				t.Errorf("holds %d bytes, %d are allowed", h.held, limit)
			}
			t.Logf("%d KiB: %v, held %d MiB, %v", len(c.data)>>10, err, h.held>>20, took)
		})
	}
}

func cpuTime(t *testing.T) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		t.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func FuzzDecode(f *testing.F) {
	for _, seed := range []string{
		"\x80\x04\x95\x0a\x00\x00\x00\x00\x00\x00\x00}\x94(\x8c\x01a\x94K\x01u.",
		"\x80\x02](K\x01J\x01\x02\x03\x04\x8a\x05\x01\x02\x03\x04\x05G\x00\x00\x00\x00\x00\x00\xf0?e.",
		"\x80\x04]\x94(}\x94(\x8c\x06action\x94\x8c\x05alloc\x94\x8c\x06frames\x94]\x94u}\x94(h\x02h\x03h\x04]\x94(h\x00h\x01eue.",
		"\x80\x02cos\nsystem\n.",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		h := NewHeap()
		root, _, err := Decode(bytes.NewReader(data), int64(len(data)), h, keepAll{})
		if h.held > int64(baseBudget+budgetPerByte*len(data))+1<<20 {
			t.Fatalf("holds %d bytes for %d of input", h.held, len(data))
		}
		if err != nil {
			return
		}
		var whole, pieces strings.Builder
		show(h, root, 0, new(int), &whole)
		h2 := NewHeap()
		root2, _, err := Decode(iotest.OneByteReader(bytes.NewReader(data)), -1, h2, keepAll{})
		if err != nil {
			t.Fatalf("in pieces: %v", err)
		}
		show(h2, root2, 0, new(int), &pieces)
		if whole.String() != pieces.String() {
			t.Fatalf("whole %s, in pieces %s", &whole, &pieces)
		}
	})
}
