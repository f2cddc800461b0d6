package units

import "fmt"

// Estimate is a number of bytes known up to an interval. Low <= Mid <= High.
type Estimate struct {
	Low, Mid, High Bytes
}

// Exactly returns the estimate of a value that is known.
func Exactly(b Bytes) Estimate { return Estimate{b, b, b} }

// Plus returns the sum of two estimates whose errors go the same way. It
// saturates nothing: callers add tens of terms of at most TiBs.
func (e Estimate) Plus(o Estimate) Estimate {
	return Estimate{e.Low + o.Low, e.Mid + o.Mid, e.High + o.High}
}

// String writes the middle and, where there is one, the interval:
// "61.42 GiB (58.90–64.00)".
func (e Estimate) String() string {
	if e.Low == e.High {
		return e.Mid.String()
	}
	return fmt.Sprintf("%s (%.2f–%.2f)", e.Mid, e.Low.in(e.Mid), e.High.in(e.Mid))
}

// in returns b in the unit that String chooses for like.
func (b Bytes) in(like Bytes) float64 {
	switch {
	case like <= KiB:
		return float64(b)
	case like <= MiB:
		return float64(b) / float64(KiB)
	case like <= GiB:
		return float64(b) / float64(MiB)
	default:
		return float64(b) / float64(GiB)
	}
}
