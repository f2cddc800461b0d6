package emit

import (
	"fmt"
	"strings"
)

// writeSlurm writes a batch script. The job is requeued by what it decides
// itself: unoom run ends with 75 when a checkpoint and a plan are saved, and the
// script puts the job back into the queue then.
//
// Sources: sbatch(1): "--signal=B:" signals only the batch shell, so that shell
// becomes the supervisor by exec in a function that the trap can reach; scontrol
// requeue keeps the job's id and counts SLURM_RESTART_COUNT.
func writeSlurm(s *sheet) ([]File, error) {
	nodes, per, err := launched(s)
	if err != nil {
		return nil, err
	}
	var b strings.Builder
	b.WriteString("#!/bin/bash\n")
	fmt.Fprintf(&b, "#SBATCH --job-name=unoom\n#SBATCH --nodes=%d\n#SBATCH --ntasks-per-node=1\n#SBATCH --gpus-per-node=%d\n", nodes, per)
	if s.job.Queue != "" {
		fmt.Fprintf(&b, "#SBATCH --partition=%s\n", s.job.Queue)
	}
	b.WriteString("#SBATCH --requeue\n#SBATCH --open-mode=append\n#SBATCH --signal=B:USR1@180\n#SBATCH --output=%x-%j.log\n")
	fmt.Fprintf(&b, "# %s\n##SBATCH --cpus-per-gpu=8\n##SBATCH --mem=0\n", s.text("emit_slurm_cpus"))
	if cards := s.job.Accelerators; len(cards) > 0 {
		fmt.Fprintf(&b, "# %s\n", s.text("emit_slurm_gpus", strings.Join(cards, ", "), per))
	}
	env := exports(s)
	b.WriteString(s.comment("#"))
	b.WriteString("set -u\n" + env)
	if nodes > 1 {
		b.WriteString("export MASTER_ADDR=$(scontrol show hostnames \"$SLURM_JOB_NODELIST\" | head -n 1)\n")
	}
	b.WriteString("export MASTER_PORT=$((20000 + SLURM_JOB_ID % 20000))\n\n")
	command := strings.Join(torchrun(s, nodes, per, `"$MASTER_ADDR:$MASTER_PORT"`), " ")
	if nodes > 1 {
		command = "srun --kill-on-bad-exit=1 " + command
	}
	fmt.Fprintf(&b, "# %s\n", s.text("emit_slurm_signal"))
	fmt.Fprintf(&b, "unoom run -- %s &\nchild=$!\ntrap 'kill -USR1 \"$child\" 2>/dev/null' USR1\ntrap 'kill -TERM \"$child\" 2>/dev/null' TERM\n", command)
	b.WriteString("while :; do\n  wait \"$child\"\n  status=$?\n  kill -0 \"$child\" 2>/dev/null || break\ndone\n")
	b.WriteString("if [ \"$status\" -eq 75 ]; then\n  scontrol requeue \"$SLURM_JOB_ID\"\nfi\nexit \"$status\"\n")
	return []File{{Name: "job.sbatch", Data: []byte(b.String()), Executable: true}}, nil
}
