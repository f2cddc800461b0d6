package oomlog

import (
	"io"
	"math/rand/v2"
	"runtime"
	"strings"
	"testing"
)

// Whatever the bytes are, a scan ends, stays within its bounds, and its places
// are in the text.
func FuzzScan(f *testing.F) {
	f.Add([]byte(message22))
	f.Add([]byte(message113))
	f.Add([]byte(traceback + message22))
	f.Add([]byte("\xff\xfeC\x00U\x00D\x00A\x00"))
	f.Add([]byte("\x1f\x8b\x08\x00"))
	f.Add([]byte("[rank3]: Killed\n(pid=1) MemoryError\n\x1b[31mOOM\x1b["))
	f.Add([]byte("Currently allocated     : 20.13 GiB\nAllocation on device 0 would exceed allowed memory. (out of memory)\nCurrently allocated     : 20.13 GiB\n"))
	f.Add([]byte("--batch_size 8 --lr=3 'seq_len': 4096, TrainingArguments(\nper_device_train_batch_size=8,\n)"))
	f.Add([]byte("|    0   N/A  N/A    4711      C   python    12345MiB |\n| N/A   34C    P0    56W / 400W |   1234MiB / 81920MiB |"))
	f.Fuzz(func(t *testing.T, data []byte) {
		res, err := Scan("fuzz", strings.NewReader(string(data)))
		if err != nil {
			return // damaged gzip
		}
		last := int64(-1)
		for _, v := range res.Failures {
			if v.Source.Offset < last || v.Source.Line < 1 || v.Source.Line > res.Lines+1 || v.Source.Offset > res.Bytes {
				t.Fatalf("failure at %+v of %d lines, %d bytes", v.Source, res.Lines, res.Bytes)
			}
			last = v.Source.Offset
			if len(v.Text) > 5000 || len(v.Frames) > maxFrames {
				t.Fatalf("unbounded: %d bytes of text, %d frames", len(v.Text), len(v.Frames))
			}
			for _, fig := range []Figure{v.Figures.Tried, v.Figures.Capacity, v.Figures.Free, v.Figures.Allocated, v.Figures.Reserved, v.Figures.Cached} {
				if fig.Bytes < 0 || fig.Within < 0 || !fig.Known && fig.Bytes != 0 {
					t.Fatalf("figure %+v", fig)
				}
			}
		}
		if len(res.Facts) > maxFacts || len(res.Warnings) > 64 || len(res.Progress) > maxProgress {
			t.Fatalf("unbounded: %d facts, %d warnings, %d progress", len(res.Facts), len(res.Warnings), len(res.Progress))
		}
	})
}

// hostile yields lines that each look like the start of something.
type hostile struct {
	left  int
	lines []string
	rng   *rand.Rand
	rest  string
}

func (h *hostile) Read(p []byte) (int, error) {
	n := 0
	for n < len(p) {
		if h.rest == "" {
			if h.left <= 0 {
				break
			}
			h.rest = h.lines[h.rng.IntN(len(h.lines))]
			h.left -= len(h.rest)
		}
		k := copy(p[n:], h.rest)
		n += k
		h.rest = h.rest[k:]
	}
	if n == 0 {
		return 0, io.EOF
	}
	return n, nil
}

// A log in which every line is a candidate must neither take memory nor for ever.
func TestHostileLogsStayBounded(t *testing.T) {
	lines := []string{
		message113 + "\n", message22 + "\n", "Killed\n", "CUDA error: something\n", "out of memory allocating\n", "File \"x.py\", line 1, in f\n",
		"Traceback (most recent call last):\n", strings.Repeat("a=1 batch_size=3 ", 500) + "\n", "RuntimeError: CUDNN_STATUS_NOT_SUPPORTED\n", "[rank7]: MemoryError\n",
		"x\r", "Tried to allocate Tried to allocate Tried to allocate\n", strings.Repeat("(", 3000) + "\n", "No space left on device\n", "\x00\x00\x00\x00", "step 1/2 mem 3GiB\n",
	}
	size := 3 << 20
	if testing.Short() {
		size = 1 << 20
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	res, err := Scan("hostile", &hostile{left: size, lines: lines, rng: rand.New(rand.NewPCG(1, 2))})
	runtime.ReadMemStats(&after)
	if err != nil {
		t.Fatal(err)
	}
	if len(res.Failures) > maxFailures {
		t.Errorf("%d failures", len(res.Failures))
	}
	if grown := after.Sys - before.Sys; grown > 64<<20 {
		t.Errorf("the process grew by %d MiB", grown>>20)
	}
}
