package supervise

import (
	"syscall"
	"time"
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

func (s *session) watch(c *child, events *Events) *watcher {
	w := &watcher{make(chan struct{}), make(chan struct{})}
	own := &Events{Dir: events.Dir}
	go func() {
		defer close(w.done)
		var since time.Time
		for {
			select {
			case <-w.quit:
				return
			case <-time.After(250 * time.Millisecond):
			}
			if since.IsZero() && firstRaised(own.Poll()) != nil {
				since = time.Now()
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
