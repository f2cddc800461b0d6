package oomlog

import (
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"unoom/internal/units"
)

// unavailable is what NVML reports for "not available": 2^64-1 bytes, which
// PyTorch prints as 17179869184.00 GiB (seen under WSL and the Windows driver
// model). Anything near it is unknown.
const unavailable = 1 << 60

// readFigure reads a size as PyTorch's format_size, TensorFlow, XLA or llama.cpp
// print it. The unit may be in any case and may touch the number. decimal says
// that GB and MB mean powers of 1000; PyTorch's MPS messages up to 2.7 print GB
// for GiB.
func readFigure(number, unit string, decimal bool) Figure {
	unit = strings.ToLower(strings.TrimSpace(unit))
	scale := units.Bytes(1)
	step := units.Bytes(1024)
	if decimal && strings.HasSuffix(unit, "b") && !strings.HasSuffix(unit, "ib") {
		step = 1000
	}
	switch strings.TrimSuffix(strings.TrimSuffix(unit, "b"), "i") {
	case "", "bytes", "byte":
	case "k":
		scale = step
	case "m":
		scale = step * step
	case "g":
		scale = step * step * step
	case "t":
		scale = step * step * step * step
	default:
		return Figure{}
	}
	number = strings.ReplaceAll(number, ",", "")
	whole, fraction, _ := strings.Cut(number, ".")
	if len(fraction) > 9 {
		fraction = fraction[:9]
	}
	if fraction == "" {
		n, err := strconv.ParseInt(whole, 10, 64)
		if err != nil {
			return Figure{}
		}
		b, ok := units.Mul(n, scale)
		if !ok || b >= unavailable {
			return Figure{}
		}
		f := Figure{Bytes: b, Known: true}
		if scale > 1 {
			f.Within = scale / 2
		}
		return f
	}
	x, err := strconv.ParseFloat(whole+"."+fraction, 64)
	if err != nil {
		return Figure{}
	}
	x *= float64(scale)
	if x >= unavailable {
		return Figure{}
	}
	f := Figure{Bytes: units.Bytes(math.Round(x)), Known: true}
	f.Within = units.Bytes(math.Ceil(float64(scale) / 2 / math.Pow10(len(fraction))))
	if scale == 1 {
		f.Within = 0
	}
	return f
}

// sum returns a+b with the precision of both.
func (f Figure) plus(o Figure) Figure {
	if !f.Known || !o.Known {
		return Figure{}
	}
	return Figure{f.Bytes + o.Bytes, f.Within + o.Within, true}
}

// minus returns a-b, never below zero, with the precision of both.
func (f Figure) minus(o Figure) Figure {
	if !f.Known || !o.Known {
		return Figure{}
	}
	return Figure{max(f.Bytes-o.Bytes, 0), f.Within + o.Within, true}
}

// The torch messages are matched on text whose white space is gone and whose
// letters are small ("squeezed"), so that neither a terminal's wrapping nor a
// lower-casing logger hides a figure. In it a size is always number + unit.
const size = `(\d+(?:\.\d+)?)(bytes|[kmgt]?i?b)`

// torchField is one quantity of PyTorch's message, in all its eras; oomlog has
// no other list of its forms. Each is anchored to the words around it, so that an
// interleaved message of another rank cannot lend its figures.
type torchField struct {
	expr string
	set  func(f *Figures, v Figure)
}

var torchFields = []torchField{
	{`triedtoallocate` + size, func(f *Figures, v Figure) { f.Tried = v }},
	{`(?:;|hasatotalcapac?i?tyof|^totalcapacity)` + size + `(?:totalcapacity|ofwhich|\.|,)`, func(f *Figures, v Figure) { f.Capacity = v }},
	{size + `alreadyallocated`, func(f *Figures, v Figure) { f.Allocated = v }},
	{`(?:;|ofwhich)` + size + `(?:isfree|free;)`, func(f *Figures, v Figure) { f.Free = v }},
	{size + `allowed;`, func(f *Figures, v Figure) { f.Allowed = v }},
	{size + `cached\)?`, func(f *Figures, v Figure) { f.Cached = v }},
	{size + `reservedintotal`, func(f *Figures, v Figure) { f.Reserved = v }},
	{`thisprocesshas` + size + `memoryinuse`, func(f *Figures, v Figure) { f.ThisProcess = v }},
	{`oftheallocatedmemory` + size + `isallocated`, func(f *Figures, v Figure) { f.Allocated = v }},
	{`with` + size + `allocatedinprivatepools`, func(f *Figures, v Figure) { f.Private = v }},
	{`and` + size + `isreservedbypytorchbutunallocated`, func(f *Figures, v Figure) { f.Cached = v }},
}

// chineseFields are the same quantities in translations of the message; where
// the translation of one sentence varies, only the words that stay are asked for.
var chineseFields = []torchField{
	{`(?:尝试|试图)分配了?` + size, func(f *Figures, v Figure) { f.Tried = v }},
	{`总(?:内存|显存)?容量[为是]?` + size, func(f *Figures, v Figure) { f.Capacity = v }},
	{`其中(?:空闲|可用|剩余)?(?:的?内存|的?显存|空间)?[为有是]?` + size, func(f *Figures, v Figure) { f.Free = v }},
	{`(?:此|该|本|这个)进程(?:已经|正在|已|共)?(?:使用|占用|有)了?` + size, func(f *Figures, v Figure) { f.ThisProcess = v }},
	{`分配的(?:内存|显存)中[,，]?(?:有|pytorch(?:已|已经)?分配了)?` + size, func(f *Figures, v Figure) { f.Allocated = v }},
	{size + `(?:的?内存|的?显存)?(?:已)?[被由为]pytorch(?:所)?(?:保留|预留)`, func(f *Figures, v Figure) { f.Cached = v }},
	{`pytorch(?:已)?(?:保留|预留)(?:但未分配)?(?:了|的)?` + size, func(f *Figures, v Figure) { f.Cached = v }},
}

// A torchReader holds the compiled fields.
type torchReader struct {
	fields  []compiledField
	device  *regexp.Regexp
	process *regexp.Regexp
}

type compiledField struct {
	*regexp.Regexp
	set func(f *Figures, v Figure)
}

func newTorchReader() *torchReader {
	r := &torchReader{
		device:  regexp.MustCompile(`(?:\(|\b|\.)(?:gpu|npu|musa|mlu|xpu|sdaa|gcu|device)(\d+)(?:;|hasatotal|的?总|共有)`),
		process: regexp.MustCompile(`(?:process|进程)(\d+)(?:has|(?:正在|已经|已)?(?:使用|占用)了?)` + size + `(?:memoryinuse|的)`),
	}
	for _, f := range slices.Concat(torchFields, chineseFields) {
		r.fields = append(r.fields, compiledField{regexp.MustCompile(f.expr), f.set})
	}
	return r
}

// extent cuts a squeezed text to the one message that starts at its beginning:
// a second "tried to allocate" belongs to the next message.
func extent(squeezed string) string {
	const head = "triedtoallocate"
	first := strings.Index(squeezed, head)
	if first < 0 {
		return squeezed
	}
	if second := strings.Index(squeezed[first+len(head):], head); second >= 0 {
		return squeezed[:first+len(head)+second]
	}
	return squeezed
}

// longestMessage is more than PyTorch's message has without white space, with a
// dozen processes in it.
const longestMessage = 2400

// read takes the figures of PyTorch's native allocator from a squeezed text, and
// says where the message ends.
func (r *torchReader) read(squeezed string) (f Figures, end int) {
	f.Device = -1
	text := extent(squeezed)
	text = text[:min(len(text), longestMessage)]
	for _, field := range r.fields {
		if m := field.FindStringSubmatchIndex(text); m != nil {
			field.set(&f, readFigure(text[m[2]:m[3]], text[m[4]:m[5]], false))
			end = max(end, m[1])
		}
	}
	if m := r.device.FindStringSubmatchIndex(text); m != nil {
		f.Device = atoi(text[m[2]:m[3]])
		end = max(end, m[1])
	}
	if strings.Contains(text, "process") || strings.Contains(text, "进程") {
		for _, m := range r.process.FindAllStringSubmatch(text, 256) {
			f.Processes = append(f.Processes, Process{PID: atoi(m[1]), Memory: readFigure(m[2], m[3], false)})
		}
	}
	if i := strings.Index(text[end:], "memorymanagement"); i >= 0 && i < 400 {
		end += i + len("memorymanagement")
		if close := strings.IndexByte(text[end:], ')'); close >= 0 && close < 160 && strings.HasPrefix(text[end:], "(http") {
			end += close + 1
		}
	}
	f.complete()
	return f, end
}

// complete derives the one of reserved, allocated and cached that the message
// leaves out. Old messages (up to 1.3) print the unused part as "cached", newer
// ones the total as "reserved in total", the newest the unused part again.
func (f *Figures) complete() {
	switch {
	case f.Reserved.Known && f.Allocated.Known && !f.Cached.Known:
		f.Cached = f.Reserved.minus(f.Allocated)
	case f.Cached.Known && f.Allocated.Known && !f.Reserved.Known:
		f.Reserved = f.Allocated.plus(f.Cached)
	}
}

func atoi(s string) int {
	n, err := strconv.Atoi(s)
	if err != nil {
		return -1
	}
	return n
}
