package plan

import "unoom/internal/speed"

// A kind is a setting without its numbers: settings of one kind run the same
// operations, on other sizes. Within a kind the closed form is off by the same
// share, which one answer of the engine tells.
type kind struct {
	sharding                        speed.Sharding
	recompute                       Recompute
	precision                       Precision
	method                          Method
	optimizer                       Optimizer
	loss                            Loss
	attention                       Attention
	kernels                         speed.Kernels
	tensor, pipeline, context, many bool
	optimizerAway, weightsAway      bool
}

func kindOf(c *Choice) kind {
	optimizer := c.Optimizer
	if optimizer == AdamW { // the same but for the step's own tensors, which the form counts
		optimizer = AdamWFused
	}
	return kind{
		c.Sharding, c.Recompute, c.Precision, c.Method, optimizer, c.Loss, c.Attention, c.Kernels,
		c.Tensor > 1, c.Pipeline > 1, c.Context > 1, c.Accumulation > 1, c.OffloadOptimizer, c.OffloadWeights,
	}
}

// need is the closed form's need of a choice, corrected by what the engine said
// of the choice's kind.
func (s *space) need(c *Choice) need {
	n := s.form.peak(c)
	if len(s.measured) == 0 {
		return n
	}
	if f, ok := s.measured[kindOf(c)]; ok {
		n.correct(f)
	}
	return n
}

// correct scales what is inside of the allocator.
func (n *need) correct(f float64) {
	n.static *= f
	n.active *= f
	n.total = n.static + n.active + n.outside
}
