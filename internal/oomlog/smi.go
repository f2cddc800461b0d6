package oomlog

import (
	"regexp"
	"strings"
)

// A Card is a GPU that a pasted nvidia-smi table shows.
type Card struct {
	Index    int
	Name     string
	InUse    Figure // what the table calls memory usage
	Capacity Figure
	Source   Source
}

// A Holder is a process that a pasted nvidia-smi table shows.
type Holder struct {
	Card   int
	PID    int
	Name   string
	Memory Figure
	Source Source
}

type smiReader struct {
	name   *regexp.Regexp
	memory *regexp.Regexp
	holder *regexp.Regexp
	last   int // index of the card whose name was last seen
	named  string
}

// smiNames are in the rows that name a card.
var smiNames = [...]string{"NVIDIA", "Tesla", "GeForce", "Quadro", "RTX", "TITAN", "A100", "H100", "GRID"}

func newSMIReader() *smiReader {
	return &smiReader{
		name:   regexp.MustCompile(`^\|?\s*(\d+)\s+((?:NVIDIA|Tesla|GeForce|Quadro|RTX|TITAN|A100|H100|GRID)[^|]*?)\s+(?:On|Off|WDDM|TCC|N/A)?\s*(?:\||$)`),
		memory: regexp.MustCompile(`(\d+)MiB\s*/\s*(\d+)MiB`),
		holder: regexp.MustCompile(`^\|?\s*(\d+)\s+(?:\S+\s+\S+\s+)?(\d+)\s+(?:C|G|C\+G|M\+C)\s+(\S.*?)\s+(\d+)MiB\s*\|?\s*$`),
		last:   -1,
	}
}

// read takes the rows of the table from a line.
func (r *smiReader) read(res *Result, text string, at Source) {
	if text == "" || text[0] != '|' && (text[0] < '0' || text[0] > '9') && text[0] != 'N' {
		return
	}
	if !strings.Contains(text, "MiB") {
		if containsAny(text, smiNames[:]) {
			if m := r.name.FindStringSubmatch(text); m != nil {
				r.last, r.named = atoi(m[1]), m[2]
			}
		}
		return
	}
	if m := r.holder.FindStringSubmatch(text); m != nil && len(res.Holders) < 256 {
		res.Holders = append(res.Holders, Holder{atoi(m[1]), atoi(m[2]), m[3], readFigure(m[4], "mib", false), at})
		return
	}
	if m := r.memory.FindStringSubmatch(text); m != nil && len(res.Cards) < 64 {
		res.Cards = append(res.Cards, Card{r.last, r.named, readFigure(m[1], "mib", false), readFigure(m[2], "mib", false), at})
		return
	}
}
