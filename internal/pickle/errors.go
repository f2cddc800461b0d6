package pickle

import (
	"errors"
	"fmt"
)

// A Fault is what is wrong with an input, for callers that add a hint.
type Fault string

// The faults.
const (
	Truncated   Fault = "truncated"    // the input ends before the pickle does
	Forbidden   Fault = "forbidden"    // an opcode that would run code or load classes
	Text        Fault = "text"         // protocol 0 or 1
	NotAPickle  Fault = "not_a_pickle" // an unknown opcode or a wrong beginning
	Malformed   Fault = "malformed"    // opcodes that do not fit together
	Unjustified Fault = "unjustified"  // more memory asked for than the input justifies
)

// A SyntaxError says what is wrong with a pickle and where.
type SyntaxError struct {
	Offset int64 // of the opcode, in bytes from the start of the pickle
	Fault  Fault
	Msg    string
	Name   string // of the class or function that a forbidden opcode asks for, if it is known
	Err    error  // of the Builder, if it is at fault
}

func (e *SyntaxError) Error() string { return fmt.Sprintf("offset %d: %s", e.Offset, e.Msg) }

func (e *SyntaxError) Unwrap() error { return e.Err }

var (
	errBomb    = errors.New("the objects need far more memory than the file has bytes")
	errChanged = errors.New("a container changes after it was used")
)
