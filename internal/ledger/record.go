// Package ledger remembers runs: what was started, with which settings, what
// was predicted and what was measured, how it ended.
//
// The truth is one folder for each run, in it run.jsonl, one JSON object a line,
// only ever appended to. A line is written with a single write, so that a
// killed writer leaves whole lines; a reader skips what is torn all the same. The
// SQLite index beside the folders only makes listing fast: it is rebuilt from
// them whenever it is missing, damaged or behind.
package ledger

import (
	"time"

	"unoom/internal/units"
)

// Proto is the version of the lines of run.jsonl.
const Proto = 1

// A Record is one line of run.jsonl. Kind says which of the parts is there.
type Record struct {
	Proto    int       `json:"proto,omitempty"` // in the first line
	Time     time.Time `json:"t"`
	Kind     string    `json:"kind"`
	Run      *Run      `json:"run,omitempty"`
	Attempt  *Attempt  `json:"attempt,omitempty"`
	Ended    *Ended    `json:"ended,omitempty"`
	Decision *Decision `json:"decision,omitempty"`
	End      *End      `json:"end,omitempty"`
	Lost     *Lost     `json:"lost,omitempty"`
}

// The kinds of lines.
const (
	KindRun      = "run"      // the command, once, first
	KindAttempt  = "attempt"  // an attempt begins
	KindEnded    = "ended"    // an attempt has ended
	KindDecision = "decision" // what follows from it
	KindEnd      = "end"      // the run is over
	KindLost     = "lost"     // the supervisor was killed; its keeper cleaned up
)

// Run is what was asked for.
type Run struct {
	ID       string   `json:"id"`
	Command  []string `json:"command"`
	Dir      string   `json:"dir"`
	Host     string   `json:"host"`
	PID      int      `json:"pid"`
	PIDStart uint64   `json:"pid_start,omitempty"` // tells the process from a later one with its number
	Version  string   `json:"version"`
	Job      string   `json:"job,omitempty"` // of the scheduler around it: "slurm:1234"
}

// Settings are what an attempt runs with. Zero values: as the command has them.
type Settings struct {
	MicroBatch   int `json:"micro_batch,omitempty"`
	Accumulation int `json:"accumulation,omitempty"`
	// Samples are the rows of one optimizer step in each process, where the
	// micro-batches are unequal: all have MicroBatch rows but the last.
	// 0: they are equal.
	Samples       int    `json:"samples,omitempty"`
	World         int    `json:"world,omitempty"`
	Checkpointing string `json:"checkpointing,omitempty"` // "", none, full
	AllocConf     string `json:"alloc_conf,omitempty"`
	Resume        string `json:"resume,omitempty"` // the checkpoint that it goes on from
	Devices       string `json:"devices,omitempty"`
	// Workers caps the processes of each DataLoader.
	Workers int `json:"workers,omitempty"`
	// Fraction caps the caching allocator, to leave room for what is outside it.
	Fraction float64 `json:"fraction,omitempty"`
}

// Attempt is one start of the command.
type Attempt struct {
	N         int        `json:"n"`
	Command   []string   `json:"command"`
	Settings  Settings   `json:"settings"`
	Remedies  []string   `json:"remedies,omitempty"` // codes of what differs from the attempt before
	Predicted *Predicted `json:"predicted,omitempty"`
}

// Predicted is what an attempt was expected to need on its fullest card.
type Predicted struct {
	Low    units.Bytes `json:"low_bytes"`
	Mid    units.Bytes `json:"mid_bytes"`
	High   units.Bytes `json:"high_bytes"`
	Source string      `json:"source"` // calibration, attempts, engine
	// Reserved is the most that the allocator may reserve, where that is known
	// apart from what is allocated.
	Reserved units.Bytes `json:"reserved_high_bytes,omitempty"`
}

// Measured is what an attempt was seen to need on its fullest card. Nil: not
// known.
type Measured struct {
	PeakAllocated *units.Bytes `json:"peak_allocated_bytes,omitempty"`
	PeakReserved  *units.Bytes `json:"peak_reserved_bytes,omitempty"`
	Floor         *units.Bytes `json:"allocated_after_step_bytes,omitempty"`
	Capacity      *units.Bytes `json:"capacity_bytes,omitempty"`
	Tried         *units.Bytes `json:"tried_bytes,omitempty"`
	Free          *units.Bytes `json:"free_bytes,omitempty"`
	Retries       int64        `json:"alloc_retries,omitempty"`
	Steps         int64        `json:"steps"`
	StepTimeUs    int64        `json:"step_time_us,omitempty"`
}

// Ended is how an attempt ended.
type Ended struct {
	N          int       `json:"n"`
	Status     int       `json:"status"` // as a shell shows it
	Outcome    string    `json:"outcome"`
	Source     string    `json:"source,omitempty"` // which evidence decided
	Evidence   []string  `json:"evidence,omitempty"`
	Phase      string    `json:"phase,omitempty"`
	Rank       *int      `json:"rank,omitempty"`
	Measured   *Measured `json:"measured,omitempty"`
	DurationMs int64     `json:"duration_ms"`
	Swept      int       `json:"swept,omitempty"` // processes that had to be ended
	Stuck      []int     `json:"stuck,omitempty"` // and those that would not end
	Failed     []Check   `json:"failed_checks,omitempty"`
	// Engine is what the memory engine says of the attempt's settings, whatever
	// the decision for them rested on; nil where the workload is not known.
	Engine   *Predicted `json:"engine,omitempty"`
	Snapshot string     `json:"snapshot,omitempty"` // of the allocator when memory ran out
}

// Check is a counter that is not what it must be after a restart.
type Check struct {
	What string `json:"what"` // rows_of_a_step, resumed_step
	Want int64  `json:"want"`
	Got  int64  `json:"got"`
}

// Decision is what follows an attempt.
type Decision struct {
	Action   string   `json:"action"` // done, retry, stop, give_up, wait
	Why      string   `json:"why"`    // a message id
	Args     []string `json:"args,omitempty"`
	Remedies []string `json:"remedies,omitempty"`
}

// End is how a run ended.
type End struct {
	Status   int    `json:"status"`
	Outcome  string `json:"outcome"`
	Attempts int    `json:"attempts"`
	Next     string `json:"next,omitempty"` // the file with the plan for the next run
}

// Lost is written by the keeper of a supervisor that was killed.
type Lost struct {
	Swept int   `json:"swept"`
	Stuck []int `json:"stuck,omitempty"`
}
