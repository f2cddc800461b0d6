package supervise

import (
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// forwarded are the signals that go on to the command. Those that the caller
// set to be ignored (nohup) stay so for the command too.
var forwarded = [...]os.Signal{
	unix.SIGINT, unix.SIGTERM, unix.SIGHUP, unix.SIGQUIT, unix.SIGUSR1, unix.SIGUSR2, unix.SIGCONT,
}

// A forwarder passes signals on to the current child.
//
// What the terminal sends (Ctrl-C, Ctrl-\, Ctrl-Z) goes to the child's own
// process group, without us; what arrives here was sent by somebody to us, and
// is passed on as he would have sent it to the command: once, to that process.
//
// SIGTERM is different where a launcher stands between us and the ranks: the
// launchers kill their ranks 30 s later, in the middle of a save, so the ranks
// get the signal first, and the launcher only when they have gone or the grace
// is over.
type forwarder struct {
	mu    sync.Mutex
	child *child
	ranks func() []proc // the training processes below the child, without it
	grace time.Duration
	ch    chan os.Signal
	quit  chan struct{}
	asked syscall.Signal // the first signal that asks the run to end
	hurry chan struct{}
}

func newForwarder(grace time.Duration) *forwarder {
	f := &forwarder{grace: grace, ch: make(chan os.Signal, 16), quit: make(chan struct{}), hurry: make(chan struct{}, 1)}
	for _, s := range forwarded {
		if !signal.Ignored(s) {
			signal.Notify(f.ch, s)
		}
	}
	// A reader of our output that went away is seen as an error of the write.
	signal.Notify(make(chan os.Signal, 1), unix.SIGPIPE)
	go f.loop()
	return f
}

func (f *forwarder) stop() {
	signal.Stop(f.ch)
	close(f.quit)
}

// follow makes c the process that gets the signals; nil between attempts.
func (f *forwarder) follow(c *child, ranks func() []proc) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.child, f.ranks = c, ranks
	if c != nil && f.asked != 0 { // it came while nothing ran
		c.signal(f.asked)
	}
}

// ending returns the signal that asked the run to end, 0 if none did.
func (f *forwarder) ending() syscall.Signal {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.asked
}

func (f *forwarder) loop() {
	for {
		select {
		case s := <-f.ch:
			f.take(s.(syscall.Signal))
		case <-f.quit:
			return
		}
	}
}

func (f *forwarder) take(s syscall.Signal) {
	f.mu.Lock()
	c, ranks := f.child, f.ranks
	first := f.asked == 0
	if s == unix.SIGINT || s == unix.SIGTERM || s == unix.SIGHUP || s == unix.SIGQUIT {
		if first {
			f.asked = s
		} else if s == unix.SIGTERM {
			select {
			case f.hurry <- struct{}{}:
			default:
			}
		}
	}
	f.mu.Unlock()
	if c == nil {
		return
	}
	if s == unix.SIGCONT {
		if !c.interactive { // else suspend gives it the terminal first
			c.signalGroup(s)
		}
		return
	}
	if s == unix.SIGTERM && first && ranks != nil {
		if list := ranks(); len(list) > 0 {
			go f.wave(c, list)
			return
		}
	}
	c.signal(s)
}

// wave ends a launched job from below: the ranks, then the launcher, then by
// force whatever is left.
func (f *forwarder) wave(c *child, ranks []proc) {
	for _, p := range ranks {
		p.kill(unix.SIGTERM)
	}
	f.await(f.grace, func() bool {
		for _, p := range ranks {
			if p.alive() {
				return false
			}
		}
		return true
	})
	c.signal(unix.SIGTERM)
	f.await(f.grace/4+time.Second, c.gone.Load)
	if !c.gone.Load() {
		c.signalGroup(unix.SIGKILL)
	}
}

// await returns when done is true, the time is over, or the user asks again.
func (f *forwarder) await(limit time.Duration, done func() bool) {
	deadline := time.After(limit)
	for !done() {
		select {
		case <-time.After(50 * time.Millisecond):
		case <-deadline:
			return
		case <-f.hurry:
			return
		case <-f.quit:
			return
		}
	}
}
