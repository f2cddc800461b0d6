package replay

import (
	"cmp"
	"slices"

	"unoom/internal/alloc"
	"unoom/internal/snapshot"
)

// Record runs a program on a simulated allocator and returns what torch would
// have dumped at its end: the trace of every event, and the final layout. The
// program uses the default pool alone.
func Record(c alloc.Config, program func(*alloc.Allocator)) *snapshot.Snapshot {
	var events []alloc.Event
	c.Record = func(e alloc.Event) { events = append(events, e) }
	a := alloc.New(c)
	program(a)
	set := c.Settings.Normal()
	settings := &snapshot.Settings{
		Conf: set.Conf(), MaxSplitSize: -1, GCThreshold: set.GCThreshold, ExpandableSegments: set.ExpandableSegments,
	}
	if set.MaxSplitSize != alloc.Unlimited {
		settings.MaxSplitSize = set.MaxSplitSize
	}
	for i, d := range set.RoundupPower2Divisions {
		settings.Roundup[i] = int64(d)
	}
	return &snapshot.Snapshot{
		Torch:    snapshot.Range{Oldest: snapshot.Version(c.Torch), Newest: snapshot.Version(c.Torch)},
		Segments: layout(a, []alloc.PoolID{{}}),
		Traces:   []snapshot.Trace{{Events: events}},
		Settings: settings,
	}
}

// layout reads the segments off an allocator, as torch's snapshot does: each run
// of mapped memory is a segment. pools gives the private pools their numbers.
func layout(a *alloc.Allocator, pools []alloc.PoolID) []snapshot.Segment {
	var pieces []alloc.Piece
	a.Walk(func(p alloc.Piece) { pieces = append(pieces, p) })
	slices.SortFunc(pieces, func(a, b alloc.Piece) int { return cmp.Compare(a.Addr, b.Addr) })
	var out []snapshot.Segment
	open := false
	for _, p := range pieces {
		if p.State == alloc.Unmapped {
			open = false
			continue
		}
		if !open || p.First {
			out = append(out, snapshot.Segment{
				Address: p.Addr, Stream: p.Stream, Small: p.Small, Expandable: p.Expands,
				Pool: uint32(max(slices.Index(pools, p.Pool), 0)),
			})
			open = true
		}
		s := &out[len(out)-1]
		s.Total += p.Size
		if p.State != alloc.Inactive {
			s.Active += p.Size
			s.Requested += p.Requested
		}
		if p.State == alloc.Active {
			s.Allocated += p.Size
		}
		s.Blocks = append(s.Blocks, snapshot.Block{
			Address: p.Addr, Size: p.Size, Requested: p.Requested, State: snapshot.State(p.State),
		})
	}
	return out
}
