package supervise

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"unoom/internal/ledger"
	"unoom/internal/units"
)

// Options is what `unoom run` was asked to do.
type Options struct {
	Command []string
	Dir     string // working directory, "" for our own
	Env     []string
	Version string
	Self    string // this program, for the keeper; "" for none

	Root   ledger.Root
	RunDir string // the run's folder, "" for a new one under Root

	// Node: several supervisors, one on each machine, share RunDir and agree.
	Node Node

	GlobalBatch, MicroBatch, World int
	Limits                         Limits
	ResumeDir                      string        // where checkpoints are, if not where the events say
	Grace                          time.Duration // ranks have this long between SIGTERM and SIGKILL
	PeerGrace                      time.Duration // the other ranks have this long after one ran out of memory
	Backoff                        time.Duration // before the second attempt; doubles
	Strict                         bool          // a failing unoom fails the run
	Fresh                          bool          // start as written, whatever earlier runs found out

	// Snapshot has each rank write what its allocator holds, with the trace that
	// led there, when it first runs out of memory.
	Snapshot bool

	// Fraction caps PyTorch's allocator from the first attempt on; 0: no cap.
	Fraction float64

	// Queue shares the cards of this machine with other runs; nil: it does not.
	// Need is what the run expects to hold on its card, 0 for a card of its own.
	Queue *Queue
	Need  units.Bytes

	// Rehearse counts memory on the CPU as the CUDA allocator would, with this
	// capacity. 0: the real card.
	Rehearse units.Bytes

	Predict Predictor                     // nil: the workload is not known
	Shim    fs.FS                         // python/unoom and the bootstrap
	ReadLog func(text []byte) *LogFinding // nil: logs are not read
	Say     func(id string, args ...any)  // tells the person something
	Warn    func(what string, err error)  // tells of a failure of our own
	Verbose bool                          // also say what goes well
}

// A session is one run in progress.
type session struct {
	Options
	id        string
	dir       string
	ledger    *ledger.Writer
	template  Template
	keeper    *keeper
	forward   *forwarder
	past      []Past
	can       Abilities
	started   time.Time
	card      string     // the one that the queue gave
	from      Checkpoint // that the present attempt goes on from
	counters  counters
	errorFile string // that the launcher of this attempt was told to write
	// outputDirs are where the frameworks of the command save.
	outputDirs []string
}

// Run runs the command and returns the exit status of unoom.
func Run(o Options) (int, error) {
	s := &session{Options: o, template: ParseTemplate(o.Command)}
	settings, err := s.template.Start(o.GlobalBatch, o.MicroBatch, o.world())
	if err != nil {
		return 0, err
	}
	s.can.Predict = o.Predict
	if s.template.Batch() {
		s.can.Batch = "template"
	}
	if s.template.Uses("checkpointing") {
		s.can.Checkpointing = "template"
	}
	if s.Node.several() && s.RunDir == "" {
		s.Node = Node{Count: 1} // each for itself, as without the others
		o.Say("run_nodes_alone")
	}
	if err := s.open(); err != nil {
		if o.Strict || s.Node.several() {
			return StatusFailed, err
		}
		o.Warn("ledger", err) // go on without
	}
	defer s.close()
	if err := becomeSubreaper(); err != nil && o.Strict {
		return StatusFailed, err
	}
	if s.Node.Rank > 0 {
		s.forward = newForwarder(o.Grace)
		defer s.forward.stop()
		return s.followLeader()
	}
	if o.Self != "" && s.dir != "" {
		if s.keeper, err = startKeeper(o.Self, s.id, s.dir); err != nil && o.Strict {
			return StatusFailed, err
		}
	}
	s.forward = newForwarder(o.Grace)
	defer s.forward.stop()
	settings.Fraction = o.Fraction
	if o.Queue != nil {
		card, err := s.enterQueue()
		if err != nil { // started all the same it could collide
			status := StatusFailed
			if sig := s.forward.ending(); sig != 0 {
				status, err = 128+int(sig), nil
			}
			s.note(ledger.Record{Kind: ledger.KindEnd, End: &ledger.End{Status: status, Outcome: string(Stopped)}})
			return status, err
		}
		defer func() { _ = o.Queue.Leave(s.id) }()
		s.card = card
	}
	first, remedies, predicted := s.startFrom(settings)
	return s.loop(first, remedies, predicted)
}

func (o Options) world() int {
	if o.World > 0 {
		return o.World
	}
	return WorldOf(o.Command)
}

// open makes the run's folder with its ledger and the shim.
func (s *session) open() error {
	now := time.Now()
	s.started = now.Add(-time.Second) // file systems keep times more coarsely
	s.id = ledger.NewID(now)
	host, _ := os.Hostname()
	dir, _ := os.Getwd()
	if s.Dir != "" {
		dir = s.Dir
	}
	self, _ := readProc(os.Getpid())
	run := ledger.Run{
		ID: s.id, Command: s.Command, Dir: dir, Host: host, PID: os.Getpid(), PIDStart: self.start,
		Version: s.Version, Job: jobOf(s.Env),
	}
	var err error
	if s.RunDir != "" {
		s.dir, err = filepath.Abs(s.RunDir)
		if err != nil || s.Node.Rank > 0 {
			return err // the ledger is node 0's
		}
		if _, err := os.Stat(filepath.Join(s.dir, ledger.FileName)); err == nil && s.Node.several() {
			return fmt.Errorf("%s is the folder of an earlier run; nodes that agree need one of their own (such as .../$SLURM_JOB_ID-$SLURM_RESTART_COUNT)", s.dir)
		}
		s.ledger, err = ledger.CreateIn(s.dir, run, now)
	} else {
		s.dir, err = filepath.Abs(filepath.Join(s.Root.Runs(), s.id))
		if err != nil {
			return err
		}
		s.ledger, err = ledger.CreateIn(s.dir, run, now)
	}
	if err != nil {
		s.dir = ""
		return err
	}
	return nil
}

func (s *session) close() {
	s.keeper.dismiss()
	if s.ledger != nil {
		s.ledger.Close()
	}
}

// note writes a line of the ledger; a failure is reported once.
func (s *session) note(rec ledger.Record) {
	if s.ledger == nil {
		return
	}
	rec.Time = time.Now()
	if err := s.ledger.Write(rec); err != nil {
		s.Warn("ledger", err)
		s.ledger.Close()
		s.ledger = nil
	}
}

// loop makes attempts until the policy says otherwise.
func (s *session) loop(settings ledger.Settings, remedies []string, predicted *ledger.Predicted) (int, error) {
	for n := 1; ; n++ {
		past, status, err := s.attempt(n, settings, remedies, predicted)
		if startErr, ok := errors.AsType[*StartError](err); ok {
			s.note(ledger.Record{Kind: ledger.KindEnd, End: &ledger.End{Status: startErr.Status, Outcome: string(Failed), Attempts: n}})
			return startErr.Status, startErr
		}
		if err != nil {
			return StatusFailed, err
		}
		s.past = append(s.past, past)
		next := Decide(s.past, s.can, s.Limits)
		if sig := s.forward.ending(); sig != 0 && next.Action != ActionDone {
			next = Next{Action: ActionStop, Why: "run_why_stopped"}
			if past.Verdict.Outcome.IsOOM() {
				next.Why = "run_why_stopped_oom"
			}
		}
		s.note(ledger.Record{Kind: ledger.KindDecision, Decision: &ledger.Decision{
			Action: next.Action, Why: next.Why, Args: next.Args, Remedies: next.Remedies}})
		switch next.Action {
		case ActionRetry:
			before := settings.Resume
			settings, remedies, predicted = next.Settings, next.Remedies, next.Predicted
			if s.from = s.newestCheckpoint(); s.from.Path == "" && before != "" {
				s.from = Checkpoint{Path: before, Step: -1} // of the run before this one
			}
			settings.Resume = s.from.Path
			s.tellRetry(n, past, next, settings)
			if s.rest(s.pause(n)) {
				s.tellNext(n, nodeNext{Action: next.Action})
				continue
			}
		case ActionWait:
			s.Say(next.Why, anys(next.Args)...)
			if s.rest(30 * time.Second) {
				s.tellNext(n, nodeNext{Action: next.Action})
				continue
			}
		}
		return s.end(n, past, next, status)
	}
}

// rest waits; false means that the run was asked to end meanwhile.
func (s *session) rest(d time.Duration) bool {
	for end := time.Now().Add(d); s.forward.ending() == 0; time.Sleep(20 * time.Millisecond) {
		if !time.Now().Before(end) {
			return true
		}
	}
	return false
}

// pause is the back-off before attempt n+1.
func (s *session) pause(n int) time.Duration {
	return min(s.Backoff<<min(n-1, 5), 30*time.Second)
}

func anys(list []string) []any {
	out := make([]any, len(list))
	for i, x := range list {
		out[i] = x
	}
	return out
}

// jobOf names the scheduler's job around this run.
func jobOf(env []string) string {
	e := environ(env)
	if id := e.get("SLURM_JOB_ID"); id != "" {
		return "slurm:" + id
	}
	if name := e.get("KUBERNETES_SERVICE_HOST"); name != "" {
		return "kubernetes:" + e.get("HOSTNAME")
	}
	return ""
}
