package cli

import (
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"unoom/internal/ledger"
	"unoom/internal/supervise"
)

// launcher is a job as they are: a launcher, two ranks in sessions of their own,
// each with a worker that ignores SIGTERM. It runs out of memory (in the words
// of PyTorch) while the micro-batch is above 4.
const launcher = `
micro=$1; dir=$2
rank() { setsid sh -c '
	trap "" TERM
	(trap "" TERM; while :; do sleep 0.05; done) &
	sleep 0.0$2
	if [ "$1" -gt 4 ] && [ "$2" = 1 ]; then
		echo "[rank1]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 1 has a total capacity of 23.64 GiB of which 1.10 GiB is free. Including non-PyTorch memory, this process has 22.51 GiB memory in use. Of the allocated memory 21.90 GiB is allocated by PyTorch, and 120.33 MiB is reserved by PyTorch but unallocated." >&2
		exit 1
	fi
	sleep 0.1
	kill $! 2>/dev/null; kill -9 $! 2>/dev/null
' rank "$micro" "$1" & }
rank 0; a=$!; rank 1; b=$!
wait $b; code=$?
[ $code != 0 ] && exit 1
wait $a
`

// Cycles of out-of-memory and of SIGKILL to unoom at random times: no process is
// left, and no line of the ledger is lost.
func TestRunCyclesLeaveNothing(t *testing.T) {
	cycles := 6
	if os.Getenv("UNOOM_SLOW") != "" {
		cycles = 500
	}
	file := filepath.Join(t.TempDir(), "launcher.sh")
	if err := os.WriteFile(file, []byte(launcher), 0o755); err != nil {
		t.Fatal(err)
	}
	mark := fmt.Sprintf("UNOOM_TEST_MARK=%d-%d", os.Getpid(), time.Now().UnixNano())
	home := t.TempDir()
	dice := rand.New(rand.NewPCG(1, 2))
	killed := 0
	var finished int
	for i := range cycles {
		cmd := exec.Command(binary(t), "run", "--fresh", "--backoff", "0s", "--global-batch", "16", "--", "sh", file, "{micro_batch}", "{accum}")
		cmd.Env = append(os.Environ(), "UNOOM_HOME="+home, "LC_ALL=C", mark)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		if i%2 == 1 { // SIGKILL to unoom, at any time of its life
			killed++
			time.Sleep(time.Duration(dice.IntN(1200)) * time.Millisecond)
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
			continue
		}
		if code := exitCode(cmd.Wait()); code != 0 {
			t.Errorf("cycle %d: status %d", i, code)
		} else {
			finished++
		}
	}
	var left []int
	if !eventually(func() bool { // the keepers of the killed need a moment
		left = withEnviron(mark)
		return len(left) == 0
	}) {
		t.Errorf("%d processes are left: %v", len(left), left)
	}
	var list []ledger.History
	eventually(func() bool { // and then they write what they did
		var err error
		if list, err = (ledger.Root{Dir: home}).List(supervise.Alive); err != nil {
			t.Fatal(err)
		}
		return !slices.ContainsFunc(list, silentlyLost)
	})
	states := map[string]int{}
	for _, h := range list {
		states[h.State]++
		if h.Skipped > 0 {
			t.Errorf("run %s: %d damaged lines", h.Run.ID, h.Skipped)
		}
		for i, try := range h.Tries {
			if try.Attempt.N != i+1 {
				t.Errorf("run %s: attempt %d stands at %d", h.Run.ID, try.Attempt.N, i+1)
			}
			if i+1 < len(h.Tries) && (try.Ended == nil || try.Ended.Outcome != string(supervise.DeviceOOM)) {
				t.Errorf("run %s: attempt %d ended %+v", h.Run.ID, i+1, try.Ended)
			}
		}
		if h.State == ledger.StateRunning {
			t.Errorf("run %s is said to be running", h.Run.ID)
		}
		if silentlyLost(h) {
			t.Errorf("run %s is lost and its keeper wrote nothing", h.Run.ID)
		}
	}
	if states[ledger.StateDone] < finished {
		t.Errorf("%d runs finished, %d are in the ledger", finished, states[ledger.StateDone])
	}
	t.Logf("%d cycles, %d of them killed: %d runs in the ledger, %v", cycles, killed, len(list), states)
}

// silentlyLost tells of a run that had started something and says nothing of
// how it ended.
func silentlyLost(h ledger.History) bool {
	return h.State == ledger.StateLost && h.Lost == nil && len(h.Tries) > 0
}
