package oomlog

import (
	"bytes"
	"errors"
	"io"
	"slices"
	"strings"
)

// The window over the text. A message and its traceback are read from what is
// in the window, so a traceback of more than keepBehind bytes loses its start.
const (
	windowSize  = 1 << 20
	firstWindow = 32 << 10  // most texts are a pasted message
	keepBehind  = 192 << 10 // before the part that is searched
	keepAhead   = 64 << 10  // after it
	maxLine     = 16 << 10  // a longer line is read around the place that matters
	headFacts   = 1 << 20   // settings are read from the start of the text,
	tailFacts   = 96 << 10  // from before and after a failure and from the end,
	sampleEvery = 4 << 20   // and from a small piece every so often
	sampleSize  = 4 << 10
	maxFailures = 4096
	maxOffers   = 2000 // lines that an anchor may offer before it is ignored
	maxDetailed = 256  // failures whose traceback is read
)

// Scan reads a log of any size and returns what it says of a failure. name is
// what sources call the text. The error is of the reader; what the text holds
// is never an error.
func Scan(name string, r io.Reader) (*Result, error) {
	text, encoding, err := decode(r)
	if err != nil {
		return nil, err
	}
	chinese := newChineseReader(text)
	s := &scanner{
		name: name, table: newTable(), frames: newFrameReader(), progress: newProgressReader(), facts: newFactReader(), smi: newSMIReader(),
		buf: make([]byte, 0, firstWindow), due: headFacts, offers: map[int]int{}, muted: map[int]bool{}, lastOf: map[string]int{}, at: -1,
		res: &Result{Names: []string{name}, Encoding: encoding, Attempts: 1},
	}
	if err := s.run(chinese); err != nil {
		return nil, err
	}
	if chinese.changed > 0 {
		s.res.Encoding = "gbk"
	}
	s.finish()
	return s.res, nil
}

// ScanString scans a text in memory.
func ScanString(name, text string) *Result {
	res, _ := Scan(name, strings.NewReader(text)) // a strings.Reader cannot fail
	return res
}

type scanner struct {
	name     string
	table    *compiled
	frames   *frameReader
	progress *progressReader
	facts    *factReader
	smi      *smiReader
	res      *Result

	buf      []byte // the window
	base     int64  // offset of buf[0]
	baseLine int    // line ends before buf[0]
	countPos int    // lines are counted up to here …
	countEnd int    // … and there were this many since buf[0]

	factsTo  int64 // settings are read up to here …
	due      int64 // … and are to be read up to here
	sampled  int64 // last offset of a sample
	controls int   // control bytes seen
	offers   map[int]int
	muted    map[int]bool
	cut      bool           // the packed text ends before its end
	lastOf   map[string]int // index of the last failure of a pattern and writer
	restart  bool           // a failure was seen, so a restart marker starts an attempt
	at       int            // index into res.Progress of the last progress, -1 none
	errLine  []byte
	errAt    int64
	errNum   int
	longLine bool
}

func (s *scanner) run(text io.Reader) error {
	searched, eof := 0, false
	for !eof {
		for !eof {
			if len(s.buf) == cap(s.buf) {
				if cap(s.buf) == windowSize {
					break
				}
				s.buf = slices.Grow(s.buf, windowSize-len(s.buf))[:len(s.buf):windowSize]
			}
			n, err := text.Read(s.buf[len(s.buf):cap(s.buf)])
			s.buf = s.buf[:len(s.buf)+n]
			if errors.Is(err, io.EOF) {
				eof = true
			} else if errors.Is(err, io.ErrUnexpectedEOF) { // packed, and cut: what there is counts
				eof, s.cut = true, true
			} else if err != nil {
				return err
			}
		}
		to := len(s.buf)
		if !eof {
			to -= keepAhead
			if nl := bytes.LastIndexByte(s.buf[searched:to], '\n'); nl >= 0 {
				to = searched + nl + 1
			}
		}
		s.region(searched, to)
		if eof {
			break
		}
		drop := max(0, to-keepBehind)
		s.baseLine += bytes.Count(s.buf[:drop], newline)
		s.base += int64(drop)
		s.buf = s.buf[:copy(s.buf, s.buf[drop:])]
		s.countPos, s.countEnd = 0, 0
		searched = to - drop
	}
	return nil
}

var newline = []byte{'\n'}

// region searches buf[from:to] and reads the settings there that are due.
func (s *scanner) region(from, to int) {
	s.res.Bytes += int64(to - from)
	if n := bytes.Count(s.buf[from:to], newline); n > 0 {
		s.res.Lines += n
	} else if to-from > 512<<10 && !s.longLine {
		s.longLine = true
		s.warn("long_line", from, "")
	}
	if s.controls < 1<<20 {
		s.controls += bytes.Count(s.buf[from:to], []byte{0})
	}
	if start := s.base + int64(from); start-s.sampled > sampleEvery {
		s.sampled = start
		s.due = max(s.due, start+sampleSize)
	}
	killed := -1 // where the short anchor is next
	for pos := from; pos < to; {
		at, id := s.table.search.next(s.buf, pos, to)
		if killed < pos {
			killed = s.nextKilled(pos, to)
		}
		if killed < to && (at < 0 || killed < at) {
			at, id = killed, s.table.killed
		}
		if at < 0 {
			break
		}
		switch {
		case s.table.weak(id):
			s.noteError(at, id)
			pos = at + minAnchor
		case s.muted[id]:
			pos = at + 1
		default:
			line, _ := s.lineBounds(at)
			s.readDue(from, line) // so that a failure comes after what was before it
			pos = max(at+1, s.candidate(at, id))
		}
	}
	s.readDue(from, to)
}

// readDue reads the settings of buf[from:to], as far as they are due.
func (s *scanner) readDue(from, to int) {
	s.readFacts(from, min(int64(to), s.due-s.base))
}

// nextKilled returns where "Killed", as shells print it, is next in
// buf[from:to], or to.
func (s *scanner) nextKilled(from, to int) int {
	if i := bytes.Index(s.buf[from:to], []byte("Killed")); i >= 0 {
		return from + i
	}
	return to
}

// lineBounds returns the line around a place, at most maxLine bytes to either
// side. A lone carriage return ends a line, as progress bars use it.
func (s *scanner) lineBounds(at int) (start, end int) {
	low, high := max(0, at-maxLine), min(len(s.buf), at+maxLine)
	start = low
	if i := bytes.LastIndexAny(s.buf[low:at], "\r\n"); i >= 0 {
		start = low + i + 1
	}
	end = high
	if i := bytes.IndexAny(s.buf[at:high], "\r\n"); i >= 0 {
		end = at + i
	}
	return start, end
}

// nextLine returns the bounds of the line after the one that ends at end.
func (s *scanner) nextLine(end int) (start, stop int, ok bool) {
	start = end
	if start < len(s.buf) && s.buf[start] == '\r' {
		start++
	}
	if start < len(s.buf) && s.buf[start] == '\n' {
		start++
	}
	if start == end || start >= len(s.buf) {
		return 0, 0, false
	}
	high := min(len(s.buf), start+maxLine)
	stop = high
	if i := bytes.IndexAny(s.buf[start:high], "\r\n"); i >= 0 {
		stop = start + i
	}
	return start, stop, true
}

// previousLine returns the bounds of the line before the one that starts at start.
func (s *scanner) previousLine(start int) (from, to int, ok bool) {
	to = start
	if to > 0 && s.buf[to-1] == '\n' {
		to--
	}
	if to > 0 && s.buf[to-1] == '\r' {
		to--
	}
	if to == start || to <= 0 {
		return 0, 0, false
	}
	from, _ = s.lineBounds(to)
	return from, to, true
}

// source returns the place of buf[at].
func (s *scanner) source(at int) Source {
	if at >= s.countPos {
		s.countEnd += bytes.Count(s.buf[s.countPos:at], newline)
	} else {
		s.countEnd -= bytes.Count(s.buf[at:s.countPos], newline)
	}
	s.countPos = at
	return Source{Name: s.name, Line: s.baseLine + s.countEnd + 1, Offset: s.base + int64(at)}
}

func (s *scanner) warn(code string, at int, detail string) {
	same := 0
	for _, w := range s.res.Warnings {
		if w.Code == code {
			same++
		}
	}
	if same < 4 { // a fifth of a kind tells nothing new
		s.res.Warnings = append(s.res.Warnings, Warning{code, s.source(at), detail})
	}
}

// noteError remembers the line of an anchor that only says that something went
// wrong; of a traceback, the line that ends it.
func (s *scanner) noteError(at, anchor int) {
	start, end := s.lineBounds(at)
	if strings.HasPrefix(s.table.anchor(anchor), "traceback") {
		from, to := start, end
		for range traceLines {
			var ok bool
			if from, to, ok = s.nextLine(to); !ok {
				break
			}
			if l := readLine(s.buf[from:min(to, from+400)]); l.text != "" && l.indent == 0 && len(s.frames.read(l.text, Source{})) == 0 {
				start, end = from, to
				break
			}
		}
	}
	s.errLine = append(s.errLine[:0], s.buf[start:min(end, start+2000)]...)
	src := s.source(start)
	s.errAt, s.errNum = src.Offset, src.Line
}

// message is a candidate with the lines that may continue it.
type message struct {
	line             // the line of the anchor
	start, end int   // of that line in buf
	ends       []int // where each line of the block ends in buf
	parts      []string
	low        string // line.text in small letters
	block      string // all lines, small letters, joined by blanks
	squeezed   string
	lengths    []int // length of squeezed after each line
}

// candidate reads the message at an anchor, records it if a pattern matches,
// and returns where to go on.
func (s *scanner) candidate(at, anchor int) int {
	if s.offers[anchor]++; s.offers[anchor] > maxOffers {
		s.muted[anchor] = true
		s.warn("too_many", at, s.table.anchor(anchor))
	}
	m := s.message(at, anchor)
	if strings.Contains(m.low, "traceback (most recent") && !strings.Contains(m.text, "\n") {
		return at + 1 // a notebook names the exception above its traceback, too
	}
	for _, i := range s.candidates(anchor, m) {
		p := &s.table.patterns[i]
		view := m.low
		switch p.on {
		case onBlock:
			view = m.block
		case onSqueezed:
			view = m.squeezed
		}
		groups := s.table.match(i, view)
		if groups == nil || p.ruledOut(view) {
			continue
		}
		if p.on == onBlock && groups[0] != "" && strings.Index(m.block, groups[0]) > len(m.low) {
			continue // it is the next line's message
		}
		return s.record(m, p, groups)
	}
	return at + 1
}

// candidates returns the patterns that have one of the anchors of the line (and
// the anchor itself), in the order of the table.
func (s *scanner) candidates(anchor int, m *message) []int {
	list := append([]int(nil), s.table.byAnchor[anchor]...)
	text := []byte(m.block)
	for pos := 0; pos < len(text); pos++ {
		at, _ := s.table.search.next(text, pos, len(text))
		if at < 0 {
			break
		}
		pos = at
		for id := range s.table.search.at(text, at) {
			if s.table.weak(id) {
				continue
			}
			for _, i := range s.table.byAnchor[id] {
				if at < len(m.low) || s.table.patterns[i].on == onBlock { // begun here, wrapped
					list = insert(list, i)
				}
			}
		}
	}
	if strings.Contains(m.low, "memory") && strings.Contains(m.squeezed, "triedtoallocate") { // wrapped before its figures
		list = insert(list, s.table.native)
	}
	return list
}

// insert puts i into an ascending list unless it is there.
func insert(list []int, i int) []int {
	for k, v := range list {
		if v == i {
			return list
		}
		if v > i {
			return slices.Insert(list, k, i)
		}
	}
	return append(list, i)
}

// Lines of one message: a terminal of 80 columns wraps PyTorch's text into
// eight; cudaMallocAsync's has seven.
const (
	blockLines = 16
	blockBytes = 6 << 10
)

// continues are the anchors in the middle of PyTorch's message. If one of them
// is found first, the message began on a line before.
var continues = [...]string{"total capacity", "total capacty", "already allocated", "reserved in total", "reserved by pytorch", "tried to allocate", "memory. tried", "allocation on device"}

func (s *scanner) message(at, anchor int) *message {
	m := &message{}
	m.start, m.end = s.lineBounds(at)
	anchorText := s.table.anchor(anchor)
	for i, c := range continues {
		if anchorText != c {
			continue
		}
		back := 1
		if i < 5 {
			back = 5
		}
		for range back {
			from, to, ok := s.previousLine(m.start)
			if !ok || to-from > 400 {
				break
			}
			l := readLine(s.buf[from:to])
			low := strings.ToLower(l.text)
			if low == "" || strings.Contains(low, "traceback") || strings.HasPrefix(low, "file \"") || isCode(l.text) || strings.Contains(low, "out of memory. tried to allocate") && i >= 5 {
				break
			}
			if i >= 5 && !strings.HasSuffix(low, "out of") && !strings.Contains(low, "out of memory") && !strings.HasSuffix(low, "error:") {
				break
			}
			m.start = from
			if strings.Contains(low, "out of memory") {
				break
			}
		}
	}
	if m.end-m.start >= 2*maxLine {
		m.start, m.end = max(m.start, at-1024), min(m.end, at+4096)
	}
	start, end := m.start, m.end
	if end-start > 8<<10 && at-start > 2<<10 { // a very long line: read around the anchor
		start = at - 2<<10
		m.start = start
	}
	_, firstEnd := s.lineBounds(start)
	end = min(firstEnd, start+blockBytes)
	for n := 0; n < blockLines; n++ {
		l := readLine(s.buf[start:end])
		l.text = unescapeJSON(l.text)
		if n == 0 {
			m.line = l
		} else if l.text == "" || n > 0 && stops(l, m.line) {
			break
		}
		m.parts = append(m.parts, l.text)
		m.ends = append(m.ends, end)
		m.squeezed += squeeze(l.text)
		m.lengths = append(m.lengths, len(m.squeezed))
		if len(m.squeezed) > blockBytes {
			break
		}
		var ok bool
		if start, end, ok = s.nextLine(end); !ok {
			break
		}
	}
	m.end = m.ends[0]
	m.low = strings.ToLower(m.text)
	m.block = strings.ToLower(strings.Join(m.parts, " "))
	return m
}

// unescapeJSON turns the \n and \" of a message inside a JSON record into what
// they stand for.
func unescapeJSON(s string) string {
	if !strings.Contains(s, `\n`) {
		return s
	}
	return strings.NewReplacer(`\n`, "\n", `\"`, `"`, `\t`, " ").Replace(s)
}

// stops reports whether a line begins something else than the rest of a message.
func stops(l, first line) bool {
	return strings.HasPrefix(l.text, "Traceback") || strings.HasPrefix(l.text, "File \"") || strings.HasPrefix(l.text, "During handling") ||
		strings.HasPrefix(l.text, "Exception raised from") || l.stream != "" && first.stream != "" && l.stream != first.stream
}

// record adds the failure that a pattern found and returns where the search
// goes on: behind the message.
func (s *scanner) record(m *message, p *pattern, groups []string) int {
	var used int
	f := Failure{Pattern: p.id, Class: p.class, Source: s.source(m.start), Rank: m.rank, Attempt: s.res.Attempts - 1, Device: p.device, Certain: !p.probable, Figures: Figures{Device: -1}}
	if p.figures == torchFigures {
		if s.table.torch == nil {
			s.table.torch = newTorchReader()
		}
		var end int
		f.Figures, end = s.table.torch.read(m.squeezed)
		used = m.linesOf(end)
	} else {
		used = s.table.readGroups(p, groups, m, &f.Figures)
	}
	f.Text = strings.Join(m.parts[:min(used, len(m.parts))], " ")
	if len(f.Text) > 4000 {
		f.Text = f.Text[:4000]
	}
	if p.figures == tensorShape && len(groups) > 3 && groups[3] == "cpu" {
		f.Class, f.Device = ClassHost, "CPU"
	}
	if f.Device == "" && f.Class.IsOOM() {
		f.Device = deviceOf(m.squeezed)
	}
	if p.id == "torch.native" {
		f.Pattern = era(&f, m.squeezed)
		if f.Figures.Tried.Known && !f.Figures.Capacity.Known && !f.Figures.Allocated.Known {
			s.warn("truncated", m.start, "")
		}
	}
	next := m.ends[min(used, len(m.ends))-1]
	s.restart = true
	key := f.Pattern + "\x00" + m.stream
	if last, ok := s.lastOf[key]; ok && s.res.Failures[last].Attempt == f.Attempt {
		known := &s.res.Failures[last]
		if known.Figures.Tried == f.Figures.Tried && known.Text == f.Text || len(s.res.Failures) > 64 {
			known.Repeats++
			return next
		}
	}
	if len(s.res.Failures) >= maxFailures {
		if !s.muted[-1] {
			s.muted[-1] = true
			s.warn("too_many", m.start, "failures")
		}
		return next
	}
	if len(s.res.Failures) < maxDetailed {
		s.detail(&f, m, next)
	}
	s.lastOf[key] = len(s.res.Failures)
	s.res.Failures = append(s.res.Failures, f)
	return next
}

// linesOf returns how many lines of the block hold the first n squeezed bytes.
func (m *message) linesOf(n int) int {
	for i, l := range m.lengths {
		if n <= l {
			return i + 1
		}
	}
	return len(m.lengths)
}

func deviceOf(squeezed string) string {
	for _, d := range [...]string{"cuda", "hip", "xpu", "npu", "musa", "mlu"} {
		if strings.Contains(squeezed, d+"outofmemory") || strings.Contains(squeezed, d+"error") {
			return strings.ToUpper(d)
		}
	}
	switch {
	case strings.Contains(squeezed, "pytorch_hip"), strings.Contains(squeezed, "hipgraphs"):
		return "HIP"
	case strings.Contains(squeezed, "xpu"):
		return "XPU"
	case strings.Contains(squeezed, "npu"):
		return "NPU"
	}
	return "CUDA"
}

// era names the form of PyTorch's message, which tells its version.
func era(f *Failure, squeezed string) string {
	switch {
	case f.Figures.Tried.Known && !f.Figures.Capacity.Known && !f.Figures.Allocated.Known && !f.Figures.Cached.Known:
		return "torch.cut"
	case strings.Contains(squeezed, "totalcapactyof"):
		return "torch.2.1"
	case strings.Contains(squeezed, "hasatotalcapacityof"), strings.Contains(squeezed, "butunallocated"):
		return "torch.2.2"
	case strings.Contains(squeezed, "max_split_size_mb"):
		return "torch.1.10"
	case strings.Contains(squeezed, "reservedintotal"):
		return "torch.1.4"
	case strings.Contains(squeezed, "cached"):
		return "torch.0.4"
	}
	return "torch.cut"
}
