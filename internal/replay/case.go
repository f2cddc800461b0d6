// Package replay runs the caching allocator on the trace of a memory snapshot:
// once as it was, to prove that the simulation is exact, and then as it would
// have been with other settings, another version, or another card.
//
// A trace is a ring buffer that seldom begins with an empty allocator, so the
// state before its first event is first rebuilt (Rewind). Check then compares
// every event and the final layout; WhatIf serves the same requests under other
// rules. What had to be deduced or assumed is counted and named, never hidden.
//
// Invariants: nothing here reads a clock or a file; results depend on the
// snapshot and the question alone. It does not judge who holds the memory: that
// is package diagnose's.
package replay

import (
	"slices"

	"unoom/internal/alloc"
	"unoom/internal/snapshot"
)

// A Case is one device of a snapshot, ready to be replayed.
type Case struct {
	Device   int
	Events   []alloc.Event
	Segments []snapshot.Segment // of this device, by address
	Settings alloc.Settings
	// SettingsKnown says that the file tells the settings; without it they are
	// torch's defaults.
	SettingsKnown bool
	// KeepBytes makes a check keep the size of every block: 8 bytes an event.
	KeepBytes bool
	// Oldest and Newest bound the torch version.
	Oldest, Newest alloc.Version

	pools   func(uint32) alloc.PoolID
	private bool // there are segments of private pools
	tensors
}

// Cases splits a snapshot by device. A device that has neither segments nor
// events has an empty case.
func Cases(s *snapshot.Snapshot) []*Case {
	devices := len(s.Traces)
	for i := range s.Segments {
		devices = max(devices, int(s.Segments[i].Device)+1)
	}
	settings, known := settingsOf(s)
	oldest, newest := versions(s.Torch)
	cases := make([]*Case, devices)
	for d := range cases {
		c := &Case{
			Device: d, Settings: settings, SettingsKnown: known, Oldest: oldest, Newest: newest,
			pools: func(id uint32) alloc.PoolID { return alloc.PoolID(s.Pool(id)) },
		}
		if d < len(s.Traces) {
			c.Events = s.Traces[d].Events
		}
		for _, seg := range s.Segments {
			if int(seg.Device) == d {
				c.Segments = append(c.Segments, seg)
				c.private = c.private || alloc.PoolID(s.Pool(seg.Pool)) != alloc.PoolID{}
			}
		}
		slices.SortStableFunc(c.Segments, func(a, b snapshot.Segment) int {
			switch {
			case a.Address < b.Address:
				return -1
			case a.Address > b.Address:
				return 1
			}
			return 0
		})
		if !known {
			for i := range c.Segments {
				// A file that does not tell its settings tells this one.
				c.Settings.ExpandableSegments = c.Settings.ExpandableSegments || c.Segments[i].Expandable
			}
		}
		c.number()
		cases[d] = c
	}
	return cases
}

// versions translates the range of a file; an open end is the newest version
// that the allocator knows.
func versions(r snapshot.Range) (oldest, newest alloc.Version) {
	oldest, newest = alloc.Version(r.Oldest), alloc.Version(r.Newest)
	if newest == (alloc.Version{}) {
		newest = alloc.Latest()
	}
	if newest.Before(oldest) {
		newest = oldest
	}
	return oldest, newest
}

// settingsOf reads the allocator settings of a snapshot. What the file holds as
// a value is taken from there; the rest, from the string that was parsed last.
func settingsOf(s *snapshot.Snapshot) (alloc.Settings, bool) {
	set := alloc.Defaults()
	if s.Settings == nil {
		return set, false
	}
	_, newest := versions(s.Torch)
	if parsed, err := alloc.ParseConf(s.Settings.Conf, newest, set); err == nil {
		set = parsed
	}
	set.ExpandableSegments = s.Settings.ExpandableSegments
	set.GCThreshold = s.Settings.GCThreshold
	set.MaxSplitSize = alloc.Unlimited
	if s.Settings.MaxSplitSize >= 0 {
		set.MaxSplitSize = s.Settings.MaxSplitSize
	}
	for i, d := range s.Settings.Roundup {
		set.RoundupPower2Divisions[i] = uint64(max(d, 0))
	}
	return set.Normal(), true
}
