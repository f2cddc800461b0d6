package cli

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"unoom/internal/ledger"
	"unoom/internal/supervise"
	"unoom/internal/units"
)

// torchPython returns the interpreter of the test environment (scripts/test-venv.sh).
func torchPython(t *testing.T) string {
	t.Helper()
	dir := os.Getenv("UNOOM_TEST_VENV")
	if dir == "" {
		dir = filepath.Join("..", "..", ".venv")
	}
	path, err := filepath.Abs(filepath.Join(dir, "bin", "python"))
	if err == nil {
		_, err = os.Stat(filepath.Join(dir, "stamp"))
	}
	if err != nil {
		t.Skip("SKIPPED: no PyTorch to test on; `make venv` installs it")
	}
	return path
}

// script returns the path of a training script of python/tests/train.
func script(t *testing.T, name string) string {
	t.Helper()
	path, err := filepath.Abs(filepath.Join("..", "..", "python", "tests", "train", name))
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// rehearse runs a command under unoom on a card of the given capacity.
func rehearse(t *testing.T, capacity string, flags, argv []string) (ledger.History, int, string) {
	t.Helper()
	cmd, home := unoomCommand(t, append(append([]string{"run", "--backoff", "0s", "--peer-grace", "300s", "--rehearse", capacity}, flags...), append([]string{"--"}, argv...)...)...)
	cmd.Env = append(cmd.Env, "OMP_NUM_THREADS=1", "PYTHONWARNINGS=ignore")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	code := exitCode(cmd.Run())
	list, err := ledger.Root{Dir: home}.List(supervise.Alive)
	if err != nil || len(list) != 1 {
		t.Fatalf("%d runs, %v\n%s", len(list), err, &stderr)
	}
	return list[0], code, stderr.String()
}

// apart returns the largest difference between the weights of two trainings.
func apart(t *testing.T, a, b string) float64 {
	t.Helper()
	out, err := exec.Command(torchPython(t), script(t, "same_weights.py"), a, b).CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	d, err := strconv.ParseFloat(strings.TrimSpace(string(out)), 64)
	if err != nil {
		t.Fatalf("%q", out)
	}
	return d
}

func alone(t *testing.T, argv ...string) {
	t.Helper()
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Env = append(os.Environ(), "OMP_NUM_THREADS=1", "PYTHONWARNINGS=ignore")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %v\n%s", argv, err, out)
	}
}

// Trainings that do not fit are finished with unchanged scripts after one
// restart, with the largest micro-batch that fits, and end with the weights of
// an unrestricted run.
func TestRunFinishesWhatDoesNotFit(t *testing.T) {
	if os.Getenv("UNOOM_TORCH") == "" {
		t.Skip("SKIPPED: minutes of training; `make test-torch` runs it")
	}
	py := torchPython(t)
	for _, c := range []struct {
		name, capacity string
		flags          []string
		argv           func(out string) []string // under unoom
		free           func(out string) []string // without limits
		micro, accum   int
		checkpointing  string
	}{
		{
			name: "GPT-2, Trainer", capacity: "64MiB",
			argv:  func(out string) []string { return []string{py, script(t, "gpt2_trainer.py"), out} },
			free:  func(out string) []string { return []string{py, script(t, "gpt2_trainer.py"), out} },
			micro: 22, accum: 3, // 22, 22 and 4 rows; python/tests/largest.py finds that 22 is the largest
		},
		{
			name: "ResNet-50 with BatchNorm, a plain script", capacity: "90MiB", flags: []string{"--global-batch", "48"},
			argv: func(out string) []string {
				return []string{py, script(t, "resnet_plain.py"), "--norm", "batch", "--out", out + "/final.pt", "--batch", "{micro_batch}", "--accum", "{accum}"}
			},
			free: func(out string) []string {
				return []string{py, script(t, "resnet_plain.py"), "--norm", "batch", "--out", out + "/final.pt", "--batch", "48"}
			},
			micro: 48, accum: 1, checkpointing: "full",
		},
		{
			name: "ResNet-50 with GroupNorm, a plain script", capacity: "72MiB", flags: []string{"--global-batch", "48"},
			argv: func(out string) []string {
				return []string{py, script(t, "resnet_plain.py"), "--out", out + "/final.pt", "--batch", "{micro_batch}", "--accum", "{accum}"}
			},
			free: func(out string) []string {
				return []string{py, script(t, "resnet_plain.py"), "--out", out + "/final.pt", "--batch", "48"}
			},
			micro: 16, accum: 3,
		},
		{
			name: "Lightning", capacity: "100MiB",
			argv:  func(out string) []string { return []string{py, script(t, "lightning_net.py"), out} },
			free:  func(out string) []string { return []string{py, script(t, "lightning_net.py"), out} },
			micro: 32, accum: 2,
		},
		{
			name: "accelerate", capacity: "100MiB",
			argv:  func(out string) []string { return []string{py, script(t, "accelerate_loop.py"), out} },
			free:  func(out string) []string { return []string{py, script(t, "accelerate_loop.py"), out} },
			micro: 32, accum: 2,
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Setenv("LR", "5e-5") // at a larger rate the order of sums alone shows in the weights
			limited, free := t.TempDir(), t.TempDir()
			h, code, stderr := rehearse(t, c.capacity, c.flags, c.argv(limited))
			if code != 0 {
				t.Fatalf("status %d\n%s", code, stderr)
			}
			if len(h.Tries) != 2 {
				t.Errorf("%d attempts, want 2\n%s", len(h.Tries), stderr)
			}
			last := h.Tries[len(h.Tries)-1]
			s := last.Attempt.Settings
			if s.MicroBatch != c.micro || s.Accumulation != c.accum || s.Checkpointing != c.checkpointing {
				t.Errorf("micro-batch %d x %d, checkpointing %q; want %d x %d, %q\n%s",
					s.MicroBatch, s.Accumulation, s.Checkpointing, c.micro, c.accum, c.checkpointing, stderr)
			}
			alone(t, c.free(free)...)
			if d := apart(t, limited+"/final.pt", free+"/final.pt"); d > 1e-5 {
				t.Errorf("the weights are %g apart from those of an unrestricted run", d)
			}
			scores := h.Scores()
			if len(scores) == 0 {
				t.Fatal("the ledger has no prediction with its measurement")
			}
			if e := scores[0].Error(); e < -0.02 || e > 0.10 {
				t.Errorf("predicted %v, measured %v", scores[0].Predicted, scores[0].Measured)
			}
			t.Logf("%s: %d restarts, micro-batch %d, predicted %v measured %v", c.name, len(h.Tries)-1, s.MicroBatch,
				scores[0].Predicted, scores[0].Measured)
		})
	}
}

// mlp is the command of the small network that saves as it goes.
func mlp(t *testing.T, out string, more ...string) []string {
	return append([]string{torchPython(t), script(t, "mlp_plain.py"), out, "--batch", "{micro_batch}", "--accum", "{accum}", "{resume?--resume %s}"}, more...)
}

// The rows of a step are compared with those before the restart: a script that
// trains on with its checkpoint's batch is found out, and ended by --strict.
func TestRunSeesAnotherBatch(t *testing.T) {
	if os.Getenv("UNOOM_TORCH") == "" {
		t.Skip("SKIPPED: a minute of training; `make test-torch` runs it")
	}
	t.Setenv("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
	for _, c := range []struct {
		name    string
		flags   []string
		forgets bool
		code    int
	}{
		{name: "the same batch"},
		{name: "another batch", forgets: true},
		{name: "another batch, strict", flags: []string{"--strict"}, forgets: true, code: 125},
	} {
		t.Run(c.name, func(t *testing.T) {
			out := t.TempDir()
			argv := mlp(t, out, "--steps", "6")
			if c.forgets { // it takes 32 rows again, in each piece, and nothing fails
				argv = append(argv, "--forgets")
			}
			// The third step at 32 rows needs more, at 16 it does not.
			h, code, stderr := rehearse(t, "32MiB", append(c.flags, "--global-batch", "32", "--resume-dir", out), argv)
			if c.code != 0 && code != c.code {
				t.Errorf("status %d, want %d\n%s", code, c.code, stderr)
			}
			var failed []ledger.Check
			for _, try := range h.Tries {
				failed = append(failed, try.Ended.Failed...)
			}
			told := strings.Contains(stderr, "the effective batch is not the same")
			if c.forgets != (len(failed) > 0) || c.forgets != told {
				t.Errorf("checks that failed: %+v, told: %v\n%s", failed, told, stderr)
			}
			if !c.forgets && (code != 0 || len(h.Tries) != 2 || h.Tries[1].Attempt.Settings.MicroBatch == 32) {
				t.Errorf("status %d after %d attempts\n%s", code, len(h.Tries), stderr)
			}
		})
	}
}

// The snapshot that a rehearsal leaves is one that explain reads and that the
// simulated allocator reproduces, event by event.
func TestRunKeepsASnapshot(t *testing.T) {
	if os.Getenv("UNOOM_TORCH") == "" {
		t.Skip("SKIPPED: a training; `make test-torch` runs it")
	}
	out := t.TempDir()
	h, _, stderr := rehearse(t, "48MiB", []string{"--snapshot", "--max-restarts", "0", "--global-batch", "32", "--resume-dir", out}, mlp(t, out))
	path := h.Tries[0].Ended.Snapshot
	if path == "" || !strings.Contains(stderr, path) {
		t.Fatalf("no snapshot\n%s", stderr)
	}
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"explain", path}, "ran out of memory in the forward pass"},
		{[]string{"replay", path}, "and the final layout"},
	} {
		cmd, _ := unoomCommand(t, c.args...)
		text, _ := cmd.CombinedOutput()
		if !strings.Contains(string(text), c.want) {
			t.Errorf("unoom %s: no %q\n%s", c.args[0], c.want, text)
		}
	}
}

// Over many capacities, which only UNOOM_SLOW=1 asks for: how many restarts, and
// whether the next larger micro-batch would have fitted too.
func TestRunFindsTheLargestBatch(t *testing.T) {
	if os.Getenv("UNOOM_SLOW") == "" {
		t.Skip("UNOOM_SLOW=1 runs it; some 15 minutes")
	}
	py := torchPython(t)
	argv := []string{py, script(t, "resnet_plain.py"), "--out", t.TempDir() + "/w.pt", "--batch", "{micro_batch}", "--accum", "{accum}"}
	restarts := map[int]int{}
	short := 0
	for mib := 48; mib <= 102; mib += 6 {
		h, code, stderr := rehearse(t, fmt.Sprintf("%dMiB", mib), []string{"--global-batch", "48"}, argv)
		if code != 0 {
			t.Errorf("%d MiB: status %d\n%s", mib, code, stderr)
			continue
		}
		n := len(h.Tries) - 1
		restarts[n]++
		s := h.Tries[n].Attempt.Settings
		next := 0
		for _, d := range []int{1, 2, 3, 4, 6, 8, 12, 16, 24, 48} {
			if d > s.MicroBatch {
				next = d
				break
			}
		}
		verdict := "largest"
		if next != 0 {
			_, code, _ = rehearse(t, fmt.Sprintf("%dMiB", mib), []string{"--global-batch", "48", "--max-restarts", "0", "--micro-batch", strconv.Itoa(next)}, argv)
			if code == 0 {
				verdict = fmt.Sprintf("%d would have fitted", next)
				short++
			}
		}
		t.Logf("%3d MiB of %v: %d restarts, micro-batch %d (%s), alloc %q", mib, units.Bytes(mib)<<20, n, s.MicroBatch, verdict, s.AllocConf)
	}
	t.Logf("restarts %v, %d not the largest", restarts, short)
}
