package oomlog

import "iter"

// A search finds any of many literals in a text, whatever the case of ASCII
// letters, and looks at about one byte in four: Wu and Manber's method on pairs
// of bytes (S. Wu, U. Manber, "A fast algorithm for multi-pattern searching",
// TR-94-17, University of Arizona, 1994).
type search struct {
	anchors []string
	// shift says by how much the window may move when it ends with a pair; 0
	// means that an anchor may start at the window's start.
	shift [1 << 16]uint8
	// ends lists the anchors by the pair that ends their first minAnchor bytes.
	ends map[uint16][]int
}

func newSearch(anchors []string) *search {
	s := &search{anchors: anchors, ends: map[uint16][]int{}}
	for i := range s.shift {
		s.shift[i] = minAnchor - 1
	}
	for id, a := range anchors {
		if len(a) < minAnchor {
			panic("oomlog: anchor too short: " + a) // a test builds the table
		}
		for j := 1; j < minAnchor; j++ {
			move := uint8(minAnchor - 1 - j)
			for _, pair := range cases(a[j-1], a[j]) {
				s.shift[pair] = min(s.shift[pair], move)
				if move == 0 {
					s.ends[pair] = append(s.ends[pair], id)
				}
			}
		}
	}
	return s
}

// cases returns the pair in each combination of upper and lower case.
func cases(a, b byte) []uint16 {
	var pairs []uint16
	for _, x := range bothCases(a) {
		for _, y := range bothCases(b) {
			pairs = append(pairs, uint16(x)<<8|uint16(y))
		}
	}
	return pairs
}

func bothCases(b byte) []byte {
	if b >= 'a' && b <= 'z' {
		return []byte{b, b - 'a' + 'A'}
	}
	return []byte{b}
}

// next returns the position and the id of the first anchor that starts in
// text[from:to], or -1. The anchor itself may end behind to.
func (s *search) next(text []byte, from, to int) (pos, id int) {
	for i := from + minAnchor - 1; i < len(text); {
		pair := uint16(text[i-1])<<8 | uint16(text[i])
		move := int(s.shift[pair])
		if move != 0 {
			i += move
			continue
		}
		start := i - minAnchor + 1
		if start >= to {
			return -1, -1
		}
		for id := range s.at(text, start) {
			return start, id
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
		for _, id := range s.ends[uint16(text[i-1])<<8|uint16(text[i])] {
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
