package workload

import (
	"fmt"
	"slices"

	"unoom/internal/model"
	"unoom/internal/units"
)

// fits finds what the model cannot do: heads that do not divide, more stages than
// layers, more tokens than positions.
func (b *builder) fits() error {
	w, m, p := b.w, b.m, &b.w.Parallel
	for _, s := range m.Stacks {
		for _, l := range s.Layers {
			if a := l.Attention; a != nil && a.Heads > 0 && p.Tensor > 1 && a.Heads%p.Tensor != 0 {
				low, high := nearDivisor(a.Heads, p.Tensor)
				return wrong(fmt.Sprintf("the nearest choices are %d and %d", low, high), "%s: %s has %d attention heads, which do not divide by %d", b.cite(FieldTensor), m.Name, a.Heads, p.Tensor)
			}
			if l.MoE != nil && p.Expert > 1 && l.MoE.Experts%p.Expert != 0 {
				low, high := nearDivisor(l.MoE.Experts, p.Expert)
				return wrong(fmt.Sprintf("the nearest choices are %d and %d", low, high), "%s: %s has %d experts, which do not divide by %d", b.cite(FieldExpert), m.Name, l.MoE.Experts, p.Expert)
			}
		}
	}
	if n := int64(m.Layers()); p.Pipeline*max(p.Virtual, 1) > max(n, 1) {
		return wrong(fmt.Sprintf("at most %d stages", n), "%s: %s has %d layers", b.cite(FieldPipeline), m.Name, n)
	}
	if p.Context > 1 && w.Seq%p.Context != 0 {
		return wrong(fmt.Sprintf("the nearest lengths are %d and %d", nearBatch(w.Seq, p.Context, false), nearBatch(w.Seq, p.Context, true)), "%s does not divide by cp %d", b.cite(FieldSeq), p.Context)
	}
	if m.MaxSeq > 0 && w.Seq > m.MaxSeq {
		if m.Position == model.Learned {
			return wrong(fmt.Sprintf("at most --seq %d", m.MaxSeq), "%s: %s has positions for %d tokens", b.cite(FieldSeq), m.Name, m.MaxSeq)
		}
		b.Warnings = append(b.Warnings, Warning{WarnLongSeq, b.Settings[FieldSeq].Place, []any{w.Seq, m.Name, m.MaxSeq}})
	}
	return nil
}

// WarnLongSeq: more tokens than the model was trained with; rotary positions go
// on all the same.
const WarnLongSeq = "long_seq"

// nearDivisor returns the divisors of n around x.
func nearDivisor(n, x int64) (low, high int64) {
	low, high = 1, n
	for d := int64(1); d <= n; d++ {
		if n%d == 0 && d < x {
			low = d
		}
		if n%d == 0 && d > x {
			return low, d
		}
	}
	return low, high
}

func hasExperts(s *model.Stack) bool {
	return slices.ContainsFunc(s.Layers, func(l *model.Layer) bool { return l.MoE != nil })
}

// nearBatch is the multiple of unit next to a batch.
func nearBatch(batch, unit int64, up bool) int64 {
	n := batch / unit
	if up || n == 0 {
		n++
	}
	return n * unit
}

// Capacity returns the memory that is stated for one card, 0 if none is.
func (s *Statement) Capacity() (units.Bytes, error) {
	v, ok := s.Settings[FieldCapacity]
	if !ok {
		return 0, nil
	}
	c, err := units.ParseBytes(v.Value)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", v.Name, err)
	}
	if c < 64*units.MiB {
		return 0, wrong("write it as 24GiB", "%s: no GPU has so little", v.cite())
	}
	return c, nil
}
