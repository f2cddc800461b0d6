package ledger

import (
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	_ "modernc.org/sqlite" // the driver "sqlite", pure Go
)

// indexVersion changes when the table or what Fold makes of the lines does; an
// index of another version is thrown away and built again.
const indexVersion = 2

const createTable = `CREATE TABLE IF NOT EXISTS runs (
	id TEXT PRIMARY KEY, size INTEGER NOT NULL, mtime INTEGER NOT NULL, history TEXT NOT NULL)`

// openIndex opens the index, making or replacing it where it is missing, of
// another version, or damaged.
func (r Root) openIndex() (*sql.DB, error) {
	path := filepath.Join(r.Dir, "index.db")
	for try := 0; ; try++ {
		db, err := sql.Open("sqlite", "file:"+path+"?_pragma=busy_timeout(5000)&_pragma=journal_mode(WAL)&_pragma=synchronous(OFF)")
		if err != nil {
			return nil, err
		}
		db.SetMaxOpenConns(1)
		var version int
		err = db.QueryRow("PRAGMA user_version").Scan(&version)
		if err == nil && version == indexVersion {
			return db, nil
		}
		if err == nil && version == 0 {
			if _, err = db.Exec(createTable); err == nil {
				_, err = db.Exec(fmt.Sprintf("PRAGMA user_version = %d", indexVersion))
			}
			if err == nil {
				return db, nil
			}
		}
		db.Close()
		if try > 0 {
			return nil, fmt.Errorf("index %s: %w", path, err)
		}
		for _, suffix := range []string{"", "-wal", "-shm"} {
			if err := os.Remove(path + suffix); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return nil, err
			}
		}
	}
}

// List returns all runs, the oldest first. Folders that have not changed since
// the last time come from the index. A run without an end is asked for again
// each time, since only alive can tell whether it still goes on.
func (r Root) List(alive func(Run) bool) ([]History, error) {
	entries, err := os.ReadDir(r.Runs())
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	known, db := map[string]indexed{}, (*sql.DB)(nil)
	if db, err = r.openIndex(); err == nil {
		defer db.Close()
		known = loadIndex(db)
	} // else: a folder that cannot be written to; the files are enough
	var out []History
	fresh := map[string]indexed{}
	for _, e := range entries {
		info, err := os.Stat(filepath.Join(r.Runs(), e.Name(), FileName))
		if err != nil {
			continue // not a run's folder
		}
		size, mtime := info.Size(), info.ModTime().UnixNano()
		if k, ok := known[e.Name()]; ok && k.size == size && k.mtime == mtime {
			out = append(out, k.history)
			delete(known, e.Name())
			continue
		}
		delete(known, e.Name())
		recs, skipped, err := ReadDir(filepath.Join(r.Runs(), e.Name()))
		if err != nil || len(recs) == 0 {
			continue
		}
		h := Fold(recs, skipped, alive)
		out = append(out, h)
		if h.End != nil || h.Lost != nil {
			fresh[e.Name()] = indexed{size, mtime, h}
		}
	}
	if db != nil {
		saveIndex(db, fresh, known)
	}
	return out, nil
}

type indexed struct {
	size, mtime int64
	history     History
}

func loadIndex(db *sql.DB) map[string]indexed {
	out := map[string]indexed{}
	rows, err := db.Query("SELECT id, size, mtime, history FROM runs")
	if err != nil {
		return out
	}
	defer rows.Close()
	for rows.Next() {
		var id, text string
		var k indexed
		if rows.Scan(&id, &k.size, &k.mtime, &text) == nil && json.Unmarshal([]byte(text), &k.history) == nil {
			out[id] = k
		}
	}
	return out
}

// saveIndex writes what is new and forgets what is gone. An error costs only
// the time to fold the lines again.
func saveIndex(db *sql.DB, fresh, gone map[string]indexed) {
	if len(fresh) == 0 && len(gone) == 0 {
		return
	}
	tx, err := db.Begin()
	if err != nil {
		return
	}
	defer func() { _ = tx.Rollback() }()
	for id, k := range fresh {
		text, err := json.Marshal(k.history)
		if err != nil {
			continue
		}
		if _, err := tx.Exec("INSERT OR REPLACE INTO runs VALUES (?,?,?,?)", id, k.size, k.mtime, string(text)); err != nil {
			return
		}
	}
	for id := range gone {
		if _, err := tx.Exec("DELETE FROM runs WHERE id = ?", id); err != nil {
			return
		}
	}
	_ = tx.Commit()
}
