package supervise

import (
	"io"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"unoom/internal/ledger"
)

// runMark is the variable that every process of a run inherits, by which those
// are found that left the process tree.
const runMark = "UNOOM_RUN_ID"

// A keeper is a second process of unoom's that does nothing until the
// supervisor is gone without a word, killed by SIGKILL or the kernel's OOM
// killer; then it ends what is left of the run and says so in the ledger.
type keeper struct {
	cmd  *exec.Cmd
	pipe *os.File // its closing is the signal; a byte before that means all is well
}

// startKeeper starts the keeper: this same program, called so that it runs
// Keep; dir has the ledger, "" if that is not ours to write. Without one, a killed supervisor leaves its run behind, nothing worse.
func startKeeper(self string, id, dir string) (*keeper, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer r.Close()
	cmd := exec.Command(self, "internal", "keeper", id, dir)
	cmd.Args[0] = "unoom"
	cmd.ExtraFiles = []*os.File{r}
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + os.Getenv("HOME")} // without the mark
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		w.Close()
		return nil, err
	}
	return &keeper{cmd, w}, nil
}

// dismiss ends the keeper: the supervisor has cleaned up itself.
func (k *keeper) dismiss() {
	if k == nil {
		return
	}
	_, _ = k.pipe.Write([]byte{1})
	k.pipe.Close()
	_ = k.cmd.Wait()
}

func (k *keeper) pid() int {
	if k == nil {
		return 0
	}
	return k.cmd.Process.Pid
}

// keeperGrace is how long the ranks of a lost run have between SIGTERM and
// SIGKILL; an emergency save of theirs has no supervisor to restart from it.
const keeperGrace = 5 * time.Second

// Keep is what the keeper does. watch ends when the supervisor is gone.
func Keep(watch io.Reader, id, dir string) {
	closeInherited()
	signal.Ignore(unix.SIGHUP, unix.SIGINT, unix.SIGTERM, unix.SIGQUIT, unix.SIGPIPE)
	var word [1]byte
	if n, _ := watch.Read(word[:]); n == 1 {
		return
	}
	self := os.Getpid()
	swept, left := sweep(func() []proc {
		var out []proc
		for _, p := range marked(runMark + "=" + id) {
			if p.pid != self {
				out = append(out, p)
			}
		}
		return out
	}, keeperGrace)
	if dir == "" {
		return // the ledger is another node's
	}
	w, err := ledger.Append(dir)
	if err != nil {
		return
	}
	defer w.Close()
	_ = w.Write(ledger.Record{Time: time.Now(), Kind: ledger.KindLost, Lost: &ledger.Lost{Swept: swept, Stuck: pids(left)}})
}

// closeInherited closes what the caller of unoom had open: a lock that it holds,
// say, must not outlive it because the keeper does. The Go runtime's own
// descriptors are anonymous inodes.
func closeInherited() {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return
	}
	for _, e := range entries {
		fd, err := strconv.Atoi(e.Name())
		if err != nil || fd <= 3 {
			continue
		}
		if to, err := os.Readlink("/proc/self/fd/" + e.Name()); err == nil && !strings.HasPrefix(to, "anon_inode:") {
			_ = unix.Close(fd)
		}
	}
}

func pids(list []proc) []int {
	var out []int
	for _, p := range list {
		out = append(out, p.pid)
	}
	return out
}
