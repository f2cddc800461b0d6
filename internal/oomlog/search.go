package oomlog

import (
	"encoding/binary"
	"iter"
)

// A search finds any of many literals in a text, whatever the case of ASCII
// letters, and looks at about one place in four: Wu and Manber's method on
// blocks of three bytes (S. Wu, U. Manber, "A fast algorithm for multi-pattern
// searching", TR-94-17, University of Arizona, 1994).
type search struct {
	anchors []string
	// shift says by how much the window of minAnchor bytes may move when it
	// ends with a block; 0 means that an anchor may start at the window's start.
	shift [blocks]uint8
	// ends numbers the lists of anchors by the block that ends their first
	// minAnchor bytes; list 0 is empty.
	ends  [blocks]uint16
	lists [][]int
}

// A block of three bytes is told by five bits of each, which fold the case of
// letters.
const blocks = 1 << 15

func block(a, b, c byte) uint32 {
	return uint32(a&31) | uint32(b&31)<<5 | uint32(c&31)<<10
}

func newSearch(anchors []string) *search {
	s := &search{anchors: anchors, lists: make([][]int, 1)}
	for i := range s.shift {
		s.shift[i] = minAnchor - 2
	}
	for id, a := range anchors {
		if len(a) < minAnchor {
			panic("oomlog: anchor too short: " + a) // a test builds the table
		}
		for j := 2; j < minAnchor; j++ {
			k := block(a[j-2], a[j-1], a[j])
			move := uint8(minAnchor - 1 - j)
			s.shift[k] = min(s.shift[k], move)
			if move > 0 {
				continue
			}
			if s.ends[k] == 0 {
				s.ends[k] = uint16(len(s.lists))
				s.lists = append(s.lists, nil)
			}
			s.lists[s.ends[k]] = append(s.lists[s.ends[k]], id)
		}
	}
	return s
}

// next returns the position and the id of the first anchor that starts in
// text[from:to], or -1. The anchor itself may end behind to.
func (s *search) next(text []byte, from, to int) (pos, id int) {
	for i := from + minAnchor - 1; i < len(text); {
		// block(text[i-2], text[i-1], text[i]), from one load
		v := binary.LittleEndian.Uint32(text[i-3 : i+1 : i+1])
		k := (v>>8&31 | v>>11&(31<<5) | v>>14&(31<<10)) & (blocks - 1)
		move := int(s.shift[k])
		if move != 0 {
			i += move
			continue
		}
		start := i - minAnchor + 1
		if start >= to {
			return -1, -1
		}
		for _, id := range s.lists[s.ends[k]] {
			if a := s.anchors[id]; text[start]|0x20 == a[0]|0x20 && equalFold(text[start:], a) {
				return start, id
			}
		}
		i++
	}
	return -1, -1
}

// at yields the anchors that stand at a place.
func (s *search) at(text []byte, start int) iter.Seq[int] {
	return func(yield func(int) bool) {
		i := start + minAnchor - 1
		if i >= len(text) {
			return
		}
		for _, id := range s.lists[s.ends[block(text[i-2], text[i-1], text[i])]] {
			if equalFold(text[start:], s.anchors[id]) && !yield(id) {
				return
			}
		}
	}
}

// equalFold reports whether text starts with the lower-case anchor.
func equalFold(text []byte, anchor string) bool {
	if len(text) < len(anchor) {
		return false
	}
	for i := range len(anchor) {
		b := text[i]
		if b >= 'A' && b <= 'Z' {
			b += 'a' - 'A'
		}
		if b != anchor[i] {
			return false
		}
	}
	return true
}
