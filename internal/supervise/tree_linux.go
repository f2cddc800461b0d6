package supervise

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// A proc is one process, told apart from a later one with the same number by
// its start time.
type proc struct {
	pid, ppid int
	start     uint64 // clock ticks since boot
	state     byte   // R, S, D, Z …
}

// becomeSubreaper makes orphaned descendants children of this process instead
// of init's, so that none of them is lost sight of.
func becomeSubreaper() error {
	return unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
}

// readProc reads /proc/PID/stat. The name in it may hold blanks and brackets.
func readProc(pid int) (proc, bool) {
	data, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return proc{}, false
	}
	end := bytes.LastIndexByte(data, ')')
	if end < 0 {
		return proc{}, false
	}
	f := bytes.Fields(data[end+1:])
	if len(f) < 20 {
		return proc{}, false
	}
	p := proc{pid: pid, state: f[0][0]}
	p.ppid, _ = strconv.Atoi(string(f[1]))
	p.start, _ = strconv.ParseUint(string(f[19]), 10, 64)
	return p, true
}

// processes lists all processes that can be seen.
func processes() []proc {
	names, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return nil
	}
	list := make([]proc, 0, len(names))
	for _, n := range names {
		pid, err := strconv.Atoi(n[len("/proc/"):])
		if err != nil {
			continue
		}
		if p, ok := readProc(pid); ok {
			list = append(list, p)
		}
	}
	return list
}

// descendants returns the processes below root, parents before children.
func descendants(root int) []proc {
	children := map[int][]proc{}
	for _, p := range processes() {
		children[p.ppid] = append(children[p.ppid], p)
	}
	var out []proc
	queue := []int{root}
	for len(queue) > 0 {
		next := children[queue[0]]
		queue = queue[1:]
		for _, p := range next {
			out = append(out, p)
			queue = append(queue, p.pid)
		}
	}
	return out
}

// alive reports whether p still is the process it was, and not a zombie.
func (p proc) alive() bool {
	now, ok := readProc(p.pid)
	return ok && now.start == p.start && now.state != 'Z' && now.state != 'X'
}

// kill sends a signal if p still is the process it was. A pidfd closes the gap
// between looking and sending.
func (p proc) kill(sig syscall.Signal) {
	fd, err := unix.PidfdOpen(p.pid, 0)
	if err != nil {
		if p.alive() { // a kernel before 5.3
			_ = unix.Kill(p.pid, sig)
		}
		return
	}
	defer unix.Close(fd)
	if p.alive() {
		_ = unix.PidfdSendSignal(fd, sig, nil, 0)
	}
}

// marked finds the processes, wherever they are in the tree, whose environment
// carries a mark such as UNOOM_RUN_ID=…; those of others cannot be read and are
// not ours.
func marked(mark string) []proc {
	var out []proc
	for _, p := range processes() {
		env, err := os.ReadFile("/proc/" + strconv.Itoa(p.pid) + "/environ")
		if err != nil {
			continue
		}
		for _, kv := range bytes.Split(env, []byte{0}) {
			if string(kv) == mark {
				out = append(out, p)
				break
			}
		}
	}
	return out
}

// reapAdopted collects the exit status of orphans that became our children.
// It waits by pid, never for any child, since others wait for theirs.
func reapAdopted(own ...int) {
	self := os.Getpid()
	for _, p := range processes() {
		if p.ppid != self || p.state != 'Z' || contains(own, p.pid) {
			continue
		}
		_, _ = unix.Wait4(p.pid, nil, unix.WNOHANG, nil)
	}
}

func contains(list []int, x int) bool {
	for _, y := range list {
		if x == y {
			return true
		}
	}
	return false
}

// sweep ends all that find returns and what appears while it does so: SIGTERM,
// then SIGKILL after grace. It returns how many processes it ended and those
// that would not die (state D).
func sweep(find func() []proc, grace time.Duration, own ...int) (ended int, left []proc) {
	seen := map[proc]bool{}
	key := func(p proc) proc { return proc{pid: p.pid, start: p.start} }
	deadline := time.Now().Add(grace)
	var giveUp time.Time
	for pause := time.Millisecond; ; pause = min(2*pause, 50*time.Millisecond) {
		reapAdopted(own...)
		var live []proc
		for _, p := range find() {
			if p.state != 'Z' && p.state != 'X' {
				live = append(live, p)
			}
		}
		if len(live) == 0 {
			return len(seen), nil
		}
		late := !time.Now().Before(deadline)
		if late && giveUp.IsZero() {
			giveUp = time.Now().Add(killPatience)
		}
		for _, p := range live {
			switch k := key(p); {
			case late:
				seen[k] = true
				p.kill(unix.SIGKILL)
			case !seen[k]:
				seen[k] = true
				p.kill(unix.SIGTERM)
				p.kill(unix.SIGCONT) // a stopped process would not see it
			}
		}
		if !giveUp.IsZero() && time.Now().After(giveUp) {
			return len(seen), live
		}
		time.Sleep(pause)
	}
}

// killPatience is how long a process may take to die of SIGKILL before it is
// reported as stuck in the kernel.
const killPatience = 10 * time.Second
