package oomlog

import (
	"fmt"
	"io"
	"runtime"
	"strings"
	"testing"
)

// trainingLog yields a log of about n bytes as a training run writes it: loss
// lines, progress bars, warnings, and the failure at the end.
type trainingLog struct {
	left  int64
	chunk string
	tail  string
}

func newTrainingLog(n int64) *trainingLog {
	var b strings.Builder
	for i := range 4000 {
		switch i % 5 {
		case 0:
			fmt.Fprintf(&b, "\r %2d%%|####      | %d/10000 [12:41<1:13:32,  2.04it/s, loss=%.4f]", i/40, i, 1.0/float64(i+1))
		case 1:
			fmt.Fprintf(&b, "{'loss': %.4f, 'grad_norm': 1.0213, 'learning_rate': 1.9e-05, 'epoch': %.2f}\n", 2.0/float64(i+1), float64(i)/4000)
		case 2:
			fmt.Fprintf(&b, "2026-05-01 12:%02d:%02d,123 - INFO - trainer - step %d/10000 loss: 1.2345 lr: 2e-5 tokens/s: 12034 mem: 61.2GiB\n", i/60%60, i%60, i)
		case 3:
			b.WriteString("[rank3]:[W501 12:00:00.000000000 reducer.cpp:1400] Warning: find_unused_parameters=True was specified in DDP constructor\n")
		default:
			b.WriteString("The attention mask and the pad token id were not set. As a consequence, you may observe unexpected behavior.\n")
		}
	}
	return &trainingLog{left: n, chunk: b.String(), tail: traceback + message22 + "\n"}
}

const traceback = `Traceback (most recent call last):
  File "/home/me/train.py", line 210, in <module>
    main()
  File "/home/me/train.py", line 180, in main
    loss.backward()
  File "/usr/lib/python3/site-packages/torch/_tensor.py", line 581, in backward
    torch.autograd.backward(
`

const message22 = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.53 GiB. GPU 2 has a total capacity of 79.11 GiB of which 803.19 MiB is free. Including non-PyTorch memory, this process has 78.31 GiB memory in use. Of the allocated memory 74.48 GiB is allocated by PyTorch, and 2.97 GiB is reserved by PyTorch but unallocated. If reserved but unallocated memory is large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation.  See documentation for Memory Management  (https://pytorch.org/docs/stable/notes/cuda.html#environment-variables)"

func (l *trainingLog) Read(p []byte) (int, error) {
	if l.left <= 0 {
		if l.tail == "" {
			return 0, io.EOF
		}
		n := copy(p, l.tail)
		l.tail = l.tail[n:]
		return n, nil
	}
	n := 0
	for n < len(p) && l.left > 0 {
		at := int(l.left) % len(l.chunk)
		k := copy(p[n:], l.chunk[len(l.chunk)-at-btoi(at == 0)*len(l.chunk):])
		k = min(k, int(l.left))
		n += k
		l.left -= int64(k)
	}
	return n, nil
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}

// A 1 GiB log: go test -bench Scan1GiB -benchtime 1x ./internal/oomlog
func BenchmarkScan1GiB(b *testing.B) {
	const size = 1 << 30
	b.SetBytes(size)
	for b.Loop() {
		res, err := Scan("train.log", newTrainingLog(size))
		if err != nil || len(res.Failures) != 1 {
			b.Fatal(len(res.Failures), err)
		}
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		b.ReportMetric(float64(m.Sys)/(1<<20), "MiB-from-OS")
	}
}

// A pasted message: what explain pays for one.
func BenchmarkScanMessage(b *testing.B) {
	text := traceback + message22
	b.SetBytes(int64(len(text)))
	for b.Loop() {
		if res := ScanString("stdin", text); len(res.Failures) != 1 {
			b.Fatal(res.Failures)
		}
	}
}

// The settings and the progress of 1 MiB, which every log pays for.
func BenchmarkScanFacts(b *testing.B) {
	const size = 1 << 20
	b.SetBytes(size)
	for b.Loop() {
		if _, err := Scan("train.log", newTrainingLog(size)); err != nil {
			b.Fatal(err)
		}
	}
}
