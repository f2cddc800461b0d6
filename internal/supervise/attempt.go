package supervise

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"unoom/internal/ledger"
	"unoom/internal/units"
)

// tailBytes is how much of the end of the log is searched for a reason.
const tailBytes = 256 << 10

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

// attempt runs the command once, on all nodes, and judges what came of it.
func (s *session) attempt(n int, settings ledger.Settings, remedies []string, predicted *ledger.Predicted) (Past, int, error) {
	started := time.Now()
	s.note(ledger.Record{Kind: ledger.KindAttempt, Attempt: &ledger.Attempt{
		N: n, Command: s.template.Fill(settings, s.GlobalBatch, n), Settings: settings, Remedies: remedies, Predicted: predicted}})
	if s.Node.several() {
		if err := s.tell(filepath.Join(s.attemptDir(n), "start.json"), nodeStart{s.id, settings}); err != nil {
			return Past{}, 0, err
		}
	}
	engine := make(chan *ledger.Predicted, 1)
	if s.Predict != nil {
		go func() { engine <- s.Predict(settings) }() // while it starts
	} else {
		engine <- nil
	}
	own, events, err := s.play(n, settings)
	if err != nil {
		return Past{}, 0, err
	}
	ends := []nodeEnd{own}
	if s.Node.several() {
		if err := s.tell(s.nodeFile(n, 0), own); err != nil {
			return Past{}, 0, err
		}
		ends = s.gather(n, own)
	}
	processes := events.Poll()
	e := mergeEnds(ends)
	e.Processes = processes
	verdict := Judge(e)
	s.learn(processes)
	past := s.pastOf(settings, verdict, processes)
	ended := &ledger.Ended{
		N: n, Status: e.Status.Shell(), Outcome: string(verdict.Outcome), Source: verdict.Source, Evidence: verdict.Evidence,
		Phase: verdict.Phase, DurationMs: time.Since(started).Milliseconds(), Measured: measured(processes, verdict),
		Failed: s.failedChecks(n, processes), Engine: <-engine,
	}
	for _, end := range ends {
		ended.Swept += end.Swept
		ended.Stuck = append(ended.Stuck, end.Stuck...)
	}
	if verdict.Rank >= 0 {
		ended.Rank = &verdict.Rank
	}
	s.counters.learn(settings, processes)
	past.Broken = s.Strict && len(ended.Failed) > 0
	if p := verdict.Process; p != nil && p.Snapshot != "" {
		ended.Snapshot = p.Snapshot
		s.Say("run_snapshot", p.Snapshot)
	}
	s.note(ledger.Record{Kind: ledger.KindEnded, Ended: ended})
	return past, e.Status.Shell(), nil
}

// play runs the command once on this machine and cleans up after it.
func (s *session) play(n int, settings ledger.Settings) (nodeEnd, *Events, error) {
	end := nodeEnd{Node: s.Node.Rank}
	argv := s.template.Fill(settings, s.GlobalBatch, n)
	dir, env := s.prepare(n, settings)
	events := &Events{Dir: dir}
	tail := NewTail(tailBytes)
	if s.ReadLog == nil {
		tail = nil
	}
	kills := kernelKills()
	c, err := startChild(argv, env, s.Dir, tail)
	if err != nil {
		return end, nil, err
	}
	s.forward.follow(c, func() []proc { return s.ranks(events, c.pid) })
	watch := s.watch(n, c, events)
	status, err := c.wait()
	watch.stop()
	s.forward.follow(nil, nil)
	if err != nil {
		return end, nil, fmt.Errorf("wait for the command: %w", err)
	}
	end.Status = status
	processes := events.Poll()
	if status == (Status{}) && firstRaised(processes) == nil {
		end.Swept, end.Stuck = s.sweepAfterSuccess(processes)
	} else {
		swept, left := sweep(s.ours, 2*time.Second, s.keeper.pid())
		end.Swept, end.Stuck = swept, pids(left)
	}
	c.streams.finish(drainTime)
	end.KernelKills = kernelKills() - kills
	s.readEvidence(&end, tail)
	return end, events, nil
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
func (s *session) ranks(events *Events, child int) []proc {
	below := map[int]bool{}
	for _, p := range descendants(child) {
		below[p.pid] = true
	}
	var out []proc
	for _, p := range events.Poll() {
		if p.Hello.Rank == nil || !below[p.Hello.PID] {
			continue
		}
		if q, ok := readProc(p.Hello.PID); ok && q.start == p.Hello.Start {
			out = append(out, q)
		}
	}
	return out
}

// readEvidence adds to a node's end what its log and error file say.
func (s *session) readEvidence(end *nodeEnd, tail *Tail) {
	end.Asked = int(s.forward.ending())
	if end.Status == (Status{Signal: unix.SIGINT}) || end.Status == (Status{Code: StatusSignal + int(unix.SIGINT)}) {
		end.Asked = int(unix.SIGINT) // from the terminal, past us
	}
	if s.ReadLog == nil {
		return
	}
	if text := errorFile(s.errorFile); text != "" {
		end.ErrorFile, end.ErrorLog = text, s.ReadLog([]byte(text))
	}
	if tail != nil && (end.Status != Status{}) {
		end.Log = s.ReadLog(tail.Bytes())
	}
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
		s.can.Uneven = p.Uneven && s.can.Batch == f.Name
		if f.OutputDir != "" && !slices.Contains(s.outputDirs, f.OutputDir) {
			s.outputDirs = append(s.outputDirs, f.OutputDir)
		}
	}
}

func (s *session) pastOf(settings ledger.Settings, v Verdict, processes []*Process) Past {
	past := Past{Settings: settings, Verdict: v, Micro: settings.MicroBatch, Accumulation: settings.Accumulation, Samples: settings.Samples}
	for _, p := range processes {
		if f := p.Framework; f != nil && f.MicroBatch > 0 && !s.template.Batch() {
			past.Micro, past.Accumulation, past.Samples = f.MicroBatch, max(1, f.Accumulation), f.RowsOfStep
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
