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

// preparations are what bars before the training call themselves: datasets,
// tokenizers, downloads.
var preparations = [...]string{"map", "filter", "tokeniz", "download", "fetching", "generating", "caching", "resolving", "grouping", "packing", "extracting", "converting", "saving the dataset", "processing", "reading", "adding eos", "truncating", "creating", "uploading", "scanning", "shuffling"}

// IsPreparation reports whether the progress is of something before or beside
// the training.
func (p Progress) IsPreparation() bool {
	label := strings.ToLower(p.Label)
	for _, w := range preparations {
		if strings.HasPrefix(label, w) || strings.Contains(label, " "+w) {
			return true
		}
	}
	return false
}

type progressReader struct {
	count  *regexp.Regexp // torchvision, LAVIS: "Evaluation  [2750/5000]  eta:"
	bar    *regexp.Regexp // tqdm: " 18%|#8   | 1935/10920 [17:45<1:13:32,"
	epoch  *regexp.Regexp // Epoch: [3][120/400]   Epoch 3/10   epoch 3
	step   *regexp.Regexp // step 120/400   iter: 120   global_step=120
	hf     *regexp.Regexp // {'loss': 1.2, 'epoch': 0.35}
	memory *regexp.Regexp // mem=12.3GB  memory: 10240  max mem: 10240
}

func newProgressReader() *progressReader {
	return &progressReader{
		count:  regexp.MustCompile(`\[ ?(\d+)/(\d+)\]`),
		bar:    regexp.MustCompile(`(\d+)/(\d+) ?\[\d+:\d\d`),
		epoch:  regexp.MustCompile(`\bepoch[ :=]*\[?(\d+)(?:[/,\]] ?\[?(\d+)(?:/(\d+))?)?`),
		step:   regexp.MustCompile(`(\b(?:total|max|maximum|accumulation|accumulate|optimization|warm-?up|save|saving|eval|logging|inference|sampling|num) )?\b(?:global_step|global step|step|iteration|iter|it)s?[ :=\[]+ *(\d+)(?: ?(?:/|of) ?(\d+))?`),
		hf:     regexp.MustCompile(`'epoch': ([\d.]+)`),
		memory: regexp.MustCompile(`(?:\b(max[_ ]?mem(?:ory)?|mem(?:ory)?(?:[_ ]?(?:allocated|reserved|usage|used|cached))?|allocated|reserved|gpu[_ ]?mem(?:ory)?|vram|peak[_ ]?mem(?:ory)?|rss|cuda_mem|gb_wall|ma|max_ma)\b(?::?cuda:\d+)?[^\d\n]{0,24}?)[ :=]+ *([\d.]+) ?(gib|mib|gb|mb|g|m|bytes|b)?\b`),
	}
}

// memoryWords are in every line that prints memory.
var memoryWords = [...]string{"mem", "Mem", "MEM", "lloc", "eserved", "RSS", "rss", "VRAM", "vram", "gb_wall", "MA ", "Max_MA"}

// quantities matches memory figures around the words that name them.
func (r *progressReader) quantities(low string) [][]string {
	var all [][]string
	done := 0
	for _, w := range [...]string{"mem", "alloc", "reserved", "rss", "vram", "gb_wall", "ma "} {
		if i := strings.Index(low, w); i >= 0 && i+len(w) > done && len(all) < 4 {
			from, to := max(0, i-10), min(len(low), i+160)
			all = append(all, r.memory.FindAllStringSubmatch(low[from:to], 4)...)
			if len(all) > 0 {
				done = to
			}
		}
	}
	return all
}

// find matches an expression on the text from a little before one of the words
// on, which is much faster than on the whole line.
func find(re *regexp.Regexp, text string, words ...string) []string {
	for _, w := range words {
		if i := strings.Index(text, w); i >= 0 {
			if m := re.FindStringSubmatch(text[max(0, i-16):min(len(text), i+120)]); m != nil {
				return m
			}
		}
	}
	return nil
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
		if m := r.count.FindStringSubmatchIndex(text); m != nil {
			p.Step, p.Total = number(text[m[2]:m[3]]), number(text[m[4]:m[5]])
			if label := strings.Trim(text[:m[0]], " :"); len(label) < 40 && !strings.ContainsAny(label, "|%/") {
				p.Label = label
			}
			if m := find(r.epoch, strings.ToLower(text), "epoch"); m != nil {
				p.Epoch = float64(number(m[1]))
			}
			return p, true
		}
	}
	if !strings.Contains(text, "poch") && !strings.Contains(text, "tep") && !strings.Contains(text, "ter") && !strings.Contains(text, "STEP") && !strings.Contains(text, "EPOCH") {
		return p, false
	}
	low := strings.ToLower(text)
	if m := find(r.epoch, low, "epoch"); m != nil {
		p.Epoch = float64(number(m[1]))
		if m[3] != "" {
			p.Step, p.Total = number(m[2]), number(m[3])
		}
	}
	if m := find(r.step, low, "step", "iter", ", it "); m != nil {
		if m[1] == "" { // "Total steps = 60" is a setting
			p.Step = number(m[2])
			if m[3] != "" {
				p.Total = number(m[3])
			}
		}
	}
	if m := find(r.hf, low, "'epoch': "); m != nil {
		p.Epoch, _ = strconv.ParseFloat(m[1], 64)
	}
	return p, p.Step >= 0 || p.Epoch >= 0
}

// sample returns the memory that a line prints.
func (r *progressReader) sample(text string, at Source) (Sample, bool) {
	s := Sample{Step: -1, Source: at}
	ok := false
	if !containsAny(text, memoryWords[:]) {
		return s, false
	}
	low := strings.ToLower(text)
	for _, m := range r.quantities(low) {
		name, unit := m[1], m[3]
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
