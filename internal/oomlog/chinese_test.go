package oomlog

import (
	"bytes"
	"io"
	"strings"
	"testing"
	"testing/iotest"
	"unicode/utf8"

	"golang.org/x/text/encoding/simplifiedchinese"
	"pgregory.net/rapid"
)

func gbk(t testing.TB, text string) string {
	t.Helper()
	out, err := simplifiedchinese.GBK.NewEncoder().String(text)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// The messages of Chinese Windows are in GBK, Python's own lines in UTF-8, in
// one file.
func TestALogOfChineseWindowsIsRead(t *testing.T) {
	log := gbk(t, "开始训练，数据集：D:\\数据\\图片\r\n") +
		"epoch 1：损失 0.52\r\n" + // UTF-8
		gbk(t, "OSError: [WinError 1455] 页面文件太小，无法完成操作。 Error loading \"D:\\环境\\torch\\lib\\cudnn_ops.dll\"\r\n")
	for _, r := range []io.Reader{strings.NewReader(log), iotest.OneByteReader(strings.NewReader(log))} {
		res, err := Scan("train.log", r)
		if err != nil {
			t.Fatal(err)
		}
		if res.Encoding != "gbk" || len(res.Failures) != 1 || res.Failures[0].Class != ClassHost || !strings.Contains(res.Failures[0].Text, "页面文件太小，无法完成操作") {
			t.Errorf("read as %s: %+v", res.Encoding, res.Failures)
		}
	}
}

func TestWhatIsNotGBKStays(t *testing.T) {
	for name, text := range map[string]string{
		"ASCII":           "loss 0.5\n",
		"UTF-8":           "损失 0.52，内存不足\n",
		"Latin-1":         "Gr\xf6\xdfe des Speichers: 12 GB, \xfcberschritten\n",
		"one accent":      "caf\xe9 au lait\n",
		"random bytes":    "\xff\xfe\x80\x00\xc3\x28\n",
		"a cut character": "x\xe6\x8d\n",
	} {
		got, err := io.ReadAll(newChineseReader(strings.NewReader(text)))
		if err != nil || string(got) != text {
			t.Errorf("%s: %q became %q (%v)", name, text, got, err)
		}
	}
}

// Nothing is lost or changed in valid UTF-8, wherever reads and windows cut it.
func TestUTF8PassesUnchanged(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		unit := rapid.StringOfN(rapid.SampledFrom([]rune("ab显存不足é\n🙂")), 1, 40, -1).Draw(t, "unit")
		text := strings.Repeat(unit, rapid.IntRange(1, 9000).Draw(t, "times"))
		got, err := io.ReadAll(iotest.HalfReader(newChineseReader(iotest.HalfReader(strings.NewReader(text)))))
		if err != nil || string(got) != text {
			t.Fatalf("%d bytes became %d (%v)", len(text), len(got), err)
		}
	})
}

// A line that is exactly as long as the window ends with a whole character.
func TestALineAsLongAsTheWindow(t *testing.T) {
	text := strings.Repeat("显足é", 8192)
	got, err := io.ReadAll(newChineseReader(strings.NewReader(text)))
	if err != nil || string(got) != text {
		t.Errorf("%d bytes became %d (%v)", len(text), len(got), err)
	}
}

func FuzzChinese(f *testing.F) {
	f.Add([]byte("\xcf\xd4\xb4\xe6\xb2\xbb\xd7\xe3\n"))
	f.Add([]byte("ok\n\xff"))
	f.Fuzz(func(t *testing.T, text []byte) {
		got, err := io.ReadAll(newChineseReader(bytes.NewReader(text)))
		if err != nil {
			t.Fatal(err)
		}
		if utf8.Valid(text) && !bytes.Equal(got, text) {
			t.Fatalf("%q became %q", text, got)
		}
		if bytes.Count(got, []byte("\n")) != bytes.Count(text, []byte("\n")) {
			t.Fatalf("line ends of %q changed: %q", text, got)
		}
	})
}
