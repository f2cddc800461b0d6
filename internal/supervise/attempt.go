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
