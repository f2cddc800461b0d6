// Package alloc is PyTorch's CUDA caching allocator, simulated: the same
// decisions on the same requests, byte for byte, without a GPU. Behaviours that
// differ by torch version are data.
package alloc

// An Action is what one event of a memory trace says happened.
type Action uint8

// The actions of torch's trace entries, by their names there.
const (
	Unknown       Action = iota
	Alloc                // "alloc": a block was handed out
	FreeRequested        // "free_requested": the tensor died
	FreeCompleted        // "free_completed": the block is reusable (after other streams are done)
	SegmentAlloc         // "segment_alloc": cudaMalloc
	SegmentFree          // "segment_free": cudaFree
	SegmentMap           // "segment_map": an expandable segment grew
	SegmentUnmap         // "segment_unmap": an expandable segment gave memory back
	Snapshot             // "snapshot": the state was dumped
	OOM                  // "oom": a request failed; Size is the request
)

// An Event is one entry of a memory trace in 48 bytes. Texts are interned by
// whoever holds the trace; 0 means none.
type Event struct {
	Addr   uint64 // device address; for OOM the free bytes of the device
	Size   int64  // bytes, as torch records them for the action
	Stream uint64
	TimeUs int64
	Stack  uint32 // interned stack of frames
	Meta   uint32 // interned user metadata or compile context
	Pool   uint32 // interned private pool id, 0 for the default pool
	Action Action
}

// String returns torch's name of the action.
func (a Action) String() string {
	names := [...]string{
		Unknown: "unknown", Alloc: "alloc", FreeRequested: "free_requested", FreeCompleted: "free_completed",
		SegmentAlloc: "segment_alloc", SegmentFree: "segment_free", SegmentMap: "segment_map",
		SegmentUnmap: "segment_unmap", Snapshot: "snapshot", OOM: "oom",
	}
	if int(a) < len(names) {
		return names[a]
	}
	return names[Unknown]
}
