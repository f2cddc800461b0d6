package lives

import (
	"cmp"
	"path"
	"slices"
	"strconv"
	"strings"

	"unoom/internal/snapshot"
)

// A Place is where in the program memory was asked for.
type Place struct {
	// File, Line and Func are the innermost Python frame that is neither torch's
	// nor the standard library's: the line of the model or the script.
	File string
	Line int
	Func string
	// Op is the operation of torch, or of autograd's backward: "bmm",
	// "MmBackward0"; "" if the stack has no C++ frames.
	Op string
	// Forward says that the place is that of the forward whose backward it was.
	Forward bool
}

// String writes the place on one line: "model.py:31 forward (bmm)".
func (p Place) String() string {
	var parts []string
	if p.File != "" {
		at := path.Base(slashed(p.File))
		if p.Line > 0 {
			at += ":" + strconv.Itoa(p.Line)
		}
		parts = append(parts, at)
	}
	if p.Func != "" {
		parts = append(parts, p.Func)
	}
	if p.Op != "" {
		parts = append(parts, "("+p.Op+")")
	}
	return strings.Join(parts, " ")
}

// ownFrame reports whether a Python frame is of the user's program or of a
// library that it is written with, and not of torch or Python itself.
func ownFrame(file string) bool {
	f := strings.ToLower(slashed(file))
	switch {
	case !isPython(f), strings.HasPrefix(f, "<frozen"), strings.HasPrefix(f, "<string"):
		return false
	case strings.Contains(f, "/site-packages/"), strings.Contains(f, "/dist-packages/"):
		return !strings.Contains(f, "-packages/torch/") && !strings.Contains(f, "-packages/torchgen/")
	case strings.Contains(f, "/torch/nn/"), strings.Contains(f, "/torch/autograd/"), strings.Contains(f, "/torch/utils/"),
		strings.Contains(f, "/torch/optim/"), strings.Contains(f, "/torch/_"), strings.Contains(f, "/torch/cuda/"),
		strings.Contains(f, "/torch/distributed/"):
		return false
	case strings.Contains(f, "/lib/python"), strings.Contains(f, "python") && strings.Contains(f, "/lib/"):
		return false // the standard library
	}
	return true
}

// PlaceOf returns the place of a stack.
func (h *History) PlaceOf(stack uint32) Place {
	var p Place
	s := h.Snapshot
	ids := s.FrameIDs(stack)
	for _, id := range ids {
		f := s.Frame(id)
		if p.File == "" && ownFrame(f.File) {
			p.File, p.Line, p.Func = f.File, f.Line, f.Name
		}
		if p.Op == "" {
			p.Op = opOf(f)
		}
	}
	if p.File == "" {
		for _, id := range ids {
			f := s.Frame(id)
			if isPython(f.File) {
				p.File, p.Line, p.Func = f.File, f.Line, f.Name
				break
			}
			if f.File == "" && f.Name != "" && p.Func == "" && len(ids) > 0 && !strings.Contains(f.Name, "::") {
				p.Func = f.Name // a line of text
			}
		}
	}
	// Of a backward, the operation of autograd says more than the kernel's.
	if h.traitsOfStack(stack)&inEngine != 0 {
		for _, id := range ids {
			if node := backwardNode(s.Frame(id).Name); node != "" {
				p.Op = node
				break
			}
		}
	}
	return p
}

// opOf returns the operation that a C++ frame dispatches: at::_ops::NAME::call.
func opOf(f snapshot.Frame) string {
	_, rest, ok := strings.Cut(f.Name, "at::_ops::")
	if !ok {
		return ""
	}
	name, _, ok := strings.Cut(rest, "::")
	if !ok || name == "" {
		return ""
	}
	switch name {
	case "empty", "empty_strided", "empty_like", "empty_memory_format", "resize_", "new_empty", "new_empty_strided":
		return "" // what asked for the empty tensor says more
	}
	return name
}

// backwardNode returns the node of autograd that a C++ frame applies.
func backwardNode(name string) string {
	if strings.Contains(name, "AccumulateGrad") {
		return "AccumulateGrad"
	}
	_, rest, ok := strings.Cut(name, "autograd::generated::")
	if !ok {
		return ""
	}
	node, _, ok := strings.Cut(rest, "::apply")
	if !ok || strings.ContainsAny(node, " :(<") {
		return ""
	}
	return node
}

// PlaceOfTensor returns the place of a tensor: where its memory was asked for or,
// for one of the backward without frames of its own, the forward it belongs to.
func (h *History) PlaceOfTensor(t *Tensor) Place {
	p := h.PlaceOf(t.Stack)
	if p.File == "" && t.Born >= 0 && h.forward != nil && h.forward[t.Born] != 0 {
		for _, f := range h.Snapshot.Stack(h.forward[t.Born]) {
			if line := f.Name; line != "" && !strings.Contains(line, "/torch/") {
				p.Func, p.Forward = line, true
				break
			}
		}
	}
	return p
}

// A Holder is a place with what is held from there.
type Holder struct {
	Place
	Kind  Kind // of most of the bytes
	Phase Phase
	Bytes int64
	Count int
	// Stack is that of most of the bytes.
	Stack uint32

	kinds  [Kinds]int64
	stacks map[uint32]int64
}

// HoldersAfter returns who holds the memory after an event, the largest first.
// Tensors without a stack are held by the zero Place, each kind on its own.
func (h *History) HoldersAfter(event int32) []Holder {
	return h.holders(func(t *Tensor) bool { return t.LivesAfter(event) })
}

func (h *History) holders(which func(*Tensor) bool) []Holder {
	type key struct {
		Place
		kind Kind
	}
	places := map[[2]uint32]Place{}
	index := map[key]int{}
	var list []Holder
	for i := range h.Tensors {
		t := &h.Tensors[i]
		if !which(t) {
			continue
		}
		at := [2]uint32{t.Stack, 0}
		if t.Born >= 0 && h.forward != nil {
			at[1] = h.forward[t.Born]
		}
		p, known := places[at]
		if !known {
			p = h.PlaceOfTensor(t)
			places[at] = p
		}
		k := key{Place: p}
		if p == (Place{}) {
			k.kind = t.Kind
		}
		j, known := index[k]
		if !known {
			j = len(list)
			index[k] = j
			list = append(list, Holder{Place: p, Phase: t.Within, stacks: map[uint32]int64{}})
		}
		list[j].Bytes += t.Bytes
		list[j].Count++
		list[j].kinds[t.Kind] += t.Bytes
		list[j].stacks[t.Stack] += t.Bytes
	}
	for j := range list {
		l := &list[j]
		for k, b := range l.kinds {
			if b > l.kinds[l.Kind] {
				l.Kind = Kind(k)
			}
		}
		for s, b := range l.stacks {
			if b > l.stacks[l.Stack] || b == l.stacks[l.Stack] && s < l.Stack {
				l.Stack = s
			}
		}
		l.stacks = nil
	}
	slices.SortStableFunc(list, func(a, b Holder) int {
		return cmp.Or(cmp.Compare(b.Bytes, a.Bytes), cmp.Compare(a.String(), b.String()), cmp.Compare(a.Kind, b.Kind))
	})
	return list
}

// A Label is memory by what the program itself said: a user range or metadata.
type Label struct {
	Name  string
	Bytes int64
	Count int
}

// LabelsAfter returns what lives after an event by the metadata that the program
// set or, where it set none, by the innermost user range in which the memory was
// asked for. Ranges of torch itself are left out. It is empty if there are
// neither.
func (h *History) LabelsAfter(event int32) []Label {
	name := h.ranges()
	sums := map[string]*Label{}
	named := false
	for i := range h.Tensors {
		t := &h.Tensors[i]
		if !t.LivesAfter(event) {
			continue
		}
		n := h.Snapshot.Meta(t.Meta).User
		if n == "" && name != nil && t.Born >= 0 {
			n = name[t.Born]
		}
		named = named || n != ""
		if sums[n] == nil {
			sums[n] = &Label{Name: n}
		}
		sums[n].Bytes += t.Bytes
		sums[n].Count++
	}
	if !named {
		return nil
	}
	var list []Label
	for _, l := range sums {
		list = append(list, *l)
	}
	slices.SortFunc(list, func(a, b Label) int {
		return cmp.Or(cmp.Compare(b.Bytes, a.Bytes), cmp.Compare(a.Name, b.Name))
	})
	return list
}

// ownRange reports whether a range is the user's: torch makes some itself.
func ownRange(name string) bool {
	for _, torch := range []string{"Optimizer.", "enumerate(DataLoader)", "ProfilerStep#", "PyTorch Profiler", "DistributedDataParallel.", "Iterating_"} {
		if strings.HasPrefix(name, torch) {
			return false
		}
	}
	return true
}

// ranges returns the innermost user range of each event, nil if there is none.
func (h *History) ranges() []string {
	if !h.timed() {
		return nil
	}
	var open []string
	var names []string
	next := 0
	list := slices.Clone(h.Snapshot.Annotations)
	slices.SortStableFunc(list, func(a, b snapshot.Annotation) int { return cmp.Compare(a.TimeUs, b.TimeUs) })
	for i := range h.Events {
		for next < len(list) && list[next].TimeUs <= h.Events[i].TimeUs {
			a := list[next]
			next++
			if !ownRange(a.Name) {
				continue
			}
			if a.Start {
				open = append(open, a.Name)
				if names == nil {
					names = make([]string, len(h.Events))
				}
				continue
			}
			for j := len(open) - 1; j >= 0; j-- { // ranges of other threads overlap
				if open[j] == a.Name {
					open = slices.Delete(open, j, j+1)
					break
				}
			}
		}
		if names != nil && len(open) > 0 {
			names[i] = open[len(open)-1]
		}
	}
	return names
}
