package supervise

import (
	"syscall"
	"time"

	"unoom/internal/ledger"
)

// watcher ends an attempt whose other ranks hang after one ran out of memory.
type watcher struct {
	quit chan struct{}
	done chan struct{}
}

func (w *watcher) stop() {
	close(w.quit)
	<-w.done
}

// watch looks on while attempt n runs.
func (s *session) watch(n int, c *child, events *Events) *watcher {
	w := &watcher{make(chan struct{}), make(chan struct{})}
	own := &Events{Dir: events.Dir}
	go func() {
		defer close(w.done)
		var since time.Time
		told := false
		for {
			select {
			case <-w.quit:
				return
			case <-time.After(250 * time.Millisecond):
			}
			processes := own.Poll()
			if since.IsZero() && (firstRaised(processes) != nil || s.peerFailed(n)) {
				since = time.Now()
			}
			if failed := s.failedChecks(n, processes); len(failed) > 0 && !told {
				told = true
				for _, f := range failed {
					s.Say("run_check_"+f.What, f.Got, f.Want)
				}
				if s.Strict {
					c.signal(syscall.SIGTERM)
				}
			}
			if !since.IsZero() && time.Since(since) > s.PeerGrace {
				// Collectives wait ten minutes for a rank that is gone.
				s.Say("run_peers_hang", s.PeerGrace)
				c.signal(syscall.SIGTERM)
				time.AfterFunc(s.Grace/4+time.Second, func() { c.signalGroup(syscall.SIGKILL) })
				return
			}
		}
	}()
	return w
}

// failedChecks compares attempt n with the first; the first cannot fail.
func (s *session) failedChecks(n int, processes []*Process) []ledger.Check {
	if n == 1 {
		return nil
	}
	from := int64(-1)
	if s.from.Path != "" {
		from = s.from.Step
	}
	return s.counters.check(from, processes)
}
