package cli

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"unoom/internal/snapshot"
)

// readSnapshot reads a memory snapshot from a file, or from stdin for "-".
func (a *app) readSnapshot(name string) (*snapshot.Snapshot, error) {
	in, size := a.In, int64(-1)
	if name != "-" {
		f, err := os.Open(name)
		if err != nil {
			if errors.Is(err, fs.ErrNotExist) {
				return nil, withHint(fmt.Errorf("%s: no such file", name),
					"torch.cuda.memory._dump_snapshot(\"snapshot.pickle\") writes one")
			}
			return nil, err
		}
		defer f.Close()
		info, err := f.Stat()
		if err != nil {
			return nil, err
		}
		if info.IsDir() {
			return nil, withHint(fmt.Errorf("%s: a folder, not a snapshot", name), "name one of the files in it")
		}
		in, size = f, info.Size()
	}
	s, err := snapshot.Read(in, size)
	if err != nil {
		return nil, a.snapshotHint(fmt.Errorf("%s: %w", name, err))
	}
	return s, nil
}

// snapshotHint adds what to do about a file that is no snapshot.
func (a *app) snapshotHint(err error) error {
	m := snapshot.MistakeOf(err)
	if m == snapshot.NoMistake {
		return err
	}
	return withHint(err, a.msgs.Text("snapshot.hint."+string(m)))
}

// snapshotWarnings translates the oddities of a file for --json.
func snapshotWarnings(s *snapshot.Snapshot) []warning {
	out := []warning{}
	for _, w := range s.Warnings {
		out = append(out, warning{w.Code, w.Msg, w.Where})
	}
	return out
}
