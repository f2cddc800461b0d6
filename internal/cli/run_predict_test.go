package cli

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"unoom/internal/ledger"
	"unoom/internal/supervise"
)

// A command that names its model and its batch is predicted by the memory engine:
// the next micro-batch is the largest of which the engine says that it fits, and
// what it says is kept for every attempt.
func TestRunPredictsByTheEngine(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("python3"); err != nil {
		t.Skip("SKIPPED: no python3")
	}
	dir := t.TempDir()
	script := filepath.Join(dir, "train.py")
	text := "import sys\nif int(sys.argv[sys.argv.index('--per_device_train_batch_size') + 1]) > 8:\n    sys.exit(" + "'''" + oomText + "'''" + ")\n"
	if err := os.WriteFile(script, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	cmd, home := unoomCommand(t, "run", "--backoff", "0s", "--global-batch", "64", "--", "python3", script, "--model_name_or_path", "gpt2",
		"--per_device_train_batch_size", "{micro_batch}", "--gradient_accumulation_steps", "{accum}", "--max_seq_length", "1024")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	list, err := ledger.Root{Dir: home}.List(supervise.Alive)
	if err != nil || len(list) != 1 || len(list[0].Tries) != 2 {
		t.Fatalf("%+v, %v; want one restart", list, err)
	}
	first, second := list[0].Tries[0], list[0].Tries[1]
	if s := second.Attempt.Settings; s.MicroBatch != 8 || s.Accumulation != 8 {
		t.Errorf("%d x %d, want 8 x 8: the largest that fits on 24 GiB", s.MicroBatch, s.Accumulation)
	}
	p := second.Attempt.Predicted
	if p == nil || p.Source != "engine" || p.Mid == 0 || first.Ended.Engine == nil || first.Ended.Engine.Mid < 2*p.Mid {
		t.Errorf("predicted %+v, and %+v for 64", p, first.Ended.Engine)
	}
	cmd, _ = unoomCommand(t, "runs", "show", "last")
	cmd.Env = append(cmd.Env, "UNOOM_HOME="+home)
	if out, _ := cmd.Output(); !strings.Contains(string(out), "(engine)") {
		t.Errorf("runs show does not say so:\n%s", out)
	}
}
