package replay

import (
	"testing"

	"unoom/internal/alloc"
)

// scattered is a card whose segments come at addresses in no order.
type scattered struct {
	next  uint64
	taken int64
}

func (s *scattered) Malloc(size int64) (uint64, bool) {
	s.next++
	s.taken += size
	return 0x7f0000000000 + s.next*0x9e3779b97f4a7c15>>44<<32, true
}
func (s *scattered) Free(_ uint64, size int64)          { s.taken -= size }
func (s *scattered) Reserve(page int64) (uint64, int64) { return 1 << 48, page << 12 }
func (s *scattered) Map(uint64, int64) bool             { return true }
func (s *scattered) Unmap(uint64, int64)                {}
func (s *scattered) Settle(a *alloc.Allocator)          { a.Settle() }
func (s *scattered) FreeBytes() int64                   { return 80<<30 - s.taken }
func (s *scattered) Reset()                             { *s = scattered{} }

// Since torch 2.12 the older of equal blocks is taken, whatever its address. In a
// ring that begins mid-run the ages show only in what is chosen.
func TestAgesAreLearnedFromTheChoices(t *testing.T) {
	learned := 0
	for _, v := range []alloc.Version{{Major: 2, Minor: 12}, {Major: 2, Minor: 13}} {
		c := alloc.Config{Torch: v, Device: &scattered{}}
		s := Record(c, func(a *alloc.Allocator) {
			Training(a, func() bool { return a.Stats().All.Allocation.Allocated < 4000 })
		})
		events := s.Traces[0].Events
		for _, begin := range []int{len(events) / 4, len(events) / 2, len(events) * 3 / 4} {
			s.Traces[0].Events = events[begin:]
			r := Cases(s)[0].CheckAs(v, alloc.TieByVersion)
			learned += r.AgesLearned
			if !r.Reproducible || r.Mismatches() > 0 {
				t.Errorf("torch %s from event %d: %v, %d mismatches, %d ages learned", v, begin, r.Why, r.Mismatches(), r.AgesLearned)
				for _, d := range r.Differences[:min(3, len(r.Differences))] {
					t.Errorf("  %s at %d: %+v %+v", d.Code(), d.Event, d.Want, d.Got)
				}
			}
		}
	}
	if learned == 0 {
		t.Error("nothing had to be learned, so the test shows nothing")
	}
}
