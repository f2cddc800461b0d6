package cli

import (
	"bytes"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// The example of the documentation: it runs without a GPU and without PyTorch,
// ends with exactly the numbers of a run without limits, and takes seconds.
func TestRunDemo(t *testing.T) {
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("SKIPPED: no python3")
	}
	train, err := filepath.Abs(filepath.Join("..", "..", "examples", "run-demo", "train.py"))
	if err != nil {
		t.Fatal(err)
	}
	last := func(b bytes.Buffer) string {
		lines := strings.Split(strings.TrimSpace(b.String()), "\n")
		return lines[len(lines)-1]
	}
	began := time.Now()
	cmd, home := unoomCommand(t, "run", "--backoff", "0s", "--global-batch", "16", "--resume-dir", "run-demo-out", "--",
		python, train, "--batch", "{micro_batch}", "--accum", "{accum}", "{resume?--resume %s}")
	var out, stderr bytes.Buffer
	cmd.Dir, cmd.Stdout, cmd.Stderr = t.TempDir(), &out, &stderr
	if code := exitCode(cmd.Run()); code != 0 {
		t.Fatalf("status %d\n%s", code, &stderr)
	}
	if took := time.Since(began); took > time.Minute {
		t.Errorf("it took %v", took)
	}
	free := exec.Command(python, train, "--batch", "16", "--capacity", "0")
	var want bytes.Buffer
	free.Dir, free.Stdout = t.TempDir(), &want
	if err := free.Run(); err != nil {
		t.Fatal(err)
	}
	if last(out) != last(want) {
		t.Errorf("%q, without limits %q", last(out), last(want))
	}
	if !strings.Contains(out.String(), "resumed at step 2") {
		t.Errorf("it started over: %s", &out)
	}
	if h := onlyRun(t, home); len(h.Tries) != 2 || h.Tries[1].Attempt.Settings.MicroBatch*h.Tries[1].Attempt.Settings.Accumulation != 16 {
		t.Errorf("%+v", h.Tries)
	}
}
