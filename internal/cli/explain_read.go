package cli

import (
	"bufio"
	"bytes"
	"compress/bzip2"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"unicode"

	"unoom/internal/model"
	"unoom/internal/oomlog"
	"unoom/internal/snapshot"
)

// inputs are the texts that explain was given.
type inputs struct {
	logs     []*oomlog.Result
	config   *oomlog.Result
	warnings []string
	// snapshots are memory snapshots; folder says that a folder is being read, in
	// which they are left alone.
	snapshots []namedSnapshot
	folder    bool
}

// A kind is what a file holds, told by its first bytes.
type kind int

const (
	kindText kind = iota
	kindEmpty
	kindGzip
	kindBzip2
	kindPacked // in a way that is not read
	kindBinary
	kindData // JSON of numbers and brackets, without a word
)

// kindOf tells from the first bytes what a file holds.
func kindOf(head []byte) kind {
	switch {
	case len(head) == 0:
		return kindEmpty
	case bytes.HasPrefix(head, []byte{0x1f, 0x8b}):
		return kindGzip
	case bytes.HasPrefix(head, []byte("BZh")) && len(head) > 10 && bytes.Equal(head[4:10], []byte{0x31, 0x41, 0x59, 0x26, 0x53, 0x59}):
		return kindBzip2 // a block begins with the digits of π
	case snapshot.PackedWith(head) != "":
		return kindPacked
	}
	// UTF-16 is full of zero bytes and is text.
	if bytes.HasPrefix(head, []byte{0xff, 0xfe}) || bytes.HasPrefix(head, []byte{0xfe, 0xff}) {
		return kindText
	}
	zeros, control, odd, even := 0, 0, 0, 0
	for i, b := range head {
		switch {
		case b == 0:
			zeros++
			if i%2 == 0 {
				even++
			} else {
				odd++
			}
		case b < 0x09 || b > 0x0d && b < 0x1b || b == 0x7f:
			control++
		}
	}
	switch half := len(head) / 2; {
	case zeros > 0 && (odd == zeros || even == zeros) && zeros > half/2:
		return kindText // UTF-16 without a mark
	case zeros > max(len(head)/100, 16) || control+zeros > len(head)/20+4:
		return kindBinary
	case bytes.ContainsAny(head[:1], "[{") && !bytes.ContainsFunc(head, unicode.IsLetter):
		return kindData
	}
	return kindText
}

// skipZeros drops the zeros that a log begins with after it was emptied while a
// program still wrote to it (logrotate's copytruncate). They are at least 16.
func skipZeros(head []byte, rest io.Reader) (io.Reader, []byte) {
	if len(head) < 16 || bytes.ContainsFunc(head[:16], func(r rune) bool { return r != 0 }) {
		return io.MultiReader(bytes.NewReader(head), rest), head
	}
	b := bufio.NewReaderSize(io.MultiReader(bytes.NewReader(head), rest), 64<<10)
	for {
		next, err := b.Peek(4096)
		text := bytes.TrimLeft(next, "\x00")
		_, _ = b.Discard(len(next) - len(text))
		if len(text) > 0 || err != nil {
			next, _ = b.Peek(4096)
			return b, next
		}
	}
}

// Bounds of a folder of logs.
const (
	maxLogs  = 4096
	maxDepth = 6
)

// read opens and scans the arguments: files, folders, "-" for standard input.
func (e *explain) read(args []string) (*inputs, error) {
	in := &inputs{}
	stdin := false
	for _, arg := range args {
		switch info, err := os.Stat(arg); {
		case arg == "-":
			if stdin {
				return nil, withHint(errors.New("standard input is given twice"), "one - is enough")
			}
			stdin = true
			if err := e.scan(in, "stdin", e.In); err != nil {
				return nil, err
			}
		case errors.Is(err, fs.ErrNotExist):
			return nil, unknownArgument(arg)
		case err != nil:
			return nil, fmt.Errorf("open %s: %w", arg, cause(err))
		case info.IsDir():
			if err := e.scanFolder(in, arg); err != nil {
				return nil, err
			}
		default:
			if err := e.scanFile(in, arg); err != nil {
				return nil, err
			}
		}
	}
	if e.config != "" {
		f, err := os.Open(e.config)
		if err != nil {
			return nil, fmt.Errorf("--config: open %s: %w", e.config, cause(err))
		}
		defer f.Close()
		if in.config, err = oomlog.Scan(e.config, f); err != nil {
			return nil, fmt.Errorf("--config: read %s: %w", e.config, err)
		}
	}
	return in, nil
}

// cause drops the operation and the path that an error of package os repeats.
func cause(err error) error {
	if p, ok := errors.AsType[*fs.PathError](err); ok {
		return p.Err
	}
	return err
}

// unknownArgument says that there is no such file, nor a page of such a name.
func unknownArgument(arg string) error {
	near := model.Nearest(arg, topics(), 3)
	hints := []string{"unoom explain --list prints what there are pages on"}
	if len(near) > 0 {
		hints = slices.Insert(hints, 0, "did you mean "+strings.Join(near, ", ")+"?")
	}
	return withHint(fmt.Errorf("%s: no such file, remedy or cause", arg), hints...)
}

func (e *explain) scanFile(in *inputs, name string) error {
	f, err := os.Open(name)
	if err != nil {
		return fmt.Errorf("open %s: %w", name, cause(err))
	}
	defer f.Close()
	return e.scan(in, name, f)
}

// scan reads one text, packed or not, and refuses what is none.
func (e *explain) scan(in *inputs, name string, r io.Reader) error {
	head := make([]byte, 4096)
	n, err := io.ReadFull(r, head)
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("read %s: %w", name, cause(err))
	}
	head = head[:n]
	all, head := skipZeros(head, r)
	if n > 0 && len(head) == 0 {
		return withHint(fmt.Errorf("%s: nothing but zeros", name), "give the text that the run printed")
	}
	if snapshot.Looks(head) {
		return e.scanSnapshot(in, name, all, sizeOf(r))
	}
	switch kindOf(head) {
	case kindEmpty:
		if ext := filepath.Ext(name); ext == ".pickle" || ext == ".pkl" {
			return withHint(fmt.Errorf("%s: the file is empty", name), e.msgs.Text("snapshot.hint.empty"))
		}
		return withHint(fmt.Errorf("%s: the text is empty", name), "redirect both streams: python train.py > train.log 2>&1")
	case kindGzip:
		packed := &counter{in: all}
		z, err := gzip.NewReader(packed)
		if err != nil {
			return fmt.Errorf("unpack %s: %w", name, err)
		}
		return e.scan(in, strings.TrimSuffix(name, ".gz"), &bombGuard{in: z, packed: packed})
	case kindBzip2:
		packed := &counter{in: all}
		return e.scan(in, strings.TrimSuffix(name, ".bz2"), &bombGuard{in: bzip2.NewReader(packed), packed: packed})
	case kindPacked:
		return withHint(fmt.Errorf("%s: packed with %s, which is not read", name, snapshot.PackedWith(head)), e.msgs.Text("explain.hint.unpack"))
	case kindData:
		return withHint(fmt.Errorf("%s: this is JSON without a word in it, neither a log nor a memory snapshot", name), "give the text that the run printed, or the file of torch.cuda.memory._dump_snapshot")
	case kindBinary:
		return withHint(fmt.Errorf("%s: this is binary, not a log", name), "give the text that the run printed")
	}
	res, err := oomlog.Scan(name, all)
	if err != nil {
		return fmt.Errorf("read %s: %w", name, cause(err))
	}
	in.logs = append(in.logs, res)
	return nil
}

// A counter counts what is read of a packed file.
type counter struct {
	in io.Reader
	n  int64
}

func (c *counter) Read(p []byte) (int, error) {
	n, err := c.in.Read(p)
	c.n += int64(n)
	return n, err
}

// Deflate packs at most 1032 to 1, and only one byte repeated for ever comes near;
// a log of the same line over and over has 500.
const (
	bombRatio = 950
	bombSize  = 64 << 20
)

// A bombGuard ends the unpacking of a file that was made to be endless.
type bombGuard struct {
	in     io.Reader
	packed *counter
	n      int64
}

func (g *bombGuard) Read(p []byte) (int, error) {
	n, err := g.in.Read(p)
	if g.n += int64(n); g.n > bombSize && g.n/bombRatio > g.packed.n {
		return n, fmt.Errorf("%d bytes unpack to more than %d: this is no log", g.packed.n, g.n)
	}
	return n, err
}

// scanFolder reads the logs of a folder, such as torchrun's --log-dir. A file
// that is no log is a warning.
func (e *explain) scanFolder(in *inputs, folder string) error {
	before := len(in.logs)
	in.folder = true
	defer func() { in.folder = false }()
	err := filepath.WalkDir(folder, func(name string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			in.warnings = append(in.warnings, fmt.Sprintf("%s: %v", name, cause(err)))
			return nil
		case entry.IsDir():
			if strings.Count(strings.TrimPrefix(name, folder), string(filepath.Separator)) > maxDepth {
				return filepath.SkipDir
			}
			return nil
		case !entry.Type().IsRegular():
			return nil
		case len(in.logs)-before >= maxLogs:
			in.warnings = append(in.warnings, fmt.Sprintf("%s: more than %d files; the rest is not read", folder, maxLogs))
			return filepath.SkipAll
		}
		if info, err := entry.Info(); err == nil && info.Size() == 0 {
			return nil // a rank that printed nothing
		}
		if err := e.scanFile(in, name); err != nil {
			in.warnings = append(in.warnings, err.Error())
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("read %s: %w", folder, cause(err))
	}
	if len(in.logs) == before {
		return withHint(fmt.Errorf("%s: the folder has no log that can be read", folder), in.warnings...)
	}
	return nil
}
