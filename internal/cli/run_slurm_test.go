package cli

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// A job that is told to end while it recovers from an out-of-memory ends with 75;
// Slurm puts it back into its queue, and it goes on with the smaller batch, from
// the checkpoint. On a real Slurm of one node.
func TestRunIsRequeuedBySlurm(t *testing.T) {
	if os.Getenv("UNOOM_TORCH") == "" {
		t.Skip("SKIPPED: needs a Slurm of Debian's packages; `make test-torch` runs it")
	}
	dir := t.TempDir()
	train := `echo "start {micro_batch} {accum} {resume?from %s}" >> log
if [ {micro_batch} -gt 4 ]; then
  echo saved > step-3.txt
  echo '` + oomText + `' >&2; exit 1
fi`
	files := map[string]string{
		"job.sh": `#!/bin/sh
#SBATCH --requeue --open-mode=append --output=out.txt
exec "$UNOOM" run --backoff 60s --global-batch 8 --resume-dir . -- sh -c '` + strings.ReplaceAll(train, "'", `'\''`) + `'
`,
		"drive.sh": `set -e
cd "$1"
job=$(sbatch --parsable job.sh)
for i in $(seq 100); do grep -q 'next: micro-batch' out.txt 2>/dev/null && break; sleep 0.2; done
scancel --batch --signal=TERM "$job"
for i in $(seq 200); do
  scontrol show job "$job" > job.txt
  grep -q 'JobState=COMPLETED' job.txt && break
  sleep 0.5
done
cat job.txt
`,
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command("../../scripts/with-slurm", "sh", filepath.Join(dir, "drive.sh"), dir)
	cmd.Env = append(os.Environ(), "UNOOM="+binary(t), "UNOOM_HOME="+filepath.Join(dir, "home"))
	out, err := cmd.CombinedOutput()
	if exitCode(err) == 77 {
		t.Skipf("SKIPPED: %s", out)
	}
	said, _ := os.ReadFile(filepath.Join(dir, "out.txt"))
	log, _ := os.ReadFile(filepath.Join(dir, "log"))
	if err != nil || !strings.Contains(string(out), "Restarts=1") || !strings.Contains(string(out), "JobState=COMPLETED") {
		t.Fatalf("not requeued once and completed: %v\n%s\n%s", err, out, said)
	}
	if !strings.HasPrefix(string(log), "start 8 1") || !strings.Contains(string(log), "start 2 4 from") || strings.Count(string(log), "\n") != 2 {
		t.Errorf("log %q, want 8 x 1 and, from the checkpoint, 2 x 4\n%s", log, said)
	}
}
