package emit

import (
	"fmt"
	"strings"

	"unoom/internal/workload"
)

// torchrun returns the words of the command for one machine, or for several
// where the rendezvous is an address that each of them knows. --max-restarts
// stays 0: torchrun's own restart would repeat the plan that failed.
func torchrun(s *sheet, nodes, per int64, endpoint string) []string {
	return torchrunWords(nodes, per, endpoint, s.script())
}

func torchrunWords(nodes, per int64, endpoint, script string) []string {
	words := []string{"torchrun"}
	if nodes == 1 {
		words = append(words, "--standalone")
	} else {
		words = append(words, fmt.Sprintf("--nnodes=%d", nodes), "--rdzv-backend=c10d", "--rdzv-endpoint="+endpoint, "--rdzv-id=unoom")
	}
	return append(words, fmt.Sprintf("--nproc-per-node=%d", per), "--max-restarts=0", script)
}

// environment returns the variables that the launcher has to set.
//
// PYTORCH_CUDA_ALLOC_CONF is read by every version; PYTORCH_ALLOC_CONF only
// since torch 2.9.
func environment(s *sheet) []pair {
	var out []pair
	if s.w.AllocConf != "" {
		out = append(out, pair{"PYTORCH_CUDA_ALLOC_CONF", s.w.AllocConf})
		s.say("alloc-conf")
	}
	return out
}

// exports writes the variables for a shell.
func exports(s *sheet) string {
	var b strings.Builder
	for _, v := range environment(s) {
		fmt.Fprintf(&b, "export %s=%s\n", v.key, shellQuote(v.value.(string)))
	}
	return b.String()
}

// shellQuote quotes a word for sh.
func shellQuote(text string) string {
	if text != "" && !strings.ContainsFunc(text, func(r rune) bool {
		return !('a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || '0' <= r && r <= '9' || strings.ContainsRune("-_./:=,@%+", r))
	}) {
		return text
	}
	return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'"
}

// launched refuses what no launcher starts as one process for each GPU.
func launched(s *sheet) (nodes, per int64, err error) {
	if s.w.Sharding == workload.DataParallel {
		return 0, 0, s.cannot("sharding") // one process for all GPUs
	}
	nodes, per, err = s.layout()
	s.say("gpus")
	return nodes, per, err
}

// writeTorchrun writes a script that starts the processes.
func writeTorchrun(s *sheet) ([]File, error) {
	nodes, per, err := launched(s)
	if err != nil {
		return nil, err
	}
	env := exports(s)
	text := "#!/bin/sh\n" + s.comment("#")
	if nodes > 1 {
		text += "# " + s.text("emit_each_machine") + "\n"
	}
	text += "set -eu\n" + env
	if nodes > 1 {
		text += ": \"${MASTER_ADDR:?the address of the first machine}\"\n"
	}
	text += "exec " + strings.Join(torchrun(s, nodes, per, `"$MASTER_ADDR:${MASTER_PORT:-29500}"`), " ") + ` "$@"` + "\n"
	return []File{{Name: "launch.sh", Data: []byte(text), Executable: true}}, nil
}
