package workload

import (
	"fmt"
	"strconv"
	"strings"
)

// Suppose records a value that nobody stated, with the other values that it may
// well have: an estimate's interval spans them.
func (w *Workload) Suppose(field, value, why string, others ...string) {
	w.Assumptions = append(w.Assumptions, Assumption{Field: field, Value: value, Why: why, Others: others})
}

// With returns a copy in which an assumed field has another value. The fields are
// those that Suppose is called with.
func (w *Workload) With(field, value string) (*Workload, error) {
	c := w.Clone()
	number := func(to *int64) error {
		n, err := strconv.ParseInt(value, 10, 64)
		if err != nil || n < 1 {
			return fmt.Errorf("%s: %q is not a positive number", field, value)
		}
		*to = n
		return nil
	}
	switch field {
	case "seq":
		return c, number(&c.Seq)
	case "micro_batch":
		return c, number(&c.MicroBatch)
	case "world_size":
		p := &c.Parallel
		if err := number(&p.World); err != nil {
			return nil, err
		}
		before := max(p.Data, 1)
		p.Data = max(p.World/(p.Tensor*p.Pipeline*p.Context), 1)
		c.Accumulation = max(c.Accumulation*before/p.Data, 1)
		return c, nil
	case "loss":
		c.Loss = Loss(value)
		return c, nil
	case "lora":
		rank, targets, _ := strings.Cut(value, " ")
		c.Adapter.Targets = targetsOf(targets)
		value = rank
		return c, number(&c.Adapter.Rank)
	}
	return nil, fmt.Errorf("%s: no other value can be supposed", field)
}

// targetsOf splits the names of LoRA's targets: "q+v", "q_proj/v_proj".
func targetsOf(text string) []string {
	text, _, _ = strings.Cut(text, ";")
	text, _, _ = strings.Cut(text, "(")
	list := strings.FieldsFunc(text, func(c rune) bool { return c == '+' || c == '/' || c == ',' })
	for i := range list {
		list[i] = strings.TrimSpace(list[i])
	}
	return list
}
