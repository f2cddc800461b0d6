package ledger

import (
	"bufio"
	"bytes"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// FileName is the truth of a run, in its folder.
const FileName = "run.jsonl"

// A Root is the folder that holds all runs.
type Root struct{ Dir string }

// Default returns where runs are kept: UNOOM_HOME, else the state folder of the
// XDG base directories.
func Default(getenv func(string) string) Root {
	if d := getenv("UNOOM_HOME"); d != "" {
		return Root{d}
	}
	if d := getenv("XDG_STATE_HOME"); d != "" {
		return Root{filepath.Join(d, "unoom")}
	}
	return Root{filepath.Join(getenv("HOME"), ".local", "state", "unoom")}
}

// Runs returns the folder of the runs' folders.
func (r Root) Runs() string { return filepath.Join(r.Dir, "runs") }

// NewID returns an id that sorts by time.
func NewID(now time.Time) string {
	var b [2]byte
	_, _ = rand.Read(b[:]) // crypto/rand does not fail
	return fmt.Sprintf("%s-%03d%s", now.UTC().Format("20060102-150405"), now.Nanosecond()/1e6, hex.EncodeToString(b[:]))
}

// A Writer appends to the ledger of one run.
type Writer struct {
	Dir string
	f   *os.File
}

// Create makes the folder of a run and writes its first line.
func (r Root) Create(run Run, now time.Time) (*Writer, error) {
	return CreateIn(filepath.Join(r.Runs(), run.ID), run, now)
}

// CreateIn does so in a folder of the caller's choice, such as one that several
// machines share; it may exist, with the ledger of other machines in it.
func CreateIn(dir string, run Run, now time.Time) (*Writer, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("run folder: %w", err)
	}
	w, err := Append(dir)
	if err != nil {
		return nil, err
	}
	err = w.Write(Record{Proto: Proto, Time: now, Kind: KindRun, Run: &run})
	if err != nil {
		w.Close()
		return nil, err
	}
	return w, nil
}

// Append opens the ledger of an existing run folder.
func Append(dir string) (*Writer, error) {
	f, err := os.OpenFile(filepath.Join(dir, FileName), os.O_RDWR|os.O_APPEND|os.O_CREATE, 0o644)
	if err != nil {
		return nil, fmt.Errorf("ledger: %w", err)
	}
	return &Writer{Dir: dir, f: f}, nil
}

// Write appends one line. A torn line before it, left by a full disk, is closed
// first, so that it costs only itself.
func (w *Writer) Write(rec Record) error {
	line, err := json.Marshal(rec)
	if err != nil {
		return fmt.Errorf("ledger: %w", err)
	}
	line = append(line, '\n')
	if w.torn() {
		line = append([]byte{'\n'}, line...)
	}
	if _, err := w.f.Write(line); err != nil {
		return fmt.Errorf("ledger: %w", err)
	}
	return nil // no fsync: a killed process loses nothing, and a start stays fast
}

// torn reports whether the file ends in the middle of a line.
func (w *Writer) torn() bool {
	end, err := w.f.Seek(0, io.SeekEnd)
	if err != nil || end == 0 {
		return false
	}
	var last [1]byte
	_, err = w.f.ReadAt(last[:], end-1)
	return err == nil && last[0] != '\n'
}

// Close closes the file.
func (w *Writer) Close() error { return w.f.Close() }

// maxLine bounds the memory that a damaged ledger can take.
const maxLine = 1 << 20

// Read reads the lines of a ledger. Lines that are torn or not understood are
// counted, not fatal.
func Read(r io.Reader) (recs []Record, skipped int, err error) {
	sc := bufio.NewScanner(r)
	sc.Buffer(make([]byte, 0, 64<<10), maxLine)
	for sc.Scan() {
		line := bytes.TrimSpace(sc.Bytes())
		if len(line) == 0 {
			continue
		}
		var rec Record
		if json.Unmarshal(line, &rec) != nil || rec.Kind == "" {
			skipped++
			continue
		}
		if rec.Proto > Proto {
			return recs, skipped, fmt.Errorf("ledger: written by a newer unoom (proto %d, this one reads %d)", rec.Proto, Proto)
		}
		recs = append(recs, rec)
	}
	if errors.Is(sc.Err(), bufio.ErrTooLong) {
		return recs, skipped + 1, nil
	}
	return recs, skipped, sc.Err()
}

// ReadDir reads the ledger in a run's folder.
func ReadDir(dir string) ([]Record, int, error) {
	f, err := os.Open(filepath.Join(dir, FileName))
	if err != nil {
		return nil, 0, err
	}
	defer f.Close()
	return Read(f)
}

// Find returns the folder of the run whose id begins with prefix; "last" is the
// newest. An ambiguous prefix is an error.
func (r Root) Find(prefix string) (string, error) {
	entries, err := os.ReadDir(r.Runs())
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	var found []string
	for _, e := range entries {
		if e.IsDir() && (strings.HasPrefix(e.Name(), prefix) || prefix == "last") {
			found = append(found, e.Name())
		}
	}
	switch {
	case len(found) == 0:
		return "", fmt.Errorf("run %q: not in %s", prefix, r.Runs())
	case prefix != "last" && len(found) > 1:
		return "", fmt.Errorf("run %q: %d runs begin so: %s …", prefix, len(found), strings.Join(found[:2], ", "))
	}
	return filepath.Join(r.Runs(), found[len(found)-1]), nil // ReadDir sorts by name
}
