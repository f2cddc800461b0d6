package pickle

import (
	"errors"
	"fmt"
)

// Every way in which the machine says no, with the offset and what it means.

func (m *machine) fail(offset int64, fault Fault, format string, args ...any) error {
	return &SyntaxError{Offset: offset, Fault: fault, Msg: fmt.Sprintf(format, args...)}
}

// built turns an error of the heap or the builder into one with an offset.
func (m *machine) built(offset int64, err error) error {
	if err == nil {
		return nil
	}
	fault := Malformed
	if errors.Is(err, errBomb) {
		fault = Unjustified
	}
	return &SyntaxError{Offset: offset, Fault: fault, Msg: err.Error(), Err: err}
}

func (m *machine) truncated() error {
	end := m.src.base + int64(m.src.end)
	return m.fail(end, Truncated, "the file ends before the pickle does")
}

func (m *machine) underflow(at int, name string) error {
	return m.fail(m.src.base+int64(at), Malformed, "%s finds nothing on the stack", name)
}

func (m *machine) missing(at, i, after int) error {
	if after > m.src.end {
		return m.truncated()
	}
	return m.fail(m.src.base+int64(at), Malformed, "memo entry %d was never set", i)
}

// refuse says why an opcode is not executed and, where it can, what the pickle
// wanted to load.
func (m *machine) refuse(op byte, offset int64, pos int) error {
	fault, name := refusal(op)
	switch fault {
	case NotAPickle:
		return m.fail(offset, fault, "0x%02x is no pickle opcode", op)
	case Text:
		return m.fail(offset, fault, "opcode %s belongs to pickle protocol 0 or 1; only 2 to 5 are read", name)
	}
	e := &SyntaxError{Offset: offset, Fault: fault}
	e.Name = m.wanted(op, pos)
	e.Msg = fmt.Sprintf("opcode %s is not allowed in a memory snapshot", name)
	if e.Name != "" {
		e.Msg = fmt.Sprintf("opcode %s (it asks for %s) is not allowed in a memory snapshot", name, e.Name)
	}
	return e
}

// wanted returns the dotted name of what GLOBAL, INST or STACK_GLOBAL load.
func (m *machine) wanted(op byte, pos int) string {
	const longest = 200
	switch op {
	case opStackGlobal:
		if n := len(m.stack); n-m.fence >= 2 {
			module, ok1 := m.heap.Str(m.stack[n-2])
			name, ok2 := m.heap.Str(m.stack[n-1])
			if ok1 && ok2 && len(module)+len(name) <= longest {
				return printable(module + "." + name)
			}
		}
	case opPersID, opBinPersID:
		return "a persistent id"
	case opGlobal, opInst:
		text := m.src.buf[min(pos, m.src.end):min(pos+longest, m.src.end)]
		lines, start := make([]string, 0, 2), 0
		for i, b := range text {
			if b == '\n' && len(lines) < 2 {
				lines = append(lines, string(text[start:i]))
				start = i + 1
			}
		}
		if len(lines) == 2 {
			return printable(lines[0] + "." + lines[1])
		}
	}
	return ""
}

// printable keeps a name from carrying escape sequences to a terminal.
func printable(s string) string {
	out := make([]rune, 0, len(s))
	for _, r := range s {
		if r < ' ' || r == 0x7f || (r >= 0x80 && r < 0xa0) {
			r = '?'
		}
		out = append(out, r)
	}
	return string(out)
}
