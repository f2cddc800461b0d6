package oomlog

import (
	"bufio"
	"compress/gzip"
	"errors"
	"io"
	"unicode/utf16"
	"unicode/utf8"
)

// decode returns a reader of UTF-8 text. It knows gzip by its magic and UTF-16
// by its byte order mark, or, without one, by the zero in every other byte.
func decode(r io.Reader) (io.Reader, string, error) {
	b := bufio.NewReaderSize(r, 64<<10)
	head, err := b.Peek(512)
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, bufio.ErrBufferFull) {
		return nil, "", err
	}
	if len(head) >= 2 && head[0] == 0x1f && head[1] == 0x8b {
		z, err := gzip.NewReader(b)
		if err != nil {
			return nil, "", err
		}
		return decode(z)
	}
	switch {
	case len(head) >= 3 && head[0] == 0xef && head[1] == 0xbb && head[2] == 0xbf:
		_, _ = b.Discard(3)
		return b, "utf-8", nil
	case len(head) >= 2 && head[0] == 0xff && head[1] == 0xfe:
		_, _ = b.Discard(2)
		return &utf16Reader{in: b}, "utf-16le", nil
	case len(head) >= 2 && head[0] == 0xfe && head[1] == 0xff:
		_, _ = b.Discard(2)
		return &utf16Reader{in: b, big: true}, "utf-16be", nil
	case zeros(head, 1) > 0.8 && zeros(head, 0) < 0.2:
		return &utf16Reader{in: b}, "utf-16le", nil
	case zeros(head, 0) > 0.8 && zeros(head, 1) < 0.2:
		return &utf16Reader{in: b, big: true}, "utf-16be", nil
	}
	return b, "utf-8", nil
}

// zeros returns the share of zero bytes among those at odd (1) or even (0)
// places; 0 for a text too short to tell.
func zeros(head []byte, odd int) float64 {
	if len(head) < 16 {
		return 0
	}
	n, all := 0, 0
	for i := odd; i < len(head); i += 2 {
		all++
		if head[i] == 0 {
			n++
		}
	}
	return float64(n) / float64(all)
}

// utf16Reader turns UTF-16 into UTF-8. A lone surrogate becomes U+FFFD; an odd
// byte at the end is dropped.
type utf16Reader struct {
	in   *bufio.Reader
	big  bool
	rest []byte // encoded but not yet read
	high rune   // a high surrogate that waits for its partner
	err  error
}

func (u *utf16Reader) Read(p []byte) (int, error) {
	for len(u.rest) == 0 {
		if u.err != nil {
			return 0, u.err
		}
		u.fill()
	}
	n := copy(p, u.rest)
	u.rest = u.rest[n:]
	return n, nil
}

func (u *utf16Reader) fill() {
	var raw [4096]byte
	n, err := io.ReadFull(u.in, raw[:])
	if err != nil {
		u.err = io.EOF
		if !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
			u.err = err
		}
	}
	u.rest = u.rest[:0]
	for i := 0; i+1 < n; i += 2 {
		c := rune(raw[i]) | rune(raw[i+1])<<8
		if u.big {
			c = rune(raw[i])<<8 | rune(raw[i+1])
		}
		switch {
		case u.high != 0:
			u.rest = utf8.AppendRune(u.rest, utf16.DecodeRune(u.high, c))
			u.high = 0
		case c >= 0xd800 && c < 0xdc00:
			u.high = c
		default:
			u.rest = utf8.AppendRune(u.rest, c)
		}
	}
}
