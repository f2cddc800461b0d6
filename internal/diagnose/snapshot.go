package diagnose

import (
	"cmp"
	"slices"
	"strings"

	"unoom/internal/account"
	"unoom/internal/lives"
	"unoom/internal/oomlog"
	"unoom/internal/remedy"
	"unoom/internal/replay"
	"unoom/internal/snapshot"
	"unoom/internal/units"
)

// NoFailure: the evidence is of a run in which nothing failed, such as a memory
// snapshot without an out-of-memory. The causes are what makes its peak.
const NoFailure Verdict = "no_failure"

// A Held is what a memory snapshot tells of one device: who holds the memory at
// the moment that matters, what grows, what is in pieces, and what failed.
type Held struct {
	Diagnosis
	Snapshot *snapshot.Snapshot
	Device   int
	// Devices sums up every device that has anything, this one among them.
	Devices []DeviceSummary
	History *lives.History
	Case    *replay.Case
	// Check says whether the allocator's replay reproduces the trace; its figures
	// are exact where it does.
	Check *replay.Result

	// Moment is what is explained: the failed request, else the peak, else the
	// state of the file.
	Moment Moment
	// PeakAllocated and PeakReserved are the largest within the trace. Exact
	// says that the replay confirms them; otherwise unsplit tails may be missing.
	PeakAllocated, PeakReserved units.Bytes
	Exact                       bool

	// Holders and Labels say who holds what at the moment.
	Holders []lives.Holder
	Labels  []lives.Label
	// Kinds is what each kind holds then.
	Kinds   [lives.Kinds]int64
	Growth  []lives.Growth
	Pieces  Pieces
	Request *Request // that failed; nil if none did
	// Trials are other allocator settings, replayed, with the recorded one.
	Trials []replay.Trial
}

// A DeviceSummary is one line about a device.
type DeviceSummary struct {
	Device                  int
	Events, OOMs            int
	Allocated, Reserved     units.Bytes // at the end
	PeakAllocated, PeakMost units.Bytes // allocated and reserved
}

// A Moment is what is explained.
type Moment struct {
	Kind  string // "oom", "peak" or "state"
	Event int32  // the state after this event; lives.Before is the start
	Phase lives.Phase
	// Allocated, Reserved and Free are the figures then; Free is -1 where the
	// file does not say.
	Allocated, Reserved, Free units.Bytes
}

// A Request is one that failed.
type Request struct {
	Event   int32
	Bytes   units.Bytes // as rounded by the allocator
	Free    units.Bytes // of the device, by cudaMemGetInfo
	Stack   uint32
	Place   lives.Place
	Phase   lives.Phase
	Stream  uint64
	Repeats int // failures in the trace, this one included
}

// Limits of what is kept of lists.
const (
	maxHolders = 200
	maxGrowth  = 50
	// sweepEvents is how long a trace may be for all settings to be replayed; of a
	// longer one only the ones that help most often are.
	sweepEvents = 400_000
)

// Snapshot diagnoses one device of a memory snapshot. device is -1 for the one
// that matters most: where a request failed, else the one with the largest peak.
func Snapshot(s *snapshot.Snapshot, device int, given Given) *Held {
	cases := replay.Cases(s)
	h := &Held{Snapshot: s}
	histories := map[int]*lives.History{}
	for _, c := range cases {
		history := lives.Of(s, c.Device, c.Settings)
		if history.EndReserved == 0 && len(history.Events) == 0 {
			continue
		}
		histories[c.Device] = history
		h.Devices = append(h.Devices, DeviceSummary{
			Device: c.Device, Events: len(history.Events), OOMs: len(history.OOMs),
			Allocated: units.Bytes(history.End), Reserved: units.Bytes(history.EndReserved),
			PeakAllocated: units.Bytes(history.Peak.Allocated), PeakMost: units.Bytes(history.PeakReserved),
		})
	}
	h.Device = device
	if device < 0 && len(h.Devices) > 0 {
		h.Device = slices.MaxFunc(h.Devices, func(a, b DeviceSummary) int {
			return cmp.Or(cmp.Compare(min(a.OOMs, 1), min(b.OOMs, 1)), cmp.Compare(a.PeakAllocated, b.PeakAllocated))
		}).Device
	}
	h.History = histories[h.Device]
	if h.History == nil {
		return h
	}
	h.Case = cases[h.Device]
	h.Check = h.Case.Check()
	h.peaks()
	h.findMoment()
	h.takeStock()
	h.sweep(given)
	h.judge(given)
	return h
}

// Empty reports whether the device has nothing to explain.
func (h *Held) Empty() bool { return h.History == nil }

func (h *Held) peaks() {
	h.PeakAllocated, h.PeakReserved = units.Bytes(h.History.Peak.Allocated), units.Bytes(h.History.PeakReserved)
	if r := h.Check; r.Reproducible && r.Mismatches() == 0 && r.Skipped == 0 && r.Checked == len(h.History.Events) {
		h.Exact = true
		h.PeakAllocated, h.PeakReserved = units.Bytes(r.Peaks.Allocated), units.Bytes(r.Peaks.Reserved)
	}
}

// findMoment chooses what to explain.
func (h *Held) findMoment() {
	history := h.History
	m := Moment{Kind: "peak", Event: history.Peak.Event, Free: -1}
	switch {
	case len(history.OOMs) > 0:
		at := history.OOMs[len(history.OOMs)-1]
		e := history.Events[at]
		m.Kind, m.Event, m.Phase = "oom", at, history.PhaseAt(at)
		h.Request = &Request{
			Event: at, Bytes: units.Bytes(e.Size), Free: units.Bytes(e.Addr), Stack: e.Stack, Stream: e.Stream,
			Place: history.PlaceOf(e.Stack), Phase: m.Phase, Repeats: len(history.OOMs),
		}
		m.Free = h.Request.Free
	case !history.Recorded:
		m.Kind, m.Event = "state", int32(len(history.Events))-1
	default:
		m.Phase = history.PhaseAt(m.Event)
	}
	at := history.At(m.Event)
	m.Allocated, m.Reserved = units.Bytes(at.Allocated), units.Bytes(at.Reserved)
	if m.Kind == "peak" && h.Exact {
		m.Allocated = h.PeakAllocated
	}
	h.Moment = m
}

// takeStock lists who holds what at the moment.
func (h *Held) takeStock() {
	history, m := h.History, h.Moment
	h.Kinds = history.KindsAfter(m.Event)
	h.Holders = history.HoldersAfter(m.Event)
	h.Holders = h.Holders[:min(len(h.Holders), maxHolders)]
	h.Labels = history.LabelsAfter(m.Event)
	h.Growth = history.Growing()
	h.Growth = h.Growth[:min(len(h.Growth), maxGrowth)]
	h.Pieces = h.findPieces()
}

// judge makes the account, the causes and the situation.
func (h *Held) judge(given Given) {
	d := &h.Diagnosis
	d.Verdict, d.Resource = NoFailure, "none"
	if h.Request != nil {
		d.Verdict, d.Resource = OutOfMemory, "vram"
		d.Tried = h.Request.Bytes
		slack := h.Request.Free + h.Pieces.Cached - h.Request.Bytes
		d.Slack = &slack
		if p := h.Request.Place; p.File != "" {
			d.Where = &oomlog.Frame{File: p.File, Line: p.Line, Func: p.Func}
		}
	}
	d.Phase = oomlog.Phase(h.Moment.Phase.String())
	d.Account = h.account(given.Capacity)
	d.Causes = h.causes(given.Capacity > 0)
	d.Notes = h.notes(given)
	d.Situation = h.situation(given)
}

// account says where the memory is at the moment. The parts of PyTorch are exact;
// of the card the file knows only what was free when a request failed.
func (h *Held) account(capacity units.Bytes) *account.Account {
	m := h.Moment
	sums := map[account.Kind]units.Bytes{}
	var rest = m.Allocated
	for k, b := range h.Kinds {
		sums[lives.Kind(k).Account()] += units.Bytes(b)
		rest -= units.Bytes(b)
	}
	sums[account.Allocated] += rest // tails that the requests do not show
	if p := h.privateBytes(); p > 0 && p <= sums[account.Allocated] {
		sums[account.PrivatePools] = p
		sums[account.Allocated] -= p
	}
	var parts []account.Part
	for _, k := range []account.Kind{
		account.Weights, account.Gradients, account.OptimizerState, account.Activations, account.Temporaries,
		account.Allocated, account.PrivatePools,
	} {
		parts = append(parts, account.Part{Kind: k, Bytes: sums[k]})
	}
	// No allocator has more allocated than reserved; a file made by hand may.
	parts = append(parts, account.Part{Kind: account.Cached, Bytes: max(0, m.Reserved-m.Allocated)})
	total := max(m.Reserved, m.Allocated)
	if m.Free >= 0 {
		parts = append(parts, account.Part{Kind: account.Free, Bytes: m.Free})
		total += m.Free
		if capacity > total {
			parts = append(parts, account.Part{Kind: account.OutsideOrOther, Bytes: capacity - total})
		}
	}
	a := account.Balance(h.Device, max(capacity, total), 0, parts)
	return &a
}

// privateBytes is what is allocated in private pools at the end: the events tell
// pools only since torch 2.12.
func (h *Held) privateBytes() units.Bytes {
	if h.Moment.Event+1 < int32(len(h.History.Events)) {
		return 0
	}
	var sum units.Bytes
	for _, seg := range h.Case.Segments {
		if seg.Pool != 0 {
			for _, b := range seg.Blocks {
				if b.State == snapshot.Inactive {
					continue
				}
				sum += units.Bytes(b.Size)
			}
		}
	}
	return sum
}

// situation is what the remedies need to know.
func (h *Held) situation(given Given) remedy.Situation {
	expandable := h.Case.Settings.ExpandableSegments
	sit := remedy.Situation{
		Account: h.Account, Tried: h.Tried, Slack: h.Slack, Phase: remedyPhase(h.Phase), Framework: given.Framework,
		GPU: given.GPU, MicroBatch: given.MicroBatch, Accumulation: given.Accumulation, Sequence: given.Sequence,
		WorldSize: given.WorldSize, DType: given.DType, Optimizer: given.Optimizer, Model: given.Model,
		Checkpointing: given.Checkpointing, Saves: map[remedy.Code]units.Estimate{},
	}
	if h.Case.SettingsKnown {
		sit.ExpandableSegments = &expandable
		sit.AllocatorConf = h.Snapshot.Settings.Conf
	}
	if sit.WorldSize == 0 && h.alone() {
		sit.WorldSize = 1
	}
	yes := true
	if sit.Checkpointing == nil && h.History.Checkpointing {
		sit.Checkpointing = &yes
	}
	if h.History.Compiled {
		sit.Compile = &yes
	}
	if sit.Framework == "" {
		sit.Framework = h.framework()
	}
	for _, c := range h.Causes {
		sit.Causes = append(sit.Causes, remedy.Weighted{Cause: c.Label, Confidence: c.Confidence})
	}
	if grown := h.grown(); grown > 0 {
		// What has grown so far; the next steps would add to it.
		sit.Saves["release.state"], sit.Saves["release.graph"] = units.Exactly(grown), units.Exactly(grown)
	}
	for code, saved := range h.replayedSavings() {
		sit.Saves[code] = units.Exactly(saved)
	}
	return sit
}

// framework tells from the files of the stacks what the training loop is.
func (h *Held) framework() remedy.Framework {
	var facts oomlog.Facts
	last := ""
	for i := range h.Snapshot.Frames() {
		if f := h.Snapshot.Frame(uint32(i)).File; f != last {
			facts = append(facts, oomlog.FrameworksOfFile(strings.ReplaceAll(f, `\`, "/"))...)
			last = f
		}
	}
	return frameworkOf(facts)
}

// alone reports whether the run had one GPU for certain: the process saw no
// other, and its stacks, if any were recorded, show nothing of torch.distributed.
func (h *Held) alone() bool {
	if len(h.Snapshot.Traces) != 1 || h.Snapshot.Stacks() <= 1 {
		return false
	}
	for i := range h.Snapshot.Frames() {
		f := h.Snapshot.Frame(uint32(i))
		file := strings.ReplaceAll(f.File, `\`, "/")
		for _, sign := range []string{"torch/distributed/", "torch/nn/parallel/", "/deepspeed/", "/megatron/", "/horovod/"} {
			if strings.Contains(file, sign) {
				return false
			}
		}
		if strings.Contains(f.Name, "c10d::") || strings.Contains(f.Name, "ncclComm") {
			return false
		}
	}
	return true
}

// notes says what limits the answer.
func (h *Held) notes(given Given) []Sentence {
	var list []Sentence
	say := func(id string, args ...any) { list = append(list, Sentence{ID: "snapshot.note." + id, Args: args}) }
	switch {
	case !h.History.Recorded:
		say("no_history")
	case h.Moment.Kind == "peak" && h.Moment.Event == lives.Before:
		say("peak_at_start")
	}
	if h.Check.Start != nil && h.History.Recorded && h.History.Start > 0 {
		say("mid_run", units.Bytes(h.History.Start))
	}
	if !h.Check.Reproducible {
		say("not_reproducible")
	}
	if h.stackless() {
		say("no_stacks")
	}
	if h.Request != nil && given.Capacity == 0 {
		say("no_capacity")
	}
	return list
}

// stackless reports whether hardly any tensor at the moment has a stack.
func (h *Held) stackless() bool {
	var with, all int64
	for i := range h.History.Tensors {
		t := &h.History.Tensors[i]
		if t.Born != lives.Before {
			all += t.Bytes
			if len(h.Snapshot.FrameIDs(t.Stack)) > 0 {
				with += t.Bytes
			}
		}
	}
	return all > 0 && with < all/10 || all == 0 && h.Snapshot.Stacks() <= 1
}
