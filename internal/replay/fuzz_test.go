package replay

import (
	"encoding/binary"
	"testing"
	"time"

	"unoom/internal/alloc"
	"unoom/internal/snapshot"
)

// FuzzCheck replays snapshots that nobody wrote: whatever they claim, they get a
// result, in time that their length bounds.
func FuzzCheck(f *testing.F) {
	f.Add([]byte{}, false)
	f.Add([]byte{1, 1, 2, 0, 2, 1, 2, 0, 3, 1, 2, 0, 9, 0, 0, 0}, true)
	f.Add([]byte{4, 0, 5, 0, 1, 0, 5, 0, 2, 0, 5, 0, 5, 0, 5, 0, 16, 0, 5, 3, 17, 1, 4, 1}, false)
	f.Add([]byte{6, 0, 5, 0, 1, 0, 5, 0, 2, 0, 5, 0, 7, 0, 5, 0, 16, 0, 5, 7, 8, 9, 200, 255}, true)
	f.Fuzz(func(t *testing.T, data []byte, expandable bool) {
		s := invented(data)
		s.Settings = &snapshot.Settings{MaxSplitSize: -1, ExpandableSegments: expandable}
		if len(data) > 0 && data[0]%5 == 0 {
			s.Settings.MaxSplitSize = int64(data[0]) << 20
		}
		late := time.AfterFunc(5*time.Second, func() { panic("this takes for ever") })
		defer late.Stop()
		for _, c := range Cases(s) {
			c.KeepBytes = true
			r := c.Check()
			if r.Reproducible && r.Checked > len(c.Events) {
				t.Errorf("%d of %d events were checked", r.Checked, len(c.Events))
			}
			c.Memory()
			c.WhatIf(r, Question{Torch: r.Torch, Settings: c.Settings, Capacity: r.Usable.Bytes()})
			c.WhatIf(r, Question{Torch: alloc.Version{Major: 2, Minor: 4}, Settings: alloc.Defaults(), Capacity: 64 << 20, Fresh: true})
		}
	})
}

// invented makes four bytes into an event or a block.
func invented(data []byte) *snapshot.Snapshot {
	s := &snapshot.Snapshot{Traces: []snapshot.Trace{{}}, Torch: snapshot.Range{Oldest: snapshot.Version{Major: 2, Minor: 1}}}
	for ; len(data) >= 4; data = data[4:] {
		what, where, much := data[0], data[1], int64(data[2])
		addr := 0x7f0000000000 + uint64(where)<<18 + uint64(data[3]&0xf)*512
		size := much * much * 4096
		switch data[3] >> 4 {
		case 1:
			size = much
		case 2:
			size = 20 << 20
		case 3:
			size = 2 << 20
		case 4:
			size = int64(binary.LittleEndian.Uint32(data)) << 31
		case 5:
			addr = ^uint64(0) - uint64(where)*512
		case 6:
			addr = uint64(where)
		case 7:
			size = -much
		}
		if what < 16 {
			e := alloc.Event{Action: alloc.Action(what % 10), Addr: addr, Size: size, Stream: uint64(data[3] & 1)}
			s.Traces[0].Events = append(s.Traces[0].Events, e)
			continue
		}
		if what < 24 || len(s.Segments) == 0 {
			s.Segments = append(s.Segments, snapshot.Segment{Address: addr, Small: what&1 != 0, Expandable: what&2 != 0, Stream: uint64(data[3] & 1)})
		}
		seg := &s.Segments[len(s.Segments)-1]
		seg.Blocks = append(seg.Blocks, snapshot.Block{
			Address: seg.Address + uint64(seg.Total), Size: size, Requested: size - int64(where), State: snapshot.State(what % 4),
		})
		seg.Total += size
	}
	return s
}
