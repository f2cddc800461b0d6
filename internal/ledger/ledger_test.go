package ledger

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
	"time"

	"unoom/internal/units"
)

var start = time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)

// write makes the ledger of a run that ran out of memory once.
func write(t *testing.T, root Root, id string, finish bool) *Writer {
	t.Helper()
	w, err := root.Create(Run{ID: id, Command: []string{"train"}, Host: "h", PID: 1}, start)
	if err != nil {
		t.Fatal(err)
	}
	peak := 10 * units.GiB
	recs := []Record{
		{Kind: KindAttempt, Attempt: &Attempt{N: 1}},
		{Kind: KindEnded, Ended: &Ended{N: 1, Status: 1, Outcome: "oom_device", Measured: &Measured{PeakAllocated: &peak}}},
		{Kind: KindDecision, Decision: &Decision{Action: "retry"}},
		{Kind: KindAttempt, Attempt: &Attempt{N: 2, Predicted: &Predicted{Mid: 11 * units.GiB, Source: "calibration"}}},
	}
	if finish {
		recs = append(recs,
			Record{Kind: KindEnded, Ended: &Ended{N: 2, Outcome: "done", Measured: &Measured{PeakAllocated: &peak, Steps: 5}}},
			Record{Kind: KindDecision, Decision: &Decision{Action: "done"}},
			Record{Kind: KindEnd, End: &End{Outcome: "done", Attempts: 2}})
	}
	for i, r := range recs {
		r.Time = start.Add(time.Duration(i+1) * time.Second)
		if err := w.Write(r); err != nil {
			t.Fatal(err)
		}
	}
	return w
}

func TestHistoryIsFoldedFromItsLines(t *testing.T) {
	root := Root{t.TempDir()}
	write(t, root, "a", true).Close()
	write(t, root, "b", false).Close()
	list, err := root.List(func(r Run) bool { return r.ID == "b" })
	if err != nil || len(list) != 2 {
		t.Fatalf("%d, %v", len(list), err)
	}
	if a := list[0]; a.State != StateDone || len(a.Tries) != 2 || a.Tries[0].Decision.Action != "retry" {
		t.Errorf("%+v", a)
	}
	if b := list[1]; b.State != StateRunning {
		t.Errorf("state %s", b.State)
	}
	scores := list[0].Scores()
	if len(scores) != 1 || scores[0].Attempt != 2 || scores[0].Error() < 0.09 || scores[0].Error() > 0.11 {
		t.Errorf("scores %+v: want one, of attempt 2; one that ran out of memory did not show what it needs", scores)
	}
	list, _ = root.List(func(Run) bool { return false })
	if list[1].State != StateLost {
		t.Errorf("its supervisor is gone: %s", list[1].State)
	}
}

// Whatever byte a writer was cut at, all whole lines before it count, and the
// lines after it too.
func TestATornLineCostsOnlyItself(t *testing.T) {
	root := Root{t.TempDir()}
	write(t, root, "a", true).Close()
	path := filepath.Join(root.Runs(), "a", FileName)
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for cut := 0; cut < len(whole); cut += 13 {
		if err := os.WriteFile(path, whole[:cut], 0o644); err != nil {
			t.Fatal(err)
		}
		lines := bytes.Count(whole[:cut], []byte{'\n'})
		w, err := Append(filepath.Dir(path))
		if err != nil {
			t.Fatal(err)
		}
		if err := w.Write(Record{Kind: KindLost, Lost: &Lost{Swept: 3}}); err != nil {
			t.Fatal(err)
		}
		w.Close()
		recs, skipped, err := ReadDir(filepath.Dir(path))
		if err != nil || len(recs) < lines+1 || skipped > 1 {
			t.Fatalf("cut at %d: %d records of %d whole lines and one new, %d skipped, %v", cut, len(recs), lines, skipped, err)
		}
	}
}

func TestTheIndexIsRebuilt(t *testing.T) {
	root := Root{t.TempDir()}
	write(t, root, "a", true).Close()
	dead := func(Run) bool { return false }
	for _, damage := range []func(path string){
		func(string) {},
		func(p string) { os.Remove(p) },
		func(p string) {
			_ = os.WriteFile(p, []byte("this is no database, but it is long enough to be one, is it not?"), 0o644)
		},
	} {
		damage(filepath.Join(root.Dir, "index.db"))
		list, err := root.List(dead)
		if err != nil || len(list) != 1 || list[0].State != StateDone {
			t.Fatalf("%d runs, %v", len(list), err)
		}
	}
	// It follows what changes behind its back.
	w, err := Append(filepath.Join(root.Runs(), "a"))
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Write(Record{Time: start, Kind: KindEnd, End: &End{Status: 1, Outcome: "failed"}}); err != nil {
		t.Fatal(err)
	}
	w.Close()
	write(t, root, "b", true).Close()
	list, err := root.List(dead)
	if err != nil || len(list) != 2 || list[0].State != StateFailed {
		t.Fatalf("%d runs, first %s, %v", len(list), list[0].State, err)
	}
	if err := os.RemoveAll(filepath.Join(root.Runs(), "a")); err != nil {
		t.Fatal(err)
	}
	if list, _ = root.List(dead); len(list) != 1 || list[0].Run.ID != "b" {
		t.Errorf("a removed run is still listed")
	}
}

func TestCalibrationIsTheMedianOfThisMachinesRuns(t *testing.T) {
	run := func(host, source string, predicted, measured units.Bytes, steps int64) History {
		return History{Run: Run{Host: host}, Tries: []Try{{
			Attempt: Attempt{N: 1},
			Ended:   &Ended{N: 1, Measured: &Measured{PeakAllocated: &measured, Steps: steps}, Engine: &Predicted{Mid: predicted, Source: source}},
		}}}
	}
	list := []History{
		run("here", "engine", 10*units.GiB, 11*units.GiB, 5), run("here", "engine", 10*units.GiB, 12*units.GiB, 5),
		run("there", "engine", 10*units.GiB, 30*units.GiB, 5), run("here", "calibration", 10*units.GiB, 30*units.GiB, 5),
		run("here", "engine", 10*units.GiB, 40*units.GiB, 1), // had not shown what it needs
	}
	if c, ok := Calibrate(list, "here"); ok {
		t.Errorf("two runs are too few: %+v", c)
	}
	list = append(list, run("here", "engine", 10*units.GiB, 20*units.GiB, 5), run("here", "engine", 10*units.GiB, 13*units.GiB, 5))
	if c, ok := Calibrate(list, "here"); !ok || c.Runs != 4 || c.Ratio < 1.249 || c.Ratio > 1.251 {
		t.Errorf("%+v, %v; want 1.25 of 4", c, ok)
	}
}

func TestFind(t *testing.T) {
	root := Root{t.TempDir()}
	for _, id := range []string{"20260101-a", "20260102-a", "20260102-b"} {
		write(t, root, id, true).Close()
	}
	for prefix, want := range map[string]string{"20260101": "20260101-a", "last": "20260102-b", "20260102-a": "20260102-a"} {
		if dir, err := root.Find(prefix); err != nil || filepath.Base(dir) != want {
			t.Errorf("%s: %s, %v", prefix, dir, err)
		}
	}
	for _, prefix := range []string{"20260102", "x"} {
		if _, err := root.Find(prefix); err == nil {
			t.Errorf("%s: no error", prefix)
		}
	}
}

func TestANewerLedgerIsRefused(t *testing.T) {
	if _, _, err := Read(bytes.NewReader([]byte(`{"proto":2,"kind":"run"}` + "\n"))); err == nil {
		t.Error("no error")
	}
}

func FuzzRead(f *testing.F) {
	f.Add([]byte(`{"proto":1,"kind":"run","run":{"id":"x"}}` + "\n" + `{"kind":"ended","ended":{"n":1}}` + "\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		recs, skipped, err := Read(bytes.NewReader(data))
		if err == nil {
			Fold(recs, skipped, nil).Scores()
		}
	})
}
