// Bench measures what unoom promises about speed and prints it next to what it
// is compared with: reading a large snapshot against CPython's pickle.load, and
// how many allocator events a core replays in a second.
//
//	go run ./tools/bench [-size 500] [SUBJECT...]
//
// Each measurement runs in a process of its own, so that its peak memory is its
// own. Large files live in a temporary folder that is removed at the end.
package main

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
)

// A subject is one thing that is measured.
type subject struct {
	name string
	run  func(dir string, megabytes int64) error
}

func subjects() []subject {
	return []subject{
		{"read", compareReading},
		{"replay", compareReplay},
		{"plan", comparePlanning},
	}
}

// child is the first argument of a process that bench starts to measure itself.
const child = "-child"

func main() {
	if len(os.Args) > 2 && os.Args[1] == child {
		if err := measured(os.Args[2], os.Args[3:]); err != nil {
			fmt.Fprintln(os.Stderr, "bench:", err)
			os.Exit(1)
		}
		return
	}
	size := flag.Int64("size", 500, "size of the snapshot in MB (10^6 bytes)")
	flag.Parse()
	if err := run(*size, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(megabytes int64, names []string) error {
	dir, err := os.MkdirTemp("", "unoom-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	for _, s := range subjects() {
		if len(names) > 0 && !slices.Contains(names, s.name) {
			continue
		}
		if err := s.run(dir, megabytes); err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
	}
	return nil
}

// measured runs a measurement that needs a process of its own.
func measured(name string, args []string) error {
	switch name {
	case "read":
		return readOnce(args[0])
	case "replay":
		return replayOnce(args[0])
	}
	return fmt.Errorf("no measurement %q", name)
}

// again runs this program once more for a measurement and returns its output.
func again(name string, args ...string) (string, error) {
	self, err := os.Executable()
	if err != nil {
		return "", err
	}
	cmd := exec.Command(self, append([]string{child, name}, args...)...)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	return strings.TrimSpace(string(out)), err
}
