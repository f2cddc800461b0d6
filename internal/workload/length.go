package workload

import (
	"regexp"
	"strconv"
	"strings"
)

// What is supposed of text whose lengths nobody stated: samples written to
// instruct a model. A run's peak is that of its longest sample, with the others of
// the batch padded to it, or beside it at their mean length where nothing is
// padded. The figures are round: models that write such samples are asked for
// 2,048 tokens at most, and write a few hundred. The interval spans a quarter to
// the stated bound, so that little rests on them.
const (
	longestSample = 2048
	meanSample    = 256
	unstatedBound = 4096
	shortestPart  = 4 // the shortest supposed length is this part of the middle
)

var (
	boundPattern  = regexp.MustCompile(`<=? *(\d+)(?: *(?:\.\.|-) *(\d+))?`)
	imageLength   = regexp.MustCompile(`\d+x\d+|side|multi-scale`)
	targetPattern = regexp.MustCompile(`^(\d+) *src */ *(\d+) *tgt`)
)

// readLength reads the length of samples: a number, source and target lengths, or
// what is said of lengths that vary.
func (w *Workload) readLength(text string) error {
	text = strings.TrimSpace(text)
	if n, err := strconv.ParseInt(text, 10, 64); err == nil {
		w.Seq = n
		return nil
	}
	if m := targetPattern.FindStringSubmatch(text); m != nil {
		w.Seq, _ = strconv.ParseInt(m[1], 10, 64)
		w.TargetSeq, _ = strconv.ParseInt(m[2], 10, 64)
		return nil
	}
	low, high := int64(0), int64(unstatedBound)
	switch m := boundPattern.FindStringSubmatch(text); {
	case imageLength.MatchString(text):
		return cannot("the length %q is not one number", text) // of images
	case m != nil:
		high, _ = strconv.ParseInt(m[1], 10, 64)
		if m[2] != "" {
			low = high
			high, _ = strconv.ParseInt(m[2], 10, 64)
		}
	case !strings.HasPrefix(strings.ToLower(text), "variable"):
		return cannot("the length %q is not one number", text)
	}
	mid := min(high, longestSample)
	why := "lengths vary: the longest sample is taken, at most what instruction data has"
	if w.Has("padding-free") {
		mid = ceilDiv(mid+(w.MicroBatch-1)*min(meanSample, mid), w.MicroBatch)
		why = "lengths vary and nothing is padded: one longest sample among those of mean length"
	}
	if low == 0 {
		low = max(mid/shortestPart, 1)
	}
	w.Seq = mid
	w.Suppose("seq", strconv.FormatInt(mid, 10), why, strconv.FormatInt(low, 10), strconv.FormatInt(high, 10))
	return nil
}

func ceilDiv(a, b int64) int64 { return (a + b - 1) / b }
