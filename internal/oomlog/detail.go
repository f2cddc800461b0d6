package oomlog

import (
	"slices"
	"strings"

	"unoom/internal/units"
)

// exactBytes is the count that TensorFlow and XLA put behind a rounded size.
const exactBytes = `^ ?[a-z]* ?\((?:rounded to )?(\d+) ?b?(?:ytes)?\)`

// readGroups fills the figures from the groups of a pattern and returns how
// many lines the message has.
func (c *compiled) readGroups(p *pattern, g []string, m *message, f *Figures) int {
	group := func(i int) string {
		if i < len(g) {
			return g[i]
		}
		return ""
	}
	sized := func(i int) Figure { return readFigure(group(i), group(i+1), false) }
	counted := func(i int) Figure { return readFigure(group(i), "bytes", false) }
	lines := 1
	if p.on == onBlock && len(g) > 0 && g[0] != "" {
		lines = m.linesOf(len(squeeze(m.block[:strings.Index(m.block, g[0])+len(g[0])])))
	}
	switch p.figures {
	case triedBytes:
		f.Tried = counted(1)
	case triedSize:
		f.Tried = sized(1)
		if at := strings.Index(m.block, g[0]); at >= 0 {
			if exact := c.regexp(exactBytes).FindStringSubmatch(m.block[at+len(g[0]):]); exact != nil {
				f.Tried = readFigure(exact[1], "bytes", false)
			}
		}
	case requiredLimit:
		f.Required, f.Limit = counted(1), counted(2)
	case requiredSizes:
		f.Required, f.Limit = sized(1), sized(3)
	case tpuFigures:
		f.Tried, f.Free = sized(1), sized(3)
	case hbmFigures:
		f.Required, f.Capacity = sized(1), sized(3)
	case cupyFigures:
		f.Tried, f.Allocated = counted(1), counted(2)
	case tensorShape:
		f.Shape = group(1) + group(5)
		f.Tried = shapeBytes(f.Shape, group(2))
		if group(3) == "gpu" {
			f.Device = atoi(group(4))
		}
	case paddleFigures:
		f.Tried, f.Free = sized(1), sized(6)
		if group(3) != "" {
			f.Device = atoi(group(3))
		}
		// What Paddle calls allocated is the card's total less what is available.
		// Source: Paddle paddle/fluid/memory/allocation/cuda_allocator.cc.
		f.Capacity = sized(4).plus(f.Free)
	case triedFree:
		f.Tried, f.Free = counted(1), counted(2)
	case habanaFigures:
		f.Tried = readFigure(group(1), "mb", false)
	case asyncFigures:
		return c.readAsync(m, group(1), f)
	case mpsFigures:
		return c.readMPS(m, f)
	}
	return lines
}

// shapeBytes returns the size of a tensor from its shape and type.
func shapeBytes(shape, dtype string) Figure {
	width := units.Bytes(4)
	switch strings.TrimSpace(dtype) {
	case "half", "bfloat16", "int16", "uint16":
		width = 2
	case "double", "int64", "complex64":
		width = 8
	case "int8", "uint8", "bool":
		width = 1
	}
	if shape == "" {
		return Figure{}
	}
	n := width
	for d := range strings.SplitSeq(shape, ",") {
		v := number(strings.TrimSpace(d))
		if v < 0 {
			return Figure{}
		}
		var ok bool
		if n, ok = units.Mul(v, n); !ok {
			return Figure{}
		}
	}
	return Figure{Bytes: n, Known: true}
}

// A row is one quantity of a table-like message, on squeezed text.
type row struct {
	expr string
	set  *Figure
}

// readAsync reads cudaMallocAsync's table.
// Source: pytorch c10/cuda/CUDAMallocAsyncAllocator.cpp.
func (c *compiled) readAsync(m *message, device string, f *Figures) int {
	if device != "" {
		f.Device = atoi(device)
	}
	return c.readRows(m, []row{
		{`currentlyallocated:` + size, &f.Allocated},
		{`requested:` + size, &f.Tried},
		{`devicelimit:` + size, &f.Capacity},
		{`free\(accordingtocuda\):` + size, &f.Free},
		{`pytorchlimit\(setbyuser-suppliedmemoryfraction\):` + size, &f.Allowed},
	})
}

// readMPS reads the message of Apple's GPUs. PyTorch up to 2.7 printed GB for
// GiB there.
func (c *compiled) readMPS(m *message, f *Figures) int {
	return c.readRows(m, []row{
		{`mpsallocated:` + size, &f.Allocated},
		{`otherallocations:` + size, &f.Other},
		{`maxallowed:` + size, &f.Allowed},
		{`triedtoallocate` + size, &f.Tried},
	})
}

// readRows returns the number of lines up to the last row.
func (c *compiled) readRows(m *message, rows []row) int {
	last := 1
	for _, r := range rows {
		if at := c.regexp(r.expr).FindStringSubmatchIndex(m.squeezed); at != nil {
			*r.set = readFigure(m.squeezed[at[2]:at[3]], m.squeezed[at[4]:at[5]], false)
			last = max(last, m.linesOf(at[1]))
		}
	}
	return last
}

// How far a traceback is looked for before and after its message.
const (
	traceLines = 500
	traceGap   = 14 // lines that are neither call nor code
	afterLines = 60
)

// detail reads what stands around a failure: its traceback, the phase, the
// user's line, the progress, and the settings that have not been read.
func (s *scanner) detail(f *Failure, m *message, next int) {
	if text := m.text; strings.Contains(text, "\n") { // a whole traceback in one JSON record
		for part := range strings.SplitSeq(text, "\n") {
			part = strings.TrimSpace(part)
			if got := s.frames.read(part, f.Source); len(got) > 0 {
				f.Frames = append(f.Frames, got...)
			} else if n := len(f.Frames); n > 0 && f.Frames[n-1].Code == "" && quoted(part) {
				f.Frames[n-1].Code = part
			}
		}
	}
	if len(f.Frames) == 0 {
		f.Frames, f.Code = s.traceBefore(m.start, m.stream, traceLines)
	}
	if len(f.Frames) == 0 {
		frames, code := s.traceAfter(next, m.stream)
		f.Frames, f.Code = frames, append(f.Code, code...)
	}
	if p, ok := s.progress.read(m.text, f.Source); ok && p.Total > 0 && !strings.Contains(m.low, "tried to allocate") {
		s.noteProgress(p) // a progress bar in the same line
	}
	f.Phase = phaseOf(f.Frames, f.Code)
	f.Where = own(f.Frames)
	s.readFacts(max(0, m.start-tailFacts), int64(m.start))
	if s.at >= 0 {
		p := s.res.Progress[s.at]
		f.At = &p
	}
	s.due = max(s.due, s.base+int64(next)+tailFacts/2)
	if f.Phase == PhaseUnknown && f.At != nil {
		f.Phase = phaseOfLabel(f.At.Label)
	}
}

// phaseOfLabel reads the phase from what a progress bar calls itself.
func phaseOfLabel(label string) Phase {
	low := strings.ToLower(label)
	switch {
	case containsAny(low, []string{"eval", "valid", "test", "predict", "sanity"}), hasWord(low, "val"):
		return PhaseEvaluation
	case containsAny(low, []string{"loading checkpoint shards", "loading weights", "loading safetensors", "loading pipeline"}):
		return PhaseLoad
	}
	return PhaseUnknown
}

// traceBefore reads the traceback that ends at start, outermost call first.
func (s *scanner) traceBefore(start int, stream string, limit int) ([]Frame, []string) {
	type rowAt struct {
		line
		at int
	}
	var rows []rowAt
	gap, found := 0, false
	for at := start; limit > 0; limit-- {
		from, to, ok := s.previousLine(at)
		if !ok {
			break
		}
		at = from
		l := readLine(s.buf[from:min(to, from+2048)])
		if stream != "" && l.stream != "" && l.stream != stream {
			continue
		}
		if strings.Contains(l.text, "Traceback (most recent call last)") {
			found = true
			break
		}
		rows = append(rows, rowAt{l, from})
		if len(s.frames.read(l.text, Source{})) > 0 || isCode(l.text) || strings.HasPrefix(l.text, "^") {
			gap = 0
		} else if gap++; gap > traceGap {
			break
		}
	}
	if found {
		gap = 0
	}
	slices.Reverse(rows)
	var frames []Frame
	var code []string
	for i, r := range rows {
		if got := s.frames.read(r.text, Source{}); len(got) > 0 {
			src := s.source(r.at)
			for k := range got {
				got[k].At = src
			}
			frames = append(frames, got...)
			continue
		}
		if code, ok := arrowed(r.text); ok && len(frames) > 0 && frames[len(frames)-1].Code == "" {
			frames[len(frames)-1].Code = code
			continue
		}
		// What follows a call is its source line, whatever it looks like.
		if i > 0 && len(frames) > 0 && frames[len(frames)-1].Code == "" && rows[i-1].at == int(frames[len(frames)-1].At.Offset-s.base) && quoted(r.text) {
			frames[len(frames)-1].Code = r.text
		} else if isCode(r.text) && len(code) < 100 {
			code = append(code, r.text)
		}
	}
	return trim(frames), code
}

// quoted reports whether the line after a call can be its source: all but an
// error's name, a mark under a source line, a numbered line of IPython's context,
// or a frame.
func quoted(text string) bool {
	first, _, _ := strings.Cut(text, ":")
	return text != "" && digits([]byte(text)) == 0 && !strings.HasPrefix(text, "^") && !strings.HasPrefix(text, "~") && !strings.HasPrefix(text, "File ") &&
		!(strings.HasSuffix(first, "Error") || strings.HasSuffix(first, "Exception") || strings.HasSuffix(first, "Warning")) && !strings.Contains(text, "Traceback")
}

// arrowed returns the source line that IPython ("-> 31     y = f(x)") and rich
// ("❱ 31 │   y = f(x)  │") point at among its neighbours.
func arrowed(text string) (string, bool) {
	rest, ok := strings.CutPrefix(text, "❱")
	if !ok {
		rest, ok = strings.CutPrefix(strings.TrimLeft(text, "-"), ">")
		ok = ok && strings.HasPrefix(text, "-")
	}
	rest = strings.TrimLeft(rest, " ")
	n := digits([]byte(rest))
	if !ok || n == 0 || n == len(rest) {
		return "", false
	}
	rest = strings.Trim(rest[n:], " │|")
	return rest, rest != ""
}

func isArrowed(text string) bool { _, ok := arrowed(text); return ok }

// traceAfter reads calls that are printed after the message, as pytest does and
// as people paste them.
func (s *scanner) traceAfter(next int, stream string) ([]Frame, []string) {
	var frames []Frame
	var code []string
	end, gap := next, 0
	for lines := range afterLines {
		from, to, ok := s.nextLine(end)
		if !ok {
			break
		}
		end = to
		l := readLine(s.buf[from:min(to, from+2048)])
		if stream != "" && l.stream != "" && l.stream != stream {
			continue
		}
		if strings.HasPrefix(l.text, "Traceback") && lines <= 2 {
			continue // a logger prints the message, then the traceback
		}
		if strings.HasPrefix(l.text, "Traceback") || strings.HasPrefix(l.text, "During handling") {
			break
		}
		got := s.frames.read(l.text, s.source(from))
		frames = append(frames, got...)
		switch {
		case len(got) > 0:
			gap = 0
		case len(frames) > 0 && frames[len(frames)-1].Code == "" && isArrowed(l.text):
			frames[len(frames)-1].Code, _ = arrowed(l.text)
		case isCode(l.text) && len(frames) > 0 && frames[len(frames)-1].Code == "":
			frames[len(frames)-1].Code = l.text
		case isCode(l.text) && len(code) < 100:
			code = append(code, l.text)
		default:
			if gap++; gap > 8 {
				return trim(frames), code
			}
		}
	}
	return trim(frames), code
}

// trim drops the middle of a very deep traceback.
func trim(frames []Frame) []Frame {
	if len(frames) <= maxFrames {
		return frames
	}
	return append(frames[:maxFrames/2:maxFrames/2], frames[len(frames)-maxFrames/2:]...)
}

// readFacts reads settings, progress, memory figures and nvidia-smi rows from
// the lines of buf[from:to], except what was read before.
func (s *scanner) readFacts(from int, until int64) {
	from, to := max(from, int(s.factsTo-s.base)), int(until)
	if from >= to {
		return
	}
	s.factsTo = s.base + int64(to)
	for from < to {
		end := to
		i := 0
		for i = from; i < to && s.buf[i] != '\n' && s.buf[i] != '\r'; i++ {
		}
		end = i
		if end > from {
			s.factLine(from, min(end, from+4096))
		}
		from = end + 1
	}
}

func (s *scanner) factLine(from, to int) {
	l := readLine(s.buf[from:to])
	if l.text == "" {
		return
	}
	src := s.source(from)
	if l.rank >= s.res.Ranks {
		s.res.Ranks = l.rank + 1
	}
	s.res.Facts = s.facts.read(s.res.Facts, l.text, src)
	if s.restart && restarts(l.text) {
		s.res.Attempts++
		s.restart = false
	}
	if p, ok := s.progress.read(l.text, src); ok {
		s.noteProgress(p)
	}
	if strings.Contains(l.text, "ried to allocate") { // a failure's figures are no reading of the run
		return
	}
	if m, ok := s.progress.sample(l.text, src); ok && len(s.res.Samples) < 4096 {
		if s.at >= 0 {
			m.Step = s.res.Progress[s.at].Step
		}
		s.res.Samples = append(s.res.Samples, m)
	}
	s.smi.read(s.res, l.text, src)
}

// maxProgress bounds the kept progress; of a longer run the middle is thinned.
const maxProgress = 512

func (s *scanner) noteProgress(p Progress) {
	if p.IsPreparation() {
		return
	}
	if n := len(s.res.Progress); n >= maxProgress && s.at == n-1 {
		s.res.Progress[n-1] = p
		return
	}
	s.res.Progress = append(s.res.Progress, p)
	s.at = len(s.res.Progress) - 1
}

// restarts reports whether a line says that the run starts again.
func restarts(text string) bool {
	low := strings.ToLower(text)
	return containsAny(low, []string{"decreasing batch size", "restarting", "restart_count", "retrying with", "retry with batch", "attempt ", "starting elastic_operator", "reducing batch size", "trying batch size", "+ torchrun", "+ python", "$ python", "$ torchrun", "$ accelerate launch", "$ deepspeed", "requeue", "starting worker group"})
}

// finish settles what only the end of the text shows.
func (s *scanner) finish() {
	n := len(s.buf)
	if n > 0 && s.buf[n-1] != '\n' {
		s.res.Lines++
	}
	s.readFacts(max(0, n-tailFacts), int64(n))
	if s.cut {
		s.warn("cut_archive", n, "")
	}
	if s.res.Bytes > 0 && float64(s.controls) > 0.005*float64(s.res.Bytes) {
		s.res.Binary = true
		s.warn("binary", 0, "")
	}
	if len(s.errLine) > 0 {
		if l := readLine(s.errLine); l.text != "" {
			s.res.LastError = &ErrorLine{Source{s.name, s.errNum, s.errAt}, l.text}
		}
	}
	if len(s.res.Failures) == 0 {
		s.res.Trace = s.lastTrace()
	}
	s.titled()
}

// titleLines is within how many lines of the start a message is the title of a
// report, whose log comes below it.
const titleLines = 3

// titled gives a message that stands alone at the start of a text the traceback
// and the progress with which the text ends.
func (s *scanner) titled() {
	if len(s.res.Failures) != 1 {
		return
	}
	f := &s.res.Failures[0]
	above := len(f.Frames) == 0 && len(f.Code) == 0 || len(f.Frames) > 0 && f.Frames[0].At.Offset > f.Source.Offset
	if f.Source.Line > titleLines || !above || f.At != nil || s.at < 0 {
		return
	}
	last := s.res.Progress[s.at]
	f.At = &last
	if t := s.lastTrace(); t != nil {
		f.Frames, f.Code, f.Phase, f.Where = t.Frames, t.Code, t.Phase, t.Where
	}
	if f.Phase == PhaseUnknown {
		f.Phase = phaseOfLabel(last.Label)
	}
}

// lastTrace reads the calls at the end of the text.
func (s *scanner) lastTrace() *Trace {
	n := len(s.buf)
	from := n
	if n > 0 && s.buf[n-1] != '\n' { // the text stops within a line
		from, _ = s.lineBounds(n)
	}
	frames, code := s.traceBefore(from, "", traceLines)
	if from < n {
		l := readLine(s.buf[from:n])
		src := s.source(from)
		if got := s.frames.read(l.text, src); len(got) > 0 {
			frames = append(frames, got...)
		} else if isCode(l.text) {
			if k := len(frames) - 1; k >= 0 && frames[k].Code == "" {
				frames[k].Code = l.text
			} else {
				code = append(code, l.text)
			}
		}
	}
	if len(frames) == 0 && len(code) == 0 {
		return nil
	}
	t := &Trace{Frames: frames, Code: code, Phase: phaseOf(frames, code), Where: own(frames)}
	if len(frames) > 0 {
		t.Source = frames[0].At
	} else {
		t.Source = s.source(0)
	}
	t.Ends = s.res.LastError != nil && s.res.LastError.Source.Offset > t.Source.Offset
	return t
}
