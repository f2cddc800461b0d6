package snapshot

import (
	"strconv"
	"strings"
)

// Texts resolves the ids of a snapshot.
type Texts struct {
	strings []string
	frames  []frame
	stacks  []span   // by stack id, into stackFrames
	frameOf []uint32 // frame ids of all stacks
	metas   []Meta
	pools   []PoolID
}

type frame struct {
	name, file uint32
	line       int32
	// text says that the frame is a bare line of text, in name.
	text bool
}

type span struct{ from, to uint32 }

// A Frame is one entry of a call stack. A bare line of text, as old versions
// and forward stacks have, is in Name, with an empty File.
type Frame struct {
	Name string
	File string
	Line int
}

// String writes the frame as Python's traceback does, on one line.
func (f Frame) String() string {
	if f.File == "" || f.File == "??" {
		return f.Name
	}
	return f.File + ":" + strconv.Itoa(f.Line) + ":" + f.Name
}

// A Meta is what the program said about an event.
type Meta struct {
	User    string // torch's user_metadata
	Compile string // torch's compile_context, "" for none
}

// A PoolID names a private pool: {0, k} is the user's, {k, 0} a graph capture's.
type PoolID [2]uint64

// Text returns an interned text.
func (t *Texts) Text(id uint32) string {
	if int(id) >= len(t.strings) {
		return ""
	}
	return t.strings[id]
}

// Stacks returns the number of distinct stacks, ids 1 to n-1; 0 is no stack.
func (t *Texts) Stacks() int { return len(t.stacks) }

// FrameIDs returns the frames of a stack, innermost first. Two frames are equal
// if their ids are.
func (t *Texts) FrameIDs(stack uint32) []uint32 {
	if int(stack) >= len(t.stacks) {
		return nil
	}
	s := t.stacks[stack]
	return t.frameOf[s.from:s.to:s.to]
}

// Frame returns the frame of a frame id.
func (t *Texts) Frame(id uint32) Frame {
	if int(id) >= len(t.frames) {
		return Frame{}
	}
	f := t.frames[id]
	return Frame{t.Text(f.name), t.Text(f.file), int(f.line)}
}

// Frames returns the number of distinct frames.
func (t *Texts) Frames() int { return len(t.frames) }

// Stack returns the frames of a stack, innermost first.
func (t *Texts) Stack(id uint32) []Frame {
	ids := t.FrameIDs(id)
	frames := make([]Frame, len(ids))
	for i, f := range ids {
		frames[i] = t.Frame(f)
	}
	return frames
}

// Meta returns what alloc.Event.Meta refers to.
func (t *Texts) Meta(id uint32) Meta {
	if int(id) >= len(t.metas) {
		return Meta{}
	}
	return t.metas[id]
}

// Pool returns what alloc.Event.Pool and Segment.Pool refer to.
func (t *Texts) Pool(id uint32) PoolID {
	if int(id) >= len(t.pools) {
		return PoolID{}
	}
	return t.pools[id]
}

// String writes the version as torch does: "2.10".
func (v Version) String() string { return strconv.Itoa(v.Major) + "." + strconv.Itoa(v.Minor) }

// Before reports whether v is older than w.
func (v Version) Before(w Version) bool {
	return v.Major < w.Major || v.Major == w.Major && v.Minor < w.Minor
}

// String writes the range: "2.8-2.9", "2.12 or newer".
func (r Range) String() string {
	switch {
	case r.Newest == Version{}:
		return r.Oldest.String() + " or newer"
	case r.Oldest == Version{}:
		return r.Newest.String() + " or older"
	case r.Oldest == r.Newest:
		return r.Oldest.String()
	}
	return strings.Join([]string{r.Oldest.String(), r.Newest.String()}, "-")
}
