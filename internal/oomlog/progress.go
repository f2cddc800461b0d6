package oomlog

import (
	"regexp"
	"strconv"
	"strings"

	"unoom/internal/units"
)

// Progress is how far a run says that it is.
type Progress struct {
	Step   int64   `json:"step"`            // -1 unknown
	Total  int64   `json:"total,omitempty"` // 0 unknown
	Epoch  float64 `json:"epoch,omitempty"` // -1 unknown
	Label  string  `json:"label,omitempty"` // "Evaluating", "Training" …
	Source Source  `json:"-"`
}

// Fraction returns Step/Total, or -1 where that is not known.
func (p Progress) Fraction() float64 {
	if p.Step < 0 || p.Total <= 0 {
		return -1
	}
	return float64(p.Step) / float64(p.Total)
}

// A Sample is a memory figure that the run itself printed at some step.
type Sample struct {
	Step      int64 // -1 unknown
	Allocated Figure
	Reserved  Figure
	Host      Figure
	Source    Source
}

type progressReader struct {
	bar    *regexp.Regexp // tqdm: " 18%|#8   | 1935/10920 [17:45<1:13:32,"
	epoch  *regexp.Regexp // Epoch: [3][120/400]   Epoch 3/10   epoch 3
	step   *regexp.Regexp // step 120/400   iter: 120   global_step=120
	hf     *regexp.Regexp // {'loss': 1.2, 'epoch': 0.35}
	memory *regexp.Regexp // mem=12.3GB  memory: 10240  max mem: 10240
}

func newProgressReader() *progressReader {
	return &progressReader{
		bar:    regexp.MustCompile(`(\d+)/(\d+) ?\[\d+:\d\d`),
		epoch:  regexp.MustCompile(`(?i)\bepoch[ :=]*\[?(\d+)(?:[/,\]] ?\[?(\d+)(?:/(\d+))?)?`),
		step:   regexp.MustCompile(`(?i)\b(?:global_step|global step|step|iteration|iter)s?[ :=\[]+ *(\d+)(?: ?(?:/|of) ?(\d+))?`),
		hf:     regexp.MustCompile(`'epoch': ([\d.]+)`),
		memory: regexp.MustCompile(`(?i)(?:\b(max[_ ]?mem(?:ory)?|mem(?:ory)?(?:[_ ]?(?:allocated|reserved|usage|used|cached))?|allocated|reserved|gpu[_ ]?mem(?:ory)?|vram|peak[_ ]?mem(?:ory)?|rss|cuda_mem|gb_wall|ma|max_ma)\b[^\d\n]{0,24}?)[ :=]+ *([\d.]+) ?(gib|mib|gb|mb|g|m|bytes|b)?\b`),
	}
}

// read returns the progress that a line shows.
func (r *progressReader) read(text string, at Source) (Progress, bool) {
	p := Progress{Step: -1, Epoch: -1, Source: at}
	if strings.IndexByte(text, '/') >= 0 && strings.IndexByte(text, '[') >= 0 {
		if m := lastMatch(r.bar, text); m != nil {
			p.Step, p.Total = number(m[1]), number(m[2])
			label, _, ok := strings.Cut(text, ":")
			if ok && len(label) < 40 && !strings.ContainsAny(label, "|%[/") {
				p.Label = strings.TrimSpace(label)
			}
			return p, true
		}
	}
	if m := r.epoch.FindStringSubmatch(text); m != nil {
		p.Epoch = float64(number(m[1]))
		if m[3] != "" {
			p.Step, p.Total = number(m[2]), number(m[3])
		}
	}
	if m := r.step.FindStringSubmatch(text); m != nil {
		p.Step = number(m[1])
		if m[2] != "" {
			p.Total = number(m[2])
		}
	}
	if m := r.hf.FindStringSubmatch(text); m != nil {
		p.Epoch, _ = strconv.ParseFloat(m[1], 64)
	}
	return p, p.Step >= 0 || p.Epoch >= 0
}

// sample returns the memory that a line prints.
func (r *progressReader) sample(text string, at Source) (Sample, bool) {
	s := Sample{Step: -1, Source: at}
	ok := false
	for _, m := range r.memory.FindAllStringSubmatch(text, 8) {
		name, unit := strings.ToLower(m[1]), m[3]
		if unit == "" { // mmengine, torchvision and detectron2 print MB without a unit
			if !strings.Contains(name, "mem") {
				continue
			}
			unit = "mb"
		}
		v := readFigure(m[2], unit, false)
		if !v.Known || v.Bytes < units.MiB || v.Bytes > 2*units.TiB {
			continue
		}
		switch {
		case strings.Contains(name, "rss"):
			s.Host = v
		case strings.Contains(name, "reserved") || strings.Contains(name, "cached"):
			s.Reserved = v
		default:
			s.Allocated = v
		}
		ok = true
	}
	return s, ok
}

func lastMatch(re *regexp.Regexp, text string) []string {
	all := re.FindAllStringSubmatch(text, -1)
	if len(all) == 0 {
		return nil
	}
	return all[len(all)-1]
}

func number(s string) int64 {
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil {
		return -1
	}
	return n
}
