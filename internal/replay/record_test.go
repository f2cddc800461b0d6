package replay

import (
	"slices"
	"testing"

	"pgregory.net/rapid"

	"unoom/internal/alloc"
	"unoom/internal/snapshot"
)

// recording is a random run of the allocator, as a snapshot would hold it.
type recording struct {
	config   alloc.Config
	events   []alloc.Event
	segments []snapshot.Segment
	pools    []alloc.PoolID
}

func (r *recording) snapshot(from int) *Case {
	c := &Case{
		Events: r.events[from:], Segments: r.segments, Settings: r.config.Settings.Normal(), SettingsKnown: true,
		Oldest: r.config.Torch, Newest: r.config.Torch,
		pools: func(id uint32) alloc.PoolID { return r.pools[id] },
	}
	for i := range c.Segments {
		c.private = c.private || c.Segments[i].Pool != 0
	}
	c.number()
	return c
}

var testPools = []alloc.PoolID{{}, {0, 1}, {1, 0}}

// record draws a run.
func record(t *rapid.T, allowPools bool) *recording {
	r := &recording{pools: testPools}
	s := alloc.Defaults()
	r.config.Torch = rapid.SampledFrom([]alloc.Version{{Major: 2, Minor: 1}, {Major: 2, Minor: 6}, {Major: 2, Minor: 9}, {Major: 2, Minor: 11}, {Major: 2, Minor: 12}, {Major: 2, Minor: 13}}).Draw(t, "torch")
	s.ExpandableSegments = rapid.Bool().Draw(t, "expandable")
	if rapid.IntRange(0, 3).Draw(t, "max split") == 0 {
		s.MaxSplitSize = rapid.Int64Range(21, 200).Draw(t, "max_split_size_mb") << 20
	}
	if rapid.IntRange(0, 3).Draw(t, "divisions") == 0 {
		for i := range s.RoundupPower2Divisions {
			s.RoundupPower2Divisions[i] = rapid.SampledFrom([]uint64{0, 1, 4, 8}).Draw(t, "division")
		}
	}
	if rapid.Bool().Draw(t, "bounded") {
		r.config.Capacity = rapid.Int64Range(50, 2000).Draw(t, "capacity MiB") << 20
	}
	r.config.Total = 64 << 30 // more than is ever mapped, as on a real card
	r.config.Settings = s
	r.config.Record = func(e alloc.Event) { r.events = append(r.events, e) }
	a := alloc.New(r.config)
	for _, id := range testPools[1:] {
		a.SetPool(id, 99) // so that the pools have the numbers of testPools
	}
	var live []alloc.Block
	streams := []uint64{0, 0, 0, 7, 9}
	sizes := rapid.OneOf(
		rapid.Int64Range(1, 5000), rapid.Int64Range(1, 2<<20), rapid.Int64Range(1<<20, 12<<20), rapid.Int64Range(10<<20, 300<<20),
		rapid.SampledFrom([]int64{512, 4096, 1 << 20, 1<<20 + 1, 2 << 20, 10 << 20, 20 << 20, 64 << 20}),
	)
	usesPools := allowPools && rapid.IntRange(0, 3).Draw(t, "pools") == 0
	for range rapid.IntRange(1, 400).Draw(t, "steps") {
		switch op := rapid.IntRange(0, 99).Draw(t, "op"); {
		case op < 55 || len(live) == 0:
			var pool alloc.PoolID
			if usesPools {
				pool = rapid.SampledFrom(testPools).Draw(t, "pool")
			}
			if b, err := a.MallocIn(pool, sizes.Draw(t, "size"), rapid.SampledFrom(streams).Draw(t, "stream")); err == nil {
				live = append(live, b)
			}
		case op < 95:
			i := rapid.IntRange(0, len(live)-1).Draw(t, "which")
			if rapid.IntRange(0, 9).Draw(t, "cross") == 0 {
				a.RecordStream(live[i], rapid.SampledFrom(streams).Draw(t, "user"))
			}
			a.Free(live[i])
			live = slices.Delete(live, i, i+1)
		case op < 97:
			a.EmptyCache()
		default:
			a.Synchronize(rapid.SampledFrom(streams).Draw(t, "done"))
		}
	}
	r.segments = layout(a, r.pools)
	return r
}

func explain(t *rapid.T, r *Result) {
	t.Errorf("torch %s: reproducible %v %v, %d differences, %d misfits, %d of the events checked", r.Torch, r.Reproducible, r.Why, len(r.Differences), len(r.Misfits), r.Checked)
	for _, d := range r.Differences[:min(3, len(r.Differences))] {
		t.Errorf("  %s at %d: want %v %#x %d, got %v %#x %d", d.Code(), d.Event, d.Want.Action, d.Want.Addr, d.Want.Size, d.Got.Action, d.Got.Addr, d.Got.Size)
	}
	for _, m := range r.Misfits[:min(3, len(r.Misfits))] {
		t.Errorf("  %#x: want %v, got %v", m.Addr, m.Want, m.Got)
	}
}

func TestReplayOfARecordingIsTheRecording(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := record(t, true)
		if got := r.snapshot(0).CheckAs(r.config.Torch, alloc.TieByVersion); !got.Reproducible || got.Mismatches() > 0 || got.Checked != len(r.events) {
			explain(t, got)
		}
	})
}

func TestARingThatBeginsMidRunIsReproduced(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := record(t, false)
		if len(r.events) == 0 {
			t.Skip()
		}
		c := r.snapshot(rapid.IntRange(0, len(r.events)-1).Draw(t, "begin"))
		got := c.CheckAs(r.config.Torch, alloc.TieByVersion)
		if got.Start.InDoubt > 0 {
			t.Skip("a tail that no event shows")
		}
		if !got.Reproducible || got.Mismatches() > 0 {
			explain(t, got)
		}
	})
}

// skip_actions of torch 2.10 leaves out whole kinds of events.
func TestRecordingsWithoutSomeActionsAreReproduced(t *testing.T) {
	for _, left := range []alloc.Action{alloc.FreeRequested, alloc.FreeCompleted} {
		c := alloc.Config{Torch: alloc.Version{Major: 2, Minor: 10}}
		s := Record(c, func(a *alloc.Allocator) {
			Training(a, func() bool { return a.Stats().All.Allocation.Allocated < 2000 })
		})
		var events []alloc.Event
		for _, e := range s.Traces[0].Events {
			if e.Action != left {
				events = append(events, e)
			}
		}
		s.Traces[0].Events = events
		if r := Cases(s)[0].Check(); !r.Reproducible || r.Mismatches() > 0 || r.Checked != len(events) {
			t.Errorf("without %s: %v %v, %d mismatches in %d of %d", left, r.Reproducible, r.Why, r.Mismatches(), r.Checked, len(events))
		}
	}
}

func TestSettingsThatTheFileDoesNotTellAreFound(t *testing.T) {
	const conf = "roundup_power2_divisions:8"
	v := alloc.Version{Major: 2, Minor: 1}
	set, err := alloc.ParseConf(conf, v, alloc.Defaults())
	if err != nil {
		t.Fatal(err)
	}
	s := Record(alloc.Config{Torch: v, Settings: set}, func(a *alloc.Allocator) {
		Training(a, func() bool { return a.Stats().All.Allocation.Allocated < 9000 })
	})
	s.Settings = nil
	c := Cases(s)[0]
	if r := c.Check(); r.GuessedConf != conf || r.Mismatches() > 0 {
		t.Errorf("%q with %d mismatches", r.GuessedConf, r.Mismatches())
	}
	if c.Settings.Conf() != conf {
		t.Errorf("what-ifs compare with %q", c.Settings.Conf())
	}
}

// A block of the large pool keeps a tail of up to 1 MiB: when it is gone at the
// end of a trace, its true size shows only in the gap behind it.
func TestATailIsPartOfTheBlock(t *testing.T) {
	const mib = 1 << 20
	for tail, want := range map[int64]int64{0: 0, mib / 2: mib / 2, mib: mib} {
		v := alloc.Version{Major: 2, Minor: 9}
		var begin int
		events := 0
		c := alloc.Config{Torch: v}
		s := Record(c, func(a *alloc.Allocator) {
			b, _ := a.Malloc(12*mib-tail, 0)
			events = int(a.Stats().All.Allocation.Allocated) + int(a.Stats().NumDeviceAlloc)
			begin = events
			x, _ := a.Malloc(3*mib, 0)
			a.Free(x)
			a.Free(b)
		})
		s.Traces[0].Events = s.Traces[0].Events[begin:]
		r := Cases(s)[0].Check()
		if r.Mismatches() > 0 || r.Start.Deduced != 1 || r.Start.InDoubt != 0 || r.Begin.Allocated != 12*mib-tail+want {
			t.Errorf("a tail of %d: %d mismatches, %d deduced, %d in doubt, %d allocated", tail, r.Mismatches(), r.Start.Deduced, r.Start.InDoubt, r.Begin.Allocated)
		}
	}
}
