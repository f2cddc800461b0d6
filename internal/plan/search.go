package plan

import (
	"slices"
	"sort"

	"unoom/internal/speed"
)

// A space is everything a search may choose from, and the limits it has to
// keep. It is the same for the search and for the brute force that tests it.
type space struct {
	shape  *shape
	net    *speed.Net
	device *speed.Device
	form   *form
	consts *speed.Constants
	// measured is how the closed form is corrected, by what the engine said.
	measured map[kind]float64
	// known is what an earlier search found: its front prunes from the start.
	known []candidate
	times *times // that earlier rounds have predicted, nil: none are kept
	at    int    // of the layouts of this search, in its order

	batch   int // samples of a step, exactly
	gpus    []int
	perNode int
	budget  float64 // bytes of a card that a plan may take
	host    float64 // bytes of host memory for each accelerator, 0: not known
	stacks  []stack

	base       Choice
	methods    []Method
	precisions []Precision
	optimizers []Optimizer
	losses     []Loss
	attentions []Attention
	seqs       []int
	offload    bool // host memory may be used

	scratch [24]int
	// micro is the only micro-batch to look at, 0: any. A network that normalises
	// over the micro-batch computes something else at another.
	micro        int
	channelsLast bool

	perOf    int // what divisors are of
	divisors []int
	active   []int // the stacks that have the variant being searched

	// slowest is how much slower than the fastest plan one may be to be listed
	// for the memory it leaves free.
	slowest float64
}

// A candidate is a choice with what the closed forms say of it.
type candidate struct {
	Choice
	need need
	time float64 // microseconds of a step, as space.rank weighs them
}

// A front holds the candidates that no other beats in both time and memory.
// They are kept by rising time, and so by falling memory.
type front struct {
	list    []candidate
	slowest float64
}

// dominated reports whether a candidate of at least this time and memory is
// beaten, or is too slow to be listed.
func (f *front) dominated(time, bytes float64) bool {
	if len(f.list) > 0 && time > f.list[0].time*f.slowest {
		return true
	}
	// The last entry that is not slower has the least memory of those.
	i := sort.Search(len(f.list), func(i int) bool { return f.list[i].time > time })
	return i > 0 && f.list[i-1].need.total <= bytes
}

// add puts a candidate in, and throws out what it beats.
func (f *front) add(c candidate) {
	if f.dominated(c.time, c.need.total) {
		return
	}
	i := sort.Search(len(f.list), func(i int) bool { return f.list[i].time >= c.time })
	j := i
	for j < len(f.list) && f.list[j].need.total >= c.need.total {
		j++
	}
	f.list = slices.Replace(f.list, i, j, c)
	if i == 0 { // a new fastest: the slow end may fall off
		for n := len(f.list); n > 1 && f.list[n-1].time > f.list[0].time*f.slowest; n-- {
			f.list = f.list[:n-1]
		}
	}
}

// layersOfRank is the number of layers on the fullest pipeline rank.
func (s *space) layersOfRank(c *Choice) int {
	return (s.shape.layers + c.Pipeline - 1) / c.Pipeline
}

// time is the predicted time of a step, per sample where the length is the
// base's: a plan with a shorter length is compared by what it does for a token.
func (s *space) time(c *Choice) float64 {
	st := c.speedSetting(s)
	t := s.consts.Estimate(s.net, s.device, &st).Mid
	if c.Seq != s.base.Seq && c.Seq > 0 {
		t *= float64(s.base.Seq) / float64(c.Seq)
	}
	return t
}

// offloadMargin is how much faster a plan that lives in host memory has to be
// than one that does not: its time hangs on the host's cores, memory and traffic,
// which nobody states, and by this much wider is its interval (speed's spread).
const offloadMargin = 1.15

// rank is the time by which a choice is compared with others.
func (s *space) rank(c *Choice) float64 {
	t := s.time(c)
	if c.OffloadName() != "none" && s.base.OffloadName() == "none" {
		t *= offloadMargin
	}
	return t
}

// fits reports whether a candidate's need is within the limits.
func (s *space) fits(n *need) bool {
	return n.total <= s.budget && (s.host == 0 || n.host <= s.host)
}

// search returns the front of everything in the space that fits.
func (s *space) search() []candidate {
	s.at = 0
	f := front{slowest: s.slowest}
	for _, c := range s.known {
		if c.need = s.need(&c.Choice); s.fits(&c.need) {
			f.add(c)
		}
	}
	s.variants(func(v Choice) {
		s.layouts(v, func(l Choice) {
			s.explore(&f, l)
		})
	})
	return f.list
}

// variants yields the choices of what does not depend on the layout. The base's
// own variant comes first, so that the front is good early.
func (s *space) variants(yield func(Choice)) {
	for _, seq := range s.seqs {
		for _, m := range s.methods {
			for _, p := range s.precisions {
				for _, o := range s.optimizers {
					for _, l := range s.losses {
						for _, a := range s.attentions {
							c := s.base
							c.Seq, c.Method, c.Precision, c.Optimizer, c.Loss, c.Attention = seq, m, p, o, l, a
							if m != FullTune && c.Rank == 0 {
								c.Rank = 16
							}
							s.active = s.active[:0]
							for i := range s.stacks {
								if s.stacks[i].has(&c, &s.base) {
									s.active = append(s.active, i)
								}
							}
							if len(s.active) > 0 {
								yield(c)
							}
						}
					}
				}
			}
		}
	}
}

// layouts yields the ways to spread a variant over accelerators, with the
// micro-batch and recomputation still open.
func (s *space) layouts(v Choice, yield func(Choice)) {
	var shardings []speed.Sharding
	for _, i := range s.active {
		for _, sh := range s.stacks[i].sharding {
			if !slices.Contains(shardings, sh) {
				shardings = append(shardings, sh)
			}
		}
	}
	for _, gpus := range s.gpus {
		for _, tp := range s.tensors(gpus) {
			for _, pp := range s.pipelines(gpus / tp) {
				for _, cp := range s.contexts(gpus/tp/pp, v.Seq, tp) {
					data := gpus / tp / pp / cp
					if s.batch%data != 0 {
						continue
					}
					for _, ep := range s.expertses(data * cp) {
						c := v
						c.GPUs, c.Tensor, c.Pipeline, c.Context, c.Expert, c.Data = gpus, tp, pp, cp, ep, data
						c.Chunks = 1
						s.shardings(c, shardings, yield)
					}
				}
			}
		}
	}
}

// shardings yields the ways to divide the state of a layout over its
// data-parallel ranks, and what may live in host memory.
func (s *space) shardings(c Choice, of []speed.Sharding, yield func(Choice)) {
	for _, sh := range of {
		c.Sharding = sh
		groups := []int{1}
		switch sh {
		case speed.NoSharding:
			if c.Data > 1 || c.Context > 1 {
				continue
			}
		case speed.DDP:
			if c.Data == 1 && c.Context == 1 {
				continue
			}
		default:
			// A single rank may still be sharded: that is how DeepSpeed and FSDP
			// offload from one accelerator.
			groups = []int{c.Data}
			if node := s.perNode / (c.Tensor * c.Context); sh == speed.FSDP && node > 1 && node < c.Data && c.Data%node == 0 {
				groups = append(groups, node)
			}
		}
		for _, g := range groups {
			c.Shard = g
			chunks := []int{1}
			if c.Pipeline > 1 {
				per := s.layersOfRank(&c)
				for _, v := range []int{2, 4} {
					if per%v == 0 {
						chunks = append(chunks, v)
					}
				}
			}
			for _, v := range chunks {
				c.Chunks = v
				s.offloads(c, yield)
			}
		}
	}
}

func (s *space) offloads(c Choice, yield func(Choice)) {
	try := func(o, w, a bool) {
		c.OffloadOptimizer, c.OffloadWeights, c.OffloadActivations = o, w, a
		all := c
		all.Recompute, all.Layers = RecomputeNone, 0
		if a {
			all.Recompute, all.Layers = RecomputeFull, s.layersOfRank(&c)
		}
		if s.able(&all, s.layersOfRank(&c)) {
			yield(c)
		}
	}
	alone := c.Data == 1 && c.Context == 1 && c.Sharding != speed.NoSharding
	if !alone { // sharding over one rank is only for offloading
		try(false, false, false)
	}
	if !s.offload {
		return
	}
	if !alone && s.shape.layers > 0 {
		try(false, false, true)
	}
	if c.Method == FullTune {
		try(true, false, false)
	}
	try(c.Method == FullTune, true, false)
}

// explore searches the micro-batches and recomputation of one layout. Memory
// rises with the micro-batch and falls with recomputation, time the other way
// round, so that the best of both bounds what the layout can do; where the front
// beats even that, nothing in it is looked at.
func (s *space) explore(f *front, c Choice) {
	micros := s.micros(&c)
	s.at++
	if len(micros) == 0 {
		return
	}
	c.Expandable = true
	l := place{layout: s.form.layout(&c), at: s.at, per: s.layersOfRank(&c)}
	tightest := c
	s.setMicro(&tightest, micros[0])
	tightest.Recompute, tightest.Layers = RecomputeFull, l.per
	least := s.needAt(&l, &tightest)
	if !s.fits(&least) {
		return
	}
	free := s.freeTimes(c, micros)
	if f.dominated(slices.Min(free), least.total) {
		return
	}
	for i, m := range micros {
		s.setMicro(&c, m)
		s.recompute(f, &l, c, free[i])
	}
}

// recompute searches how much of one micro-batch is recomputed; free is its time
// without, which nothing of it is below.
func (s *space) recompute(f *front, l *place, c Choice, free float64) {
	per, quickest := l.per, free // more layers cost more time: the last one bounds the next
	try := func(r Recompute, layers int) {
		c.Recompute, c.Layers = r, layers
		if !s.ableAt(l, &c) {
			return
		}
		n := s.needAt(l, &c)
		if !s.fits(&n) || f.dominated(quickest, n.total) {
			return
		}
		t := free
		if r != RecomputeNone {
			t = s.timeAt(l, &c)
		}
		f.add(candidate{c, n, t})
		if r == RecomputeFull {
			quickest = max(quickest, t)
		}
	}
	if c.OffloadActivations {
		try(RecomputeFull, per)
		return
	}
	full := c
	full.Recompute, full.Layers = RecomputeFull, per
	least := s.needAt(l, &full)
	if f.dominated(quickest, least.total) {
		return
	}
	try(RecomputeNone, 0)
	if per == 0 { // no layers to recompute
		return
	}
	try(RecomputeSelective, per)
	c.Recompute, c.Layers = RecomputeFull, 1
	if per == 1 || !s.ableAt(l, &c) {
		try(RecomputeFull, per)
		return
	}
	// The fewest recomputed layers that fit are the fastest; more only leave
	// more memory free.
	lo, hi := 1, per
	for lo < hi {
		mid := (lo + hi) / 2
		c.Layers = mid
		if n := s.needAt(l, &c); s.fits(&n) {
			hi = mid
		} else {
			lo = mid + 1
		}
	}
	for k := lo; k <= per; k++ {
		try(RecomputeFull, k)
	}
}

// check reports what of a choice cannot be, "" if nothing: the rules every stack
// has. The codes name messages of the room "plan".
func (s *space) check(c *Choice) string {
	sh := s.shape
	per := s.layersOfRank(c)
	shared := c.Data * c.Context
	divides := func(n int64, by int) bool { return n%int64(by) == 0 }
	switch {
	case c.Tensor*c.Pipeline*c.Context*c.Data != c.GPUs:
		return "degrees_gpus"
	case c.Batch() != s.batch:
		return "batch_product"
	case c.Tensor > 1 && c.Tensor > s.perNode:
		return "tensor_node"
	case c.Tensor > 1 && (sh.heads == 0 || !divides(sh.heads, c.Tensor)):
		return "tensor_heads"
	case c.Tensor > 1 && !divides(sh.kvHeads, c.Tensor) && !divides(int64(c.Tensor), int(sh.kvHeads)):
		return "tensor_kv_heads"
	case c.Tensor > 1 && !divides(sh.inner, c.Tensor):
		return "tensor_inner"
	case c.Pipeline > 1 && (c.Pipeline > sh.layers || sh.layers%c.Pipeline != 0 && (sh.layers+2)%c.Pipeline != 0):
		return "pipeline_layers"
	case c.Pipeline > 1 && c.Accumulation < c.Pipeline:
		return "pipeline_micros"
	case c.Chunks > 1 && (c.Pipeline == 1 || per%c.Chunks != 0 || c.Accumulation%c.Pipeline != 0):
		return "pipeline_chunks"
	case c.Context > 1 && (sh.heads == 0 || c.Seq%(2*c.Context*c.Tensor) != 0):
		return "context_seq"
	case c.Expert > 1 && (sh.experts < 2 || !divides(sh.experts, c.Expert) || shared%c.Expert != 0):
		return "expert_count"
	case c.Sharding == speed.NoSharding && shared > 1:
		return "sharding_missing"
	case c.Sharding == speed.DDP && shared == 1:
		return "sharding_alone"
	case c.Shard < 1 || c.Data%c.Shard != 0:
		return "shard_group"
	case c.Recompute != RecomputeNone && (c.Layers < 1 || c.Layers > per):
		return "recompute_layers"
	case len(s.who(c)) == 0:
		return "no_stack"
	}
	return ""
}

// micros lists the micro-batches that make the batch exactly, and leave a
// pipeline enough of them. The list is valid until the next call.
func (s *space) micros(c *Choice) []int {
	per := s.batch / c.Data
	if s.perOf != per {
		s.perOf, s.divisors = per, s.divisors[:0]
		for m := 1; m <= min(per, maxMicro) && len(s.divisors) < len(s.scratch); m++ {
			if per%m == 0 {
				s.divisors = append(s.divisors, m)
			}
		}
	}
	out := s.scratch[:0]
	for _, m := range s.divisors {
		accum := per / m
		if s.micro > 0 && m != s.micro {
			continue
		}
		if c.Pipeline == 1 || accum >= c.Pipeline && (c.Chunks == 1 || accum%c.Pipeline == 0) {
			out = append(out, m)
		}
	}
	return out
}

// maxMicro bounds the micro-batch: no accelerator gains from more.
const maxMicro = 1024

func (s *space) setMicro(c *Choice, m int) {
	c.Micro, c.Accumulation = m, s.batch/c.Data/m
}

// tensors lists the degrees of tensor parallelism: within a node, dividing the
// heads and the inner width.
func (s *space) tensors(gpus int) []int {
	out := []int{1}
	if !s.anyCan(func(a *ability) bool { return a.tensor }) {
		return out
	}
	sh := s.shape
	for t := 2; t <= min(gpus, s.perNode); t *= 2 {
		if gpus%t != 0 || sh.heads == 0 || sh.heads%int64(t) != 0 || sh.inner%int64(t) != 0 {
			continue
		}
		if sh.kvHeads%int64(t) != 0 && int64(t)%sh.kvHeads != 0 {
			continue
		}
		out = append(out, t)
	}
	return out
}

// pipelines lists the degrees of pipeline parallelism: stages of equally many
// layers, where the embedding and the head may count as one each.
func (s *space) pipelines(gpus int) []int {
	out := []int{1}
	if !s.anyCan(func(a *ability) bool { return a.pipeline }) || s.shape.layers < 2 {
		return out
	}
	for p := 2; p <= min(gpus, s.shape.layers, s.batch); p++ {
		if gpus%p == 0 && (s.shape.layers%p == 0 || (s.shape.layers+2)%p == 0) {
			out = append(out, p)
		}
	}
	return out
}

// contexts lists the degrees of context parallelism, which only long sequences
// are worth: each rank keeps at least 2,048 tokens.
func (s *space) contexts(gpus, seq, tp int) []int {
	out := []int{1}
	if !s.anyCan(func(a *ability) bool { return a.context }) || s.shape.heads == 0 {
		return out
	}
	for c := 2; c <= gpus && seq/c >= 2048; c *= 2 {
		if gpus%c == 0 && seq%(2*c*tp) == 0 {
			out = append(out, c)
		}
	}
	return out
}

// expertses lists the degrees of expert parallelism.
func (s *space) expertses(ranks int) []int {
	out := []int{1}
	if s.shape.experts < 2 || !s.anyCan(func(a *ability) bool { return a.expert }) {
		return out
	}
	for e := 2; e <= ranks && int64(e) <= s.shape.experts; e *= 2 {
		if s.shape.experts%int64(e) == 0 && ranks%e == 0 {
			out = append(out, e)
		}
	}
	return out
}

func (s *space) anyCan(able func(*ability) bool) bool {
	for _, i := range s.active {
		if able(&s.stacks[i].ability) {
			return true
		}
	}
	return false
}

// speedSetting writes a choice in the terms of package speed.
func (c *Choice) speedSetting(s *space) speed.Setting {
	per := float64(max(s.layersOfRank(c), 1))
	st := speed.Setting{
		MicroBatch: c.Micro, Accumulation: c.Accumulation, Seq: c.Seq, Kernels: c.Kernels,
		Data: c.Data, Shard: c.Shard, Sharding: c.Sharding, Tensor: c.Tensor, Pipeline: c.Pipeline, Chunks: c.Chunks, Context: c.Context, Expert: c.Expert,
		OffloadOptimizer: c.OffloadOptimizer, OffloadWeights: c.OffloadWeights, OffloadActivations: c.OffloadActivations,
		WeightBytes: 2, GradBytes: 4, ChannelsLast: s.channelsLast,
	}
	switch c.Recompute {
	case RecomputeFull:
		st.Full = min(1, float64(c.Layers)/per)
	case RecomputeSelective:
		st.Selective = min(1, float64(c.Layers)/per)
	}
	switch c.Precision {
	case Float32:
		st.Compute, st.WeightBytes = speed.FP32, 4
	case Mixed8:
		st.Compute = speed.FP8
	default:
		st.Compute = speed.BF16
		if s.device.BF16 == 0 {
			st.Compute = speed.FP16
		}
		if c.Precision == Pure16 {
			st.GradBytes = 2
		}
	}
	fm := c.formats(s.form)
	// A step reads the gradient, and reads and writes each value of state and
	// the weights.
	moments, _ := c.Optimizer.moments(fm)
	st.StepBytes = fm.grad + 2*(moments+fm.master+fm.weight)
	if c.Optimizer == AdamW {
		st.StepBytes *= 1.7 // the temporaries of the form with one kernel for each operation
	}
	if c.Method != FullTune {
		var sum float64
		for i := range s.shape.runs {
			sum += s.shape.runs[i].count * s.shape.runs[i].linearSum
		}
		st.Frozen, st.Adapter, st.Targets = true, c.Rank, 1
		st.Trainable = int64(max(1, float64(c.Rank)*sum))
		if c.Method == QLoRA {
			st.Quantised, st.WeightBytes = true, 0.55
		}
	}
	return st
}
