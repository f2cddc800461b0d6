package cli

import (
	"strconv"

	"unoom/internal/diagnose"
	"unoom/internal/lives"
	"unoom/internal/units"
)

// snapshotItem is what `data.snapshot` of unoom/explain/v1 adds for a memory
// snapshot. Keys are only added.
type snapshotItem struct {
	File          string       `json:"file"`
	TorchOldest   string       `json:"torch_oldest"`
	TorchNewest   *string      `json:"torch_newest"`
	Device        int          `json:"device"`
	Devices       []deviceItem `json:"devices"`
	Events        int          `json:"events"`
	Steps         int          `json:"whole_steps"`
	StepsBy       string       `json:"steps_by,omitempty"`
	AllocConf     *string      `json:"alloc_conf"`
	Reproducible  bool         `json:"reproducible"`
	Mismatches    int          `json:"mismatches"`
	PeakAllocated units.Bytes  `json:"peak_allocated_bytes"`
	PeakReserved  units.Bytes  `json:"peak_reserved_bytes"`
	PeaksExact    bool         `json:"peaks_exact"`

	Moment  momentItem             `json:"moment"`
	Kinds   map[string]units.Bytes `json:"kinds"`
	Holders []holderItem           `json:"holders"`
	Labels  []labelItem            `json:"labels"`
	Growth  []growthItem           `json:"growth"`
	Pieces  piecesItem             `json:"fragmentation"`
	Request *requestItem           `json:"failed_request"`
	Replays []trialItem            `json:"replayed"`
	Stacks  map[string][]stackItem `json:"stacks"`
}

type deviceItem struct {
	Device        int         `json:"device"`
	Events        int         `json:"events"`
	OOMs          int         `json:"ooms"`
	Allocated     units.Bytes `json:"final_allocated_bytes"`
	Reserved      units.Bytes `json:"final_reserved_bytes"`
	PeakAllocated units.Bytes `json:"peak_allocated_bytes"`
	PeakReserved  units.Bytes `json:"peak_reserved_bytes"`
}

type momentItem struct {
	Kind      string       `json:"kind"` // oom, peak or state
	Event     int32        `json:"event"`
	TimeUs    *int64       `json:"time_us"`
	Phase     string       `json:"phase,omitempty"`
	Allocated units.Bytes  `json:"allocated_bytes"`
	Reserved  units.Bytes  `json:"reserved_bytes"`
	Free      *units.Bytes `json:"device_free_bytes"`
}

type placeItem struct {
	File string `json:"file,omitempty"`
	Line int    `json:"line,omitempty"`
	Func string `json:"func,omitempty"`
	Op   string `json:"op,omitempty"`
}

type holderItem struct {
	placeItem
	Kind  string      `json:"kind"`
	Phase string      `json:"phase,omitempty"`
	Bytes units.Bytes `json:"bytes"`
	Count int         `json:"count"`
	Stack *uint32     `json:"stack"` // key of stacks
}

type labelItem struct {
	Name  string      `json:"name"`
	Bytes units.Bytes `json:"bytes"`
	Count int         `json:"count"`
}

type growthItem struct {
	placeItem
	Kind    string      `json:"kind"`
	Held    []int64     `json:"held_bytes"`
	PerStep units.Bytes `json:"per_step_bytes"`
	Rises   int         `json:"rises"`
	ByStep  bool        `json:"by_step"`
	Stack   *uint32     `json:"stack"`
}

type piecesItem struct {
	Segments     int          `json:"segments"`
	Cached       units.Bytes  `json:"unallocated_bytes"`
	Whole        units.Bytes  `json:"releasable_bytes"`
	Stuck        units.Bytes  `json:"pinned_bytes"`
	Largest      units.Bytes  `json:"largest_free_bytes"`
	Reachable    *units.Bytes `json:"largest_reachable_bytes"`
	OtherStreams units.Bytes  `json:"other_streams_bytes"`
	PrivatePools units.Bytes  `json:"private_pools_bytes"`
	Pinned       []pinnedItem `json:"pinned_segments"`
}

type pinnedItem struct {
	Address uint64      `json:"address"`
	Total   units.Bytes `json:"total_bytes"`
	Free    units.Bytes `json:"free_bytes"`
	Held    units.Bytes `json:"held_bytes"`
	Blocks  int         `json:"blocks"`
	placeItem
	Kind  string  `json:"kind"`
	Stack *uint32 `json:"stack"`
}

type requestItem struct {
	Bytes   units.Bytes `json:"bytes"`
	Free    units.Bytes `json:"device_free_bytes"`
	Event   int32       `json:"event"`
	Phase   string      `json:"phase,omitempty"`
	Repeats int         `json:"repeats"`
	placeItem
	Stack *uint32 `json:"stack"`
}

type trialItem struct {
	Conf         string      `json:"alloc_conf"`
	Recorded     bool        `json:"recorded"`
	PeakReserved units.Bytes `json:"peak_reserved_bytes"`
	OOMs         int         `json:"ooms"`
}

type stackItem struct {
	Name string `json:"name"`
	File string `json:"file,omitempty"`
	Line int    `json:"line,omitempty"`
}

// stacksKept bounds how many stacks the JSON carries in full.
const stacksKept = 50

func placeItemOf(p lives.Place) placeItem { return placeItem{p.File, p.Line, p.Func, p.Op} }

// heldJSON is what a snapshot adds to the explanation.
func heldJSON(s namedSnapshot, h *diagnose.Held) *snapshotItem {
	item := &snapshotItem{
		File: s.name, TorchOldest: s.Torch.Oldest.String(), Device: h.Device, Events: len(h.History.Events),
		Steps: h.History.Steps.Whole(), StepsBy: h.History.Steps.By,
		Reproducible: h.Check.Reproducible, Mismatches: h.Check.Mismatches(),
		PeakAllocated: h.PeakAllocated, PeakReserved: h.PeakReserved, PeaksExact: h.Exact,
		Moment: momentItem{
			Kind: h.Moment.Kind, Event: h.Moment.Event, Phase: h.Moment.Phase.String(),
			Allocated: h.Moment.Allocated, Reserved: h.Moment.Reserved,
		},
		Kinds: map[string]units.Bytes{}, Devices: []deviceItem{}, Holders: []holderItem{}, Labels: []labelItem{}, Growth: []growthItem{},
		Replays: []trialItem{}, Stacks: map[string][]stackItem{},
	}
	if newest := s.Torch.Newest; newest.Major > 0 {
		text := newest.String()
		item.TorchNewest = &text
	}
	if s.Settings != nil {
		item.AllocConf = &s.Settings.Conf
	}
	if h.Moment.Free >= 0 {
		item.Moment.Free = &h.Moment.Free
	}
	if e := h.Moment.Event; e >= 0 && h.History.Events[e].TimeUs > 0 {
		item.Moment.TimeUs = &h.History.Events[e].TimeUs
	}
	for k, b := range h.Kinds {
		if b > 0 {
			item.Kinds[lives.Kind(k).String()] = units.Bytes(b)
		}
	}
	for _, d := range h.Devices {
		item.Devices = append(item.Devices, deviceItem{d.Device, d.Events, d.OOMs, d.Allocated, d.Reserved, d.PeakAllocated, d.PeakMost})
	}
	for _, x := range h.Holders {
		item.Holders = append(item.Holders, holderItem{
			placeItemOf(x.Place), x.Kind.String(), x.Phase.String(), units.Bytes(x.Bytes), x.Count, item.stack(h, x.Stack),
		})
	}
	for _, l := range h.Labels {
		item.Labels = append(item.Labels, labelItem{l.Name, units.Bytes(l.Bytes), l.Count})
	}
	for _, g := range h.Growth {
		item.Growth = append(item.Growth, growthItem{
			placeItemOf(g.Place), g.Kind.String(), g.Held, units.Bytes(g.PerStep), g.Steps, !g.Forever, item.stack(h, g.Stack),
		})
	}
	p := h.Pieces
	item.Pieces = piecesItem{p.Segments, p.Cached, p.Whole, p.Stuck, p.Largest, nil, p.OtherStreams, p.PrivatePools, []pinnedItem{}}
	for _, pin := range p.Pinned {
		item.Pieces.Pinned = append(item.Pieces.Pinned, pinnedItem{
			pin.Address, pin.Total, pin.Free, pin.Held, pin.Blocks, placeItemOf(pin.Place), pin.Kind.String(), item.stack(h, pin.Stack),
		})
	}
	if r := h.Request; r != nil {
		item.Pieces.Reachable = &h.Pieces.Reachable
		item.Request = &requestItem{r.Bytes, r.Free, r.Event, r.Phase.String(), r.Repeats, placeItemOf(r.Place), item.stack(h, r.Stack)}
	}
	for _, t := range h.Trials {
		item.Replays = append(item.Replays, trialItem{t.Conf, t.Recorded, units.Bytes(t.Peaks.Reserved), t.OOMs + t.StartOOMs})
	}
	return item
}

// stack refers to a stack and writes it down once, up to a bound.
func (item *snapshotItem) stack(h *diagnose.Held, id uint32) *uint32 {
	frames := h.Snapshot.Stack(id)
	if len(frames) == 0 {
		return nil
	}
	key := strconv.FormatUint(uint64(id), 10)
	if _, known := item.Stacks[key]; !known {
		if len(item.Stacks) == stacksKept {
			return nil
		}
		list := []stackItem{}
		for _, f := range frames {
			list = append(list, stackItem{f.Name, f.File, f.Line})
		}
		item.Stacks[key] = list
	}
	return &id
}

// changeJSON is `data` of unoom/explain-change/v1.
type changeJSON struct {
	Before  *snapshotItem      `json:"before"`
	After   *snapshotItem      `json:"after"`
	Kinds   []kindChangeItem   `json:"kinds"`
	Holders []holderChangeItem `json:"holders"`
}

type kindChangeItem struct {
	Kind   string      `json:"kind"`
	Before units.Bytes `json:"before_bytes"`
	After  units.Bytes `json:"after_bytes"`
}

type holderChangeItem struct {
	placeItem
	Kind        string      `json:"kind"`
	Before      units.Bytes `json:"before_bytes"`
	After       units.Bytes `json:"after_bytes"`
	CountBefore int         `json:"before_count"`
	CountAfter  int         `json:"after_count"`
}

func changeJSONOf(a, b namedSnapshot, c *diagnose.Change) changeJSON {
	out := changeJSON{heldJSON(a, c.Before), heldJSON(b, c.After), []kindChangeItem{}, []holderChangeItem{}}
	for _, k := range c.Kinds {
		out.Kinds = append(out.Kinds, kindChangeItem{k.Kind.String(), k.Before, k.After})
	}
	for _, h := range c.Holders {
		out.Holders = append(out.Holders, holderChangeItem{placeItemOf(h.Place), h.Kind.String(), h.Before, h.After, h.CountBefore, h.CountAfter})
	}
	return out
}
