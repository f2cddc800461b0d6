package cli

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/creack/pty"
	"golang.org/x/sys/unix"

	"unoom/internal/ledger"
	"unoom/internal/supervise"
)

// binary builds unoom once for the tests that need it as a process of its own.
func binary(t *testing.T) string {
	t.Helper()
	dir := os.Getenv("UNOOM_TEST_BIN")
	if dir == "" {
		var err error
		if dir, err = os.MkdirTemp("", "unoom-test-*"); err != nil {
			t.Fatal(err)
		}
		os.Setenv("UNOOM_TEST_BIN", dir)
	}
	path := filepath.Join(dir, "unoom")
	if _, err := os.Stat(path); err != nil {
		cmd := exec.Command("go", "build", "-o", path, "unoom/cmd/unoom")
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("go build: %v\n%s", err, out)
		}
	}
	return path
}

// unoomCommand is `unoom args` with a ledger of its own.
func unoomCommand(t *testing.T, args ...string) (*exec.Cmd, string) {
	t.Helper()
	home := t.TempDir()
	cmd := exec.Command(binary(t), args...)
	cmd.Env = append(os.Environ(), "UNOOM_HOME="+home, "LC_ALL=C")
	t.Cleanup(func() { // nothing is left of a test that failed half-way
		if cmd.Process != nil && cmd.ProcessState == nil {
			_ = cmd.Process.Signal(unix.SIGTERM)
			_ = cmd.Wait()
		}
	})
	return cmd, home
}

func exitCode(err error) int {
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		if ws := exit.Sys().(syscall.WaitStatus); ws.Signaled() {
			return 128 + int(ws.Signal())
		}
		return exit.ExitCode()
	}
	if err != nil {
		return -1
	}
	return 0
}

// Run under unoom and run by a shell, a command shows the same output and status.
func TestRunIsTransparent(t *testing.T) {
	for _, c := range []struct {
		name, script string
		stdin        string
	}{
		{"success", "true", ""},
		{"failure", "false", ""},
		{"any status", "exit 42", ""},
		{"killed", "kill -9 $$", ""},
		{"terminated", "kill -TERM $$", ""},
		{"stdin to stdout", "cat", "one\ntwo\n"},
		{"both streams", "echo out; echo err >&2; echo out2", ""},
		{"binary output", `printf '\000\001\377\n'; printf '\377\376' >&2`, ""},
		{"working directory", "pwd", ""},
		{"arguments", `printf '<%s>' 'a b' '' "c'd" '{not_a_placeholder}'`, ""},
		{"no terminal", "test -t 0; echo $?; test -t 1; echo $?; test -t 2; echo $?", ""},
		{"broken pipe", "yes | head -1", ""},
		{"much stderr", "i=0; while [ $i -lt 2000 ]; do echo a line of the log number $i >&2; i=$((i+1)); done", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			plain := exec.Command("sh", "-c", c.script)
			under, _ := unoomCommand(t, "run", "--", "sh", "-c", c.script)
			var out [2][2]bytes.Buffer
			for i, cmd := range []*exec.Cmd{plain, under} {
				cmd.Stdin = strings.NewReader(c.stdin)
				cmd.Stdout, cmd.Stderr = &out[i][0], &out[i][1]
			}
			want, got := exitCode(plain.Run()), exitCode(under.Run())
			if got != want {
				t.Errorf("status %d, alone %d", got, want)
			}
			for i, name := range []string{"stdout", "stderr"} {
				if out[1][i].String() != out[0][i].String() {
					t.Errorf("%s %q, alone %q", name, &out[1][i], &out[0][i])
				}
			}
		})
	}
}

func TestRunKeepsTheOrderOfLinesInOneFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	cmd, _ := unoomCommand(t, "run", "--", "sh", "-c", "for i in 1 2 3 4 5 6 7 8; do echo o$i; echo e$i >&2; done")
	cmd.Stdout, cmd.Stderr = f, f
	if err := cmd.Run(); err != nil {
		t.Fatal(err)
	}
	got, _ := os.ReadFile(path)
	want := ""
	for i := 1; i <= 8; i++ {
		want += fmt.Sprintf("o%d\ne%d\n", i, i)
	}
	if string(got) != want {
		t.Errorf("got %q", got)
	}
}

func TestRunCannotStart(t *testing.T) {
	dir := t.TempDir()
	notExec := filepath.Join(dir, "plain")
	if err := os.WriteFile(notExec, []byte("x"), 0o644); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]int{"no-such-program-here": 127, filepath.Join(dir, "absent"): 127, notExec: 126, dir: 126} {
		cmd, _ := unoomCommand(t, "run", "--", name)
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		if got := exitCode(cmd.Run()); got != want {
			t.Errorf("%s: status %d, want %d", name, got, want)
		}
		if !strings.Contains(stderr.String(), name) {
			t.Errorf("%s: stderr %q does not name it", name, &stderr)
		}
	}
}

// A signal sent to unoom reaches the command once.
func TestRunForwardsSignals(t *testing.T) {
	// Under nohup a shell cannot trap the hangup that it inherits as ignored; one
	// that is caught here is at its default there.
	caught := make(chan os.Signal, 1)
	signal.Notify(caught, unix.SIGHUP)
	defer signal.Stop(caught)
	script := `n=0; trap 'n=$((n+1)); echo usr1' USR1; trap 'echo term; exit 7' TERM; trap 'echo hup' HUP; echo ready
while :; do sleep 0.05; done`
	cmd, _ := unoomCommand(t, "run", "--", "sh", "-c", script)
	out := &lines{}
	cmd.Stdout = out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	out.await(t, "ready", 1)
	for i, s := range []syscall.Signal{unix.SIGUSR1, unix.SIGHUP, unix.SIGUSR1} {
		_ = cmd.Process.Signal(s)
		out.await(t, map[syscall.Signal]string{unix.SIGUSR1: "usr1", unix.SIGHUP: "hup"}[s], 1+i/2)
	}
	_ = cmd.Process.Signal(unix.SIGTERM)
	if got := exitCode(cmd.Wait()); got != 7 {
		t.Errorf("status %d, want 7", got)
	}
	if got := out.String(); got != "ready\nusr1\nhup\nusr1\nterm\n" {
		t.Errorf("the command saw %q", got)
	}
}

// lines is a buffer that can be waited on.
type lines struct {
	mu  chan struct{}
	buf bytes.Buffer
}

func (l *lines) lock() func() {
	if l.mu == nil {
		l.mu = make(chan struct{}, 1)
	}
	l.mu <- struct{}{}
	return func() { <-l.mu }
}

func (l *lines) Write(b []byte) (int, error) { defer l.lock()(); return l.buf.Write(b) }
func (l *lines) String() string              { defer l.lock()(); return l.buf.String() }

func (l *lines) await(t *testing.T, text string, count int) {
	t.Helper()
	if !eventually(func() bool { return strings.Count(l.String(), text) >= count }) {
		t.Fatalf("no %d x %q in %q", count, text, l.String())
	}
}

// eventually waits until something is so. The minute is only spent where it never
// becomes so: a loaded machine is slow, not wrong.
func eventually(so func() bool) bool {
	for end := time.Now().Add(time.Minute); ; time.Sleep(5 * time.Millisecond) {
		if so() {
			return true
		}
		if time.Now().After(end) {
			return false
		}
	}
}

// terminal runs a command with a terminal of its own, as a shell's user would.
func terminal(t *testing.T, cmd *exec.Cmd) (*os.File, *lines, func() int) {
	t.Helper()
	f, err := pty.StartWithSize(cmd, &pty.Winsize{Rows: 30, Cols: 90})
	if err != nil {
		t.Skipf("no pseudo-terminals here: %v", err)
	}
	out := &lines{}
	done := make(chan struct{})
	go func() { _, _ = io.Copy(out, f); close(done) }()
	return f, out, func() int {
		code := exitCode(cmd.Wait())
		select {
		case <-done:
		case <-time.After(time.Minute): // somebody still has the terminal
		}
		f.Close()
		return code
	}
}

func TestRunOnATerminal(t *testing.T) {
	cmd, _ := unoomCommand(t, "run", "--", "sh", "-c", "test -t 0 && test -t 1 && test -t 2 && stty size && echo err >&2")
	_, out, wait := terminal(t, cmd)
	if code := wait(); code != 0 || !strings.Contains(out.String(), "30 90\r\nerr\r\n") {
		t.Errorf("status %d, output %q", code, out)
	}
}

// Ctrl-C goes to the command, as often as it is pressed, and to it alone.
func TestRunCtrlCTwice(t *testing.T) {
	script := `n=0; trap 'n=$((n+1)); echo int$n; [ $n -ge 2 ] && exit 9' INT; echo ready; while :; do sleep 0.05; done`
	cmd, _ := unoomCommand(t, "run", "--", "sh", "-c", script)
	in, out, wait := terminal(t, cmd)
	out.await(t, "ready", 1)
	fmt.Fprint(in, "\x03")
	out.await(t, "int1", 1)
	fmt.Fprint(in, "\x03")
	if code := wait(); code != 9 {
		t.Errorf("status %d, want 9; output %q", code, out)
	}
	if strings.Contains(out.String(), "int3") || strings.Contains(out.String(), "unoom") {
		t.Errorf("output %q", out)
	}

	cmd, _ = unoomCommand(t, "run", "--", "sh", "-c", "echo ready; exec sleep 60")
	in, out, wait = terminal(t, cmd)
	out.await(t, "ready", 1)
	fmt.Fprint(in, "\x03")
	if code := wait(); code != 130 {
		t.Errorf("status %d, want 130", code)
	}
}

// Ctrl-Z stops the command and unoom, so that the shell takes over; fg goes on.
func TestRunCtrlZ(t *testing.T) {
	cmd, _ := unoomCommand(t, "run", "--", "sh", "-c", "echo ready; read x; echo got $x")
	shell := exec.Command("bash", "--norc", "-i")
	shell.Env = append(cmd.Env, "PS1=prompt> ", "TERM=dumb")
	in, out, wait := terminal(t, shell)
	out.await(t, "prompt>", 1)
	fmt.Fprintln(in, strings.Join(cmd.Args[:3], " ")+" sh -c 'echo re\"\"ady; read x; echo got $x'")
	out.await(t, "ready\r\n", 1)
	fmt.Fprint(in, "\x1a")
	out.await(t, "Stopped", 1)
	out.await(t, "prompt>", 2)
	shellsTurn := func() bool {
		group, err := unix.IoctlGetInt(int(in.Fd()), unix.TIOCGPGRP)
		return err == nil && group == shell.Process.Pid
	}
	if !eventually(shellsTurn) {
		t.Fatalf("the shell does not have its terminal back: %q", out)
	}
	fmt.Fprintln(in, "fg")
	if !eventually(func() bool { return !shellsTurn() }) {
		t.Fatalf("fg brings nothing to the foreground: %q", out)
	}
	fmt.Fprintln(in, "hello")
	out.await(t, "got hello", 1)
	fmt.Fprintln(in, "exit")
	if code := wait(); code != 0 {
		t.Errorf("the shell ended with %d: %q", code, out)
	}
}

// A failed command's descendants are ended, also those that left its session
// and ignore SIGTERM.
func TestRunLeavesNoOrphans(t *testing.T) {
	mark := fmt.Sprintf("UNOOM_TEST_MARK=%d-%d", os.Getpid(), time.Now().UnixNano())
	up := filepath.Join(t.TempDir(), "up") // a line from each that ignores SIGTERM by now
	script := `setsid sh -c 'trap "" TERM; (echo 1 >> ` + up + `; while :; do sleep 0.1; done) & echo 1 >> ` + up + `; while :; do sleep 0.1; done' &
until [ "$(grep -c 1 ` + up + ` 2>/dev/null)" = 2 ]; do sleep 0.02; done; kill -9 $$`
	cmd, home := unoomCommand(t, "run", "--", "sh", "-c", script)
	cmd.Env = append(cmd.Env, mark)
	if got := exitCode(cmd.Run()); got != 137 {
		t.Errorf("status %d, want 137", got)
	}
	if left := withEnviron(mark); len(left) > 0 {
		t.Errorf("processes %v are left", left)
	}
	h := onlyRun(t, home)
	if e := h.Tries[0].Ended; e == nil || e.Swept < 2 {
		t.Errorf("the ledger does not tell of the processes that were ended: %+v", e)
	}
}

// What a successful command starts for good is left alone.
func TestRunLeavesDaemonsOfASuccess(t *testing.T) {
	mark := fmt.Sprintf("UNOOM_TEST_MARK=%d-%d", os.Getpid(), time.Now().UnixNano())
	cmd, _ := unoomCommand(t, "run", "--", "sh", "-c", "setsid sleep 30 >/dev/null 2>&1 &")
	cmd.Env = append(cmd.Env, mark)
	if err := cmd.Run(); err != nil {
		t.Fatal(err)
	}
	left := withEnviron(mark)
	if len(left) != 1 {
		t.Errorf("%d processes are left, want the one that was started", len(left))
	}
	for _, pid := range left {
		_ = unix.Kill(pid, unix.SIGKILL)
	}
}

// Killed by SIGKILL, unoom leaves nothing behind either, and the ledger says so.
func TestRunKilled(t *testing.T) {
	mark := fmt.Sprintf("UNOOM_TEST_MARK=%d-%d", os.Getpid(), time.Now().UnixNano())
	cmd, home := unoomCommand(t, "run", "--", "sh", "-c", "(setsid sleep 60 &) ; echo ready; sleep 60")
	cmd.Env = append(cmd.Env, mark)
	out := &lines{}
	cmd.Stdout = out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	out.await(t, "ready", 1)
	_ = cmd.Process.Kill()
	_, _ = cmd.Process.Wait()
	eventually(func() bool { return len(withEnviron(mark)) == 0 && onlyRun(t, home).Lost != nil })
	if left := withEnviron(mark); len(left) > 0 {
		t.Errorf("processes %v are left", left)
	}
	h := onlyRun(t, home)
	if h.State != ledger.StateLost || h.Lost == nil || h.Lost.Swept < 2 {
		t.Errorf("state %s, %+v", h.State, h.Lost)
	}
}

// childrenOf lists the children of every thread of a process: Linux keeps them
// by the thread that forked.
func childrenOf(pid int) []string {
	var out []string
	lists, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	for _, name := range lists {
		list, _ := os.ReadFile(name)
		out = append(out, strings.Fields(string(list))...)
	}
	return out
}

// What the caller has open, such as a lock, is handed to the command but not
// kept open by unoom's second process.
func TestRunKeeperHoldsNothing(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd, _ := unoomCommand(t, "run", "--", "sh", "-c", "exec 3>&- 4>&-; echo ready; sleep 60")
	cmd.ExtraFiles = []*os.File{w, w} // 3, which the keeper uses itself, and 4
	out := &lines{}
	cmd.Stdout = out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	w.Close()
	out.await(t, "ready", 1)
	defer func() { _ = cmd.Process.Kill(); _, _ = cmd.Process.Wait() }()
	var info unix.Stat_t
	if err := unix.Fstat(int(r.Fd()), &info); err != nil {
		t.Fatal(err)
	}
	pipe := fmt.Sprintf("pipe:[%d]", info.Ino)
	keepers, held := 0, false
	if !eventually(func() bool { // it has to start first
		keepers, held = 0, false
		for _, pid := range childrenOf(cmd.Process.Pid) {
			cmdline, _ := os.ReadFile("/proc/" + pid + "/cmdline")
			if !strings.Contains(string(cmdline), "keeper") {
				continue
			}
			keepers++
			entries, _ := os.ReadDir("/proc/" + pid + "/fd")
			for _, e := range entries {
				to, _ := os.Readlink("/proc/" + pid + "/fd/" + e.Name())
				held = held || to == pipe
			}
		}
		return keepers == 1 && !held
	}) {
		t.Fatalf("%d keepers; one holds the caller's descriptor: %v", keepers, held)
	}
}

func onlyRun(t *testing.T, home string) ledger.History {
	t.Helper()
	list, err := ledger.Root{Dir: home}.List(supervise.Alive)
	if err != nil || len(list) != 1 {
		t.Fatalf("%d runs, %v", len(list), err)
	}
	return list[0]
}

// withEnviron finds the processes with a variable in their environment.
func withEnviron(mark string) []int {
	names, _ := filepath.Glob("/proc/[0-9]*/environ")
	var out []int
	for _, n := range names {
		data, err := os.ReadFile(n)
		if err != nil {
			continue
		}
		for _, kv := range strings.Split(string(data), "\x00") {
			if kv == mark {
				pid, _ := strconv.Atoi(strings.Split(n, "/")[2])
				out = append(out, pid)
			}
		}
	}
	return out
}

// What does not fit ends with 78, a plan for the next run, and in Kubernetes a
// termination message.
func TestRunGivesUp(t *testing.T) {
	log := filepath.Join(t.TempDir(), "termination-log")
	if err := os.WriteFile(log, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	oom := "echo 'torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 23.64 GiB of which 1.10 GiB is free. " +
		"Including non-PyTorch memory, this process has 22.51 GiB memory in use. Of the allocated memory 21.90 GiB is allocated by PyTorch, and 120.33 MiB is reserved by PyTorch but unallocated.' >&2; exit 1"
	cmd, home := unoomCommand(t, "run", "--backoff", "0s", "--global-batch", "4", "--", "sh", "-c", oom, "{micro_batch}", "{accum}")
	cmd.Env = append(cmd.Env, "KUBERNETES_SERVICE_HOST=10.0.0.1", "UNOOM_TERMINATION_LOG="+log)
	if code := exitCode(cmd.Run()); code != supervise.StatusDoesNotFit {
		t.Errorf("status %d, want 78", code)
	}
	h := onlyRun(t, home)
	var sizes []int
	for _, try := range h.Tries {
		sizes = append(sizes, try.Attempt.Settings.MicroBatch)
	}
	if fmt.Sprint(sizes) != "[4 1]" && fmt.Sprint(sizes) != "[4 2 1]" {
		t.Errorf("micro-batches %v", sizes)
	}
	if next, err := os.ReadFile(h.End.Next); err != nil || !bytes.Contains(next, []byte(`"unoom/next/v1"`)) {
		t.Errorf("next: %v %s", err, next)
	}
	if text, _ := os.ReadFile(log); !bytes.Contains(text, []byte(`"status":78`)) {
		t.Errorf("termination message %q", text)
	}
}

// A bug is the command's own business: its status, at once, and nothing said.
func TestRunDoesNotRetryBugs(t *testing.T) {
	cmd, home := unoomCommand(t, "run", "--global-batch", "4", "--", "sh", "-c", "echo 'ValueError: shapes' >&2; exit 3", "{micro_batch}", "{accum}")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	if code := exitCode(cmd.Run()); code != 3 || stderr.String() != "ValueError: shapes\n" {
		t.Errorf("status %d, stderr %q", code, &stderr)
	}
	if h := onlyRun(t, home); len(h.Tries) != 1 {
		t.Errorf("%d attempts", len(h.Tries))
	}
}

// Jobs that share a card by the queue are never on it together beyond its size.
func TestRunQueue(t *testing.T) {
	bin := t.TempDir()
	smi := "#!/bin/sh\ncase \"$*\" in *query-gpu*) echo '0, GPU-aaa, NVIDIA L4, 24576, 0';; esac\n"
	if err := os.WriteFile(filepath.Join(bin, "nvidia-smi"), []byte(smi), 0o755); err != nil {
		t.Fatal(err)
	}
	log, queue := filepath.Join(bin, "log"), filepath.Join(bin, "queue")
	var cmds []*exec.Cmd
	for range 5 {
		cmd, _ := unoomCommand(t, "run", "--queue", "--need", "10GiB", "--", "sh", "-c",
			`echo "+ $CUDA_VISIBLE_DEVICES" >> `+log+`; until [ "$(grep -c + `+log+`)" -ge 2 ]; do sleep 0.02; done; echo "- $CUDA_VISIBLE_DEVICES" >> `+log)
		cmd.Env = append(cmd.Env, "PATH="+bin+":"+os.Getenv("PATH"), "UNOOM_QUEUE="+queue)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		cmds = append(cmds, cmd)
	}
	for _, cmd := range cmds {
		if code := exitCode(cmd.Wait()); code != 0 {
			t.Errorf("status %d", code)
		}
	}
	text, _ := os.ReadFile(log)
	now, most := 0, 0
	for _, line := range strings.Fields(strings.ReplaceAll(string(text), " GPU-aaa", "")) {
		if line == "+" {
			now++
		} else {
			now--
		}
		most = max(most, now)
	}
	if most != 2 || strings.Count(string(text), "GPU-aaa") != 10 {
		t.Errorf("%d jobs of 10 GiB at once on 24 GiB:\n%s", most, text)
	}
}
