package alloc

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// script runs requests and frees on an allocator and returns its events as
// lines. A line of the script is "NAME SIZE" (request), "NAME SIZE sSTREAM",
// "-NAME" (free), "NAME @STREAM" (used on another stream), "empty", or
// "done STREAM"; sizes in KiB, or in MiB with an M.
func script(t *testing.T, c Config, text string) (*Allocator, []string) {
	t.Helper()
	var lines []string
	names := map[string]string{} // addresses
	c.Record = func(e Event) {
		at := fmt.Sprintf("%#x", e.Addr)
		if n, ok := names[at]; ok && (e.Action == FreeRequested || e.Action == FreeCompleted) {
			at = n
		}
		if e.Action == OOM {
			at = ""
		}
		lines = append(lines, strings.Join(strings.Fields(fmt.Sprintf("%s %s %d", e.Action, at, e.Size>>10)), " "))
	}
	a := New(c)
	blocks := map[string]Block{}
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		if len(f) == 0 {
			continue
		}
		var size int64
		var stream uint64
		if len(f) > 1 {
			_, _ = fmt.Sscanf(f[1], "%d", &size)
			size <<= 10
			if strings.HasSuffix(f[1], "M") {
				size <<= 10
			}
		}
		if len(f) > 2 {
			_, _ = fmt.Sscanf(f[2], "s%d", &stream)
		}
		switch {
		case f[0] == "empty":
			a.EmptyCache()
		case f[0] == "done":
			_, _ = fmt.Sscanf(f[1], "%d", &stream)
			a.Synchronize(stream)
		case strings.HasPrefix(f[0], "-"):
			a.Free(blocks[f[0][1:]])
		case len(f) > 1 && f[1][0] == '@':
			_, _ = fmt.Sscanf(f[1], "@%d", &stream)
			a.RecordStream(blocks[f[0]], stream)
		default:
			b, err := a.Malloc(size, stream)
			if err == nil {
				blocks[f[0]] = b
				names[fmt.Sprintf("%#x", a.Addr(b))] = f[0]
			}
		}
		if err := verify(a); err != nil {
			t.Fatalf("after %q: %v", strings.TrimSpace(line), err)
		}
	}
	return a, lines
}

func expect(t *testing.T, got []string, want ...string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("got\n  %s\nwant\n  %s", strings.Join(got, "\n  "), strings.Join(want, "\n  "))
	}
}

func last(lines []string, n int) []string { return lines[max(0, len(lines)-n):] }

func TestOneMiBIsSmallAndMoreIsLarge(t *testing.T) {
	a := New(Config{})
	small, _ := a.Malloc(mib, 0)
	large, _ := a.Malloc(mib+1, 0)
	if s := a.Stats(); s.Small.ReservedBytes.Current != 2*mib || s.Large.ReservedBytes.Current != 20*mib {
		t.Errorf("%d and %d reserved", s.Small.ReservedBytes.Current, s.Large.ReservedBytes.Current)
	}
	if a.Size(small) != mib || a.Size(large) != mib+512 {
		t.Errorf("blocks of %d and %d", a.Size(small), a.Size(large))
	}
}

func TestALargeBlockKeepsATailOfUpToOneMiB(t *testing.T) {
	for rest, split := range map[int64]bool{mib: false, mib + 512: true} {
		a := New(Config{})
		b, _ := a.Malloc(20*mib-rest, 0) // its own segment, of 20 MiB
		if got := a.Size(b) < 20*mib; got != split {
			t.Errorf("with %d left the block has %d bytes", rest, a.Size(b))
		}
	}
}

func TestTheSmallestBlockThatFitsServes(t *testing.T) {
	a, lines := script(t, Config{}, `
		a 30M
		b 12M
		c 14M
		-a
		-b
		-c
		d 11M`)
	expect(t, last(lines, 1), "alloc 0x7f0001e00000 11264") // b's segment, 30 MiB behind the first
	if a.ReservedBytes() != 56*mib {
		t.Errorf("%d reserved", a.ReservedBytes())
	}
}

// falling is a card whose segments come at descending addresses.
type falling struct{ card }

func (c *falling) Malloc(size int64) (uint64, bool) {
	addr, ok := c.card.Malloc(size)
	return 2*firstAddress - addr, ok
}

func TestEqualBlocksByVersion(t *testing.T) {
	const twoSegments = `
		a 10M
		b 10M
		-a
		-b
		c 10M`
	// Freed wholly and cut again, the third piece is what was left of the block
	// object of y; the first two are new objects.
	const oneSegment = `
		x 2M
		s 2M
		y 2M
		w 2M
		-x
		-s
		-y
		p 2M
		q 2M
		r 2M
		-p
		-r
		c 2M`
	for _, c := range []struct {
		v           Version
		two, pieces string
	}{
		{Version{2, 11}, "alloc 0x7effff600000 10240", "alloc 0x7f0000000000 2048"}, // the lowest address
		{Version{2, 12}, "alloc 0x7f0000000000 10240", "alloc 0x7f0000400000 2048"}, // the oldest object
		{Version{2, 13}, "alloc 0x7f0000000000 10240", "alloc 0x7f0000000000 2048"}, // the oldest segment, then the address
	} {
		_, lines := script(t, Config{Torch: c.v, Device: &falling{}}, twoSegments)
		expect(t, last(lines, 1), c.two)
		_, lines = script(t, Config{Torch: c.v}, oneSegment)
		expect(t, last(lines, 1), c.pieces)
	}
}

func TestAnOversizeBlockIsNotLent(t *testing.T) {
	s := Defaults()
	s.MaxSplitSize = 64 * mib
	_, lines := script(t, Config{Settings: s}, `
		a 100M
		-a
		b 30M
		c 90M
		d 70M`)
	// b may not have the 100 MiB block, c may (less than 20 MiB larger), d not.
	expect(t, lines,
		"segment_alloc 0x7f0000000000 102400", "alloc 0x7f0000000000 102400", "free_requested a 102400", "free_completed a 102400",
		"segment_alloc 0x7f0006400000 30720", "alloc 0x7f0006400000 30720",
		"alloc 0x7f0000000000 92160",
		"segment_alloc 0x7f0008200000 71680", "alloc 0x7f0008200000 71680")
}

func TestOversizeBlocksAreGivenBackFirst(t *testing.T) {
	s := Defaults()
	s.MaxSplitSize = 64 * mib
	a, lines := script(t, Config{Settings: s, Capacity: 300 * mib}, `
		a 100M
		b 70M
		c 30M
		-a
		-b
		-c
		d 160M`)
	// No single block is large enough: the largest go, until they suffice.
	expect(t, last(lines, 4),
		"segment_free 0x7f0000000000 102400", "segment_free 0x7f0006400000 71680",
		"segment_alloc 0x7f000c800000 163840", "alloc 0x7f000c800000 163840")
	if n := a.Stats().NumAllocRetries; n != 0 {
		t.Errorf("%d retries: nothing else had to be freed", n)
	}
}

func TestAFailedRequestFreesTheCacheAndTriesAgain(t *testing.T) {
	a, lines := script(t, Config{Capacity: 60 * mib}, `
		a 20M
		b 30M
		c 1
		-a
		-b
		d 40M
		e 40M`)
	expect(t, last(lines, 5),
		"segment_free 0x7f0000000000 20480", "segment_free 0x7f0001400000 30720",
		"segment_alloc 0x7f0003400000 40960", "alloc 0x7f0003400000 40960",
		"oom 40960")
	if s := a.Stats(); s.NumAllocRetries != 2 || s.NumOOMs != 1 {
		t.Errorf("%d retries, %d failures", s.NumAllocRetries, s.NumOOMs)
	}
	_, err := a.Malloc(40*mib, 0)
	e, ok := err.(*OutOfMemory)
	if !ok || e.Tried != 40*mib || e.Free != 18*mib || e.Allocated != 40*mib+unit*2 || e.Reserved != 42*mib || e.Limit != -1 {
		t.Errorf("%+v", err)
	}
}

func TestGarbageIsCollectedByAge(t *testing.T) {
	s := Defaults()
	s.GCThreshold = 0.5
	s.MemoryFraction = 0.9
	a, lines := script(t, Config{Settings: s, Capacity: 200 * mib, Torch: Version{2, 9}}, `
		old 40M
		new 30M
		live 20M
		-old
		x 12M s7
		-new
		y 12M s7`)
	// 102 MiB are reserved, more than 0.5 × 0.9 × 200. Of the two free segments the
	// one that was passed over more often than the average goes; it suffices.
	expect(t, last(lines, 3), "segment_free 0x7f0000000000 40960", "segment_alloc 0x7f0006600000 12288", "alloc 0x7f0006600000 12288")
	if a.ReservedBytes() != 74*mib {
		t.Errorf("%d reserved", a.ReservedBytes())
	}
}

func TestTheMemoryFractionLimits(t *testing.T) {
	s := Defaults()
	s.MemoryFraction = 0.5
	a := New(Config{Settings: s, Capacity: 100 * mib, Torch: Version{2, 10}})
	if _, err := a.Malloc(40*mib, 0); err != nil {
		t.Fatal(err)
	}
	_, err := a.Malloc(20*mib, 0)
	if e, ok := err.(*OutOfMemory); !ok || e.Limit != 50*mib || e.Free != 60*mib {
		t.Errorf("%+v", err)
	}
	a.SetMemoryFraction(1)
	if _, err := a.Malloc(20*mib, 0); err != nil {
		t.Error(err)
	}
}

func TestThrowOnOOMRejectsWithoutTrying(t *testing.T) {
	s := Defaults()
	s.ThrowOnOOM, s.MemoryFraction = true, 0.5
	a := New(Config{Settings: s, Capacity: 100 * mib, Torch: Version{2, 12}})
	a.SetMemoryFraction(1)
	_, err := a.Malloc(60*mib, 0)
	if e, ok := err.(*OutOfMemory); !ok || !e.Rejected {
		t.Fatalf("%+v", err)
	}
	if s := a.Stats(); s.NumOOMRejections != 1 || s.NumOOMs != 0 || s.NumAllocRetries != 0 {
		t.Errorf("%+v", s)
	}
}

func TestExpandableSegmentsGrowInPlace(t *testing.T) {
	s := Defaults()
	s.ExpandableSegments = true
	a, lines := script(t, Config{Settings: s, Capacity: 200 * mib}, `
		a 30M
		b 1
		-a
		c 50M`)
	expect(t, lines,
		"segment_map 0x1000000000000 40960", "alloc 0x1000000000000 30720",
		"segment_map 0x1000010400000 2048", "alloc 0x1000010400000 1",
		"free_requested a 30720", "free_completed a 30720",
		"segment_map 0x1000002800000 20480", "alloc 0x1000000000000 51200")
	if a.ReservedBytes() != 62*mib {
		t.Errorf("%d reserved", a.ReservedBytes())
	}
}

func TestAFailedMappingKeepsWhatWasMapped(t *testing.T) {
	s := Defaults()
	s.ExpandableSegments = true
	// Before b is a hole, behind it nothing is mapped. The request maps the hole and
	// then does not get the rest: what it mapped is only given back by the flush.
	_, lines := script(t, Config{Settings: s, Capacity: 100 * mib}, `
		a 20M
		b 20M
		-a
		empty
		-b
		d 110M`)
	expect(t, last(lines, 3), "segment_map 0x1000000000000 20480", "segment_unmap 0x1000000000000 40960", "oom 112640")
}

func TestUnmappingTakesWholePages(t *testing.T) {
	s := Defaults()
	s.ExpandableSegments = true
	a, lines := script(t, Config{Settings: s, Capacity: 500 * mib}, `
		a 5M
		b 70M
		c 5M
		-b
		empty`)
	// b lies from 5 to 75 MiB: the whole pages in it are those from 20 to 60.
	expect(t, last(lines, 1), "segment_unmap 0x1000001400000 40960")
	if a.ReservedBytes() != 40*mib {
		t.Errorf("%d reserved", a.ReservedBytes())
	}
}

func TestABlockWaitsForTheStreamsThatUseIt(t *testing.T) {
	a, lines := script(t, Config{}, `
		a 4
		a @7
		-a
		b 4
		done 7
		c 4`)
	expect(t, last(lines, 4), "free_requested a 4", "alloc 0x7f0000001000 4", "free_completed a 4", "alloc 0x7f0000000000 4")
	if a.ActiveBytes() != 8*kib {
		t.Errorf("%d active", a.ActiveBytes())
	}
}

func TestStreamsDoNotShareBlocks(t *testing.T) {
	_, lines := script(t, Config{}, `
		a 4
		-a
		b 4 s7`)
	expect(t, last(lines, 2), "segment_alloc 0x7f0000200000 2048", "alloc 0x7f0000200000 4")
}

func TestPrivatePoolsKeepTheirMemory(t *testing.T) {
	graph := PoolID{1, 0}
	a := New(Config{Torch: Version{2, 9}})
	a.BeginPool(graph)
	b, _ := a.Malloc(30*mib, 0)
	a.Free(b)
	a.EmptyCache() // nothing is given back during a capture
	if a.ReservedBytes() != 30*mib {
		t.Errorf("%d reserved", a.ReservedBytes())
	}
	a.EndPool(graph)
	c, _ := a.Malloc(30*mib, 0) // not from the pool
	if a.ReservedBytes() != 60*mib {
		t.Errorf("%d reserved", a.ReservedBytes())
	}
	a.Free(c)
	a.EmptyCache()
	if a.ReservedBytes() != 30*mib {
		t.Errorf("%d reserved: the pool is in use", a.ReservedBytes())
	}
	a.ReleasePool(graph)
	a.EmptyCache()
	if a.ReservedBytes() != 0 {
		t.Errorf("%d reserved: the pool is free", a.ReservedBytes())
	}
}

func TestNestedPoolsByVersion(t *testing.T) {
	outer, inner := PoolID{0, 1}, PoolID{0, 2}
	for v, want := range map[Version]PoolID{{2, 8}: outer, {2, 9}: inner} {
		a := New(Config{Torch: v})
		a.BeginPool(outer)
		a.BeginPool(inner)
		if _, err := a.Malloc(mib, 0); err != nil {
			t.Fatal(err)
		}
		a.Walk(func(p Piece) {
			if p.State == Active && p.Pool != want {
				t.Errorf("torch %s serves from %v", v, p.Pool)
			}
		})
	}
}

func TestAPoolServesFailedRequests(t *testing.T) {
	pool := PoolID{0, 1}
	for _, v := range []Version{{2, 9}, {2, 12}} {
		a := New(Config{Torch: v, Capacity: 100 * mib})
		a.SetPool(pool, UseOnOOM)
		b, _ := a.MallocIn(pool, 60*mib, 0)
		a.Free(b)
		cached, _ := a.Malloc(20*mib, 0)
		a.Free(cached)
		if _, err := a.Malloc(50*mib, 0); err != nil {
			t.Fatalf("torch %s: %v", v, err)
		}
		// Since 2.12 the pool serves before the cache is freed.
		want := int64(60 * mib)
		if v.Before(Version{2, 12}) {
			want = 60 * mib // the flush gave the 20 MiB back
		} else {
			want += 20 * mib
		}
		if a.ReservedBytes() != want {
			t.Errorf("torch %s: %d reserved, want %d", v, a.ReservedBytes(), want)
		}
	}
}

func TestAPoolMayForbidSplitting(t *testing.T) {
	pool := PoolID{0, 1}
	a := New(Config{Torch: Version{2, 10}})
	a.SetPool(pool, NoSplit)
	b, _ := a.MallocIn(pool, 4*kib, 0)
	if a.Size(b) != 2*mib {
		t.Errorf("a block of %d", a.Size(b))
	}
}

func TestFiguresOfFreeParts(t *testing.T) {
	a := New(Config{})
	b, _ := a.Malloc(4*mib, 0) // of a segment of 20 MiB
	c, _ := a.Malloc(4*mib, 0)
	s := a.Stats().All
	if s.InactiveSplit.Current != 1 || s.InactiveSplitBytes.Current != 12*mib {
		t.Errorf("%+v", s.InactiveSplitBytes)
	}
	a.Free(b)
	if s = a.Stats().All; s.InactiveSplit.Current != 2 || s.InactiveSplitBytes.Current != 16*mib {
		t.Errorf("%+v", s.InactiveSplitBytes)
	}
	a.Free(c)
	if s = a.Stats().All; s.InactiveSplit.Current != 0 || s.InactiveSplitBytes.Current != 0 || s.Segment.Current != 1 {
		t.Errorf("%+v", s)
	}
	if s.AllocatedBytes.Peak != 8*mib || s.AllocatedBytes.Allocated != 8*mib || s.AllocatedBytes.Freed != 8*mib {
		t.Errorf("%+v", s.AllocatedBytes)
	}
}

func TestARequestOfNothingIsNothing(t *testing.T) {
	a := New(Config{})
	b, err := a.Malloc(0, 0)
	a.Free(b)
	if b != 0 || err != nil || a.ReservedBytes() != 0 {
		t.Errorf("%v, %v", b, err)
	}
	if _, err := a.Malloc(largestRequest, 0); err == nil {
		t.Error("an exbibyte is served")
	}
}

func TestAnOversizeBlockIsLentToALittleLess(t *testing.T) {
	s := Defaults()
	s.MaxSplitSize = 64 * mib
	for request, lent := range map[int64]bool{80 * mib: false, 80*mib + unit: true} { // 20 MiB less, or not quite
		a := New(Config{Settings: s})
		b, _ := a.Malloc(100*mib, 0)
		a.Free(b)
		if _, err := a.Malloc(request, 0); err != nil || (a.ReservedBytes() == 100*mib) != lent {
			t.Errorf("a request of %d: %d reserved, %v", request, a.ReservedBytes(), err)
		}
	}
}

func TestNoMoreOversizeBlocksAreGivenBackThanNeeded(t *testing.T) {
	s := Defaults()
	s.MaxSplitSize = 64 * mib
	_, lines := script(t, Config{Settings: s, Capacity: 300 * mib}, `
		a 100M
		b 70M
		c 66M
		-a
		-b
		-c
		d 170M`)
	freed := 0
	for _, l := range lines {
		if strings.HasPrefix(l, "segment_free") {
			freed++
		}
	}
	if freed != 2 {
		t.Errorf("%d segments are given back:\n%s", freed, strings.Join(lines, "\n"))
	}
}

func TestGarbageAsOldAsTheAverageIsCollected(t *testing.T) {
	s := Defaults()
	s.GCThreshold, s.MemoryFraction = 0.1, 0.9
	_, lines := script(t, Config{Settings: s, Capacity: 200 * mib, Torch: Version{2, 9}}, `
		only 40M
		-only
		x 50M`)
	expect(t, last(lines, 3), "segment_free 0x7f0000000000 40960", "segment_alloc 0x7f0002800000 51200", "alloc 0x7f0002800000 51200")
}
