package pickle

import (
	"errors"
	"io"
)

// window is the size of the part of the input that is in memory. slack is more
// than any opcode with its fixed operand takes; as many zeros follow the data,
// so that operands are read without looking for the end first.
const (
	window = 256 << 10
	slack  = 16
)

// source is a window that moves over the input.
type source struct {
	r    io.Reader
	buf  []byte
	end  int   // data is buf[:end]
	base int64 // offset of buf[0] in the input
	eof  bool
}

// newSource returns a source that holds all of a small input at once.
func newSource(r io.Reader, size int64) *source {
	n := window
	if size >= 0 && size < window {
		n = int(size) + 1 // one more, so that its end is noticed
	}
	return &source{r: r, buf: make([]byte, n+slack)}
}

// window is how much data fits.
func (s *source) window() int { return len(s.buf) - slack }

// refill drops what is before pos, reads more, and returns the new pos.
func (s *source) refill(pos int) (int, error) {
	if s.eof || pos > s.end {
		return pos, nil
	}
	s.base += int64(pos)
	s.end = copy(s.buf, s.buf[pos:s.end])
	for idle := 0; s.end < s.window() && !s.eof; {
		n, err := s.r.Read(s.buf[s.end:s.window()])
		s.end += n
		if n > 0 {
			idle = 0
		} else if idle++; idle > 100 {
			return 0, io.ErrNoProgress
		}
		if errors.Is(err, io.EOF) {
			s.eof = true
		} else if err != nil {
			return 0, err
		}
	}
	clear(s.buf[s.end : s.end+slack])
	return 0, nil
}

// take returns the n bytes at pos and the position after them, moving the
// window or reading past it. The bytes are valid until the next call. ok is
// false if the input ends first; memory grows only with what was really read.
func (s *source) take(pos int, n uint64) (data []byte, after int, ok bool, err error) {
	if pos <= s.end && n <= uint64(s.end-pos) {
		return s.buf[pos : pos+int(n)], pos + int(n), true, nil
	}
	if n <= uint64(s.window()) {
		if pos, err = s.refill(pos); err != nil {
			return nil, 0, false, err
		}
		if pos > s.end || n > uint64(s.end-pos) {
			return nil, 0, false, nil
		}
		return s.buf[pos : pos+int(n)], pos + int(n), true, nil
	}
	if s.eof || pos > s.end {
		return nil, 0, false, nil
	}
	data = append(data, s.buf[pos:s.end]...)
	s.base += int64(s.end)
	s.end = 0
	for uint64(len(data)) < n {
		chunk := int(min(n-uint64(len(data)), uint64(max(window, len(data)/2))))
		start := len(data)
		data = append(data, make([]byte, chunk)...)
		got, err := io.ReadFull(s.r, data[start:])
		s.base += int64(got)
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			s.eof = true
			return nil, 0, false, nil
		} else if err != nil {
			return nil, 0, false, err
		}
	}
	clear(s.buf[:slack])
	return data, 0, true, nil
}
