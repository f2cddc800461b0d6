// Package vision builds the graphs of image networks from the settings that
// their configurations name: classification backbones, segmentation and
// detection networks of OpenMMLab's naming, U-Nets and diffusion transformers.
//
// It holds architectures, which are general; the names of published networks
// are in catalog/models.
package vision

import (
	"fmt"

	"unoom/internal/model/graph"
)

// net is a graph under construction with the settings that one part of a network
// shares.
type net struct {
	*graph.Builder
	err error

	norm     graph.Op // of convNorm
	groups   int64    // of group norms
	act      graph.Op // of convNorm where it says main
	inPlace  bool
	frozen   bool
	normEval bool
	bias     bool // convolutions before a norm have a bias too
	centred  bool // convolutions before a norm standardise their kernels
	split    bool // group norm is a norm, then a product and a sum with parameters
	folded   bool // norms are a product and a sum with fixed numbers
}

func newNet() *net {
	return &net{Builder: graph.New(), norm: graph.BatchNorm, act: graph.ReLU, inPlace: true}
}

// Fail remembers the first thing that cannot be.
func (b *net) Fail(format string, args ...any) {
	if b.err == nil {
		b.err = fmt.Errorf(format, args...)
	}
}

// finish returns the graph.
func (b *net) finish() (*graph.Graph, error) {
	if b.err != nil {
		return nil, b.err
	}
	return b.Builder.Finish()
}

// activation says what follows the norm of a convNorm.
type activation int

const (
	none activation = iota
	main            // the net's own
	relu
)

// convNorm adds a convolution without bias, a norm and an activation: the unit
// of which most networks are made.
func (b *net) convNorm(x graph.Value, name string, out, kernel int64, o graph.ConvOpt, a activation) graph.Value {
	o.Frozen = o.Frozen || b.frozen
	o.Bias = o.Bias || b.bias
	o.Centred = o.Centred || b.centred
	b.In(name, func() {
		x = b.Conv(x, "conv", out, kernel, o)
		x = b.normed(x, "bn")
	})
	return b.acted(x, a)
}

// normed adds the net's norm.
func (b *net) normed(x graph.Value, name string) graph.Value {
	if b.folded {
		return b.Act(graph.Scale, b.Act(graph.Scale, x, false), false)
	}
	switch b.norm {
	case "":
		return x
	case graph.GroupNorm:
		if c := b.Shape(x)[1]; b.split && !b.frozen {
			b.In(name, func() { x = b.Plus(b.Scaled(b.Plain(graph.BatchNorm, x, "plain"), "weight", c), "bias", c) })
		} else {
			x = b.GroupNorm(x, name, b.groups)
		}
		if b.frozen {
			b.Freeze(x)
		}
		return x
	}
	return b.Norm(b.norm, x, name, b.frozen || b.normEval)
}

// acted adds an activation.
func (b *net) acted(x graph.Value, a activation) graph.Value {
	switch a {
	case main:
		return b.Act(b.act, x, b.inPlace)
	case relu:
		return b.Act(graph.ReLU, x, true)
	}
	return x
}

// block names block i of a stage.
func block(prefix string, stage, i int) string { return fmt.Sprintf("%s%d.%d", prefix, stage, i) }

// divisible rounds channels to a multiple of d, and not down by more than a
// tenth. Source: torchvision ops/_utils, _make_divisible, from MobileNet.
func divisible(v float64, d int64) int64 { return divisibleBy(v, d, 0.9) }

// divisibleBy is divisible with another share that must remain.
func divisibleBy(v float64, d int64, share float64) int64 {
	n := max(d, int64(v+float64(d)/2)/d*d)
	if float64(n) < share*v {
		n += d
	}
	return n
}
