package supervise

import (
	"fmt"
	"strings"
	"syscall"

	"unoom/internal/units"
)

// An Outcome is what an attempt came to.
type Outcome string

// The outcomes. Each has its own consequence; see Next.
const (
	Done          Outcome = "done"
	Stopped       Outcome = "stopped"           // by the user or the scheduler
	DeviceOOM     Outcome = "oom_device"        // the job needs more than there is
	Fragmented    Outcome = "oom_fragmentation" // the free pieces would have been enough
	OtherTenant   Outcome = "oom_other_tenant"  // somebody else holds the card
	OutsideOOM    Outcome = "oom_outside"       // what lies outside the allocator (NCCL, cuBLAS …) got nothing
	HostOOM       Outcome = "oom_host"          // the machine's memory, not the card's
	SharedMemory  Outcome = "shared_memory"     // /dev/shm
	Failed        Outcome = "failed"            // anything else: a bug, which is not retried
	CascadeFailed Outcome = "failed_cascade"    // only consequences of an error elsewhere were seen
)

// IsOOM reports whether more memory, or less need of it, would have helped.
func (o Outcome) IsOOM() bool {
	switch o {
	case DeviceOOM, Fragmented, OtherTenant, OutsideOOM, HostOOM:
		return true
	}
	return false
}

// A LogFinding is what the log says, in the terms of this package. The patterns
// are those of package oomlog; the caller translates.
type LogFinding struct {
	Outcome  Outcome
	Certain  bool
	Evidence string // the line
	Figures  Figures
	Rank     int // -1 unknown
	Phase    string
}

// Figures are the bytes of a failed request. 0: not known.
type Figures struct {
	Tried, Capacity, Free, Allocated, Reserved, Others units.Bytes
}

// Cached returns what was reserved but unallocated.
func (f Figures) Cached() units.Bytes { return f.Reserved - f.Allocated }

// Outside returns what neither the allocator holds nor is free: context,
// libraries, other processes. Unknown figures give 0.
func (f Figures) Outside() units.Bytes {
	if f.Capacity == 0 || f.Reserved == 0 {
		return 0
	}
	return max(0, f.Capacity-f.Free-f.Reserved)
}

// A Verdict is an outcome with what supports it.
type Verdict struct {
	Outcome  Outcome
	Source   string // events, error_file, log, exit_status, kernel
	Evidence []string
	Figures  Figures
	Phase    string
	Rank     int // -1 unknown
	Step     int64
	// Process is the process that failed first, nil if none reported.
	Process *Process
}

// Evidence is all that an attempt left behind.
type Evidence struct {
	Status    Status
	Asked     syscall.Signal // the user's or scheduler's signal to end, 0 if none
	Processes []*Process
	// ErrorFile is the message that torchelastic's error file holds, "" if none.
	ErrorFile string
	Log       *LogFinding
	// ErrorLog is what the patterns say about ErrorFile.
	ErrorLog *LogFinding
	// KernelKills is how many processes the kernel's OOM killer ended in our
	// control group meanwhile.
	KernelKills int
}

// Judge says what an attempt came to. The order of the evidence is that of its
// worth: what the process itself reported, the launcher's error file, the log,
// the kernel; the exit status says nearly nothing, since launchers change it.
func Judge(e Evidence) Verdict {
	v := Verdict{Rank: -1}
	raised := firstRaised(e.Processes)
	if e.Status == (Status{}) && raised == nil {
		v.Outcome, v.Source = Done, "exit_status"
		return v
	}
	if e.Asked != 0 && raised == nil {
		v.Outcome, v.Source = Stopped, "signal"
		v.Evidence = []string{e.Asked.String()}
		return v
	}
	if raised != nil {
		v.fromEvent(raised, *raised.OOM)
		v.refine()
		return v
	}
	if e.KernelKills > 0 {
		v.Outcome, v.Source = HostOOM, "kernel"
		v.Evidence = []string{fmt.Sprintf("memory.events: oom_kill +%d", e.KernelKills)}
		return v
	}
	bug := firstException(e.Processes)
	for _, found := range []struct {
		name    string
		finding *LogFinding
	}{{"error_file", e.ErrorLog}, {"log", e.Log}} {
		if found.finding == nil || (found.finding.Outcome == Failed && bug != nil) {
			continue
		}
		f := *found.finding
		observed := lastObserved(e.Processes)
		if !f.Certain && observed == nil && !nearlyFull(f.Figures) {
			continue // a masked or only probable pattern needs support
		}
		v.Outcome, v.Source, v.Figures, v.Rank, v.Phase = f.Outcome, found.name, f.Figures, f.Rank, f.Phase
		v.Evidence = []string{f.Evidence}
		if observed != nil && f.Outcome == DeviceOOM {
			v.Process = observed
			v.takeFigures(observed.Observed[len(observed.Observed)-1])
		}
		v.refine()
		return v
	}
	if bug != nil {
		v.Outcome, v.Source, v.Process, v.Rank = Failed, "events", bug, bug.Rank()
		v.Phase, v.Step = bug.Exception.Phase, bug.Exception.Step
		v.Evidence = []string{oneLine(bug.Exception.Type + ": " + bug.Exception.Text)}
		return v
	}
	// The program caught the error, said nothing we know, and gave up.
	if p := lastObserved(e.Processes); p != nil && !p.Exited {
		v.fromEvent(p, p.Observed[len(p.Observed)-1])
		v.refine()
		return v
	}
	v.Outcome, v.Source = Failed, "exit_status"
	v.Evidence = []string{fmt.Sprintf("status %d", e.Status.Shell())}
	if e.Status.Signal == syscall.SIGKILL || e.Status.Code == 137 || e.Status.Code == 247 {
		// A bare "Killed" proves nothing (DESIGN of NVRx says so too): it is
		// reported as what it most likely is, and not acted on.
		v.Evidence = append(v.Evidence, "killed by SIGKILL; if that was the kernel's OOM killer, its log says so")
	}
	return v
}

func (v *Verdict) fromEvent(p *Process, ev Event) {
	v.Outcome, v.Source, v.Process, v.Rank = DeviceOOM, "events", p, p.Rank()
	v.Phase, v.Step = ev.Phase, ev.Step
	if n := len(p.Observed); n > 0 {
		v.takeFigures(p.Observed[n-1])
		if v.Phase == "" {
			v.Phase = p.Observed[n-1].Phase
		}
	}
	text := ev.Text
	if text == "" {
		text = fmt.Sprintf("request of %s failed", ev.Tried)
	}
	v.Evidence = []string{oneLine(text)}
}

func (v *Verdict) takeFigures(ev Event) {
	v.Figures = Figures{
		Tried: ev.Tried, Capacity: ev.Total, Free: ev.Free, Allocated: ev.Allocated, Reserved: ev.Reserved,
		Others: v.Figures.Others,
	}
}

// refine tells the kinds of device OOM apart by their figures.
func (v *Verdict) refine() {
	f := v.Figures
	if v.Outcome != DeviceOOM || f.Tried == 0 || f.Capacity == 0 {
		return
	}
	switch {
	// What others hold would have been enough and is more than our own.
	case f.Others > 0 && f.Others >= f.Tried && f.Free+f.Others >= f.Capacity/2:
		v.Outcome = OtherTenant
	// The cached pieces together would have been enough. Below 4 % of the card
	// they are what a well-filled card looks like, not fragmentation.
	case f.Reserved > 0 && f.Cached()+f.Free >= f.Tried && f.Cached() >= f.Capacity/25:
		v.Outcome = Fragmented
	}
}

// nearlyFull reports whether the figures show a card that is more than 90 % in
// use: only then is an error in disguise taken for an out-of-memory.
func nearlyFull(f Figures) bool {
	return f.Capacity > 0 && f.Free > 0 && f.Free*10 < f.Capacity
}

// firstRaised returns the process whose uncaught out-of-memory came first.
func firstRaised(list []*Process) *Process {
	var first *Process
	for _, p := range list {
		if p.OOM != nil && (first == nil || p.OOM.Time < first.OOM.Time) {
			first = p
		}
	}
	return first
}

func firstException(list []*Process) *Process {
	var first *Process
	for _, p := range list {
		if p.Exception != nil && (first == nil || p.Exception.Time < first.Exception.Time) {
			first = p
		}
	}
	return first
}

// lastObserved returns a process whose allocator failed, at best one that did
// not come to a regular end.
func lastObserved(list []*Process) *Process {
	var best *Process
	for _, p := range list {
		if len(p.Observed) > 0 && (best == nil || (best.Exited && !p.Exited)) {
			best = p
		}
	}
	return best
}

func oneLine(text string) string {
	text = strings.Join(strings.Fields(text), " ")
	if len(text) > 400 {
		text = strings.ToValidUTF8(text[:400], "") + " …"
	}
	return text
}
