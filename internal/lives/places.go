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
	// File, Line and Func are the Python frame that tells most: the line of the
	// model or of the script; see PlaceOf.
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

// A layer tells whose a Python frame is.
type layer uint8

const (
	notPython layer = iota
	ofPython        // torch's or Python's own
	ofLibrary       // installed, such as transformers
	ofUser
)

// layerOf tells whose a file is.
func layerOf(file string) layer {
	f := strings.ToLower(slashed(file))
	switch {
	case !isPython(f):
		return notPython
	case strings.HasPrefix(f, "<frozen"), strings.HasPrefix(f, "<string"):
		return ofPython
	case strings.Contains(f, "/site-packages/"), strings.Contains(f, "/dist-packages/"):
		if strings.Contains(f, "-packages/torch/") || strings.Contains(f, "-packages/torchgen/") {
			return ofPython
		}
		return ofLibrary
	case strings.Contains(f, "/torch/nn/"), strings.Contains(f, "/torch/autograd/"), strings.Contains(f, "/torch/utils/"),
		strings.Contains(f, "/torch/optim/"), strings.Contains(f, "/torch/_"), strings.Contains(f, "/torch/cuda/"),
		strings.Contains(f, "/torch/distributed/"):
		return ofPython
	case strings.Contains(f, "/lib/python"), strings.Contains(f, "python") && strings.Contains(f, "/lib/"):
		return ofPython // the standard library
	}
	return ofUser
}

// PlaceOf returns the place of a stack.
//
// The innermost line of the user's own program is best, if it is within a
// module's forward: a model is written there. Where the model is a library's,
// the user's line is the call of a trainer and says nothing of a forward; then it
// is the library's innermost forward.
func (h *History) PlaceOf(stack uint32) Place {
	var p Place
	s := h.Snapshot
	ids := s.FrameIDs(stack)
	user, library, forward, torch := -1, -1, -1, -1
	within := false // a forward encloses the user's line
	for i, id := range ids {
		f := s.Frame(id)
		if p.Op == "" {
			p.Op = opOf(f)
		}
		l := layerOf(f.File)
		isForward := f.Name == "forward" || f.Name == "_call_impl" || f.Name == "_wrapped_call_impl" || f.Name == "__call__"
		switch {
		case l == ofUser && user < 0:
			user = i
		case l == ofLibrary && library < 0:
			library = i
		case l == ofPython && torch < 0:
			torch = i
		}
		if l == ofLibrary && isForward && forward < 0 {
			forward = i
		}
		within = within || user >= 0 && l != notPython && isForward
	}
	best := user
	if user < 0 || !within {
		switch {
		case forward >= 0:
			best = forward
		case user < 0 && library >= 0:
			best = library
		case user < 0:
			best = torch
		}
	}
	switch {
	case best >= 0:
		f := s.Frame(ids[best])
		p.File, p.Line, p.Func = f.File, f.Line, f.Name
	case len(ids) > 0:
		// A line of text, as old versions and forward stacks have; profile_plot
		// calls the file of all its frames "none".
		if f := s.Frame(ids[0]); (f.File == "" || f.File == "none") && !strings.Contains(f.Name, "::") {
			p.Func = f.Name
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
	// Each is the size of each tensor where there is no place to tell them apart
	// by; 0 elsewhere.
	Each int64
	// Stack is that of most of the bytes.
	Stack uint32

	kinds  [Kinds]int64
	stacks map[uint32]int64
}

// HoldersAfter returns who holds the memory after an event, the largest first.
// Tensors without a stack are held by the zero Place, each kind and size on its
// own.
func (h *History) HoldersAfter(event int32) []Holder {
	return h.holders(func(t *Tensor) bool { return t.LivesAfter(event) })
}

func (h *History) holders(which func(*Tensor) bool) []Holder {
	type key struct {
		Place
		kind Kind
		each int64
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
			k.kind, k.each = t.Kind, t.Bytes
		}
		j, known := index[k]
		if !known {
			j = len(list)
			index[k] = j
			list = append(list, Holder{Place: p, Phase: t.Within, Each: k.each, stacks: map[uint32]int64{}})
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
		return cmp.Or(cmp.Compare(b.Bytes, a.Bytes), cmp.Compare(a.String(), b.String()), cmp.Compare(a.Kind, b.Kind), cmp.Compare(b.Each, a.Each))
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
