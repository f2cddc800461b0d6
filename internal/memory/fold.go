package memory

import (
	"unoom/internal/alloc"
	"unoom/internal/model"
	"unoom/internal/workload"
)

// Folding plays a network of many equal layers by two networks of few. Each pass
// over the layers (loading, forward, backward, states, temporaries of the step)
// does the same for every layer but the first and the last, so that the run of
// one layer more differs by one stretch of events in each pass. The two plays
// are laid side by side, the stretches are found, and what is live at each event
// follows for any number of layers: it is a straight line in that number, and
// within a pass a straight line over the layers, of which the ends decide.
//
// The result is that of the whole play on the same device to the byte, or there
// is none: where the two plays cannot be laid side by side, the whole is played.
// TestFoldedPlayIsTheWholePlay holds it to that.

// foldFrom is the number of periods of layers of the smaller play: a first and a
// last one, and one between them that is like all the others.
const foldFrom = 3

// worthwhile is from how many periods on folding saves half of the work.
const worthwhile = 4*foldFrom + 1

// longestPeriod is how many layers a pattern of unlike layers may have before it
// is repeated (five sliding windows and a full one: six).
const longestPeriod = 8

// A fold says which layers of a model are repeated.
type fold struct {
	stack, from, period int
	times               int // periods in the model
}

// foldOf finds the longest stretch of a model that repeats itself; false if there
// is none that is worth it. step is how many periods have to go together.
func foldOf(m *model.Model, step int) (fold, bool) {
	var best fold
	saved := 0
	for si, s := range m.Stacks {
		for p := 1; p <= min(longestPeriod, len(s.Layers)/2); p++ {
			period := p * step
			from := 0
			for end := p; end <= len(s.Layers); end++ {
				if end < len(s.Layers) && s.Layers[end] == s.Layers[end-p] {
					continue
				}
				times := (end - from) / period
				if n := (times - 2*foldFrom - 1) * period; times >= worthwhile && n > saved {
					best, saved = fold{si, from, period, times}, n
				}
				from = end - p + 1
			}
		}
	}
	return best, saved > 0
}

// model is m with fewer periods.
func (f fold) model(m *model.Model, periods int) *model.Model {
	out := *m
	out.Stacks = append([]*model.Stack(nil), m.Stacks...)
	s := *m.Stacks[f.stack]
	l := s.Layers
	s.Layers = append(append([]*model.Layer(nil), l[:f.from+periods*f.period]...), l[f.from+f.times*f.period:]...)
	out.Stacks[f.stack] = &s
	return &out
}

// foldable returns the layers of a workload that a fold may leave out.
func foldable(w *workload.Workload) (fold, bool) {
	if w.Model.Image != nil {
		return fold{}, false
	}
	if method, _ := w.Option("recompute-method"); method == "block" || w.CheckpointLayers > 0 {
		return fold{}, false // the first layers are not like the others
	}
	if n, ok := w.Option("recompute-num-layers"); ok && n != "1" {
		return fold{}, false // nor is a group of layers like one
	}
	stages := int(max(w.Parallel.Pipeline, 1))
	if stages > 1 {
		// Every stage must lose as many layers as the others.
		for _, o := range []string{"num-layers-per-virtual-pipeline-stage", "num-virtual-stages-per-pipeline-rank", "decoder-first-pipeline-num-layers", "decoder-last-pipeline-num-layers", "hybrid-layer-pattern", "pipeline-model-parallel-layout"} {
			if _, set := w.Option(o); set {
				return fold{}, false
			}
		}
		if w.Parallel.Virtual > 1 || len(w.Model.Stacks) != 1 || len(w.Model.Stacks[0].Layers)%stages != 0 {
			return fold{}, false
		}
	}
	return foldOf(w.Model, stages)
}

// nominal is a device without fragmentation: a request takes what it takes in a
// segment of its own, so that the size of a block follows from the request alone.
type nominal struct {
	conf alloc.Settings
	// cut says that large buffers come and go, so that most requests are served
	// from what they leave, cut to size.
	cut bool
}

// nominalFor is the device of folded plays of a workload.
func nominalFor(w *workload.Workload, conf alloc.Config) *nominal {
	return &nominal{conf.Settings.Normal(), conf.Settings.ExpandableSegments || w.Sharding == workload.FSDP || w.Sharding == workload.FSDP2}
}

// smallRequest is the largest request that is served from the segments of small
// ones, and the largest rest that is not split off a large one.
// Source: c10/cuda/CUDACachingAllocator.cpp, kSmallSize.
const smallRequest = 1 << 20

// roundedBelow is where the rounding of segments to 2 MiB no longer matters. A
// buffer over all layers is larger: its size has to be a straight line in their
// number.
const roundedBelow = 256 << 20

func (d *nominal) malloc(bytes int64, _ uint32) (int32, int64) {
	size := d.conf.Round(bytes)
	if size <= smallRequest || size >= roundedBelow || d.cut {
		return 0, size
	}
	// A rest of up to 1 MiB is not split off; the last of the blocks that a segment
	// holds has it.
	segment := d.conf.SegmentSize(size)
	blocks := segment / size
	if rest := segment - blocks*size; rest <= smallRequest {
		size += rest / blocks
	}
	return 0, size
}

func (*nominal) free(int32) {}

// trace is what a play did, event by event.
type trace struct {
	what []uint64 // made or freed, how many bytes, of what
	live []int64  // bytes after so many events; one more than events
}

// read fills t from the log of a machine.
func (t *trace) read(x *machine) {
	t.what, t.live = t.what[:0], append(t.live[:0], 0)
	cur := int64(0)
	for _, e := range x.log {
		freed := e < 0
		if freed {
			e = -e
		}
		s := &x.sts[e-1]
		w := uint64(s.bytes)<<itemWidth | x.items.hashes[s.item]
		if freed {
			w = ^w
			cur -= s.block
		} else {
			cur += s.block
		}
		t.what, t.live = append(t.what, w), append(t.live, cur)
	}
}

// grown reports whether b makes (or frees) the same thing as a in a larger size: a
// buffer over all layers, which grows no faster than their number.
func grown(a, b uint64) bool {
	if a>>63 != b>>63 || a&itemBits != b&itemBits {
		return false
	}
	if a>>63 != 0 {
		a, b = ^a, ^b
	}
	a, b = a>>itemWidth, b>>itemWidth
	return a < b && b <= a/foldFrom*(foldFrom+1)
}

// The low bits of an event say what it is of, the others how many bytes; the
// event that frees is the complement of the one that makes.
const (
	itemWidth = 16
	itemBits  = 1<<itemWidth - 1
)

// insertion is a stretch of events that the play of one period more has: n
// events after as many as at events of the smaller play, and from of the larger.
type insertion struct{ at, from, n int }

// align lays the events of two plays side by side, and returns where the larger
// has more; false if they do not match elsewhere.
func align(a, b []uint64, pieces bool, out []insertion) ([]insertion, bool) {
	i, j := 0, 0
	matched := 0 // events since the last insertion
	for i < len(a) || j < len(b) {
		if i < len(a) && j < len(b) && a[i] == b[j] {
			i, j, matched = i+1, j+1, matched+1
			continue
		}
		// Where the two part, either a stretch begins that the larger play has more,
		// or something is as large as all layers together.
		n, fits, repeats := 0, 0, false
		for k := 1; j+k <= len(b) && !(repeats && fits >= clearly); k++ {
			f := agreement(a[i:], b[j+k:])
			if f == 0 || repeats && f <= fits {
				continue
			}
			// A layer like the one before it; two passes that are one layer longer
			// each may fit as well, but are not.
			r := slide(b, j, k, min(matched, k)) == k
			if r && !repeats || r == repeats && f > fits {
				n, fits, repeats = k, f, r
			}
		}
		if i < len(a) && j < len(b) && !pieces && grown(a[i], b[j]) && agreement(a[i+1:], b[j+1:]) >= fits {
			i, j, matched = i+1, j+1, matched+1
			continue
		}
		if n == 0 {
			return out, false
		}
		// Anywhere that the events before repeat those inserted, the stretch could
		// be; the middle is farthest from the first and the last layer.
		back := slide(b, j, n, matched) / 2
		out = append(out, insertion{i - back, j - back, n})
		j += n
		matched = 0
	}
	return out, true
}

// slide is how many of the events before j, most at most, are repeated n later.
func slide(b []uint64, j, n, most int) int {
	s := 0
	for s < most && b[j-1-s] == b[j-1-s+n] {
		s++
	}
	return s
}

// clearly is how many events have to agree so that no chance is left: more than
// one layer has.
const clearly = 1 << 10

// agreement is how many events of two runs are alike from their beginning on,
// clearly if all are. A buffer over all layers may come in between.
func agreement(a, b []uint64) int {
	n, scaled := 0, 0
	for k := 0; ; k++ {
		switch {
		case k == len(a) || k == len(b):
			if len(a) == len(b) {
				return clearly
			}
			return n
		case n == clearly:
			return n
		case a[k] == b[k]:
			n++
		case grown(a[k], b[k]) && scaled < 2:
			scaled++
		default:
			return n
		}
	}
}

// A moment is a point of the run of all layers, said by points of the two plays:
// what is live there is that of the larger play at more, plus times what it has
// over the smaller (at less, against over), plus rounds what a round adds from
// from to to.
type moment struct {
	more              int
	less, over, times int
	from, to, rounds  int
}

// folded is the outcome of a folded play.
type folded struct {
	less, more *stage
	sections   []section // at: index of moments
	moments    []moment
	peak       int // the highest of sections
}

func (f *folded) allocated() int64 { return f.sections[f.peak].allocated }
func (f *folded) phase() Phase     { return f.sections[f.peak].phase }

// extrapolate finds the peaks of the run of n periods more than the smaller play.
// pieces says that no buffer grows with the layers.
func (f *folded) extrapolate(n int, pieces bool) bool {
	a, b := &f.less.x, &f.more.x
	if len(a.sections) != len(b.sections) {
		return false
	}
	ta, tb := &f.less.trace, &f.more.trace
	ta.read(a)
	tb.read(b)
	f.sections, f.moments = f.sections[:0], f.moments[:0]
	for k := range a.sections {
		s, other := a.sections[k], &b.sections[k]
		if s.phase != other.phase || s.iteration != other.iteration {
			return false
		}
		endA, endB := len(ta.what), len(tb.what)
		if k+1 < len(a.sections) {
			endA, endB = a.sections[k+1].from, b.sections[k+1].from
		}
		var room [8]insertion
		ins, ok := align(ta.what[s.from:endA], tb.what[other.from:endB], pieces, room[:0])
		if !ok {
			return false
		}
		best, at := int64(-1), moment{}
		better := func(live int64, m moment) {
			if live > best {
				best, at = live, m
			}
		}
		i, j := s.from, other.from
		same := func(until int) {
			for ; i <= until; i, j = i+1, j+1 {
				d := tb.live[j] - ta.live[i]
				better(tb.live[j]+int64(n-1)*d, moment{more: j, less: i, over: j, times: n - 1})
			}
			i, j = i-1, j-1
		}
		for _, in := range ins {
			same(s.from + in.at)
			d := tb.live[j] - ta.live[i]
			end := j + in.n
			round := tb.live[end] - tb.live[j]
			for e := j + 1; e <= end; e++ {
				live := tb.live[e] + int64(n-1)*d
				better(live, moment{more: e, less: i, over: j, times: n - 1})
				better(live+int64(n-1)*round, moment{more: e, less: i, over: j, times: n - 1, from: j, to: end, rounds: n - 1})
			}
			j = end
		}
		same(endA)
		s.allocated, s.at = best, len(f.moments)
		f.sections, f.moments = append(f.sections, s), append(f.moments, at)
		if len(f.sections) == 1 || best > f.sections[f.peak].allocated {
			f.peak = len(f.sections) - 1
		}
	}
	return true
}

// fewer returns the workload with a model of fewer periods, and no more
// micro-batches than differ from each other: a first, one like all others (in a
// pipeline a second filling of it), and a last.
func (f fold) fewer(w *workload.Workload, periods int) *workload.Workload {
	out := *w
	out.Model = f.model(w.Model, periods)
	out.Accumulation = min(w.Accumulation, 2*max(w.Parallel.Pipeline, 1)+1)
	return &out
}

// foldedPlay plays a workload in one choice of its variants by two plays of few
// layers, on a device without fragmentation. It returns nil where it cannot.
// The result holds its stages until it is closed.
func foldedPlay(w *workload.Workload, lib library) (*folded, error) {
	fd, ok := foldable(w)
	if !ok {
		return nil, nil
	}
	conf, err := allocatorOf(w, lib)
	if err != nil {
		return nil, err
	}
	dev := nominalFor(w, conf)
	f := &folded{less: newStage(), more: newStage()}
	for i, st := range []*stage{f.less, f.more} {
		st.x.reset(dev)
		if _, err := run(&st.x, fd.fewer(w, foldFrom+i), lib); err != nil {
			f.close()
			return nil, err
		}
	}
	// DDP's buckets are of one size: a larger one is not one that grows with the
	// layers.
	pieces := w.Sharding == workload.DDP && w.Framework != workload.Megatron
	if !f.extrapolate(fd.times-foldFrom, pieces) {
		f.close()
		return nil, nil
	}
	return f, nil
}

func (f *folded) close() {
	f.less.done()
	f.more.done()
}

// breakdown returns what the peak is made of.
func (f *folded) breakdown() []Share {
	m := f.moments[f.sections[f.peak].at]
	sums := shares{}
	sums.add(&f.more.x, m.more, 1)
	if m.times > 0 {
		sums.add(&f.more.x, m.over, m.times)
		sums.add(&f.less.x, m.less, -m.times)
	}
	if m.rounds > 0 {
		sums.add(&f.more.x, m.to, m.rounds)
		sums.add(&f.more.x, m.from, -m.rounds)
	}
	return sums.list()
}
