package memory

// A dtype is an element type, as far as its size matters.
type dtype uint8

// The element types.
const (
	f32 dtype = iota
	f16
	bf16
	f8
	i64
	i32
	u8 // int8, uint8, bool
)

// size returns the bytes of n elements.
func (d dtype) size(n int64) int64 {
	switch d {
	case f32, i32:
		return 4 * n
	case f16, bf16:
		return 2 * n
	case i64:
		return 8 * n
	}
	return n
}

// low reports whether d is a 16-bit floating-point type.
func (d dtype) low() bool { return d == f16 || d == bf16 }

// A device receives the requests of a machine; the caching allocator is one.
type device interface {
	// malloc returns a handle and the bytes by which allocated memory grew.
	malloc(bytes int64, stream uint32) (handle int32, block int64)
	free(handle int32)
}

// The marks of a storage, from which its kind follows.
const (
	markSaved    uint8 = 1 << iota // autograd kept it for backward
	markGradient                   // it became the gradient of a parameter
)

// storage is one allocation. Tensors that are views share it.
type storage struct {
	bytes  int64 // as requested
	block  int64 // as handed out
	refs   int32
	handle int32
	item   itemID
	marks  uint8
	empty  bool // an object whose memory is away
}

// tensor is a value of the program: a view of a storage, with what autograd
// needs to know of it. It is copied freely; the machine counts references, so
// whoever keeps one for longer calls keep, and drop when done.
type tensor struct {
	st   int32 // storage, noStorage for one that takes no memory
	n    int64 // elements
	fn   int32 // node that made it + 1, 0: none
	leaf int32 // parameter + 1, 0: none
	dt   dtype
	slot uint16 // which output of the node
}

const noStorage = -1

func (t tensor) needsGrad() bool { return t.fn != 0 || t.leaf != 0 }

// detach is t without its history: the same storage.
func (t tensor) detach() tensor { t.fn, t.leaf, t.slot = 0, 0, 0; return t }

// section is a part of the run with its highest point.
type section struct {
	phase     Phase
	label     string
	iteration int
	allocated int64
	at        int // length of the log then
	from      int // length of the log at its start
}

// refill is memory that a storage object got again: where in the log, and the block.
type refill struct {
	at    int
	block int64
}

// machine plays a program: it owns storages, parameters and the tape.
type machine struct {
	dev device
	sts []storage
	log []int32 // storage+1 when it was made, -(storage+1) when it died
	// refills are in the order of the log: the block may be another one each time.
	refills []refill
	turns   []turn
	turned  uint32 // the stream of the latest turn
	// skipped says that the log leaves out stretches of the run that are like
	// others.
	skipped bool
	// each: micro-batches that recur are played like others.
	each     bool
	cur      int64 // allocated bytes
	sections []section
	items    itemTable
	item     itemID // what new storages are counted under
	stream   uint32

	params []parameter
	tape   *tape
	tapes  []*tape // spare ones
	grad   bool    // gradients are recorded
	frames []frame // of running nodes; nested backward runs stack them
	depth  int

	amp   dtype // dtype of the running autocast region, f32: none
	cache []castCopy

	// Under a checkpoint, packed saves keep nothing and are only counted. A
	// recomputation stops as soon as it has saved what the forward saved: from
	// then on operations are muted and make no storage.
	packed bool
	muted  bool
	saves  int
	until  int // 0: never

	sac *selection

	training bool // modules are in training mode: dropout acts
	// passage is the phase that sections belong to outside of training steps, "":
	// each to its own.
	passage Phase
	// unplayed names what beside the training steps has no player.
	unplayed []string
	// saveInputs: softmax and log_softmax save their input beside their result.
	saveInputs bool

	// detached is told when a recomputed region has its gradient: the region's
	// detached input, and the storage of its gradient.
	detached func(leaf int, in tensor, grad int32)
}

// begin starts a section of the run; peaks are told apart by it.
func (x *machine) begin(p Phase, label string, iteration int) {
	if x.passage != "" {
		p = x.passage
	}
	x.sections = append(x.sections, section{p, label, iteration, x.cur, len(x.log), len(x.log)})
}

// reset makes x the machine of a new run on a device. It keeps the memory of its
// tables.
func (x *machine) reset(dev device) {
	if x.tape != nil { // the outermost one, or that of a run that failed
		x.endTape(nil)
	}
	*x = machine{dev: dev, training: true, sts: x.sts[:0], log: x.log[:0], turns: x.turns[:0], refills: x.refills[:0], sections: x.sections[:0], items: x.items, params: x.params[:0], tapes: x.tapes, frames: x.frames, cache: x.cache[:0]}
	x.item = x.items.id("", "other")
	x.begin(Load, "load", 0)
	x.newTape()
}

// alloc makes a storage with one reference.
func (x *machine) alloc(bytes int64) int32 {
	if bytes <= 0 || x.muted {
		return noStorage
	}
	h, block := x.malloc(bytes)
	id := int32(len(x.sts))
	x.sts = append(x.sts, storage{bytes: bytes, block: block, refs: 1, handle: h, item: x.item})
	x.log = append(x.log, id+1)
	x.grow(block)
	return id
}

// malloc asks the device on the current stream.
func (x *machine) malloc(bytes int64) (int32, int64) {
	if x.stream != x.turned {
		x.turn(false)
	}
	return x.dev.malloc(bytes, x.stream)
}

// turn notes that requests go on from the current stream.
func (x *machine) turn(emptied bool) {
	x.turned = x.stream
	x.turns = append(x.turns, turn{len(x.log), x.stream, emptied})
}

// grow counts a block that was handed out.
func (x *machine) grow(block int64) {
	x.cur += block
	if s := &x.sections[len(x.sections)-1]; x.cur > s.allocated {
		s.allocated, s.at = x.cur, len(x.log)
	}
}

// hold adds a reference.
func (x *machine) hold(st int32) {
	if st >= 0 {
		if x.sts[st].refs <= 0 {
			panic("memory: a dead storage is referred to")
		}
		x.sts[st].refs++
	}
}

// release takes a reference away; the last one frees the storage.
func (x *machine) release(st int32) {
	if st < 0 {
		return
	}
	s := &x.sts[st]
	s.refs--
	if s.refs > 0 {
		return
	}
	if s.refs < 0 {
		panic("memory: a storage was released twice")
	}
	if s.empty {
		return
	}
	x.dev.free(s.handle)
	x.log = append(x.log, -(st + 1))
	x.cur -= s.block
}

// unique reports whether the storage has exactly one reference.
func (x *machine) unique(st int32) bool { return st >= 0 && x.sts[st].refs == 1 }

// tensor makes a tensor with a storage of its own.
func (x *machine) tensor(n int64, d dtype) tensor {
	return tensor{st: x.alloc(d.size(n)), n: n, dt: d}
}

// keep is a further variable that refers to t.
func (x *machine) keep(t tensor) tensor { x.hold(t.st); return t }

// drop ends variables.
func (x *machine) drop(ts ...tensor) {
	for i := range ts {
		x.release(ts[i].st)
	}
}

// scratch allocates bytes and releases them at once: a temporary that lives
// while one operation runs.
func (x *machine) scratch(bytes int64) { x.release(x.alloc(bytes)) }

// as counts new storages under an item until the returned function is called.
func (x *machine) as(kind Kind, name string) func() {
	old := x.item
	x.item = x.items.id(kind, name)
	return func() { x.item = old }
}
