package memory

import (
	"slices"

	"unoom/internal/alloc"
	"unoom/internal/workload"
)

// A turn is a place in a machine's log from which on requests come from another
// stream, or where cached memory was given back.
type turn struct {
	at      int
	stream  uint32
	emptied bool
}

// need is what a run asks of one allocator.
type need struct {
	allocated, reserved int64
	failed              error // the first request that the card could not serve
}

// need is what was played.
func (p *played) need() need { return need{p.peak.allocated, p.reserved, p.failed} }

// needOf plays a workload for its need alone.
func needOf(w *workload.Workload, lib library) (need, error) {
	p, err := play(w, lib, 0)
	if err != nil {
		return need{}, err
	}
	defer p.done()
	return p.need(), nil
}

// on is the need of the same run on another allocator: what the program does does
// not depend on where its memory comes from, so its requests are served again in
// their order, and no operation is played. A log that leaves out what recurred on
// its own allocator says nothing about another one: then the run is played.
func (p *played) on(w *workload.Workload, lib library, room int64) (need, error) {
	if p.x.skipped {
		other, err := play(w, lib, room)
		if err != nil {
			return need{}, err
		}
		defer other.done()
		return other.need(), nil
	}
	conf, err := allocatorOf(w, lib)
	if err != nil {
		return need{}, err
	}
	conf.Capacity = room
	return p.x.replay(conf), nil
}

// replay serves the requests of a machine's log.
func (x *machine) replay(conf alloc.Config) need {
	st := newStage()
	defer st.done()
	st.allocator(conf)
	dev := &st.dev
	st.handles = slices.Grow(st.handles[:0], len(x.sts))[:len(x.sts)]
	var out need
	var cur int64
	turns, stream := x.turns, uint32(0)
	for i, e := range x.log {
		for len(turns) > 0 && turns[0].at == i {
			if turns[0].emptied && dev.unbounded {
				dev.a.EmptyCache()
			}
			stream, turns = turns[0].stream, turns[1:]
		}
		if e < 0 {
			h := st.handles[-e-1]
			cur -= dev.a.Size(alloc.Block(h))
			dev.free(h)
			continue
		}
		h, block := dev.malloc(x.sts[e-1].bytes, stream)
		if dev.failed != nil {
			break
		}
		st.handles[e-1] = h
		cur += block
		out.allocated = max(out.allocated, cur)
	}
	out.reserved, out.failed = dev.a.PeakReservedBytes(), dev.failed
	return out
}
