package snapshot

import (
	"bufio"
	"bytes"
	"compress/bzip2"
	"compress/gzip"
	"encoding/base64"
	"errors"
	"io"
	"strings"

	"unoom/internal/pickle"
)

// A Mistake is what a file that is no readable snapshot probably is. Callers
// turn it into a hint.
type Mistake string

// The mistakes.
const (
	NoMistake       Mistake = ""
	Empty           Mistake = "empty"
	CutOff          Mistake = "cut_off"
	Checkpoint      Mistake = "checkpoint"       // torch.save
	RicherPickle    Mistake = "richer_pickle"    // the snapshot and objects with it, or something else
	TextPickle      Mistake = "text_pickle"      // protocol 0 or 1
	SQLite          Mistake = "sqlite"           // no torch release writes one
	MemoryTimeline  Mistake = "memory_timeline"  // torch.profiler's export_memory_timeline
	ProfilerTrace   Mistake = "profiler_trace"   // Chrome trace of torch.profiler
	PlotOnly        Mistake = "plot_only"        // HTML without the data
	SeveralFiles    Mistake = "several_files"    // a zip of other things
	Bomb            Mistake = "bomb"             // needs more memory than its size justifies
	Damaged         Mistake = "damaged"          // not as any known writer writes
	NotASnapshot    Mistake = "not_a_snapshot"   // readable, but something else
	TooDeepContents Mistake = "nested_container" // gzip in zip in gzip …
)

// A FormatError says that a file is not a snapshot, or a broken one.
type FormatError struct {
	Where   string // "device_traces[1]", "" for the whole
	Msg     string
	Mistake Mistake
}

func (e *FormatError) Error() string {
	if e.Where == "" {
		return e.Msg
	}
	return e.Where + ": " + e.Msg
}

// MistakeOf says what the file that led to err probably is.
func MistakeOf(err error) Mistake {
	if e, ok := errors.AsType[*FormatError](err); ok {
		return e.Mistake
	}
	e, ok := errors.AsType[*pickle.SyntaxError](err)
	if !ok {
		return NoMistake
	}
	switch e.Fault {
	case pickle.Truncated:
		if e.Offset == 0 {
			return Empty
		}
		return CutOff
	case pickle.Forbidden:
		if strings.HasPrefix(e.Name, "torch") || e.Name == "collections.OrderedDict" || e.Name == "a persistent id" {
			return Checkpoint
		}
		return RicherPickle
	case pickle.Text:
		return TextPickle
	case pickle.Unjustified:
		return Bomb
	case pickle.NotAPickle:
		return NotASnapshot
	}
	return Damaged
}

// maxContainers is how many containers may be around a snapshot.
const maxContainers = 3

// Looks reports whether the beginning of a file, a few KiB, is that of a memory
// snapshot in any form that Read reads, or of a pickle that Read would refuse
// with a reason. It is meant to tell snapshots from logs.
func Looks(head []byte) bool { return looks(head, 0) }

func looks(head []byte, depth int) bool {
	switch {
	case depth > maxContainers:
		return false
	case len(head) > 1 && head[0] == 0x80 && head[1] <= 5, bytes.HasPrefix(head, zipMagic), bytes.HasPrefix(head, sqliteMagic):
		return true
	case bytes.HasPrefix(head, gzipMagic):
		z, err := gzip.NewReader(bytes.NewReader(head))
		if err != nil {
			return false
		}
		inner := make([]byte, 4096)
		n, _ := io.ReadFull(z, inner)
		return looks(inner[:n], depth+1)
	case isTar(head) && len(head) > tarBlock:
		return looks(head[tarBlock:], depth+1) // where its first file begins
	case textPickle(head):
		return true
	}
	text := bytes.TrimLeft(bytes.TrimPrefix(head, bom), " \t\r\n")
	switch {
	case bytes.HasPrefix(text, []byte("<")):
		return bytes.Contains(text, []byte("add_local_files")) || bytes.Contains(text, []byte(`"base64"`)) || bytes.Contains(text, []byte("MemoryViz.js"))
	case bytes.HasPrefix(text, []byte("{")), bytes.HasPrefix(text, []byte("[")):
		for _, key := range []string{`"segments"`, `"device_traces"`, `"total_size"`, `"segment_type"`} {
			if bytes.Contains(text, []byte(key)) {
				return true
			}
		}
	}
	return false
}

// textPickle reports whether a file begins as pickles of protocol 0 do: with a
// list or dict and its memo entry, or with the name of something to call; or as
// those of protocol 1 do.
func textPickle(head []byte) bool {
	if bytes.HasPrefix(head, []byte("}q\x00")) || bytes.HasPrefix(head, []byte("]q\x00")) {
		return true
	}
	line, rest, ok := bytes.Cut(head, []byte("\n"))
	if !ok || len(line) < 3 || len(line) > 80 {
		return false
	}
	if bytes.HasPrefix(line, []byte("(dp")) || bytes.HasPrefix(line, []byte("(lp")) {
		return len(bytes.Trim(line[3:], "0123456789")) == 0
	}
	name, rest, ok := bytes.Cut(rest, []byte("\n"))
	return ok && line[0] == 'c' && dotted(line[1:]) && dotted(name) && len(rest) > 0 && (rest[0] == '(' || rest[0] == 'p')
}

func dotted(name []byte) bool {
	for _, c := range name {
		if c != '.' && c != '_' && (c < '0' || c > '9') && (c|0x20 < 'a' || c|0x20 > 'z') {
			return false
		}
	}
	return len(name) > 0
}

var (
	sqliteMagic = []byte("SQLite format 3\x00")
	bom         = []byte{0xef, 0xbb, 0xbf}
)

// Read reads one snapshot in any form. size is the length of the input, -1 if it
// is not known; with it, less memory is needed. The errors are
// *pickle.SyntaxError, *FormatError, or what r returns; see MistakeOf.
func Read(r io.Reader, size int64) (*Snapshot, error) {
	return read(r, size, nil)
}

func read(r io.Reader, size int64, around []string) (*Snapshot, error) {
	if len(around) > maxContainers {
		return nil, &FormatError{Msg: "too many containers in each other: " + strings.Join(around, ", "), Mistake: TooDeepContents}
	}
	in := bufio.NewReaderSize(r, 4096)
	head, err := in.Peek(tarBlock)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	switch {
	case len(head) == 0:
		return nil, &FormatError{Msg: "the file is empty", Mistake: Empty}
	case bytes.HasPrefix(head, gzipMagic):
		z, err := gzip.NewReader(in)
		if err != nil {
			return nil, &FormatError{Msg: "gzip: " + err.Error(), Mistake: Damaged}
		}
		s, err := read(z, -1, append(around, "gzip"))
		return s, compressed(err, "gzip")
	case bytes.HasPrefix(head, bzip2Magic):
		s, err := read(bzip2.NewReader(in), -1, append(around, "bzip2"))
		return s, compressed(err, "bzip2")
	case bytes.HasPrefix(head, zipMagic):
		return readZip(in, around)
	case isTar(head):
		return readTar(in, around)
	case PackedWith(head) != "":
		return nil, &FormatError{Msg: "packed with " + PackedWith(head) + ", which is not read", Mistake: SeveralFiles}
	case bytes.HasPrefix(head, sqliteMagic):
		return nil, &FormatError{Msg: "this is an SQLite database, which no release of torch writes as a snapshot", Mistake: SQLite}
	case head[0] == 0x80:
		return readPickle(in, size, around)
	}
	text := bytes.TrimLeft(bytes.TrimPrefix(head, bom), " \t\r\n")
	switch {
	case len(text) == 0, text[0] == '{', text[0] == '[':
		return readJSON(in, size, around)
	case text[0] == '<':
		return readHTML(in, around)
	}
	return readPickle(in, size, around) // which says what is wrong
}

// compressed turns the errors of a decompressor into ones that say so.
func compressed(err error, container string) error {
	if err == nil {
		return nil
	}
	if _, ok := errors.AsType[*FormatError](err); ok {
		return err
	}
	if _, ok := errors.AsType[*pickle.SyntaxError](err); ok {
		return err
	}
	if errors.Is(err, io.ErrUnexpectedEOF) {
		return &FormatError{Msg: container + ": the file ends before its content does", Mistake: CutOff}
	}
	return &FormatError{Msg: container + ": " + err.Error(), Mistake: Damaged}
}

func readPickle(r io.Reader, size int64, around []string) (*Snapshot, error) {
	h := pickle.NewHeap()
	b := newBuilder(h)
	root, protocol, err := pickle.Decode(r, size, h, b)
	if n := h.Big(root); n != nil && n.Text(16) == legacyMagic {
		return nil, &FormatError{Msg: "this is a checkpoint written by torch.save (before torch 1.6)", Mistake: Checkpoint}
	}
	if err != nil {
		return nil, err
	}
	s, err := b.finish(root)
	if err != nil {
		return nil, err
	}
	s.Form = Form{Container: strings.Join(append(around, "pickle"), "+"), Protocol: protocol}
	return s, nil
}

// legacyMagic is the first object of a checkpoint in torch's old format.
// Source: torch/serialization.py, MAGIC_NUMBER.
const legacyMagic = "1950a86a20f9469cfc6c"

// readHTML reads the page that torch.cuda._memory_viz writes, which carries the
// pickle in base64.
func readHTML(in *bufio.Reader, around []string) (*Snapshot, error) {
	const marker = `"base64"`
	matched := 0
	for matched < len(marker) {
		c, err := in.ReadByte()
		if errors.Is(err, io.EOF) {
			return nil, &FormatError{Msg: "this HTML page carries no snapshot", Mistake: PlotOnly}
		} else if err != nil {
			return nil, err
		}
		switch {
		case c == marker[matched]:
			matched++
		case c == marker[0]:
			matched = 1
		default:
			matched = 0
		}
	}
	if _, err := in.ReadBytes('"'); err != nil { // `: "`
		return nil, &FormatError{Msg: "the HTML page ends before its snapshot", Mistake: CutOff}
	}
	s, err := read(base64.NewDecoder(base64.StdEncoding, &untilQuote{r: in}), -1, append(around, "html"))
	return s, compressed(err, "html")
}

// untilQuote reads up to the end of a text.
type untilQuote struct {
	r    *bufio.Reader
	done bool
}

func (u *untilQuote) Read(p []byte) (int, error) {
	if u.done {
		return 0, io.EOF
	}
	n, err := u.r.Read(p)
	if i := bytes.IndexByte(p[:n], '"'); i >= 0 {
		u.done = true
		return i, nil
	}
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	return n, err
}
