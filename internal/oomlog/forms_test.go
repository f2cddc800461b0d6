package oomlog

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"fmt"
	"strings"
	"testing"
	"unicode/utf16"

	"unoom/internal/units"
)

const message113 = "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 314.00 MiB (GPU 0; 23.70 GiB total capacity; 20.02 GiB already allocated; 211.56 MiB free; 22.31 GiB reserved in total by PyTorch) If reserved memory is >> allocated memory try setting max_split_size_mb to avoid fragmentation.  See documentation for Memory Management and PYTORCH_CUDA_ALLOC_CONF"

// wrap breaks a text into lines of width bytes, within words where it must.
func wrap(text string, width int, prefix string) string {
	var b strings.Builder
	for len(text) > 0 {
		n := min(width, len(text))
		b.WriteString(prefix + text[:n] + "\n")
		text = text[n:]
	}
	return b.String()
}

// wrapWords breaks a text at blanks, as mail programs and loggers do.
func wrapWords(text string, width int, prefix string) string {
	var b strings.Builder
	line := prefix
	for _, w := range strings.Fields(text) {
		if len(line)+len(w) > width && line != prefix {
			b.WriteString(line + "\n")
			line = prefix
		}
		line += w + " "
	}
	return b.String() + line + "\n"
}

func utf16of(text string, order binary.ByteOrder, mark bool) string {
	var b bytes.Buffer
	if mark {
		_ = binary.Write(&b, order, uint16(0xfeff))
	}
	for _, u := range utf16.Encode([]rune(text)) {
		_ = binary.Write(&b, order, u)
	}
	return b.String()
}

func gzipped(text string) string {
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	_, _ = w.Write([]byte(text))
	_ = w.Close()
	return b.String()
}

// However the message is written down, the figures are the same.
func TestFiguresSurviveTheForm(t *testing.T) {
	escaped := strings.ReplaceAll(message113, ">>", "&gt;&gt;")
	for _, c := range []struct{ name, text string }{
		{"plain", message113},
		{"CRLF", "one\r\n" + message113 + "\r\ntwo\r\n"},
		{"UTF-16 little endian", utf16of("one\n"+message113+"\n", binary.LittleEndian, true)},
		{"UTF-16 big endian", utf16of("one\n"+message113+"\n", binary.BigEndian, true)},
		{"UTF-16 without a mark", utf16of(strings.Repeat("one\n", 300)+message113+"\n", binary.LittleEndian, false)},
		{"UTF-8 with a mark", "\xef\xbb\xbf" + message113},
		{"gzip", gzipped("one\n" + message113 + "\n")},
		{"small letters", strings.ToLower(message113)},
		{"HTML entities", "<pre>" + escaped + "</pre>"},
		{"colours", "\x1b[31m\x1b[1m" + strings.ReplaceAll(message113, "GiB", "\x1b[0mGiB\x1b[32m") + "\x1b[0m"},
		{"rank prefix", "[rank0]: " + message113},
		{"torchrun tee", "[default0]:" + message113},
		{"mpirun tag", "[1,0]<stderr>:" + message113},
		{"srun label", "0: " + message113},
		{"ray", "(RayWorkerWrapper pid=4711, ip=10.0.0.3) " + message113},
		{"time stamp", "2026-05-01 12:00:00,123 ERROR trainer.py:88 - " + message113},
		{"docker compose", "trainer-1  | " + message113},
		{"kubernetes", "2026-05-01T12:00:00.123456789Z stderr F " + message113},
		{"pytest", "E       " + message113},
		{"quoted mail", "> > " + message113},
		{"JSON record", `{"log":"Traceback (most recent call last):\n  File \"/home/me/train.py\", line 3, in f\n    x = y()\n` + strings.ReplaceAll(message113, `"`, `\"`) + `\n","stream":"stderr"}`},
		{"after a progress bar", "  3%|3         | 30/1000 [00:30<16:00,  1.01it/s]\r  3%|3         | 31/1000 [00:31<16:00,  1.01it/s]" + message113},
		{"carriage returns", " 10%|#  | 1/10 [00:01<00:09]\r" + message113 + "\r\n"},
		{"terminal of 80 columns", wrap(message113, 80, "")},
		{"terminal of 37 columns", wrap(message113, 37, "")},
		{"wrapped at blanks", wrapWords(message113, 72, "")},
		{"wrapped and prefixed", wrapWords(message113, 72, "[rank0]: ")},
		{"wrapped and quoted", wrapWords(message113, 60, "> ")},
		{"rich box", "│ " + strings.ReplaceAll(strings.TrimSpace(wrapWords(message113, 76, "")), "\n", " │\n│ ") + " │"},
		{"binary around", "\x00\x01\x02\xff\xfe\x00" + message113 + "\x00\x00\xff"},
		{"invalid UTF-8", "\xc3\x28\xa0\xa1 " + message113 + " \xf0\x28\x8c\xbc"},
		{"in a line of 10 MB", strings.Repeat("0123456789abcdef", 320<<10) + " " + message113 + " " + strings.Repeat("x", 5<<20)},
		{"far into the text", strings.Repeat("step done, all is well, going on with the next one\n", 60000) + message113 + "\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			res := ScanString("log", c.text)
			if len(res.Failures) != 1 {
				t.Fatalf("%d failures", len(res.Failures))
			}
			f := res.Failures[0].Figures
			for _, q := range []struct {
				name string
				got  Figure
				want units.Bytes
			}{
				{"tried", f.Tried, mib(314)}, {"capacity", f.Capacity, gib(23.70)}, {"allocated", f.Allocated, gib(20.02)},
				{"free", f.Free, mib(211.56)}, {"reserved", f.Reserved, gib(22.31)},
			} {
				if !q.got.Known || q.got.Bytes != q.want {
					t.Errorf("%s = %s (known %v), want %s", q.name, q.got.Bytes, q.got.Known, q.want)
				}
			}
		})
	}
}

func TestCutMessagesKeepWhatTheyHave(t *testing.T) {
	for cut := len("torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 314.00 MiB"); cut < len(message113); cut++ {
		res := ScanString("log", message113[:cut])
		if len(res.Failures) != 1 || res.Failures[0].Figures.Tried.Bytes != mib(314) {
			t.Fatalf("cut at %d (%q): %+v", cut, message113[:cut], res.Failures)
		}
	}
	for cut := range len(message113) {
		if res := ScanString("log", message113[cut:]); len(res.Failures) > 1 {
			t.Fatalf("the tail from %d gives %d failures", cut, len(res.Failures))
		}
	}
}

func TestOtherMessagesAreWrappedToo(t *testing.T) {
	f := one(t, "E external/org_tensorflow/xla/python/local_client.cc:672] Execution of replica 0 failed: Resource exhausted: Out\nof memory while trying to allocate 5520758552 bytes.\n")
	if f.Pattern != "xla.bytes" || f.Figures.Tried.Bytes != 5520758552 {
		t.Errorf("%s %+v", f.Pattern, f.Figures.Tried)
	}
}

func TestTheFirstCauseOfEachRank(t *testing.T) {
	log := "[rank2]: " + strings.Replace(message22, "GPU 2", "GPU 2", 1) + "\n" +
		"[rank0]: " + strings.Replace(message22, "GPU 2", "GPU 0", 1) + "\n" +
		"[rank1]: torch.distributed.DistBackendError: NCCL error: ncclRemoteError: connection closed by remote peer gpu7<51159>\n" +
		"Root Cause (first observed failure):\n[0]:\n  time: 2026-05-01\n  rank: 2 (local_rank: 2)\n  exitcode: 1 (pid: 99)\n"
	res := ScanString("log", log)
	if len(res.Failures) != 3 {
		t.Fatalf("%d failures", len(res.Failures))
	}
	for i, want := range []struct {
		rank, line int
		class      Class
	}{{2, 1, ClassVRAM}, {0, 2, ClassVRAM}, {1, 3, ClassSecondary}} {
		if f := res.Failures[i]; f.Rank != want.rank || f.Source.Line != want.line || f.Class != want.class {
			t.Errorf("failure %d: rank %d line %d %s, want %+v", i, f.Rank, f.Source.Line, f.Class, want)
		}
	}
	if res.Ranks != 3 {
		t.Errorf("%d ranks, want 3", res.Ranks)
	}
}

func TestAttemptsAreCounted(t *testing.T) {
	log := message113 + "\nDecreasing batch size to: 16.\n" + message113 + "\nDecreasing batch size to: 8.\n" + message113 + "\n"
	res := ScanString("log", log)
	if len(res.Failures) != 3 || res.Failures[2].Attempt != 2 || res.Attempts != 3 {
		t.Errorf("%d failures, %d attempts: %+v", len(res.Failures), res.Attempts, res.Failures)
	}
}

func TestTheSameMessageAgainIsCountedNotRepeated(t *testing.T) {
	res := ScanString("log", strings.Repeat(message113+"\n", 500))
	if len(res.Failures) != 1 || res.Failures[0].Repeats != 499 {
		t.Errorf("%d failures, %d repeats", len(res.Failures), res.Failures[0].Repeats)
	}
}

func TestTextsWithoutAFailure(t *testing.T) {
	for _, c := range []struct {
		name, text, last string
		lines            int
		binary           bool
	}{
		{"empty", "", "", 0, false},
		{"one newline", "\n", "", 1, false},
		{"a healthy log", strings.Repeat("step 1 loss 0.5\n", 100), "", 100, false},
		{"another error", "start\nTraceback (most recent call last):\n  File \"a.py\", line 3, in <module>\n    f()\nValueError: too many values to unpack (expected 2)\n", "ValueError: too many values to unpack (expected 2)", 5, false},
		{"an error of one's own", "Traceback (most recent call last):\n  File \"a.py\", line 3, in <module>\n    f()\nmylib.Oops: the thing broke\nbye\n", "mylib.Oops: the thing broke", 5, false},
		{"binary", string([]byte{0, 1, 2, 3, 0, 0, 0, 0xff, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0}), "", 1, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			res := ScanString("log", c.text)
			if len(res.Failures) != 0 {
				t.Fatalf("found %s", res.Failures[0].Pattern)
			}
			last := ""
			if res.LastError != nil {
				last = res.LastError.Text
			}
			if last != c.last || res.Lines != c.lines || res.Binary != c.binary {
				t.Errorf("last error %q, %d lines, binary %v; want %q, %d, %v", last, res.Lines, res.Binary, c.last, c.lines, c.binary)
			}
		})
	}
}

func TestSourcesPointAtTheLine(t *testing.T) {
	var b strings.Builder
	for i := range 40000 {
		fmt.Fprintf(&b, "line %d of an ordinary log with some words in it\n", i+1)
	}
	at := b.Len()
	b.WriteString(message113 + "\n")
	res := ScanString("train.log", b.String())
	src := res.Failures[0].Source
	if src.Line != 40001 || src.Offset != int64(at) || src.String() != "train.log:40001" {
		t.Errorf("%+v %s, want line 40001 offset %d", src, src, at)
	}
}

// A message that a browser or a chat program translated keeps its figures.
func TestChineseTranslations(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{"内存溢出错误：CUDA 内存不足。尝试分配 108.00 MiB 的内存。GPU 0 的总内存容量为 23.68 GiB，其中空闲内存为 34.88 MiB。进程 1170126 正在使用 2.25 GiB 的内存。",
			"device 0 tried 108.00 MiB capacity 23.68 GiB free 34.88 MiB this 0 bytes allocated 0 bytes cached 0 bytes processes [{1170126 2.25 GiB}]"},
		{"torch.cuda.OutOfMemoryError：CUDA 内存不足。尝试分配 2.00 GiB。GPU 1 的总容量为 15.78 GiB，其中 1.24 GiB 可用。包括非 PyTorch 内存，此进程使用了 14.53 GiB 内存。在分配的内存中，13.20 GiB 由 PyTorch 分配，850.00 MiB 被 PyTorch 保留但未分配。",
			"device 1 tried 2.00 GiB capacity 15.78 GiB free 1.24 GiB this 14.53 GiB allocated 13.20 GiB cached 850.00 MiB processes []"},
	} {
		res := ScanString("log", c.text)
		if len(res.Failures) != 1 {
			t.Errorf("%d failures in %s", len(res.Failures), c.text)
			continue
		}
		f := res.Failures[0].Figures
		got := fmt.Sprintf("device %d tried %v capacity %v free %v this %v allocated %v cached %v processes [", f.Device, f.Tried.Bytes, f.Capacity.Bytes, f.Free.Bytes, f.ThisProcess.Bytes, f.Allocated.Bytes, f.Cached.Bytes)
		for _, p := range f.Processes {
			got += fmt.Sprintf("{%d %v}", p.PID, p.Memory.Bytes)
		}
		if got += "]"; got != c.want {
			t.Errorf("%s\n got %s\nwant %s", c.text, got, c.want)
		}
	}
}
