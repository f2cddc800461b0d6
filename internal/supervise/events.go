package supervise

import (
	"bytes"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"unoom/internal/units"
)

// EventProto is the version of the lines that the Python side writes.
const EventProto = 1

// An Event is one line of a process's event file. Which fields are filled
// follows from Kind; docs/run.md lists them.
type Event struct {
	Proto int     `json:"proto"`
	Kind  string  `json:"kind"`
	Time  float64 `json:"t"`

	// hello
	PID       int      `json:"pid"`
	Start     uint64   `json:"start"`
	Rank      *int     `json:"rank"`
	LocalRank *int     `json:"local_rank"`
	World     int      `json:"world"`
	Torch     string   `json:"torch"`
	Device    string   `json:"device"`
	Argv      []string `json:"argv"`

	// framework: what the script asked for and what it got
	Name          string `json:"name"`
	MicroBatch    int    `json:"micro_batch"`
	Accumulation  int    `json:"accumulation"`
	Checkpointing *bool  `json:"checkpointing"`
	OutputDir     string `json:"output_dir"`
	AskedMicro    int    `json:"asked_micro_batch"`
	AskedAccum    int    `json:"asked_accumulation"`
	RowsOfStep    int    `json:"samples"` // of one process, where the micro-batches are unequal
	Uneven        bool   `json:"uneven"`  // unequal micro-batches are exact
	BatchNorm     bool   `json:"batch_norm"`

	// step, oom_observed
	N            int64       `json:"n"`
	Rows         int         `json:"rows"` // that went through the model for this step, or in its first call; 0 not counted
	Allocated    units.Bytes `json:"allocated"`
	Reserved     units.Bytes `json:"reserved"`
	Peak         units.Bytes `json:"peak"`
	PeakReserved units.Bytes `json:"peak_reserved"`
	Retries      int64       `json:"retries"`
	StepUs       int64       `json:"step_us"`
	Tried        units.Bytes `json:"tried"`
	Total        units.Bytes `json:"total"`
	Free         units.Bytes `json:"free"`
	Phase        string      `json:"phase"`
	Step         int64       `json:"step"`
	Index        int         `json:"index"`

	// exception, oom_raised
	Type   string `json:"type"`
	Text   string `json:"text"`
	Origin string `json:"origin"`

	// calibration: what the dying process found out about smaller batches
	Trials     []Trial     `json:"trials"`
	BatchRows  int         `json:"batch_rows"` // rows of the batch that did not fit
	StateMore  units.Bytes `json:"state_more"` // optimizer state that was still to come
	StepMore   units.Bytes `json:"step_more"`  // temporaries of the optimizer step
	Persistent units.Bytes `json:"persistent"` // weights, gradients, all state

	// ckpt, resume, applied, not_applied, note
	Path string `json:"path"`
	What string `json:"what"`
	Why  string `json:"why"`
}

// A Trial is one forward and backward pass over the first rows of the batch
// that did not fit, with gradients and optimizer state in place.
type Trial struct {
	Rows     int         `json:"rows"`
	OK       bool        `json:"ok"`
	Peak     units.Bytes `json:"peak"`     // allocated
	Reserved units.Bytes `json:"reserved"` // peak, after the cache was emptied
	// Checkpointing tells that the repeated blocks of the model were recomputed
	// in backward.
	Checkpointing bool `json:"checkpointing"`
}

// A Process is what one process of an attempt reported.
type Process struct {
	File        string
	Hello       Event
	Framework   *Event // the last one
	Capacity    units.Bytes
	Steps       int64
	LastStep    *Event
	Peak        units.Bytes
	Reserved    units.Bytes
	Observed    []Event // allocator failures, also those that the program survived
	OOM         *Event  // an out-of-memory that nobody caught
	Exception   *Event  // another exception that nobody caught
	Calibration *Event
	Resumed     *Event
	Checkpoints []Event
	Applied     []Event
	NotApplied  []Event
	BatchNorm   bool
	Uneven      bool
	FirstRows   int // of the model's first call
	RowsPerStep int // of a whole step, the most of the first few
	Snapshot    string
	Exited      bool // it came to its regular end
	Skipped     int  // lines that could not be read

	offset int64
	rest   []byte
}

// Rank returns the rank, -1 where there is none.
func (p *Process) Rank() int {
	if p.Hello.Rank == nil {
		return -1
	}
	return *p.Hello.Rank
}

// Events follows the event files of one attempt. It may be called again and
// again; each time it reads what is new.
type Events struct {
	Dir       string
	processes map[string]*Process
}

// maxEventLine is far above the 4 KiB that the writer keeps to.
const maxEventLine = 256 << 10

// Poll reads what was written since the last call and returns all processes,
// in the order of their ranks.
func (e *Events) Poll() []*Process {
	if e.processes == nil {
		e.processes = map[string]*Process{}
	}
	names, _ := filepath.Glob(filepath.Join(e.Dir, "events.*.jsonl"))
	for _, name := range names {
		p := e.processes[name]
		if p == nil {
			p = &Process{File: filepath.Base(name)}
			e.processes[name] = p
		}
		p.read(name)
	}
	out := make([]*Process, 0, len(e.processes))
	for _, p := range e.processes {
		if p.Hello.Kind != "" {
			out = append(out, p)
		}
	}
	slices.SortFunc(out, func(a, b *Process) int {
		if a.Rank() != b.Rank() {
			return a.Rank() - b.Rank()
		}
		return strings.Compare(a.File, b.File)
	})
	return out
}

func (p *Process) read(name string) {
	f, err := os.Open(name)
	if err != nil {
		return
	}
	defer f.Close()
	if _, err := f.Seek(p.offset, io.SeekStart); err != nil {
		return
	}
	data, err := io.ReadAll(io.LimitReader(f, 16<<20))
	if err != nil {
		return
	}
	p.offset += int64(len(data))
	p.Feed(data)
}

// Feed takes the next bytes of the event file. A line that is not yet complete
// waits for its rest; one that is damaged is counted and skipped.
func (p *Process) Feed(data []byte) {
	data = append(p.rest, data...)
	for {
		line, rest, whole := bytes.Cut(data, []byte{'\n'})
		if !whole {
			if len(data) > maxEventLine {
				p.Skipped++
				data = nil
			}
			p.rest = append([]byte(nil), data...)
			return
		}
		data = rest
		if len(bytes.TrimSpace(line)) == 0 {
			continue
		}
		var ev Event
		if len(line) > maxEventLine || json.Unmarshal(line, &ev) != nil || ev.Proto > EventProto {
			p.Skipped++
			continue
		}
		p.take(ev)
	}
}

func (p *Process) take(ev Event) {
	switch ev.Kind {
	case "hello":
		p.Hello = ev
	case "device":
		p.Capacity = max(p.Capacity, ev.Total)
	case "framework":
		p.Framework = &ev
		p.Uneven = p.Uneven || ev.Uneven
	case "uneven":
		p.Uneven = true
	case "first":
		p.FirstRows = ev.Rows
	case "snapshot":
		p.Snapshot = ev.Path
	case "batch_norm":
		p.BatchNorm = true
	case "step":
		p.LastStep = &ev
		p.RowsPerStep = max(p.RowsPerStep, ev.Rows)
		p.Steps = max(p.Steps, ev.N)
		p.Peak, p.Reserved = max(p.Peak, ev.Peak), max(p.Reserved, ev.PeakReserved)
	case "oom_observed":
		if len(p.Observed) < 64 {
			p.Observed = append(p.Observed, ev)
		}
		p.Capacity = max(p.Capacity, ev.Total)
	case "oom_raised":
		if p.OOM == nil {
			p.OOM = &ev
		}
	case "exception":
		if p.Exception == nil {
			p.Exception = &ev
		}
	case "calibration":
		p.Calibration = &ev
	case "resume":
		p.Resumed = &ev
	case "ckpt":
		p.Checkpoints = append(p.Checkpoints, ev)
	case "applied":
		p.Applied = append(p.Applied, ev)
	case "not_applied":
		p.NotApplied = append(p.NotApplied, ev)
	case "exit":
		p.Exited = true
	}
}
