package supervise

import (
	"os"

	"unoom/internal/ledger"
)

// Alive reports whether the supervisor of a run still runs. It can tell only
// for this machine; of a run elsewhere it says no.
func Alive(run ledger.Run) bool {
	if host, err := os.Hostname(); err != nil || host != run.Host {
		return false
	}
	p, ok := readProc(run.PID)
	return ok && p.alive() && (run.PIDStart == 0 || p.start == run.PIDStart)
}
