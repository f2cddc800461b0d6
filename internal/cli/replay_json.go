package cli

import (
	"unoom/internal/alloc"
	"unoom/internal/replay"
)

// The types of unoom/replay/v1. Within the version only additions.

type replayData struct {
	Events      int             `json:"events"`
	Mismatches  *int            `json:"mismatches"` // null if no allocator made the trace
	Reproduced  bool            `json:"reproduced"`
	Torch       string          `json:"torch"`
	AllocConf   *string         `json:"alloc_conf"` // of the recording; null if the file does not tell
	Question    *replayAsked    `json:"question"`   // null: the recording itself
	Devices     []replayDevice  `json:"devices"`
	Assumptions []replayAssumed `json:"assumptions"`
}

type replayAsked struct {
	AllocConf     *string `json:"alloc_conf"`
	Torch         string  `json:"torch"`
	GPU           *string `json:"gpu"`
	CapacityBytes *int64  `json:"capacity_bytes"`
	OutsideBytes  *int64  `json:"outside_bytes"`
}

type replayAssumed struct {
	Code   string `json:"code"`
	Device int    `json:"device"`
	Bytes  *int64 `json:"bytes,omitempty"`
	Count  *int   `json:"count,omitempty"`
}

// replayDevice has, at its top, the figures of what was asked: the recording,
// or the what-if; in the latter case the recording is in recorded.
type replayDevice struct {
	Device     int  `json:"device"`
	Events     int  `json:"events"`
	Checked    int  `json:"events_checked"`
	Replayed   bool `json:"replayed"`
	Reproduced bool `json:"reproduced"`
	Mismatches *int `json:"mismatches"`
	replayFigures
	FinalAllocated int64            `json:"final_allocated_bytes"`
	FinalReserved  int64            `json:"final_reserved_bytes"`
	FinalActive    int64            `json:"final_active_bytes"`
	Segments       int              `json:"segments"`
	Blocks         int              `json:"blocks"`
	Deduced        int              `json:"start_blocks_deduced"`
	InDoubt        int              `json:"start_blocks_in_doubt"`
	InDoubtBytes   int64            `json:"start_in_doubt_bytes"`
	Usable         *int64           `json:"usable_bytes"` // of the card, by the trace or the question
	Why            []replayWhy      `json:"why_not"`
	Differences    []replayDiffer   `json:"differences"`
	Misfits        []replayMisfit   `json:"misfits"`
	Recorded       *replayFigures   `json:"recorded,omitempty"`
	Failure        *replayFailure   `json:"first_failure,omitempty"`
	Sweep          []replaySweepRow `json:"sweep,omitempty"`
}

type replayFigures struct {
	PeakAllocated  *int64 `json:"peak_allocated_bytes"`
	PeakReserved   *int64 `json:"peak_reserved_bytes"`
	PeakActive     *int64 `json:"peak_active_bytes"`
	StartAllocated *int64 `json:"start_allocated_bytes"`
	StartReserved  *int64 `json:"start_reserved_bytes"`
	OOMs           int    `json:"ooms"`
	Saved          int    `json:"ooms_survived"`
	StartOOMs      int    `json:"start_ooms"`
	Retries        int64  `json:"alloc_retries"`
	DeviceAllocs   int64  `json:"device_allocs"`
	DeviceFrees    int64  `json:"device_frees"`
}

type replayWhy struct {
	Code  string `json:"code"`
	Event *int   `json:"event"`
	Count int    `json:"count"`
}

type replayDiffer struct {
	Event int          `json:"event"`
	Code  string       `json:"code"`
	Trace *replayEvent `json:"trace"`
	Sim   *replayEvent `json:"simulation"`
}

type replayEvent struct {
	Action string `json:"action"`
	Addr   uint64 `json:"addr"`
	Bytes  int64  `json:"size_bytes"`
	Stream uint64 `json:"stream"`
}

type replayMisfit struct {
	Addr     uint64 `json:"addr"`
	Snapshot *int64 `json:"snapshot_size_bytes"`
	Sim      *int64 `json:"simulation_size_bytes"`
}

type replayFailure struct {
	Event     int   `json:"event"`
	Requested int64 `json:"requested_bytes"`
	Tried     int64 `json:"tried_bytes"`
	Allocated int64 `json:"allocated_bytes"`
	Reserved  int64 `json:"reserved_bytes"`
	Free      int64 `json:"free_bytes"`
}

type replaySweepRow struct {
	AllocConf string `json:"alloc_conf"`
	Recorded  bool   `json:"recorded"`
	replayFigures
}

func replayJSON(devices []*replayed, q *replayQuestion) replayData {
	total := 0
	data := replayData{Reproduced: true, Mismatches: &total, Devices: []replayDevice{}, Assumptions: []replayAssumed{}}
	for _, d := range devices {
		data.Events += len(d.Events)
		if len(d.Events) > 0 || data.Torch == "" {
			data.Torch = d.check.Torch.String()
		}
		if d.SettingsKnown {
			conf := d.Case.Settings.Conf()
			data.AllocConf = &conf
		}
		if d.check.Reproducible {
			total += d.check.Mismatches()
		} else {
			data.Mismatches, data.Reproduced = nil, false
		}
		data.Devices = append(data.Devices, deviceJSON(d))
		for _, s := range d.assumptions(q) {
			data.Assumptions = append(data.Assumptions, replayAssumed{s.code, d.Device, s.bytes, s.count})
		}
	}
	data.Reproduced = data.Reproduced && total == 0
	if q.asked && len(devices) > 0 {
		data.Question = askedJSON(q, devices)
	}
	return data
}

func askedJSON(q *replayQuestion, devices []*replayed) *replayAsked {
	out := &replayAsked{}
	if q.confSet {
		out.AllocConf = &q.conf
	}
	for _, d := range devices {
		if d.answer != nil {
			out.Torch = d.ask.Torch.String()
		}
	}
	if q.capacity > 0 {
		capacity, outside := int64(q.capacity), int64(q.outside)
		out.CapacityBytes, out.OutsideBytes = &capacity, &outside
		if q.card != "" {
			out.GPU = &q.card
		}
	}
	return out
}

func deviceJSON(d *replayed) replayDevice {
	r := d.check
	out := replayDevice{
		Device: d.Device, Events: len(d.Events), Checked: r.Checked, Replayed: r.Reproducible && len(d.Events) > 0,
		Reproduced: r.Reproducible && r.Mismatches() == 0,
		Segments:   len(d.Segments), Deduced: r.Start.Deduced, InDoubt: r.Start.InDoubt, InDoubtBytes: r.Start.InDoubtBytes,
		Why: []replayWhy{}, Differences: []replayDiffer{}, Misfits: []replayMisfit{},
	}
	for i := range d.Segments {
		s := &d.Segments[i]
		out.Blocks += len(s.Blocks)
		out.FinalReserved += s.Total
		out.FinalAllocated += s.Allocated
		out.FinalActive += s.Active
	}
	recorded := recordedFigures(d)
	out.replayFigures = recorded
	if r.Reproducible {
		n := r.Mismatches()
		out.Mismatches = &n
	}
	for _, w := range r.Why {
		row := replayWhy{Code: w.Code, Count: w.Count}
		if w.Event >= 0 {
			row.Event = &w.Event
		}
		out.Why = append(out.Why, row)
	}
	for i := range r.Differences {
		x := &r.Differences[i]
		out.Differences = append(out.Differences, replayDiffer{x.Event, x.Code(), eventJSON(x.Want), eventJSON(x.Got)})
	}
	for _, m := range r.Misfits {
		out.Misfits = append(out.Misfits, replayMisfit{m.Addr, positive(m.Want.Size), positive(m.Got.Size)})
	}
	out.Usable = positive(d.ask.Capacity)
	if d.answer != nil {
		out.Recorded = &recorded
		out.replayFigures = answerFigures(d.answer)
		if e := d.answer.FirstErr; e != nil {
			out.Failure = &replayFailure{d.answer.FirstOOM, e.Requested, e.Tried, e.Allocated, e.Reserved, e.Free}
		}
	}
	for _, t := range d.trials {
		out.Sweep = append(out.Sweep, replaySweepRow{t.Conf, t.Recorded, answerFigures(t.Answer)})
	}
	return out
}

// recordedFigures are those of the trace itself: unknown if no allocator made
// it.
func recordedFigures(d *replayed) replayFigures {
	r := d.check
	if !r.Reproducible {
		return replayFigures{OOMs: countActions(d.Events, alloc.OOM)}
	}
	return replayFigures{
		PeakAllocated: &r.Peaks.Allocated, PeakReserved: &r.Peaks.Reserved, PeakActive: &r.Peaks.Active,
		StartAllocated: &r.Begin.Allocated, StartReserved: &r.Begin.Reserved,
		OOMs: r.OOMs, Retries: r.Stats.NumAllocRetries,
		DeviceAllocs: int64(countActions(d.Events, alloc.SegmentAlloc) + countActions(d.Events, alloc.SegmentMap)),
		DeviceFrees:  int64(countActions(d.Events, alloc.SegmentFree) + countActions(d.Events, alloc.SegmentUnmap)),
	}
}

func answerFigures(a *replay.Answer) replayFigures {
	return replayFigures{
		PeakAllocated: &a.Peaks.Allocated, PeakReserved: &a.Peaks.Reserved, PeakActive: &a.Peaks.Active,
		StartAllocated: &a.Start.Allocated, StartReserved: &a.Start.Reserved,
		OOMs: a.OOMs, Saved: a.Saved, StartOOMs: a.StartOOMs, Retries: a.Stats.NumAllocRetries,
		DeviceAllocs: a.DeviceAllocs, DeviceFrees: a.Stats.NumDeviceFree,
	}
}

func countActions(events []alloc.Event, action alloc.Action) int {
	n := 0
	for i := range events {
		if events[i].Action == action {
			n++
		}
	}
	return n
}

func eventJSON(e alloc.Event) *replayEvent {
	if e == (alloc.Event{}) {
		return nil
	}
	return &replayEvent{e.Action.String(), e.Addr, e.Size, e.Stream}
}

// positive returns nil for 0, which stands for "not there".
func positive(n int64) *int64 {
	if n <= 0 {
		return nil
	}
	return &n
}
