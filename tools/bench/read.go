package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"unoom/internal/snapshot"
	"unoom/internal/snapshot/snapshottest"
)

// pythonLoad is the reading of every existing tool, measured the same way: wall
// time around the load, and the peak of the process.
const pythonLoad = `
import pickle, resource, sys, time
start = time.perf_counter()
with open(sys.argv[1], "rb") as f:
    snapshot = pickle.load(f)
took = time.perf_counter() - start
print(took, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024, sum(map(len, snapshot["device_traces"])))
`

// rounds is how often each reader runs; the fastest counts.
const rounds = 3

func compareReading(dir string, megabytes int64) error {
	path := filepath.Join(dir, "snapshot.pickle")
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	events, err := snapshottest.Large(f, megabytes*1e6, snapshottest.Python4)
	if err != nil {
		return err
	}
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	size := float64(info.Size())
	fmt.Printf("read: %.0f MB, %d events, %.0f bytes an event\n", size/1e6, events, size/float64(events))
	ours, err := best(events, func() (string, error) { return again("read", path) })
	if err != nil {
		return err
	}
	show("unoom", ours, size)
	python, err := exec.LookPath("python3")
	if err != nil {
		fmt.Println("  python3 is not here; nothing to compare with")
		return nil
	}
	theirs, err := best(events, func() (string, error) {
		out, err := exec.Command(python, "-c", pythonLoad, path).Output()
		return strings.TrimSpace(string(out)), err
	})
	if err != nil {
		return fmt.Errorf("python3: %w", err)
	}
	show("python3 pickle.load", theirs, size)
	fmt.Printf("  %-20s %.1f times faster, %.0f times less memory\n", "unoom is", theirs.seconds/ours.seconds, theirs.peak/ours.peak)
	return nil
}

type reading struct {
	seconds, peak float64
	events        int
}

func show(who string, r reading, size float64) {
	fmt.Printf("  %-20s %5.0f MB/s  %6.2f s  peak memory %5.0f MB, %3.0f %% of the file\n",
		who, size/1e6/r.seconds, r.seconds, r.peak/1e6, 100*r.peak/size)
}

// best is the fastest of a few rounds, with the largest peak of them.
func best(events int, once func() (string, error)) (reading, error) {
	var least reading
	for range rounds {
		out, err := once()
		if err != nil {
			return least, err
		}
		var r reading
		if _, err := fmt.Sscan(out, &r.seconds, &r.peak, &r.events); err != nil {
			return least, fmt.Errorf("%q: %w", out, err)
		}
		if r.events != events {
			return least, fmt.Errorf("%d events were read, %d written", r.events, events)
		}
		if least.seconds == 0 || r.seconds < least.seconds {
			least.seconds = r.seconds
		}
		least.peak = max(least.peak, r.peak)
	}
	return least, nil
}

// readOnce reads a snapshot and prints seconds, peak bytes and events.
func readOnce(path string) error {
	start := time.Now()
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	s, err := snapshot.Read(f, info.Size())
	if err != nil {
		return err
	}
	took := time.Since(start).Seconds()
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		return err
	}
	events := 0
	for _, t := range s.Traces {
		events += len(t.Events)
	}
	fmt.Println(took, usage.Maxrss*1024, events)
	return nil
}
