package supervise

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

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

	GlobalBatch, MicroBatch, World int
	Limits                         Limits
	ResumeDir                      string        // where checkpoints are, if not where the events say
	Grace                          time.Duration // ranks have this long between SIGTERM and SIGKILL
	PeerGrace                      time.Duration // the other ranks have this long after one ran out of memory
	Backoff                        time.Duration // before the second attempt; doubles
	Strict                         bool          // a failing unoom fails the run
	Fresh                          bool          // start as written, whatever earlier runs found out

	// Fraction caps PyTorch's allocator from the first attempt on; 0: no cap.
	Fraction float64

	// Queue shares the cards of this machine with other runs; nil: it does not.
	// Need is what the run expects to hold on its card, 0 for a card of its own.
	Queue *Queue
	Need  units.Bytes

	// Rehearse counts memory on the CPU as the CUDA allocator would, with this
	// capacity. 0: the real card.
	Rehearse units.Bytes

	Shim    fs.FS                         // python/unoom and the bootstrap
	ReadLog func(text []byte) *LogFinding // nil: logs are not read
	Say     func(id string, args ...any)  // tells the person something
	Warn    func(what string, err error)  // tells of a failure of our own
	Verbose bool                          // also say what goes well
}

// tailBytes is how much of the end of the log is searched for a reason.
const tailBytes = 256 << 10

// A session is one run in progress.
type session struct {
	Options
	id       string
	dir      string
	ledger   *ledger.Writer
	template Template
	keeper   *keeper
	forward  *forwarder
	past     []Past
	can      Abilities
	started  time.Time
	card     string // the one that the queue gave
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
	s.can.Batch, s.can.Checkpointing = "", ""
	if s.template.Batch() {
		s.can.Batch = "template"
	}
	if s.template.Uses("checkpointing") {
		s.can.Checkpointing = "template"
	}
	if err := s.open(); err != nil {
		if o.Strict {
			return StatusFailed, err
		}
		o.Warn("ledger", err) // go on without
	}
	defer s.close()
	if err := becomeSubreaper(); err != nil && o.Strict {
		return StatusFailed, err
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
		if err != nil {
			return StatusFailed, err // started all the same it could collide
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
		if err != nil {
			return err
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
			settings, remedies, predicted = next.Settings, next.Remedies, next.Predicted
			settings.Resume = s.newestCheckpoint()
			s.tellRetry(n, past, next, settings)
			time.Sleep(s.pause(n))
			continue
		case ActionWait:
			s.Say(next.Why, anys(next.Args)...)
			time.Sleep(30 * time.Second)
			continue
		}
		return s.end(n, past, next, status)
	}
}

// pause is the back-off before attempt n+1.
func (s *session) pause(n int) time.Duration {
	return min(s.Backoff<<min(n-1, 5), 30*time.Second)
}

// tellRetry says in two lines what happened and what follows.
func (s *session) tellRetry(n int, past Past, next Next, settings ledger.Settings) {
	v := past.Verdict
	s.sayFailed(n, v)
	s.Say(next.Why, anys(next.Args)...)
	if settings.Resume != "" {
		s.Say("run_resume", settings.Resume)
	} else {
		s.Say("run_from_start")
	}
}

// sayFailed says how attempt n failed, as far as it is known.
func (s *session) sayFailed(n int, v Verdict) {
	where := v.Phase
	if where == "" {
		where = "?"
	}
	if v.Process != nil {
		where += fmt.Sprintf(", step %d", v.Step)
	}
	tried, capacity := "?", "?"
	if v.Figures.Tried > 0 {
		tried = v.Figures.Tried.String()
	}
	if v.Figures.Capacity > 0 {
		capacity = v.Figures.Capacity.String()
	}
	s.Say("run_failed_"+string(v.Outcome), n, where, tried, capacity)
}

// end closes the run and returns its status.
func (s *session) end(n int, past Past, next Next, status int) (int, error) {
	v := past.Verdict
	end := ledger.End{Status: status, Outcome: string(v.Outcome), Attempts: n}
	switch {
	case next.Action == ActionGiveUp:
		end.Status = StatusDoesNotFit
		end.Next = s.writeNext(past, next)
		s.sayFailed(n, v)
		s.Say(next.Why, anys(next.Args)...)
		if end.Next != "" {
			s.Say("run_next_written", end.Next)
		}
	case v.Outcome.IsOOM() || v.Outcome == SharedMemory:
		s.sayFailed(n, v)
		s.Say(next.Why, anys(next.Args)...)
		if v.Outcome.IsOOM() && s.forward.ending() != 0 {
			end.Next = s.writeNext(past, Decide(s.past, s.can, s.Limits))
			end.Status = StatusRunAgain
		}
	case v.Outcome == Done && n > 1:
		s.Say("run_done", n-1, past.Micro, past.Accumulation)
		s.remember(past)
	case v.Outcome == Failed && n > 1:
		s.Say("run_why_bug")
	}
	s.note(ledger.Record{Kind: ledger.KindEnd, End: &end})
	s.terminationMessage(end, next)
	return end.Status, nil
}

// terminationLog is where Kubernetes looks for the reason that a container
// ended (the default of terminationMessagePath).
const terminationLog = "/dev/termination-log"

// terminationMessage tells Kubernetes why the run ended; it keeps 4096 bytes.
func (s *session) terminationMessage(end ledger.End, next Next) {
	if environ(s.Env).get("KUBERNETES_SERVICE_HOST") == "" {
		return
	}
	path := terminationLog
	if p := environ(s.Env).get("UNOOM_TERMINATION_LOG"); p != "" {
		path = p
	}
	if _, err := os.Stat(path); err != nil {
		return
	}
	text, err := json.Marshal(map[string]any{
		"run": s.id, "status": end.Status, "outcome": end.Outcome, "attempts": end.Attempts,
		"why": next.Why, "settings": next.Settings, "next": end.Next,
	})
	if err == nil && len(text) <= 4096 {
		_ = os.WriteFile(path, text, 0o644)
	}
}

// writeNext leaves the settings that would come next, for a person, a scheduler
// or the next run.
func (s *session) writeNext(past Past, next Next) string {
	if s.dir == "" {
		return ""
	}
	path := filepath.Join(s.dir, "next.json")
	doc := map[string]any{
		"schema": "unoom/next/v1", "run": s.id, "command": s.Command, "action": next.Action,
		"settings": next.Settings, "remedies": next.Remedies, "why": next.Why, "args": next.Args,
		"outcome": past.Verdict.Outcome, "resume": s.newestCheckpoint(),
		"capacity_bytes": past.Verdict.Figures.Capacity,
	}
	if cal := past.Verdict.calibration(); cal != nil {
		doc["persistent_bytes"] = cal.Persistent
		if f, ok := fitOf(past.Verdict, false); ok {
			doc["needs_bytes"] = f.at(f.fullRows)
		}
	}
	if writeJSON(path, doc) != nil {
		return ""
	}
	return path
}

// writeJSON writes a file atomically.
func writeJSON(path string, v any) error {
	data, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	tmp := path + "." + strconv.Itoa(os.Getpid()) + ".part"
	if err := os.WriteFile(tmp, append(data, '\n'), 0o644); err != nil {
		return err
	}
	return os.Rename(tmp, path)
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

// ours lists the processes of this run, wherever they went.
func (s *session) ours() []proc {
	skip := map[int]bool{os.Getpid(): true, s.keeper.pid(): true}
	seen := map[int]bool{}
	var out []proc
	for _, list := range [][]proc{descendants(os.Getpid()), marked(runMark + "=" + s.id)} {
		for _, p := range list {
			if !skip[p.pid] && !seen[p.pid] {
				seen[p.pid] = true
				out = append(out, p)
			}
		}
	}
	return out
}

// attempt runs the command once.
func (s *session) attempt(n int, settings ledger.Settings, remedies []string, predicted *ledger.Predicted) (Past, int, error) {
	argv := s.template.Fill(settings, s.GlobalBatch, n)
	dir, env := s.prepare(n, settings)
	s.note(ledger.Record{Kind: ledger.KindAttempt, Attempt: &ledger.Attempt{
		N: n, Command: argv, Settings: settings, Remedies: remedies, Predicted: predicted}})
	events := &Events{Dir: dir}
	tail := NewTail(tailBytes)
	if s.ReadLog == nil {
		tail = nil
	}
	kills := kernelKills()
	started := time.Now()
	c, err := startChild(argv, env, s.Dir, tail)
	if err != nil {
		return Past{}, 0, err
	}
	s.forward.follow(c, func() []proc { return ranks(events, c.pid) })
	watch := s.watch(c, events)
	status, err := c.wait()
	watch.stop()
	s.forward.follow(nil, nil)
	if err != nil {
		return Past{}, 0, fmt.Errorf("wait for the command: %w", err)
	}
	ended := &ledger.Ended{N: n, Status: status.Shell()}
	processes := events.Poll()
	clean := status == Status{} && firstRaised(processes) == nil
	if clean {
		ended.Swept, ended.Stuck = s.sweepAfterSuccess(processes)
	} else {
		swept, left := sweep(s.ours, 2*time.Second, s.keeper.pid())
		ended.Swept, ended.Stuck = swept, pids(left)
	}
	c.streams.finish(drainTime)
	processes = events.Poll()
	verdict := Judge(s.evidence(status, processes, dir, tail, kernelKills()-kills))
	s.learn(processes)
	past := s.pastOf(settings, verdict, processes)
	ended.Outcome, ended.Source, ended.Evidence = string(verdict.Outcome), verdict.Source, verdict.Evidence
	ended.Phase, ended.DurationMs = verdict.Phase, time.Since(started).Milliseconds()
	if verdict.Rank >= 0 {
		ended.Rank = &verdict.Rank
	}
	ended.Measured = measured(processes, verdict)
	s.note(ledger.Record{Kind: ledger.KindEnded, Ended: ended})
	return past, status.Shell(), nil
}

// sweepAfterSuccess gives what is left of a command that succeeded some time to
// go; then it ends the training processes among it, which can only be stuck,
// and leaves alone what else the command started for good.
func (s *session) sweepAfterSuccess(processes []*Process) (int, []int) {
	deadline := time.Now().Add(2 * time.Second)
	find := func() []proc {
		var out []proc
		for _, p := range s.ours() {
			for _, q := range processes {
				if q.Hello.PID == p.pid && q.Hello.Start == p.start && p.state != 'Z' {
					out = append(out, p)
				}
			}
		}
		return out
	}
	for len(find()) > 0 {
		if time.Now().After(deadline) {
			n, left := sweep(find, 2*time.Second, s.keeper.pid())
			return n, pids(left)
		}
		time.Sleep(20 * time.Millisecond)
	}
	reapAdopted(s.keeper.pid())
	return 0, nil
}

// ranks lists the training processes below the child, as their events say.
func ranks(events *Events, child int) []proc {
	var out []proc
	for _, p := range events.Poll() {
		if p.Hello.Rank == nil || p.Hello.PID == child {
			continue
		}
		if q, ok := readProc(p.Hello.PID); ok && q.start == p.Hello.Start {
			out = append(out, q)
		}
	}
	return out
}

// evidence gathers what an attempt left behind.
func (s *session) evidence(status Status, processes []*Process, dir string, tail *Tail, kills int) Evidence {
	e := Evidence{Status: status, Asked: s.forward.ending(), Processes: processes, KernelKills: kills}
	if status == (Status{Signal: unix.SIGINT}) || status == (Status{Code: StatusSignal + int(unix.SIGINT)}) {
		e.Asked = unix.SIGINT // from the terminal, past us
	}
	if s.ReadLog == nil {
		return e
	}
	if text := errorFile(filepath.Join(dir, "error.json")); text != "" {
		e.ErrorFile, e.ErrorLog = text, s.ReadLog([]byte(text))
	}
	if tail != nil && (status != Status{}) {
		e.Log = s.ReadLog(tail.Bytes())
	}
	return e
}

// errorFile reads the message of a torchelastic error file.
func errorFile(path string) string {
	data, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	var doc struct {
		Message json.RawMessage `json:"message"`
	}
	if json.Unmarshal(data, &doc) != nil {
		return ""
	}
	var text string
	if json.Unmarshal(doc.Message, &text) == nil {
		return text
	}
	var inner struct {
		Message string `json:"message"`
	}
	if json.Unmarshal(doc.Message, &inner) == nil {
		return inner.Message
	}
	return ""
}

// learn takes from the events what can be changed in this command.
func (s *session) learn(processes []*Process) {
	for _, p := range processes {
		s.can.Environment = true
		if s.can.Checkpointing == "" {
			s.can.Checkpointing = "shim"
		}
		f := p.Framework
		if f == nil {
			continue
		}
		if f.MicroBatch > 0 && s.can.Batch == "" {
			s.can.Batch = f.Name
		}
		if f.OutputDir != "" && !slices.Contains(s.outputDirs, f.OutputDir) {
			s.outputDirs = append(s.outputDirs, f.OutputDir)
		}
	}
}

func (s *session) pastOf(settings ledger.Settings, v Verdict, processes []*Process) Past {
	past := Past{Settings: settings, Verdict: v, Micro: settings.MicroBatch, Accumulation: settings.Accumulation}
	for _, p := range processes {
		if f := p.Framework; f != nil && f.MicroBatch > 0 && !s.template.Batch() {
			past.Micro, past.Accumulation = f.MicroBatch, max(1, f.Accumulation)
		}
		past.Steps = max(past.Steps, p.Steps)
		past.CheckpointAdvanced = past.CheckpointAdvanced || len(p.Checkpoints) > 0
	}
	return past
}

// measured takes the figures of the process that needed most.
func measured(processes []*Process, v Verdict) *ledger.Measured {
	if len(processes) == 0 {
		return nil
	}
	m := &ledger.Measured{}
	worst := processes[0]
	for _, p := range processes {
		if p.Peak > worst.Peak {
			worst = p
		}
		m.Steps = max(m.Steps, p.Steps)
	}
	known := func(b units.Bytes) *units.Bytes {
		if b == 0 {
			return nil
		}
		return &b
	}
	m.PeakAllocated, m.PeakReserved, m.Capacity = known(worst.Peak), known(worst.Reserved), known(worst.Capacity)
	if l := worst.LastStep; l != nil {
		m.Floor, m.Retries, m.StepTimeUs = known(l.Allocated), l.Retries, l.StepUs
	}
	m.Tried, m.Free = known(v.Figures.Tried), known(v.Figures.Free)
	if v.Figures.Capacity > 0 {
		m.Capacity = known(v.Figures.Capacity)
	}
	return m
}

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
