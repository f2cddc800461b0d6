package diagnose

import (
	"cmp"
	"path"
	"slices"
	"strings"

	"unoom/internal/lives"
	"unoom/internal/units"
)

// A Change is what differs between two snapshots, at the moment of each that is
// explained.
type Change struct {
	Before, After *Held
	Kinds         []KindChange
	Holders       []HolderChange // largest change first; those without one are left out
}

// A KindChange is what a kind held before and holds after.
type KindChange struct {
	Kind          lives.Kind
	Before, After units.Bytes
}

// A HolderChange is what was held from a place before and is after. Places are
// the same if file, function and operation are: lines move.
type HolderChange struct {
	Place                   lives.Place // with the line of the later one
	Kind                    lives.Kind
	Each                    units.Bytes // as of a Holder
	Before, After           units.Bytes
	CountBefore, CountAfter int
}

// By is by how much more is held.
func (c HolderChange) By() units.Bytes { return c.After - c.Before }

// Compare tells what changed from one snapshot to another.
func Compare(before, after *Held) *Change {
	c := &Change{Before: before, After: after}
	for k := range lives.Kinds {
		if before.Kinds[k] != 0 || after.Kinds[k] != 0 {
			c.Kinds = append(c.Kinds, KindChange{lives.Kind(k), units.Bytes(before.Kinds[k]), units.Bytes(after.Kinds[k])})
		}
	}
	c.Holders = holderChanges(before.Holders, after.Holders)
	slices.SortFunc(c.Holders, func(a, b HolderChange) int {
		return cmp.Or(
			cmp.Compare(max(b.By(), -b.By()), max(a.By(), -a.By())),
			cmp.Compare(a.Place.String(), b.Place.String()), cmp.Compare(a.Kind, b.Kind))
	})
	return c
}

// holderChanges pairs the places of two snapshots: the very same lines first, then
// what is left by file, function and operation, since lines move.
func holderChanges(before, after []lives.Holder) []HolderChange {
	type key struct {
		file, function, op string
		line               int
		kind               lives.Kind
		each               int64
	}
	keyOf := func(h *lives.Holder, line int) key {
		k := key{file: path.Base(strings.ReplaceAll(h.File, `\`, "/")), function: h.Func, op: h.Op, line: line}
		if h.Place == (lives.Place{}) {
			k.kind, k.each = h.Kind, h.Each
		}
		return k
	}
	inBoth := map[key]int{}
	for i := range before {
		inBoth[keyOf(&before[i], before[i].Line)] |= 1
	}
	for i := range after {
		inBoth[keyOf(&after[i], after[i].Line)] |= 2
	}
	var order []key
	changes := map[key]*HolderChange{}
	find := func(h *lives.Holder) *HolderChange {
		k := keyOf(h, h.Line)
		if inBoth[k] != 3 {
			k = keyOf(h, 0)
		}
		if changes[k] == nil {
			changes[k] = &HolderChange{Place: h.Place, Kind: h.Kind, Each: units.Bytes(h.Each)}
			order = append(order, k)
		}
		return changes[k]
	}
	for i := range before {
		ch := find(&before[i])
		ch.Before += units.Bytes(before[i].Bytes)
		ch.CountBefore += before[i].Count
	}
	for i := range after {
		ch := find(&after[i])
		ch.Place, ch.Kind = after[i].Place, after[i].Kind
		ch.After += units.Bytes(after[i].Bytes)
		ch.CountAfter += after[i].Count
	}
	var list []HolderChange
	for _, k := range order {
		if ch := changes[k]; ch.Before != ch.After || ch.CountBefore != ch.CountAfter {
			list = append(list, *ch)
		}
	}
	return list
}
