package export

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"strconv"

	"unoom/internal/alloc"
	"unoom/internal/lives"
	"unoom/internal/units"
)

// The tracks of a device, as threads of a process.
const (
	trackPhases = 1
	trackSteps  = 2
	trackRanges = 3
)

// shownTensors is the share of the peak from which on a tensor's life is drawn as
// a bar of its own.
const shownTensors = 0.01

// WritePerfetto writes Chrome's trace events, which ui.perfetto.dev and
// chrome://tracing open: counters of what is allocated, by kind, and reserved;
// the phases, steps and user ranges as tracks; the lives of the largest tensors;
// failed requests. Times are those of the file in µs or, without any, the numbers
// of the events.
func WritePerfetto(w io.Writer, views []View) error {
	t := &tracing{w: bufio.NewWriterSize(w, 1<<16)}
	t.text(`{"displayTimeUnit":"ms","otherData":{"exporter":"unoom"},"traceEvents":[`)
	for i := range views {
		t.device(&views[i])
	}
	t.text("\n]}\n")
	if t.err != nil {
		return t.err
	}
	return t.w.Flush()
}

type tracing struct {
	w     *bufio.Writer
	err   error
	comma bool
}

func (t *tracing) text(s string) {
	if t.err == nil {
		_, t.err = t.w.WriteString(s)
	}
}

// event writes one trace event.
func (t *tracing) event(e map[string]any) {
	if t.err != nil {
		return
	}
	data, err := json.Marshal(e)
	if err != nil {
		t.err = err
		return
	}
	t.separate()
	_, t.err = t.w.Write(data)
}

func (t *tracing) separate() {
	if t.comma {
		t.text(",")
	}
	t.comma = true
	t.text("\n")
}

// counter writes a value of a counter; there are many, so by hand.
func (t *tracing) counter(pid int, name string, ts, bytes int64) {
	t.separate()
	t.text(`{"ph":"C","pid":` + strconv.Itoa(pid) + `,"name":"` + name + `","ts":` + strconv.FormatInt(ts, 10) +
		`,"args":{"bytes":` + strconv.FormatInt(bytes, 10) + `}}`)
}

func (t *tracing) device(v *View) {
	h := v.History
	pid := h.Device
	timed := firstTime(h) > 0
	at := func(event int) int64 {
		event = min(max(event, 0), len(h.Events)-1)
		if !timed || event < 0 {
			return int64(event)
		}
		return h.Events[event].TimeUs
	}
	t.name(pid, 0, "process_name", "GPU "+strconv.Itoa(pid))
	t.name(pid, trackPhases, "thread_name", "phases")
	t.name(pid, trackSteps, "thread_name", "steps")
	t.name(pid, trackRanges, "thread_name", "user ranges")
	v.sums(func(event int, kind lives.Kind, allocated [lives.Kinds]int64, total int64) {
		t.counter(pid, "allocated: "+kind.String(), at(event), allocated[kind])
		t.counter(pid, "allocated", at(event), total)
	})
	reserved := h.StartReserved
	t.counter(pid, "reserved", at(0), reserved)
	for i := range h.Events {
		e := &h.Events[i]
		switch e.Action {
		case alloc.SegmentAlloc, alloc.SegmentMap:
			reserved += e.Size
		case alloc.SegmentFree, alloc.SegmentUnmap:
			reserved -= e.Size
		case alloc.OOM:
			t.event(map[string]any{
				"ph": "i", "s": "p", "pid": pid, "tid": trackPhases, "ts": at(i),
				"name": "out of memory: " + units.Bytes(e.Size).String(),
				"args": map[string]any{"requested_bytes": e.Size, "device_free_bytes": e.Addr},
			})
			continue
		default:
			continue
		}
		t.counter(pid, "reserved", at(i), reserved)
	}
	for i := 0; i < len(h.Events); {
		j, phase := i, h.PhaseAt(int32(i))
		for j < len(h.Events) && h.PhaseAt(int32(j)) == phase {
			j++
		}
		if name := phase.String(); name != "" {
			t.slice(pid, trackPhases, name, at(i), at(j)-at(i), nil)
		}
		i = j
	}
	from := 0
	for n, end := range h.Steps.Ends {
		t.slice(pid, trackSteps, "step "+strconv.Itoa(n), at(from), at(int(end))-at(from), nil)
		from = int(end) + 1
	}
	for _, a := range h.Snapshot.Annotations {
		if int(a.Device) != pid || !timed {
			continue
		}
		ph := "E"
		if a.Start {
			ph = "B"
		}
		t.event(map[string]any{"ph": ph, "pid": pid, "tid": trackRanges, "ts": a.TimeUs, "name": a.Name})
	}
	t.lives(v, pid, at)
}

// lives draws the lives of the largest tensors.
func (t *tracing) lives(v *View, pid int, at func(int) int64) {
	h := v.History
	least := max(int64(shownTensors*float64(h.Peak.Allocated)), 1)
	for i := range h.Tensors {
		x := &h.Tensors[i]
		n := v.bytes(x)
		if n < least {
			continue
		}
		to := len(h.Events) - 1
		if x.Freed != lives.Never {
			to = int(x.Freed)
		}
		id := fmt.Sprintf("%d.%d", pid, i)
		name := x.Kind.String() + " " + units.Bytes(n).String()
		common := map[string]any{"pid": pid, "cat": "tensor", "id": id, "name": name}
		begin := map[string]any{"ph": "b", "ts": at(int(x.Born)), "args": map[string]any{
			"bytes": n, "kind": x.Kind.String(), "place": h.PlaceOfTensor(x).String(), "address": fmt.Sprintf("%#x", x.Addr),
		}}
		end := map[string]any{"ph": "e", "ts": at(to)}
		for k, value := range common {
			begin[k], end[k] = value, value
		}
		t.event(begin)
		t.event(end)
	}
}

func (t *tracing) name(pid, tid int, what, name string) {
	t.event(map[string]any{"ph": "M", "pid": pid, "tid": tid, "name": what, "args": map[string]any{"name": name}})
}

func (t *tracing) slice(pid, tid int, name string, ts, duration int64, args map[string]any) {
	e := map[string]any{"ph": "X", "pid": pid, "tid": tid, "name": name, "ts": ts, "dur": max(duration, 1)}
	if args != nil {
		e["args"] = args
	}
	t.event(e)
}
