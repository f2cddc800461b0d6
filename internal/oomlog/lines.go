package oomlog

import (
	"bytes"
	"html"
	"strconv"
	"strings"
)

// A line is one line of the text without what launchers and loggers put in
// front of it.
type line struct {
	text   string // as written, trimmed, escapes and entities resolved
	stream string // who wrote it: "rank3", "pid=41177", "" where it does not say
	rank   int    // -1 unknown
	indent int    // blanks before the text, after the prefix
}

// readLine cleans one raw line. It never keeps a reference to raw.
func readLine(raw []byte) line {
	if bytes.IndexByte(raw, 0x1b) >= 0 {
		raw = dropEscapes(raw)
	}
	l := line{rank: -1}
	body := l.trimPrefix(raw)
	l.indent = len(body) - len(bytes.TrimLeft(body, " \t"))
	l.text = string(bytes.TrimSpace(body))
	if strings.IndexByte(l.text, '<') >= 0 {
		l.text = strings.TrimSpace(dropTags(l.text))
	}
	if strings.IndexByte(l.text, '&') >= 0 {
		l.text = html.UnescapeString(l.text)
	}
	return l
}

// tags are the elements of HTML that notebooks put around the parts of a message
// that they print in colour. Others in angle brackets, such as <module>, are text.
var tags = map[string]bool{"span": true, "pre": true, "br": true, "code": true, "div": true, "font": true, "b": true, "p": true}

// dropTags removes those elements.
func dropTags(text string) string {
	var out strings.Builder
	for {
		open := strings.IndexByte(text, '<')
		if open < 0 {
			break
		}
		name := strings.TrimPrefix(text[open+1:], "/")
		n := 0
		for n < len(name) && name[n] >= 'a' && name[n] <= 'z' {
			n++
		}
		end := strings.IndexByte(text[open:], '>')
		if end < 0 || !tags[name[:n]] || n == len(name) || strings.IndexByte(" >/", name[n]) < 0 {
			out.WriteString(text[:open+1])
			text = text[open+1:]
			continue
		}
		out.WriteString(text[:open])
		text = text[open+end+1:]
	}
	if out.Len() == 0 {
		return text
	}
	out.WriteString(text)
	return out.String()
}

// dropEscapes removes the ANSI sequences of colours and cursor moves.
func dropEscapes(raw []byte) []byte {
	out := make([]byte, 0, len(raw))
	for i := 0; i < len(raw); i++ {
		if raw[i] != 0x1b || i+1 == len(raw) {
			if raw[i] != 0x1b {
				out = append(out, raw[i])
			}
			continue
		}
		switch raw[i+1] {
		case '[': // CSI: parameters, then one byte from @ to ~
			i += 2
			for i < len(raw) && (raw[i] < '@' || raw[i] > '~') {
				i++
			}
		case ']': // OSC: up to BEL or ESC \
			i += 2
			for i < len(raw) && raw[i] != 7 && raw[i] != 0x1b {
				i++
			}
			if i+1 < len(raw) && raw[i] == 0x1b {
				i++
			}
		default:
			i++
		}
	}
	return out
}

// trimPrefix removes, repeatedly, what launchers put in front of a line:
// [rank3]:, [default3]:, [1,3]<stderr>:, (RayWorkerWrapper pid=41177, ip=…),
// 3: (srun --label), trainer-1  | (docker compose), E (pytest), > (quotes),
// │ (rich), time stamps, and notes rank and writer.
func (l *line) trimPrefix(b []byte) []byte {
	for range 8 {
		t := bytes.TrimLeft(b, " \t")
		if len(t) == 0 {
			return t
		}
		rest, ok := l.onePrefix(t)
		if !ok {
			return b
		}
		if len(rest) > 0 && rest[0] == ' ' {
			rest = rest[1:] // the blank belongs to the prefix, further ones indent
		}
		b = rest
	}
	return b
}

func (l *line) onePrefix(t []byte) ([]byte, bool) {
	switch c := t[0]; {
	case c == '[':
		end := bytes.IndexByte(t[:min(len(t), 64)], ']')
		if end < 0 {
			return nil, false
		}
		in := t[1:end]
		rest := t[end+1:]
		if n, ok := rankTag(in); ok {
			l.setRank(n)
			rest = bytes.TrimPrefix(rest, []byte("<stderr>"))
			rest = bytes.TrimPrefix(rest, []byte("<stdout>"))
			return bytes.TrimPrefix(rest, []byte(":")), true
		}
		if isStamp(in) {
			return bytes.TrimPrefix(rest, []byte(":")), true
		}
	case c == '(':
		end := bytes.IndexByte(t[:min(len(t), 160)], ')')
		if end < 0 {
			return nil, false
		}
		in := t[1:end]
		if at := bytes.Index(in, []byte("pid=")); at >= 0 {
			pid := in[at:]
			if cut := bytes.IndexByte(pid, ','); cut > 0 {
				pid = pid[:cut]
			}
			if l.stream == "" {
				l.stream = string(bytes.TrimSpace(pid))
			}
			return t[end+1:], true
		}
	case c >= '0' && c <= '9':
		n := digits(t)
		switch {
		case n <= 4 && len(t) > n+1 && t[n] == ':' && t[n+1] == ' ':
			l.setRank(atoi(string(t[:n])))
			return t[n+1:], true
		case n == len(t):
			return nil, false
		}
		if n := stamp(t); n > 0 {
			return bytes.TrimLeft(t[n:], ",Z"), true
		}
	case c == '>' && len(t) > 1 && (t[1] == ' ' || t[1] == '>'):
		return t[1:], true
	case c == '|' && len(t) > 1 && t[1] == ' ':
		return t[1:], true
	case c == 'E' && len(t) > 4 && t[1] == ' ' && t[2] == ' ' && t[3] == ' ':
		return bytes.TrimLeft(t[1:], " "), true
	case bytes.HasPrefix(t, []byte("│")):
		rest := bytes.TrimRight(bytes.TrimPrefix(t, []byte("│")), " ")
		return bytes.TrimSuffix(rest, []byte("│")), true
	case c == 'r' || c == 'R':
		if len(t) > 6 && equalFold(t, "rank") {
			i := 4
			for i < len(t) && (t[i] == ' ' || t[i] == '_' || t[i] == ':') {
				i++
			}
			if n := digits(t[i:]); n > 0 && n < 6 && i+n < len(t) && (t[i+n] == ':' || t[i+n] == ']') {
				l.setRank(atoi(string(t[i : i+n])))
				return t[i+n+1:], true
			}
		}
	}
	// docker compose: "trainer-1  | text"
	if bar := bytes.Index(t[:min(len(t), 48)], []byte(" | ")); bar > 0 && bytes.IndexByte(bytes.TrimRight(t[:bar], " "), ' ') < 0 && l.stream == "" {
		if name := bytes.TrimRight(t[:bar], " "); len(name) > 2 && bytes.IndexByte(name, '-') > 0 && bytes.IndexByte(name, '%') < 0 {
			l.stream = string(name)
			return t[bar+3:], true
		}
	}
	return nil, false
}

func (l *line) setRank(n int) {
	if l.rank < 0 && n >= 0 && n < 1<<20 {
		l.rank = n
		l.stream = "rank" + strconv.Itoa(n)
	}
}

// rankTag reads rank3, default3, Rank 3, rank:3, 1,3 (mpirun) and worker-3.
func rankTag(in []byte) (int, bool) {
	in = bytes.TrimSpace(in)
	if comma := bytes.IndexByte(in, ','); comma > 0 && comma < 4 && digits(in) == comma && digits(in[comma+1:]) == len(in)-comma-1 && len(in)-comma-1 <= 5 {
		return atoi(string(in[comma+1:])), true
	}
	for _, name := range []string{"rank", "default", "worker", "local_rank", "trainer"} {
		if !equalFold(in, name) {
			continue
		}
		rest := bytes.TrimLeft(in[len(name):], " :_-=")
		if n := digits(rest); n > 0 && n < 6 && n == len(rest) {
			return atoi(string(rest)), true
		}
	}
	return 0, false
}

func digits(b []byte) int {
	n := 0
	for n < len(b) && b[n] >= '0' && b[n] <= '9' {
		n++
	}
	return n
}

// isStamp reports whether the inside of brackets is a time stamp or a level.
func isStamp(in []byte) bool {
	in = bytes.TrimSpace(in)
	if n := stamp(in); n > 0 && len(in)-n < 24 {
		return true
	}
	switch string(bytes.ToUpper(in)) {
	case "INFO", "WARNING", "WARN", "ERROR", "DEBUG", "CRITICAL", "FATAL":
		return true
	}
	return false
}

// stamp returns the length of a date or a time of day at the start, or 0:
// 2026-05-01 12:00:00,123  2026-05-01T12:00:00.123Z  05/01/2026 12:00:00  12:00:00.1
func stamp(b []byte) int {
	i := 0
	for i < len(b) && (b[i] >= '0' && b[i] <= '9' || b[i] == '-' || b[i] == '/' || b[i] == ':' || b[i] == '.' || b[i] == ',' || b[i] == 'T' || b[i] == 'Z' || b[i] == '+' ||
		b[i] == ' ' && i+1 < len(b) && b[i+1] >= '0' && b[i+1] <= '9' && bytes.IndexByte(b[:i], ':') < 0) {
		i++
	}
	t := b[:i]
	if bytes.Count(t, []byte(":")) >= 2 || bytes.Count(t, []byte("-")) == 2 && i >= 10 {
		return i
	}
	return 0
}

// squeeze lowers ASCII letters and drops white space, and the backslashes that
// some terminals put where they wrap.
func squeeze(s string) string {
	var b strings.Builder
	b.Grow(len(s))
	for i := range len(s) {
		switch c := s[i]; {
		case c == ' ' || c == '\t' || c == '\n' || c == '\r' || c == '\\':
		case c >= 'A' && c <= 'Z':
			b.WriteByte(c + 'a' - 'A')
		default:
			b.WriteByte(c)
		}
	}
	return b.String()
}
