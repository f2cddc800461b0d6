package oomlog

import (
	"bytes"
	"io"
	"unicode/utf8"

	"golang.org/x/text/encoding/simplifiedchinese"
)

// chineseReader turns the lines of a text that are in GBK, as consoles and
// redirections write them on Chinese Windows, into UTF-8. A log mixes encodings
// (Python writes UTF-8, the system its own), so each line is judged alone; one
// that is valid UTF-8, or is in no encoding that we know, stays as it is.
type chineseReader struct {
	in    io.Reader
	raw   []byte // read and not yet judged: raw[:n]
	n     int
	given int    // bytes at the start of raw that were handed out
	rest  []byte // judged and not yet read
	lines []byte // room for lines that change
	err   error
	// changed counts the lines that were turned into UTF-8.
	changed int
}

func newChineseReader(in io.Reader) *chineseReader {
	return &chineseReader{in: in, raw: make([]byte, 64<<10)}
}

func (c *chineseReader) Read(p []byte) (int, error) {
	for len(c.rest) == 0 {
		if c.err != nil && c.n == c.given {
			return 0, c.err
		}
		c.fill()
	}
	n := copy(p, c.rest)
	c.rest = c.rest[n:]
	return n, nil
}

// fill judges the next whole lines, or what there is of a line that is longer
// than the window.
func (c *chineseReader) fill() {
	c.n = copy(c.raw, c.raw[c.given:c.n])
	c.given = 0
	for c.err == nil && c.n < len(c.raw) {
		n, err := c.in.Read(c.raw[c.n:])
		c.n, c.err = c.n+n, err
		if n > 0 && bytes.IndexByte(c.raw[c.n-n:c.n], '\n') >= 0 {
			break
		}
	}
	end := c.n
	if c.err == nil {
		if cut := bytes.LastIndexByte(c.raw[:c.n], '\n'); cut >= 0 {
			end = cut + 1
		} else {
			end = whole(c.raw[:c.n])
		}
	}
	c.given = end
	if c.rest = c.raw[:end]; !utf8.Valid(c.rest) {
		c.rest = c.translate(c.rest)
	}
}

// whole is the length of a text without a character that its end cuts.
func whole(text []byte) int {
	for at := len(text) - 1; at > 0 && len(text)-at <= utf8.UTFMax; at-- {
		if utf8.RuneStart(text[at]) {
			if utf8.FullRune(text[at:]) {
				break
			}
			return at
		}
	}
	return len(text)
}

func (c *chineseReader) translate(text []byte) []byte {
	c.lines = c.lines[:0]
	for line := range bytes.Lines(text) {
		if !utf8.Valid(line) && isGBK(line) {
			if out, err := simplifiedchinese.GB18030.NewDecoder().Bytes(line); err == nil {
				line = out
				c.changed++
			}
		}
		c.lines = append(c.lines, line...)
	}
	return c.lines
}

// isGBK reports whether the bytes beyond ASCII are pairs as GBK has them, most of
// them among the characters of GB 2312, which ordinary text is made of. Two
// pairs are the least that is believed: one is as likely an accented letter of a
// European encoding.
// Source: GB/T 2312-1980 (rows 16-87 are characters, 1-9 signs); GBK 1.0.
func isGBK(line []byte) bool {
	pairs, common := 0, 0
	for i := 0; i < len(line); i++ {
		lead := line[i]
		if lead < utf8.RuneSelf {
			continue
		}
		i++
		if i == len(line) || lead == 0x80 || lead == 0xff || line[i] < 0x40 || line[i] == 0x7f || line[i] == 0xff {
			return false
		}
		pairs++
		if trail := line[i]; trail >= 0xa1 && (lead >= 0xb0 && lead <= 0xf7 || lead >= 0xa1 && lead <= 0xa9) {
			common++
		}
	}
	return pairs >= 2 && 10*common >= 7*pairs
}
