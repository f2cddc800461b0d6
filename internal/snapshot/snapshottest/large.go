package snapshottest

import (
	"fmt"
	"io"
	"math/rand/v2"
	"strconv"

	"unoom/internal/alloc"
	"unoom/internal/snapshot"
)

func itoa(n int) string { return strconv.Itoa(n) }

// Large writes a snapshot of about size bytes that looks like one of a long
// training run: steps of 6000 events with 2000 stacks of about 53 shared frames,
// one call in twenty out of order; each allocation has a list of its own, the two
// events of a free share one. Addresses are made up.
// It returns the number of events.
//
// The proportions are those of real files: 215 bytes an event, near the median of
// 65 public snapshots (223), and four fifths of the opcodes memo references.
func Large(w io.Writer, size int64, style Style) (int, error) {
	const bytesPerEvent = 215
	rng := rand.New(rand.NewPCG(1, 2))
	frames := make([]*Shared, 3000)
	for i := range frames {
		frames[i] = Share(FrameOf(snapshot.Frame{
			Name: fmt.Sprintf("forward_%d", i), File: fmt.Sprintf("/opt/venv/lib/python3.12/site-packages/pkg/module_%d.py", i/7), Line: i,
		}))
	}
	stacks := make([]List, 2000)
	for i := range stacks {
		n := 31 + rng.IntN(45)
		for j := range n {
			k := rng.IntN(len(frames))
			if j > 2*n/3 { // outer frames are few
				k = j
			}
			stacks[i] = append(stacks[i], frames[k])
		}
	}
	const callsPerStep = 6000
	n := int(size) / bytesPerEvent / 3 * 3
	type live struct {
		addr uint64
		size int64
	}
	var held []live
	var freeing live
	var freeFrames *Shared
	next := uint64(0x7f2000000000)
	at := int64(1_700_000_000_000_000)
	event := func(i int) any {
		at += int64(rng.IntN(40))
		// Steps repeat the same calls in the same order, nearly.
		stack := stacks[i%callsPerStep*len(stacks)/callsPerStep]
		if rng.IntN(20) == 0 {
			stack = stacks[rng.IntN(len(stacks))]
		}
		switch i % 3 {
		case 0:
			size := int64(1+rng.IntN(1<<12)) << rng.IntN(15)
			next += uint64(size+511) &^ 511
			held = append(held, live{next, size})
			return Event(alloc.Event{Action: alloc.Alloc, Addr: next, Size: size, TimeUs: at}, stack, "")
		case 1:
			j := rng.IntN(len(held))
			freeing = held[j]
			held[j] = held[len(held)-1]
			held = held[:len(held)-1]
			freeFrames = Share(stack)
			return Event(alloc.Event{Action: alloc.FreeRequested, Addr: freeing.addr, Size: freeing.size, TimeUs: at}, freeFrames, "")
		}
		return Event(alloc.Event{Action: alloc.FreeCompleted, Addr: freeing.addr, Size: freeing.size, TimeUs: at}, freeFrames, "")
	}
	v := Dict{
		"segments", List{},
		"device_traces", List{Lazy{n, event}},
		"allocator_settings", Settings(snapshot.Settings{MaxSplitSize: -1}),
		"external_annotations", List{},
	}
	return n, Write(w, v, style)
}
