package memory

import (
	"errors"
	"maps"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// The requests of a run served again on another allocator need what the run needs
// that is played on it: to the byte, where it fits and where it does not.
func TestReplayIsThePlay(t *testing.T) {
	e, err := New()
	if err != nil {
		t.Fatal(err)
	}
	m := smallLlama(t)
	changes := passages()
	names := slices.Sorted(maps.Keys(changes))
	rapid.Check(t, func(rt *rapid.T) {
		w := randomWorkload(rt, m)
		if rapid.Bool().Draw(rt, "passage") {
			w = base(m)
			changes[rapid.SampledFrom(names).Draw(rt, "which")](w)
		}
		var lib library
		for _, c := range e.variants.choose(w) {
			if err := lib.set(c.key, c.value); err != nil {
				rt.Fatal(err)
			}
		}
		free, err := play(w, lib, 0)
		if _, ok := errors.AsType[*NotModelled](err); ok {
			rt.Skip()
		}
		if err != nil {
			rt.Fatal(err)
		}
		defer free.done()
		lib.allocConf = rapid.SampledFrom([]string{"", "expandable_segments:True", "max_split_size_mb:64", "garbage_collection_threshold:0.7"}).Draw(rt, "conf")
		if _, err := allocatorOf(w, lib); err != nil {
			rt.Skip() // older than the setting
		}
		room := int64(0)
		if share := rapid.Int64Range(60, 110).Draw(rt, "room"); share < 105 {
			room = free.reserved * share / 100
		}
		got, err := free.on(w, lib, room)
		if err != nil {
			rt.Fatal(err)
		}
		p, err := play(w, lib, room)
		if err != nil {
			rt.Fatal(err)
		}
		defer p.done()
		want := p.need()
		if (got.failed == nil) != (want.failed == nil) {
			rt.Fatalf("replayed: %v, played: %v", got.failed, want.failed)
		}
		if want.failed == nil && got != want {
			rt.Errorf("replayed: %+v, played: %+v", got, want)
		}
	})
}
