package cli

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

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
	kindBinary
)

// kindOf tells from the first bytes what a file holds.
func kindOf(head []byte) kind {
	switch {
	case len(head) == 0:
		return kindEmpty
	case bytes.HasPrefix(head, []byte{0x1f, 0x8b}):
		return kindGzip
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
	case zeros > len(head)/100 || control > len(head)/20:
		return kindBinary
	}
	return kindText
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
	all := io.MultiReader(bytes.NewReader(head), r)
	if snapshot.Looks(head) {
		return e.scanSnapshot(in, name, all, sizeOf(r))
	}
	switch kindOf(head) {
	case kindEmpty:
		return withHint(fmt.Errorf("%s: the text is empty", name), "redirect both streams: python train.py > train.log 2>&1")
	case kindGzip:
		z, err := gzip.NewReader(all)
		if err != nil {
			return fmt.Errorf("unpack %s: %w", name, err)
		}
		return e.scan(in, strings.TrimSuffix(name, ".gz"), z)
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
