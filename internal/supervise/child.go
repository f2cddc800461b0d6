package supervise

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Exit statuses of the wrapper itself, as env(1) and timeout(1) have them.
const (
	StatusFailed     = 125 // unoom itself failed (only with --strict)
	StatusCannotExec = 126
	StatusNotFound   = 127
	StatusSignal     = 128 // plus the signal's number
	StatusRunAgain   = 75  // EX_TEMPFAIL: stopped cleanly, plan and checkpoint saved
	StatusDoesNotFit = 78  // EX_CONFIG: does not fit on this hardware
)

// A Status is how a process ended.
type Status struct {
	Code   int            // exit status, if it was not killed
	Signal syscall.Signal // what killed it, 0 if nothing did
}

// Shell returns the status as a shell shows it: 128+N for a signal.
func (s Status) Shell() int {
	if s.Signal != 0 {
		return StatusSignal + int(s.Signal)
	}
	return s.Code
}

// A StartError says that the command could not be started at all.
type StartError struct {
	Status int
	Err    error
}

func (e *StartError) Error() string { return e.Err.Error() }

func (e *StartError) Unwrap() error { return e.Err }

// child is the command of one attempt: a process in a group of its own, in the
// terminal's foreground if unoom was.
type child struct {
	pid int
	tty *os.File // the controlling terminal while the child may own it
	// interactive: it was started in the terminal's foreground.
	interactive bool
	streams     *streams
	gone        atomic.Bool
}

// resolve finds the program as execvp does.
func resolve(name string, env []string, dir string) (string, *StartError) {
	path, err := lookPath(name, env)
	switch {
	case err == nil:
		return path, nil
	case errors.Is(err, syscall.EISDIR):
		return "", &StartError{StatusCannotExec, &fs.PathError{Op: "run", Path: name, Err: syscall.EISDIR}}
	case errors.Is(err, fs.ErrPermission):
		return "", &StartError{StatusCannotExec, &fs.PathError{Op: "run", Path: name, Err: syscall.EACCES}}
	default:
		return "", &StartError{StatusNotFound, &fs.PathError{Op: "run", Path: name, Err: syscall.ENOENT}}
	}
}

func lookPath(name string, _ []string) (string, error) {
	path, err := exec.LookPath(name)
	if errors.Is(err, exec.ErrDot) {
		err = nil // PATH has "." or an empty entry: execvp would take it
	}
	return path, err
}

// startChild starts the command. The caller must call wait.
func startChild(argv, env []string, dir string, tail *Tail) (*child, error) {
	path, startErr := resolve(argv[0], env, dir)
	if startErr != nil {
		return nil, startErr
	}
	c := &child{}
	streams, err := openStreams(tail)
	if err != nil {
		return nil, err
	}
	c.streams = streams
	attr := &syscall.SysProcAttr{Setpgid: true}
	if tty := foregroundTerminal(); tty != nil {
		c.tty, c.interactive = tty, true
		attr.Foreground = true
		attr.Ctty = int(tty.Fd())
	}
	p, err := os.StartProcess(path, argv, &os.ProcAttr{Dir: dir, Env: env, Files: streams.child[:], Sys: attr})
	streams.started()
	if err != nil {
		streams.finish(0)
		c.releaseTerminal()
		status := StatusCannotExec
		if errors.Is(err, fs.ErrNotExist) {
			status = StatusNotFound
		}
		return nil, &StartError{status, err}
	}
	c.pid = p.Pid
	_ = p.Release() // reaped by pid below, which also sees stops
	return c, nil
}

// foregroundTerminal returns the controlling terminal if this process is in its
// foreground, so that the child can be put there.
func foregroundTerminal() *os.File {
	tty, err := os.OpenFile("/dev/tty", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		return nil
	}
	if !ownsTerminal(tty, unix.Getpgrp()) {
		tty.Close()
		return nil
	}
	return tty
}

func ownsTerminal(tty *os.File, pgrp int) bool {
	front, err := unix.IoctlGetInt(int(tty.Fd()), unix.TIOCGPGRP)
	return err == nil && front == pgrp
}

// giveTerminal makes a process group the one that reads the terminal and gets
// its Ctrl-C. A background process that does this is stopped by SIGTTOU unless
// it ignores it (a handler does not help: the call is restarted for ever). No
// child is started meanwhile, which would inherit that.
func giveTerminal(tty *os.File, pgrp int) {
	if !signal.Ignored(unix.SIGTTOU) {
		signal.Ignore(unix.SIGTTOU)
		defer signal.Reset(unix.SIGTTOU)
	}
	_ = unix.IoctlSetPointerInt(int(tty.Fd()), unix.TIOCSPGRP, pgrp)
}

// wait returns when the child has ended. A child that is stopped (Ctrl-Z) stops
// unoom too, so that the shell takes over, and goes on with it.
func (c *child) wait() (Status, error) {
	for {
		var ws unix.WaitStatus
		pid, err := unix.Wait4(c.pid, &ws, unix.WUNTRACED, nil)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return Status{}, err
		case pid != c.pid:
			continue
		case ws.Stopped():
			c.suspend()
			continue
		}
		c.gone.Store(true)
		c.releaseTerminal()
		if ws.Signaled() {
			return Status{Signal: ws.Signal()}, nil
		}
		return Status{Code: ws.ExitStatus()}, nil
	}
}

// suspend stops this process after its child was stopped, and wakes both.
func (c *child) suspend() {
	if c.tty == nil {
		return // no shell to give the terminal to: whoever stopped it continues it
	}
	continued := make(chan os.Signal, 1)
	signal.Notify(continued, unix.SIGCONT)
	defer signal.Stop(continued)
	giveTerminal(c.tty, unix.Getpgrp())
	_ = unix.Kill(unix.Getpid(), unix.SIGSTOP)
	<-continued // the stop may take another thread first
	// Continued, in the foreground (fg) or not (bg).
	if ownsTerminal(c.tty, unix.Getpgrp()) {
		giveTerminal(c.tty, c.pid)
	}
	_ = unix.Kill(-c.pid, unix.SIGCONT)
}

// releaseTerminal takes the terminal back after the child.
func (c *child) releaseTerminal() {
	if c.tty == nil {
		return
	}
	if !ownsTerminal(c.tty, unix.Getpgrp()) {
		giveTerminal(c.tty, unix.Getpgrp())
	}
	c.tty.Close()
	c.tty = nil
}

// signalGroup sends a signal to the child and what is still in its group.
func (c *child) signalGroup(sig syscall.Signal) {
	if !c.gone.Load() {
		_ = unix.Kill(-c.pid, sig)
	}
}

// signal sends a signal to the child alone, as kill(1) would.
func (c *child) signal(sig syscall.Signal) {
	if !c.gone.Load() {
		_ = unix.Kill(c.pid, sig)
	}
}

// drainTime is how long the output of processes that outlive the command is
// still waited for. A shell would not wait for them at all.
const drainTime = 200 * time.Millisecond
