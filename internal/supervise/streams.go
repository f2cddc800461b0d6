package supervise

import (
	"errors"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/creack/pty"
	"golang.org/x/sys/unix"
)

// streams connects the child's streams. stdin is inherited. stderr takes a
// detour past a Tail, through a pseudo-terminal if it is a terminal, so that
// the child sees what it would see alone. stdout is inherited too, unless it
// is the same file as stderr: then both take the same detour, or the order of
// their lines would change.
type streams struct {
	child  [3]*os.File
	reader *os.File // our end of the detour; nil if there is none
	writer *os.File // the child's end, closed once it has started
	done   chan struct{}
	stop   []func()
}

// openStreams prepares the detour. Without a tail nothing is detoured.
func openStreams(tail *Tail) (*streams, error) {
	s := &streams{child: [3]*os.File{os.Stdin, os.Stdout, os.Stderr}, done: make(chan struct{})}
	if tail == nil {
		close(s.done)
		return s, nil
	}
	var err error
	if isTerminal(os.Stderr) {
		s.reader, s.writer, err = pty.Open()
		if err == nil {
			err = makeRaw(s.writer)
		}
		if err != nil { // no pseudo-terminals left: go without the detour
			close(s.done)
			s.reader, s.writer = nil, nil
			return s, nil
		}
		s.followSize()
	} else if s.reader, s.writer, err = os.Pipe(); err != nil {
		return nil, err
	}
	s.child[2] = s.writer
	if sameFile(os.Stdout, os.Stderr) {
		s.child[1] = s.writer
	}
	go s.copy(tail)
	return s, nil
}

// copy moves the output along until the last holder has closed its end.
func (s *streams) copy(tail *Tail) {
	defer close(s.done)
	buf := make([]byte, 32<<10)
	for {
		n, err := s.reader.Read(buf)
		if n > 0 {
			_, _ = tail.Write(buf[:n])
			if _, werr := writeAll(os.Stderr, buf[:n]); werr != nil {
				// Whoever read our stderr is gone: let the child notice
				// as it would have (SIGPIPE, EPIPE).
				s.reader.Close()
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// writeAll writes to a descriptor that may be non-blocking.
func writeAll(f *os.File, b []byte) (int, error) {
	done := 0
	for done < len(b) {
		n, err := f.Write(b[done:])
		done += n
		if errors.Is(err, syscall.EAGAIN) {
			time.Sleep(time.Millisecond)
			continue
		}
		if err != nil {
			return done, err
		}
	}
	return done, nil
}

// started closes the child's ends here, so that the last holder's exit is seen.
func (s *streams) started() {
	if s.writer != nil {
		s.writer.Close()
		s.writer = nil
	}
}

// finish waits until all output has passed, at most for the time given: a
// process that outlives the command may keep its end open for ever.
func (s *streams) finish(limit time.Duration) {
	for _, f := range s.stop {
		f()
	}
	s.started()
	if s.reader == nil {
		return
	}
	select {
	case <-s.done:
	case <-time.After(limit):
		_ = s.reader.SetReadDeadline(time.Now()) // what is there has been read
		select {
		case <-s.done:
		case <-time.After(limit):
		}
	}
	s.reader.Close()
}

// followSize keeps the pseudo-terminal as large as the real one.
func (s *streams) followSize() {
	resize := func() {
		if ws, err := unix.IoctlGetWinsize(int(os.Stderr.Fd()), unix.TIOCGWINSZ); err == nil {
			_ = unix.IoctlSetWinsize(int(s.reader.Fd()), unix.TIOCSWINSZ, ws)
		}
	}
	resize()
	ch := make(chan os.Signal, 1)
	signal.Notify(ch, unix.SIGWINCH)
	quit := make(chan struct{})
	go func() {
		for {
			select {
			case <-ch:
				resize()
			case <-quit:
				return
			}
		}
	}()
	s.stop = append(s.stop, func() { signal.Stop(ch); close(quit) })
}

func isTerminal(f *os.File) bool {
	_, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ)
	return err == nil
}

// sameFile reports whether two streams end in the same open file or terminal.
func sameFile(a, b *os.File) bool {
	var x, y unix.Stat_t
	if unix.Fstat(int(a.Fd()), &x) != nil || unix.Fstat(int(b.Fd()), &y) != nil {
		return false
	}
	return x.Dev == y.Dev && x.Ino == y.Ino && x.Rdev == y.Rdev
}

// A Tail keeps the last bytes written to it: the log that is searched for a
// reason when nothing better is known. It is safe for concurrent use.
type Tail struct {
	mu    sync.Mutex
	buf   []byte
	limit int
	total int64
}

// NewTail returns a tail of at most limit bytes.
func NewTail(limit int) *Tail { return &Tail{limit: limit} }

// Write never fails.
func (t *Tail) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.total += int64(len(b))
	if len(b) > t.limit {
		t.buf = append(t.buf[:0], b[len(b)-t.limit:]...)
		return len(b), nil
	}
	t.buf = append(t.buf, b...)
	if len(t.buf) > 2*t.limit {
		t.buf = append(t.buf[:0], t.buf[len(t.buf)-t.limit:]...)
	}
	return len(b), nil
}

// Bytes returns a copy of what is kept.
func (t *Tail) Bytes() []byte {
	t.mu.Lock()
	defer t.mu.Unlock()
	return append([]byte(nil), t.buf[max(0, len(t.buf)-t.limit):]...)
}
