//go:build !linux

package supervise

import (
	"errors"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Known gap: outside Linux only the command's own process group is followed;
// there is no subreaper, and processes in other sessions are not found.

type proc struct {
	pid, ppid int
	start     uint64
	state     byte
}

func becomeSubreaper() error                                   { return errors.ErrUnsupported }
func readProc(pid int) (proc, bool)                            { return proc{pid: pid}, unix.Kill(pid, 0) == nil }
func descendants(int) []proc                                   { return nil }
func (p proc) alive() bool                                     { return unix.Kill(p.pid, 0) == nil }
func (p proc) kill(sig syscall.Signal)                         { _ = unix.Kill(p.pid, sig) }
func marked(string) []proc                                     { return nil }
func reapAdopted(...int)                                       {}
func makeRaw(*os.File) error                                   { return errors.ErrUnsupported }
func sweep(func() []proc, time.Duration, ...int) (int, []proc) { return 0, nil }
