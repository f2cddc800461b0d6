package units

import (
	"errors"
	"testing"

	"pgregory.net/rapid"
)

// The expected texts are what PyTorch's format_size prints for the same counts.
func TestBytesPrintAsTorchDoes(t *testing.T) {
	for _, c := range []struct {
		b    Bytes
		want string
	}{
		{0, "0 bytes"},
		{512, "512 bytes"},
		{1024, "1024 bytes"},
		{1025, "1.00 KiB"},
		{MiB, "1024.00 KiB"},
		{20 * MiB, "20.00 MiB"},
		{GiB, "1024.00 MiB"},
		{GiB + 1, "1.00 GiB"},
		{85024112640, "79.18 GiB"},
		{-2 * GiB, "-2.00 GiB"},
	} {
		if got := c.b.String(); got != c.want {
			t.Errorf("Bytes(%d) = %q, want %q", int64(c.b), got, c.want)
		}
	}
}

func TestParseBytes(t *testing.T) {
	for _, c := range []struct {
		text string
		want Bytes
	}{
		{"1024", 1024},
		{"80GiB", 80 * GiB},
		{"80 gib", 80 * GiB},
		{"80GB", 80e9},
		{"1.5 MiB", MiB + MiB/2},
		{"12 bytes", 12},
	} {
		got, err := ParseBytes(c.text)
		if err != nil || got != c.want {
			t.Errorf("ParseBytes(%q) = %d, %v; want %d", c.text, got, err, c.want)
		}
	}
	for _, text := range []string{"", "GiB", "80G", "80g", "80 apples", "1..2GiB", "99999999999999999999", "9999999999TiB", "-1GiB"} {
		_, err := ParseBytes(text)
		if size, ok := errors.AsType[*SizeError](err); !ok || size.Hint == "" {
			t.Errorf("ParseBytes(%q) = %v; want a SizeError with a hint", text, err)
		}
	}
}

func TestMulAndAddNeverWrap(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, b := rapid.Int64().Draw(t, "a"), rapid.Int64().Draw(t, "b")
		if got, ok := Mul(a, Bytes(b)); ok && a != 0 && (int64(got)/a != b || got < 0) {
			t.Fatalf("Mul(%d, %d) = %d", a, b, got)
		}
		got, ok := Add(Bytes(a), Bytes(b))
		if ok && int64(got)-a != b {
			t.Fatalf("Add(%d, %d) = %d", a, b, got)
		}
		wraps := (b > 0 && a+b < a) || (b < 0 && a+b > a)
		if ok == wraps {
			t.Fatalf("Add(%d, %d): ok = %v", a, b, ok)
		}
	})
}

func FuzzParseBytes(f *testing.F) {
	f.Add("80GiB")
	f.Add("1.5 MB")
	f.Fuzz(func(t *testing.T, text string) {
		if b, err := ParseBytes(text); err == nil && b < 0 {
			t.Fatalf("%q parsed to %d", text, b)
		}
	})
}

func TestEstimateString(t *testing.T) {
	e := Estimate{58*GiB + 900*MiB, 61 * GiB, 64 * GiB}
	if got, want := e.String(), "61.00 GiB (58.88–64.00)"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if got, want := Exactly(GiB).Plus(Exactly(GiB)).String(), "2.00 GiB"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
