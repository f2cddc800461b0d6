package snapshot

import "slices"

// features are the keys that tell versions of torch apart.
type features struct {
	history        bool // blocks have it: 1.12 to 2.0
	segmentPool    bool // 2.1
	blockAddress   bool // 2.1
	blockRequested bool // 2.0
	entry          bool // there are trace entries at all
	entryTime      bool // 2.2
	entryCompile   bool // 2.8
	entryUser      bool // 2.10
	entryPool      bool // 2.12
	settings       bool // 2.3 or 2.4
	reuseSetting   bool // 2.9
	annotations    bool // 2.5
	traces         bool // 2.0: the file has device_traces
	host           bool // 2.14
}

func (f *features) note(s *shape) {
	has := func(x field) bool { return slices.Contains(s.fields, x) }
	switch s.kind {
	case kindEvent:
		f.entry = true
		f.entryTime = f.entryTime || has(fieldTimeUs)
		f.entryCompile = f.entryCompile || has(fieldCompileContext)
		f.entryUser = f.entryUser || has(fieldUserMetadata)
		f.entryPool = f.entryPool || has(fieldPoolID)
	case kindBlock:
		f.history = f.history || has(fieldHistory)
		f.blockAddress = f.blockAddress || has(fieldAddress)
		f.blockRequested = f.blockRequested || has(fieldRequestedSize)
	case kindSegment:
		f.segmentPool = f.segmentPool || has(fieldSegmentPoolID)
	}
}

// torch deduces the versions that write such a file. Sources: the table in
// docs/snapshots.md, from the history of torch/csrc/cuda/Module.cpp,
// memory_snapshot.cpp and torch/cuda/memory.py.
func (f *features) torch() Range {
	v := func(minor int) Version { return Version{2, minor} }
	r := Range{Oldest: Version{1, 12}}
	atLeast := func(w Version) {
		if r.Oldest.Before(w) {
			r.Oldest = w
		}
	}
	atMost := func(w Version) {
		if (r.Newest == Version{}) || w.Before(r.Newest) {
			r.Newest = w
		}
	}
	oldBlocks := !f.blockAddress && !f.segmentPool
	if f.traces {
		atLeast(v(0))
	}
	if f.blockRequested {
		atLeast(v(0))
	}
	switch {
	case f.segmentPool || f.blockAddress:
		atLeast(v(1))
	case oldBlocks && f.traces && f.history:
		atMost(v(0))
	case oldBlocks && f.history:
		atMost(v(0))
	}
	if f.entry && f.segmentPool {
		if f.entryTime {
			atLeast(v(2))
		} else {
			atMost(v(1))
		}
		switch {
		case f.entryPool:
			atLeast(v(12))
		case f.entryUser:
			atMost(v(11))
		}
		switch {
		case f.entryUser:
			atLeast(v(10))
		case f.entryCompile:
			atMost(v(9))
		}
		if f.entryCompile {
			atLeast(v(8))
		} else {
			atMost(v(7))
		}
	}
	switch {
	case f.settings:
		atLeast(v(3))
		if f.reuseSetting {
			atLeast(v(9)) // a file of November 2025 has it, but no user_metadata
		} else {
			atMost(v(9))
		}
	case f.traces && f.segmentPool && !f.annotations:
		atMost(v(3))
	}
	switch {
	case f.annotations:
		atLeast(v(5))
	case f.settings:
		atMost(v(4))
	}
	if f.host {
		atLeast(v(14))
	}
	if r.Newest != (Version{}) && r.Newest.Before(r.Oldest) {
		// A hand-made mixture: the newest key says what it imitates.
		r.Newest = r.Oldest
	}
	return r
}
