package cli

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"unoom/internal/ledger"
)

// nodeRun is one of several supervisors that share a run's folder.
type nodeRun struct {
	code   int
	stderr string
}

// runNodes starts a supervisor for each node, as srun does, all on this machine.
func runNodes(t *testing.T, count int, flags []string, argv func(rank int) []string) ([]nodeRun, string) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "shared")
	out := make([]nodeRun, count)
	var wg sync.WaitGroup
	for rank := range count {
		args := append([]string{"run", "--run-dir", dir, "--backoff", "0s"}, flags...)
		cmd, _ := unoomCommand(t, append(append(args, "--"), argv(rank)...)...)
		cmd.Env = append(cmd.Env, "SLURM_PROCID="+fmt.Sprint(rank), fmt.Sprintf("SLURM_NNODES=%d", count), "SLURM_NODEID="+fmt.Sprint(rank),
			"NODE="+fmt.Sprint(rank), "OMP_NUM_THREADS=1", "PYTHONWARNINGS=ignore")
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		wg.Add(1)
		go func() {
			defer wg.Done()
			out[rank] = nodeRun{exitCode(cmd.Run()), stderr.String()}
		}()
	}
	done := make(chan struct{})
	go func() { wg.Wait(); close(done) }()
	select {
	case <-done:
	case <-time.After(8 * time.Minute):
		t.Fatal("the nodes hang")
	}
	return out, dir
}

func history(t *testing.T, dir string) ledger.History {
	t.Helper()
	recs, skipped, err := ledger.ReadDir(dir)
	if err != nil || skipped > 0 {
		t.Fatal(skipped, err)
	}
	return ledger.Fold(recs, skipped, func(ledger.Run) bool { return false })
}

const oomText = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 24.00 GiB of which 512.00 MiB is free. " +
	"Of the allocated memory 22.50 GiB is allocated by PyTorch, and 256.00 MiB is reserved by PyTorch but unallocated."

// One of two nodes runs out of memory, and the other waits for it: both are
// started again with the same smaller batch, and neither is left behind.
func TestRunOnSeveralNodes(t *testing.T) {
	t.Parallel()
	for _, who := range []int{0, 1} {
		script := fmt.Sprintf(`echo "$NODE {micro_batch} {accum}" >> %%s
if [ {micro_batch} -gt 4 ]; then
  [ $NODE = %d ] || exec sleep 300
  echo '%s' >&2; exit 1
fi`, who, oomText)
		log := filepath.Join(t.TempDir(), "log")
		nodes, dir := runNodes(t, 2, []string{"--global-batch", "16", "--world", "2", "--peer-grace", "1s", "--grace", "2s"}, func(int) []string {
			return []string{"sh", "-c", fmt.Sprintf(script, log)}
		})
		for rank, n := range nodes {
			if n.code != 0 {
				t.Errorf("node %d: status %d\n%s", rank, n.code, n.stderr)
			}
		}
		h := history(t, dir)
		if h.State != ledger.StateDone || len(h.Tries) < 2 || h.Tries[0].Ended.Outcome != "oom_device" {
			t.Errorf("%d OOM: %s after %d attempts: %+v", who, h.State, len(h.Tries), h.Tries[0].Ended)
		}
		text, _ := os.ReadFile(log)
		if got := string(text); !strings.Contains(got, "0 2 4") || !strings.Contains(got, "1 2 4") || strings.Count(got, "\n") != 4 {
			t.Errorf("each node tries 8 x 1 and then 2 x 4: %q", got)
		}
	}
}

func TestRunOnSeveralNodesGivesUpTogether(t *testing.T) {
	t.Parallel()
	nodes, dir := runNodes(t, 2, []string{"--peer-grace", "1s", "--grace", "2s"}, func(rank int) []string {
		if rank == 0 {
			return []string{"true"}
		}
		return []string{"sh", "-c", "echo '" + oomText + "' >&2; exit 1"}
	})
	if nodes[0].code != 78 || nodes[1].code != 78 {
		t.Errorf("status %d and %d, want 78\n%s\n%s", nodes[0].code, nodes[1].code, nodes[0].stderr, nodes[1].stderr)
	}
	again, _ := unoomCommand(t, "run", "--run-dir", dir, "--", "true")
	again.Env = append(again.Env, "SLURM_PROCID=0", "SLURM_NNODES=2", "SLURM_NODEID=0")
	if text, err := again.CombinedOutput(); exitCode(err) != 125 || !strings.Contains(string(text), "earlier run") {
		t.Errorf("a folder is used twice: %v\n%s", err, text)
	}
}

// A node whose leader is killed does not wait for it.
func TestRunNodesWithoutLeader(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "shared")
	start := func(rank string, argv ...string) *exec.Cmd {
		cmd, _ := unoomCommand(t, append([]string{"run", "--run-dir", dir, "--"}, argv...)...)
		cmd.Env = append(cmd.Env, "SLURM_PROCID="+rank, "SLURM_NNODES=2", "SLURM_NODEID="+rank)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		return cmd
	}
	exists := func(path string) func() bool {
		return func() bool { _, err := os.Stat(path); return err == nil }
	}
	here, gone := filepath.Join(t.TempDir(), "here"), filepath.Join(t.TempDir(), "gone")
	leader := start("0", "sleep", "300")
	other := start("1", "sh", "-c", "touch "+here+"; until [ -e "+gone+" ]; do sleep 0.02; done; exit 3")
	if !eventually(exists(filepath.Join(dir, "attempt-1", "start.json"))) || !eventually(exists(here)) {
		t.Fatal("the nodes did not start")
	}
	_ = leader.Process.Kill()
	_ = leader.Wait()
	if err := os.WriteFile(gone, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if code := exitCode(other.Wait()); code != 3 {
		t.Errorf("status %d, want the command's own 3", code)
	}
}

// Real ranks on two nodes, with a rendezvous of torchrun's, and FSDP on one: the
// rank that runs out of memory takes the others along, all go on from the
// checkpoint with a smaller micro-batch, and the weights are those of an
// unrestricted run.
func TestRunOfSeveralRanks(t *testing.T) {
	if os.Getenv("UNOOM_TORCH") == "" {
		t.Skip("SKIPPED: minutes of training; `make test-torch` runs it")
	}
	t.Setenv("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
	py := torchPython(t)
	port := 20000 + os.Getpid()%20000
	torchrun := func(nodes, per, rank int) []string {
		return []string{py, "-m", "torch.distributed.run", fmt.Sprintf("--nnodes=%d", nodes), fmt.Sprintf("--nproc-per-node=%d", per),
			fmt.Sprintf("--node-rank=%d", rank), "--rdzv-backend=static", "--master-addr=127.0.0.1", fmt.Sprintf("--master-port=%d", port)}
	}
	train := func(out string, more ...string) []string {
		return append([]string{script(t, "ranks_plain.py"), out}, more...)
	}
	templates := []string{"--batch", "{micro_batch}", "--accum", "{accum}", "{resume?--resume %s}"}
	for _, c := range []struct {
		name       string
		nodes, per int
		more       []string
	}{
		{"two nodes, DDP", 2, 1, nil},
		{"one node, FSDP", 1, 2, []string{"--fsdp"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			out, free := t.TempDir(), t.TempDir()
			nodes, dir := runNodes(t, c.nodes, []string{"--rehearse", "30MiB", "--global-batch", "64", "--world", "2", "--resume-dir", out, "--peer-grace", "20s"},
				func(rank int) []string {
					return append(torchrun(c.nodes, c.per, rank), train(out, append(templates, c.more...)...)...)
				})
			for rank, n := range nodes {
				if n.code != 0 {
					t.Fatalf("node %d: status %d\n%s", rank, n.code, n.stderr)
				}
			}
			h := history(t, dir)
			last := h.Tries[len(h.Tries)-1]
			s := last.Attempt.Settings
			if len(h.Tries) < 2 || s.MicroBatch >= 32 || s.MicroBatch*s.Accumulation != 32 || s.Resume == "" || len(last.Ended.Failed) > 0 {
				t.Errorf("%d attempts, the last with %+v, checks %+v", len(h.Tries), s, last.Ended.Failed)
			}
			alone(t, append(torchrun(1, 2, 0), train(free, append([]string{"--batch", "32"}, c.more...)...)...)...)
			d := apart(t, out+"/final.pt", free+"/final.pt")
			if d > 1e-5 {
				t.Errorf("the weights are %g apart", d)
			}
			t.Logf("%s: %d restarts, micro-batch %d x %d, weights %.1g apart", c.name, len(h.Tries)-1, s.MicroBatch, s.Accumulation, d)
		})
	}
}
