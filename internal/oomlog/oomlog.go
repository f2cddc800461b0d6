// Package oomlog finds an out-of-memory, and what is mistaken for one, in the
// text that a training run leaves behind.
//
// It answers: what failed first and where in the text, with which figures, on
// which rank, in which attempt, in which phase and at whose line; and what the
// text says of the setting (batch, sequence, optimizer, versions …), each with
// its file and line. It says nothing about causes: that is package diagnose.
//
// Invariants: a Scan holds a bounded window of the text, whatever its size; a
// line that cannot be read is a Warning and never the end; a figure that the
// text does not state is not Known; Failures are in the order of the text.
package oomlog

import (
	"strconv"

	"unoom/internal/units"
)

// A Class says which resource a message is about, and how sure that is.
type Class string

// The classes. Is* methods group them.
const (
	ClassVRAM         Class = "vram"          // an allocation on the device failed
	ClassVRAMMasked   Class = "vram_masked"   // another error that is a failed device allocation in disguise
	ClassVRAMProbable Class = "vram_probable" // an error that is often, not always, a full card
	ClassLimit        Class = "vram_limit"    // a limit below the capacity was reached
	ClassSize         Class = "absurd_size"   // the request is a garbage number
	ClassEngine       Class = "engine"        // an inference engine's own capacity check; no allocation failed
	ClassPinned       Class = "pinned_host"   // page-locked host memory
	ClassHost         Class = "host_memory"   // host memory ran out
	ClassHostKilled   Class = "host_killed"   // killed by SIGKILL: nearly always host memory
	ClassSharedMemory Class = "shared_memory" // /dev/shm
	ClassDisk         Class = "disk"
	ClassOnChip       Class = "on_chip" // shared memory, registers or threads of one block
	ClassIllegal      Class = "illegal_access"
	ClassAssert       Class = "device_assert"
	ClassDriver       Class = "driver"
	ClassBusy         Class = "device_busy"
	ClassNumerical    Class = "numerical"
	ClassSecondary    Class = "secondary" // a consequence of an error elsewhere
	ClassHandled      Class = "handled"   // an out-of-memory that the program survived and only warned of
	ClassOther        Class = "other"     // any other error; see Result.LastError
)

// IsOOM reports whether a message of this class means that memory of an
// accelerator, or a limit on it, was exhausted.
func (c Class) IsOOM() bool {
	switch c {
	case ClassVRAM, ClassVRAMMasked, ClassVRAMProbable, ClassLimit, ClassSize, ClassEngine, ClassPinned, ClassHandled:
		return true
	}
	return false
}

// IsNoise reports whether a message of this class never is the first cause.
func (c Class) IsNoise() bool { return c == ClassSecondary || c == ClassOther }

// A Source is a place in a text.
type Source struct {
	Name   string `json:"name"`   // the file, or "stdin"
	Line   int    `json:"line"`   // from 1; lines end at "\n"
	Offset int64  `json:"offset"` // bytes from the start of the (decoded) text
}

// String writes the source as editors understand it: "train.log:812".
func (s Source) String() string {
	if s.Name == "" {
		return "line " + strconv.Itoa(s.Line)
	}
	return s.Name + ":" + strconv.Itoa(s.Line)
}

// A Failure is one message that says that something ran out, or that looks so.
type Failure struct {
	Pattern string // id of the pattern that matched, such as "torch.2.2"
	Class   Class
	Source  Source
	Text    string // the message, one line, prefixes and wrapping removed
	Rank    int    // -1 where the text does not say
	Attempt int    // from 0; a restart or a retry starts the next
	Figures Figures
	Frames  []Frame   // of the traceback that belongs to it, outermost first
	Code    []string  // source lines quoted around it, outermost first
	Phase   Phase     // from the traceback
	Where   *Frame    // the innermost frame of the user's own code
	At      *Progress // the last progress before it
	// Repeats counts later messages of the same kind from the same rank in the
	// same attempt.
	Repeats int
	// Device is what the message calls the accelerator: CUDA, HIP, XPU, MPS …
	Device string
	// Certain is false where the pattern needs support from elsewhere.
	Certain bool
}

// A Warning is something in the text that could not be read as it should.
type Warning struct {
	Code   string // long_line, binary, truncated, cut_archive, encoding, too_many, interleaved
	Source Source
	Detail string
}

// An ErrorLine is an error that is not about memory.
type ErrorLine struct {
	Source Source
	Text   string
}

// A Result is what Scan found in one text, or Merge in several.
type Result struct {
	Names    []string // of the texts
	Lines    int
	Bytes    int64
	Encoding string // "utf-8", "utf-16le", "utf-16be"; "gbk" if some of its lines are
	Binary   bool   // more control bytes than a log has
	Failures []Failure
	// LastError is the last error line of any kind: what to show when there is
	// no Failure.
	LastError *ErrorLine
	Facts     Facts
	Progress  []Progress // first, last, and the last before each failure
	Samples   []Sample   // memory printed along the way
	Cards     []Card     // from nvidia-smi tables in the text
	Holders   []Holder   // processes from nvidia-smi tables in the text
	// Trace is the traceback of a text that has one but no message.
	Trace    *Trace
	Attempts int // how many attempts the text shows, at least 1
	Ranks    int // how many ranks write in it, 0 where it does not say
	Warnings []Warning
}

// A Trace is a traceback without a message of ours.
type Trace struct {
	Source Source
	Frames []Frame
	Code   []string
	Phase  Phase
	Where  *Frame
	// Ends tells whether an error line follows; it is false for a cut text.
	Ends bool
}

// A Figure is a number of bytes as a message prints it. Where Known is false
// the message does not state it.
type Figure struct {
	Bytes units.Bytes
	// Within is how far the true count may be off, because the message rounds
	// to two decimals of its unit; 0 where it states bytes.
	Within units.Bytes
	Known  bool
}

// A Process is a process that the message lists on the card.
type Process struct {
	PID    int
	Memory Figure // not Known where the driver does not report it (WSL)
}

// Figures are the quantities of a message.
type Figures struct {
	Device      int // index as PyTorch counts it, within CUDA_VISIBLE_DEVICES; -1 unknown
	Tried       Figure
	Capacity    Figure
	Free        Figure
	Allocated   Figure // by PyTorch
	Reserved    Figure // allocated + cached
	Cached      Figure // reserved but unallocated
	Private     Figure // private pools, part of Allocated
	Allowed     Figure // the memory fraction's limit
	ThisProcess Figure // with what lies outside PyTorch
	Other       Figure // MPS: other allocations
	Processes   []Process
	Required    Figure // on-chip and KV-cache checks
	Limit       Figure
	// Shape is the shape of the tensor that did not fit, where the message has it.
	Shape string
}
