package plan

// A place is one layout of one variant while it is searched, with what does not
// change from one micro-batch and recomputation to the next.
type place struct {
	layout
	at      int // of the layouts, in the order of the search
	per     int // layers of a rank
	factors [3][2]float64
	doable  [3]answer // recomputing all layers of a rank
	partial answer    // recomputing some
}

// An answer to a question that may not have been asked yet.
type answer int8

const (
	unasked answer = iota
	yes
	no
)

// times are the step times of settings: no answer of the engine changes them.
type times struct {
	free [][]float64 // of each layout, of its micro-batches, without recomputation
	more map[timed]float64
}

// A timed is a setting of a layout with recomputation.
type timed struct {
	at, micro int32
	layers    int16
	recompute int8
}

// recomputes is the number of a kind of recomputation.
func recomputes(r Recompute) int8 {
	switch r {
	case RecomputeSelective:
		return 1
	case RecomputeFull:
		return 2
	}
	return 0
}

// needAt is what a choice in the place needs, corrected as space.need does.
func (s *space) needAt(l *place, c *Choice) need {
	n := l.need(c)
	if len(s.measured) == 0 {
		return n
	}
	many := 0
	if c.Accumulation > 1 {
		many = 1
	}
	f := &l.factors[recomputes(c.Recompute)][many]
	if *f == 0 {
		*f = 1
		if known, ok := s.measured[kindOf(c)]; ok {
			*f = known
		}
	}
	n.correct(*f)
	return n
}

// ableAt is able for a choice in the place.
func (s *space) ableAt(l *place, c *Choice) bool {
	a := &l.doable[recomputes(c.Recompute)]
	if c.Recompute == RecomputeFull && c.Layers < l.per {
		a = &l.partial
	}
	if *a == unasked {
		*a = no
		if s.able(c, l.per) {
			*a = yes
		}
	}
	return *a == yes
}

// timeAt is the time of a choice in the place.
func (s *space) timeAt(l *place, c *Choice) float64 {
	if s.times == nil {
		return s.rank(c)
	}
	k := timed{int32(l.at), int32(c.Micro), int16(c.Layers), recomputes(c.Recompute)}
	t, ok := s.times.more[k]
	if !ok {
		t = s.rank(c)
		s.times.more[k] = t
	}
	return t
}

// freeTimes are the times of the micro-batches of a layout without recomputation.
func (s *space) freeTimes(c Choice, micros []int) []float64 {
	if s.times != nil && s.at < len(s.times.free) && s.times.free[s.at] != nil {
		return s.times.free[s.at]
	}
	free := make([]float64, len(micros))
	c.Recompute, c.Layers = RecomputeNone, 0
	for i, m := range micros {
		s.setMicro(&c, m)
		free[i] = s.rank(&c)
	}
	if s.times != nil {
		for len(s.times.free) <= s.at {
			s.times.free = append(s.times.free, nil)
		}
		s.times.free[s.at] = free
	}
	return free
}
