// Package units holds the quantities that every other package speaks in: exact
// byte counts and estimates with an interval. It parses, prints and adds them;
// it knows nothing of GPUs.
package units

import (
	"fmt"
	"math"
	"math/bits"
	"strconv"
	"strings"
)

// Bytes is an exact number of bytes. A negative value is a shortfall.
type Bytes int64

// Binary multiples, as PyTorch and the NVIDIA driver count.
const (
	KiB Bytes = 1 << (10 * (iota + 1))
	MiB
	GiB
	TiB
)

// String writes b as PyTorch does in its out-of-memory message, so that the two
// can be compared by eye: "512 bytes", "2.00 MiB", "79.15 GiB".
//
// The bounds are inclusive, as there: 1 GiB is "1024.00 MiB".
// Source: pytorch c10/cuda/CUDACachingAllocator.cpp, format_size.
func (b Bytes) String() string {
	if b < 0 {
		if b == math.MinInt64 {
			return "-8589934592.00 GiB"
		}
		return "-" + (-b).String()
	}
	switch {
	case b <= KiB:
		return strconv.FormatInt(int64(b), 10) + " bytes"
	case b <= MiB:
		return fmt.Sprintf("%.2f KiB", float64(b)/float64(KiB))
	case b <= GiB:
		return fmt.Sprintf("%.2f MiB", float64(b)/float64(MiB))
	default:
		return fmt.Sprintf("%.2f GiB", float64(b)/float64(GiB))
	}
}

// GiB returns b in GiB.
func (b Bytes) GiB() float64 { return float64(b) / float64(GiB) }

// FromGiB returns the nearest whole number of bytes to gib GiB.
func FromGiB(gib float64) Bytes { return Bytes(math.Round(gib * float64(GiB))) }

// Mul returns n*b, and false if it does not fit or a factor is negative.
func Mul(n int64, b Bytes) (Bytes, bool) {
	hi, lo := bits.Mul64(uint64(n), uint64(b))
	if n < 0 || b < 0 || hi != 0 || lo > math.MaxInt64 {
		return 0, false
	}
	return Bytes(lo), true
}

// Add returns a+b, and false if the sum overflows.
func Add(a, b Bytes) (Bytes, bool) {
	s := a + b
	if (s > a) != (b > 0) && b != 0 {
		return 0, false
	}
	return s, true
}

// suffixes maps a lower-cased unit to its factor and tells whether the unit is
// binary. "k", "m", "g" and "t" alone are refused by ParseBytes: the field uses
// them for both 10^9 and 2^30, which differ by 7.4 %.
var suffixes = map[string]Bytes{
	"":      1,
	"b":     1,
	"byte":  1,
	"bytes": 1,
	"kb":    1e3,
	"mb":    1e6,
	"gb":    1e9,
	"tb":    1e12,
	"kib":   KiB,
	"mib":   MiB,
	"gib":   GiB,
	"tib":   TiB,
}

// A SizeError says why a text is not a size.
type SizeError struct {
	Text string // what was given
	Msg  string // what is wrong with it
	Hint string // what to write instead
}

func (e *SizeError) Error() string { return fmt.Sprintf("size %q: %s", e.Text, e.Msg) }

// ParseBytes reads a size such as "80GiB", "80 GB" (10^9), "512MiB" or "1024"
// (bytes). A bare "80G" is ambiguous and is refused with a hint.
func ParseBytes(text string) (Bytes, error) {
	s := strings.TrimSpace(text)
	cut := strings.IndexFunc(s, func(r rune) bool { return (r < '0' || r > '9') && r != '.' })
	number, unit := s, ""
	if cut >= 0 {
		number, unit = s[:cut], strings.ToLower(strings.TrimSpace(s[cut:]))
	}
	if number == "" {
		return 0, &SizeError{text, "no number at the start", "write it as 24GiB"}
	}
	factor, known := suffixes[unit]
	if !known {
		switch unit {
		case "k", "m", "g", "t":
			u := strings.ToUpper(unit)
			return 0, &SizeError{
				text, "the unit is ambiguous",
				fmt.Sprintf("write %s%siB (binary, as nvidia-smi and PyTorch count) or %s%sB (decimal)", number, u, number, u),
			}
		}
		return 0, &SizeError{text, fmt.Sprintf("unknown unit %q", unit), "the units are KiB, MiB, GiB, TiB, KB, MB, GB, TB"}
	}
	if !strings.Contains(number, ".") {
		n, err := strconv.ParseInt(number, 10, 64)
		if err != nil {
			return 0, &SizeError{text, "the number is too large", "no GPU has more than a few TiB"}
		}
		b, ok := Mul(n, factor)
		if !ok {
			return 0, &SizeError{text, "the number is too large", "no GPU has more than a few TiB"}
		}
		return b, nil
	}
	f, err := strconv.ParseFloat(number, 64)
	if err != nil {
		return 0, &SizeError{text, "not a number", "write it as 79.2GiB"}
	}
	f *= float64(factor)
	if f >= math.MaxInt64 {
		return 0, &SizeError{text, "the number is too large", "no GPU has more than a few TiB"}
	}
	return Bytes(math.Round(f)), nil
}
