package model

import (
	"encoding/json"
	"fmt"
	"strings"

	"unoom/internal/model/graph"
	"unoom/internal/model/vision"
)

// FromVision returns the model of an image network. Its parts are those of its
// graph at the size it is published for; Graph makes the graph for any other.
func FromVision(name string, spec vision.Spec) (*Model, error) {
	h, w := spec.Size()
	g, err := spec.Build(vision.Input{Batch: 1, Height: h, Width: w})
	if err != nil {
		return nil, &ConfigError{Name: name, Msg: err.Error()}
	}
	m := &Model{Name: name, Type: spec.Builder, Family: Vision, DType: Float32, Image: &spec}
	for i := range g.Nodes {
		if n := &g.Nodes[i]; len(n.Params) > 0 && n.Shared == 0 {
			m.Embed = append(m.Embed, moduleOf(n))
		}
	}
	return m, m.check()
}

// Graph returns the operations of one forward pass over a batch of images of a
// size, and their loss. It is an error for a model that is not an image network.
func (m *Model) Graph(batch, height, width int64) (*graph.Graph, error) {
	if m.Image == nil {
		return nil, fmt.Errorf("model %s: is not given as operations", m.Name)
	}
	g, err := m.Image.Build(vision.Input{Batch: batch, Height: height, Width: width})
	if err != nil {
		return nil, &ConfigError{Name: m.Name, Msg: err.Error()}
	}
	return g, nil
}

// moduleOf is the module that runs an operation.
func moduleOf(n *graph.Node) Module {
	mod := Module{Name: n.Name, Kind: ParamsAlone}
	switch n.Op {
	case graph.Conv:
		mod.Kind = Convolution
	case graph.Linear:
		mod.Kind = Linear
	case graph.BatchNorm, graph.SyncNorm, graph.LayerNorm, graph.GroupNorm, graph.InstanceNorm:
		mod.Kind = Normalize
	case graph.Embedding:
		mod.Kind = Embedding
	}
	for i := range n.Params {
		p := &n.Params[i]
		mod.Params = append(mod.Params, Param{Name: p.Name, Shape: p.Shape, Buffer: p.Buffer, Frozen: n.Frozen || p.Frozen})
		if p.Name == "weight" && len(p.Shape) > 1 {
			mod.Out, mod.In = p.Shape[0], p.Shape[1]
		}
	}
	return mod
}

// specOf reads the settings of an image network in a catalogue entry. It returns
// nil where the entry is a config.json.
func specOf(data []byte) (*vision.Spec, error) {
	var s vision.Spec
	dec := json.NewDecoder(strings.NewReader(string(data)))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&s); err != nil {
		return nil, err
	}
	return &s, nil
}

// Named returns the network of a name: the catalogue's, or one that a naming
// convention describes, such as that of OpenMMLab's configurations.
func (c Catalogue) Named(name string, opt Options) (*Model, error) {
	e, err := c.Find(name)
	if err == nil {
		return e.Model(opt)
	}
	names := []string{name}
	if i := strings.LastIndexByte(name, '('); i >= 0 { // "FCN (FP16) / R-50 (fcn_r50-d8_…)", "efficientnet_b0 (timm)"
		names = []string{strings.TrimSuffix(name[i+1:], ")"), name[:i]}
	}
	for _, n := range names {
		if spec := vision.ParseName(n); spec != nil {
			return FromVision(n, *spec)
		}
	}
	return nil, err
}
