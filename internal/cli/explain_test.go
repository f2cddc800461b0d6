package cli

import (
	"bytes"
	"compress/gzip"
	"io"
	"os"
	"strings"
	"testing"
)

func discard(in io.Reader) Streams {
	return Streams{In: in, Out: io.Discard, Err: io.Discard, Getenv: func(string) string { return "" }}
}

func TestNothingOnATerminalIsUsage(t *testing.T) {
	var out, errs bytes.Buffer
	s := Streams{In: strings.NewReader(""), Out: &out, Err: &errs, Getenv: func(string) string { return "" }, InTerminal: true}
	if status := Main([]string{"explain"}, s); status != exitFail {
		t.Errorf("status %d, want %d", status, exitFail)
	}
	if out.Len() > 0 || !strings.Contains(errs.String(), "unoom explain train.log") {
		t.Errorf("out %q, err %q", &out, &errs)
	}
}

func TestColourOnlyWhereItIsWanted(t *testing.T) {
	log, err := os.ReadFile("../../examples/oom.log")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		flag   string
		width  int
		colour bool
	}{{"auto", 0, false}, {"auto", 100, true}, {"never", 100, false}, {"always", 0, true}} {
		var out bytes.Buffer
		s := discard(bytes.NewReader(log))
		s.Out, s.Width = &out, c.width
		Main([]string{"explain", "--color", c.flag}, s)
		if got := strings.Contains(out.String(), "\x1b["); got != c.colour {
			t.Errorf("--color %s, width %d: escapes %v, want %v", c.flag, c.width, got, c.colour)
		}
	}
}

func TestKindsOfFiles(t *testing.T) {
	for text, want := range map[string]kind{
		"":                                kindEmpty,
		"epoch 1\n":                       kindText,
		"\x1b[31mred\x1b[0m\r 10%":        kindText,
		"显存不足":                            kindText,
		"\xff\xfee\x00p\x00":              kindText,
		"e\x00p\x00o\x00c\x00h\x00\n\x00": kindText,
		"\x1f\x8b\x08":                    kindGzip,
		"\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00": kindBinary,
	} {
		if got := kindOf([]byte(text)); got != want {
			t.Errorf("kindOf(%q) = %d, want %d", text, got, want)
		}
	}
}

// Files that are no log, or were made to be endless, end at once with a reason;
// damaged logs are read as far as they go.
func TestDamagedAndHostileLogs(t *testing.T) {
	pack := func(text []byte, times int) []byte {
		var b bytes.Buffer
		z := gzip.NewWriter(&b)
		for range times {
			_, _ = z.Write(text)
		}
		_ = z.Close()
		return b.Bytes()
	}
	const message = "RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB\n"
	packed := pack([]byte(message), 50000)
	for name, c := range map[string]struct {
		text   []byte
		status int
		says   string
	}{
		"a packed log without its end":      {packed[:len(packed)-9], exitDone, "the packed file is cut"},
		"emptied while it was written":      {append(make([]byte, 200000), message...), exitDone, "2.00 GiB was asked for"},
		"a zero here and there":             {[]byte("step 1\x00\x00\n" + message), exitDone, "2.00 GiB was asked for"},
		"nothing but zeros":                 {make([]byte, 200000), exitFail, "nothing but zeros"},
		"a megabyte for each kilobyte":      {pack(make([]byte, 1<<20), 100), exitFail, "not a log"},
		"text without an end":               {pack(bytes.Repeat([]byte("a"), 1<<20), 200), exitFail, "unpack to more than"},
		"brackets":                          {bytes.Repeat([]byte("["), 1<<20), exitFail, "JSON without a word"},
		"numbers":                           {[]byte("[1, 2, 3]"), exitFail, "JSON without a word"},
		"packed many times over":            {pack(pack(pack([]byte(message), 1), 1), 1), exitDone, "2.00 GiB was asked for"},
		"an archive that has only its head": {[]byte("\x1f\x8b\x08\x00"), exitFail, "unpack"},
	} {
		var out bytes.Buffer
		s := discard(bytes.NewReader(c.text))
		s.Out, s.Err = &out, &out
		if status := Main([]string{"explain", "-"}, s); status != c.status || !strings.Contains(strings.ReplaceAll(out.String(), "\n", " "), c.says) {
			t.Errorf("%s: status %d, want %d: %s", name, status, c.status, &out)
		}
	}
}

// The whole of `unoom explain examples/oom.log` but the start of the process.
func BenchmarkExplain(b *testing.B) {
	for b.Loop() {
		if Main([]string{"explain", "../../examples/oom.log"}, discard(nil)) != exitDone {
			b.Fatal("failed")
		}
	}
}
