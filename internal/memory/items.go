package memory

import "hash/fnv"

// A Kind is what memory is for. The words are those of package account.
type Kind string

// The kinds of an item.
const (
	Weights        Kind = "weights"
	Gradients      Kind = "gradients"
	OptimizerState Kind = "optimizer_state"
	Activations    Kind = "activations"
	Temporaries    Kind = "temporaries"
	Buffers        Kind = "buffers" // of communication and libraries, inside the allocator
	Workspace      Kind = "workspace"
)

// A Phase is a part of a training run. The words are those of package remedy.
type Phase string

// The phases, in the order of a run.
const (
	Load       Phase = "load"
	Forward    Phase = "forward"
	Loss       Phase = "loss"
	Backward   Phase = "backward"
	Step       Phase = "optimizer_step"
	Evaluation Phase = "evaluation"
	Save       Phase = "save"
	Resume     Phase = "resume"
)

// itemID is an index into an itemTable.
type itemID int16

type itemKey struct {
	kind Kind // "" where it follows from the marks of the storage
	name string
}

// itemTable interns what storages are counted under.
type itemTable struct {
	keys []itemKey
	ids  map[itemKey]itemID
	// hashes are of the keys, of itemWidth bits, so that what two machines count
	// can be compared.
	hashes []uint64
}

func (t *itemTable) id(kind Kind, name string) itemID {
	k := itemKey{kind, name}
	if id, ok := t.ids[k]; ok {
		return id
	}
	if t.ids == nil {
		t.ids = map[itemKey]itemID{}
	}
	id := itemID(len(t.keys))
	t.keys = append(t.keys, k)
	h := fnv.New64a()
	h.Write([]byte(k.kind + "/" + Kind(k.name)))
	t.hashes = append(t.hashes, h.Sum64()&itemBits)
	t.ids[k] = id
	return id
}
