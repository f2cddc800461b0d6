package export

import (
	"encoding/csv"
	"io"
	"slices"
	"strconv"

	"unoom/internal/alloc"
	"unoom/internal/lives"
)

// WriteCSV writes one line for each event of the views: what happened, what was
// allocated and reserved after it, and, where it began or ended the life of a
// tensor, what that was and where it was asked for.
func WriteCSV(w io.Writer, views []View) error {
	out := csv.NewWriter(w)
	err := out.Write([]string{
		"gpu", "event", "time_us", "action", "address", "bytes", "stream", "allocated_bytes", "reserved_bytes",
		"kind", "phase", "step", "place",
	})
	for i := range views {
		if err == nil {
			err = views[i].csv(out)
		}
	}
	out.Flush()
	if err != nil {
		return err
	}
	return out.Error()
}

func (v *View) csv(out *csv.Writer) error {
	h := v.History
	born, freed := make([]int32, len(h.Events)), make([]int32, len(h.Events)) // tensors, and one
	for i := range h.Tensors {
		t := &h.Tensors[i]
		if t.Born >= 0 {
			born[t.Born] = int32(i) + 1
		}
		if t.Freed != lives.Never {
			freed[t.Freed] = int32(i) + 1
		}
	}
	places := map[uint32]string{}
	allocated, reserved := h.Start, h.StartReserved
	for i := range h.Tensors {
		if t := &h.Tensors[i]; t.Born == lives.Before {
			allocated += v.bytes(t) - t.Bytes
		}
	}
	for i := range h.Events {
		e := &h.Events[i]
		id := max(born[i], freed[i])
		kind, place := "", ""
		if id > 0 {
			t := &h.Tensors[id-1]
			if born[i] > 0 {
				allocated += v.bytes(t)
			}
			if freed[i] > 0 {
				allocated -= v.bytes(&h.Tensors[freed[i]-1])
			}
			kind = t.Kind.String()
			p, known := places[t.Stack]
			if !known {
				p = h.PlaceOf(t.Stack).String()
				places[t.Stack] = p
			}
			place = p
		}
		switch e.Action {
		case alloc.SegmentAlloc, alloc.SegmentMap:
			reserved += e.Size
		case alloc.SegmentFree, alloc.SegmentUnmap:
			reserved -= e.Size
		}
		step, _ := slices.BinarySearch(h.Steps.Ends, int32(i))
		address := "0x" + strconv.FormatUint(e.Addr, 16)
		if e.Action == alloc.OOM || e.Action == alloc.Snapshot {
			address = ""
		}
		err := out.Write([]string{
			strconv.Itoa(h.Device), strconv.Itoa(i), strconv.FormatInt(e.TimeUs, 10), e.Action.String(), address,
			strconv.FormatInt(e.Size, 10), strconv.FormatUint(e.Stream, 10),
			strconv.FormatInt(allocated, 10), strconv.FormatInt(reserved, 10),
			kind, h.PhaseAt(int32(i)).String(), strconv.Itoa(step), place,
		})
		if err != nil {
			return err
		}
	}
	return nil
}
