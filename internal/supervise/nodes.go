package supervise

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"unoom/internal/ledger"
)

// A Node is a machine's place among those that train together, each under a
// supervisor of its own. They agree through the run's folder, which all of them
// see: node 0 decides, the others do as it says. Nothing else connects them.
//
//	attempt-N/start.json   node 0: the settings of the attempt
//	attempt-N/node-R.json  each node: how its part of the command ended
//	attempt-N/next.json    node 0: what follows
//
// The events of all processes lie in the same folder, so that node 0 judges on
// the evidence of all machines.
type Node struct{ Rank, Count int }

func (n Node) several() bool { return n.Count > 1 }

// NodeOf says which of how many nodes this is: by the launcher's own flags
// (torchrun --nnodes --node-rank), else by Slurm's, which starts one supervisor
// on each node with srun.
func NodeOf(argv, env []string) Node {
	n := Node{Count: 1}
	flags := map[string]*int{
		"--nnodes": &n.Count, "--num_machines": &n.Count, "--num_nodes": &n.Count,
		"--node-rank": &n.Rank, "--node_rank": &n.Rank, "--machine_rank": &n.Rank,
	}
	launcherFlags(argv, func(name, value string) {
		if into := flags[name]; into != nil {
			if v, err := strconv.Atoi(value); err == nil {
				*into = v
			}
		}
	})
	e := environ(env)
	if e.get("SLURM_PROCID") != "" { // only within srun: one of us on each node
		if v, err := strconv.Atoi(e.get("SLURM_NNODES")); err == nil && n.Count == 1 {
			n.Count = v
		}
		if v, err := strconv.Atoi(e.get("SLURM_NODEID")); err == nil && n.Rank == 0 {
			n.Rank = v
		}
	}
	return n
}

// A nodeStart tells the other nodes what to run.
type nodeStart struct {
	Run      string          `json:"run"`
	Settings ledger.Settings `json:"settings"`
}

// A nodeEnd is how one node's part of an attempt ended.
type nodeEnd struct {
	Node        int         `json:"node"`
	Status      Status      `json:"status"`
	Asked       int         `json:"asked_signal,omitempty"` // the signal that asked it to end
	KernelKills int         `json:"kernel_kills,omitempty"`
	Log         *LogFinding `json:"log,omitempty"`
	ErrorFile   string      `json:"error_file,omitempty"`
	ErrorLog    *LogFinding `json:"error_log,omitempty"`
	Swept       int         `json:"swept,omitempty"`
	Stuck       []int       `json:"stuck,omitempty"`
}

// A nodeNext tells the other nodes what follows.
type nodeNext struct {
	Action string `json:"action"`
	Status int    `json:"status"` // of the run, where it is over
}

// leaderTime is how long the others wait for node 0 to begin: as long as
// torchrun waits for its nodes.
const leaderTime = 10 * time.Minute

func (s *session) attemptDir(n int) string {
	return filepath.Join(s.dir, "attempt-"+strconv.Itoa(n))
}

func (s *session) nodeFile(n, rank int) string {
	return filepath.Join(s.attemptDir(n), "node-"+strconv.Itoa(rank)+".json")
}

// tell writes a file of the agreement; the folder may not be there yet.
func (s *session) tell(path string, v any) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return writeJSON(path, v)
}

// await reads a file that another node writes. It gives up after limit, when
// this supervisor is asked to end, or when given says so.
func (s *session) await(path string, v any, limit time.Duration, given func() bool) error {
	for began := time.Now(); ; time.Sleep(100 * time.Millisecond) {
		data, err := os.ReadFile(path)
		if err == nil {
			return json.Unmarshal(data, v)
		}
		switch {
		case time.Since(began) > limit:
			return fmt.Errorf("%s: did not appear within %v", path, limit)
		case s.forward.ending() != 0:
			return fmt.Errorf("ended by %v", s.forward.ending())
		case given != nil && given():
			return fmt.Errorf("%s: did not appear; node 0 has ended", path)
		}
	}
}

// gather waits for the ends of all nodes. One that does not report, since its
// machine is gone, is left out.
func (s *session) gather(n int, own nodeEnd) []nodeEnd {
	ends := []nodeEnd{own}
	for rank := 1; rank < s.Node.Count; rank++ {
		var end nodeEnd
		if err := s.await(s.nodeFile(n, rank), &end, s.PeerGrace+s.Grace, nil); err != nil {
			s.Warn("node "+strconv.Itoa(rank), err)
			continue
		}
		ends = append(ends, end)
	}
	return ends
}

// peerFailed reports whether another node's part has ended badly.
func (s *session) peerFailed(n int) bool {
	for rank := range s.Node.Count {
		if rank == s.Node.Rank {
			continue
		}
		var end nodeEnd
		data, err := os.ReadFile(s.nodeFile(n, rank))
		if err == nil && json.Unmarshal(data, &end) == nil && end.Status != (Status{}) {
			return true
		}
	}
	return false
}

// tellNext lets the other nodes know what follows attempt n.
func (s *session) tellNext(n int, next nodeNext) {
	if !s.Node.several() {
		return
	}
	if err := s.tell(filepath.Join(s.attemptDir(n), "next.json"), next); err != nil {
		s.Warn("nodes", err)
	}
}

// leaderGone reports whether node 0's supervisor ended or was killed: its own
// end, or its keeper's word, is the last line of the ledger.
func (s *session) leaderGone() bool {
	recs, _, err := ledger.ReadDir(s.dir)
	if err != nil || len(recs) == 0 {
		return false
	}
	last := recs[len(recs)-1].Kind
	return last == ledger.KindEnd || last == ledger.KindLost
}

// followLeader is the loop of every node but 0.
func (s *session) followLeader() (int, error) {
	for n := 1; ; n++ {
		var start nodeStart
		if err := s.await(filepath.Join(s.attemptDir(n), "start.json"), &start, leaderTime, nil); err != nil {
			return StatusFailed, err
		}
		if n == 1 {
			if err := s.join(start.Run); err != nil {
				return StatusFailed, err
			}
		}
		own, _, err := s.play(n, start.Settings)
		if _, ok := errors.AsType[*StartError](err); !ok && err != nil {
			return StatusFailed, err
		} else if ok {
			_ = s.tell(s.nodeFile(n, s.Node.Rank), nodeEnd{Node: s.Node.Rank, Status: Status{Code: StatusNotFound}})
			return StatusNotFound, err
		}
		if err := s.tell(s.nodeFile(n, s.Node.Rank), own); err != nil {
			return StatusFailed, err
		}
		var next nodeNext
		if err := s.await(filepath.Join(s.attemptDir(n), "next.json"), &next, s.PeerGrace+s.Grace+time.Minute, s.leaderGone); err != nil {
			s.Warn("node 0", err)
			return own.Status.Shell(), nil
		}
		switch {
		case next.Action == ActionRetry || next.Action == ActionWait:
		case next.Status == StatusDoesNotFit || next.Status == StatusRunAgain || next.Status == StatusFailed:
			return next.Status, nil
		default:
			return own.Status.Shell(), nil
		}
	}
}

// join takes the run's identity from node 0. The mark of our processes is our
// own: another node may be on this very machine.
func (s *session) join(run string) error {
	s.id = run + ".node" + strconv.Itoa(s.Node.Rank)
	if s.Self == "" {
		return nil
	}
	var err error
	if s.keeper, err = startKeeper(s.Self, s.id, ""); err != nil && s.Strict {
		return err
	}
	return nil
}

// mergeEnds makes the evidence of all nodes one: the first status that is bad,
// the surest word of a log.
func mergeEnds(ends []nodeEnd) Evidence {
	var e Evidence
	better := func(a, b *LogFinding) *LogFinding {
		if a == nil || (b != nil && b.Outcome.IsOOM() && !a.Outcome.IsOOM()) {
			return b
		}
		return a
	}
	for _, end := range ends {
		if e.Status == (Status{}) {
			e.Status = end.Status
		}
		if e.Asked == 0 {
			e.Asked = syscall.Signal(end.Asked)
		}
		e.KernelKills += end.KernelKills
		e.Log = better(e.Log, end.Log)
		if end.ErrorLog != nil || e.ErrorFile == "" {
			if merged := better(e.ErrorLog, end.ErrorLog); merged != e.ErrorLog || e.ErrorFile == "" {
				e.ErrorLog, e.ErrorFile = merged, end.ErrorFile
			}
		}
	}
	return e
}
