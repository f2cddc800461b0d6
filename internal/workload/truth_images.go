package workload

import (
	"regexp"
	"strconv"
	"strings"
)

var (
	sidesPattern = regexp.MustCompile(`short side (?:\d+-)?(\d+)`)
	longPattern  = regexp.MustCompile(`long side ?<= ?(\d+)`)
	scalePattern = regexp.MustCompile(`^(\d+)x(\d+) \(multi-scale\)$`)
)

// strideOfMaps is what detectors pad the sides of a batch to.
// Source: mmdetection Pad(size_divisor=32); detectron2 size_divisibility.
const strideOfMaps = 32

// readImages reads a rule by which images are resized, of which the largest
// batch decides: the long side at its bound, the short side at its largest. It
// reports whether the text is such a rule.
func (w *Workload) readImages(text string) bool {
	up := func(s string) int64 {
		n, _ := strconv.ParseInt(s, 10, 64)
		return (n + strideOfMaps - 1) / strideOfMaps * strideOfMaps
	}
	if m := scalePattern.FindStringSubmatch(text); m != nil {
		w.Image = [2]int64{up(m[1]), up(m[2])}
		return true
	}
	if !strings.HasPrefix(text, "variable") {
		return false
	}
	short, long := sidesPattern.FindStringSubmatch(text), longPattern.FindStringSubmatch(text)
	if short != nil && long != nil {
		w.Image = [2]int64{up(short[1]), up(long[1])}
		return true
	}
	return strings.Contains(text, "multi-scale") // the network's own
}
