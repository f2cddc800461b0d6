package vision

import (
	"math"
	"regexp"
	"strconv"

	"unoom/internal/model/graph"
)

// regnet is a network of the RegNet design space: its widths follow a line that
// is quantised.
type regnet struct {
	start, slope, ratio float64
	group               int64
	depth               int
	se                  float64 // of a block's input
	minRatio            float64 // of a width that rounding to the group leaves
}

// regnets gives the published networks by their names' letter and number.
//
// Source: Radosavovic et al.: Designing Network Design Spaces, tables of the
// models; timm models/regnet.py.
func regnets(kind, number string) *regnet {
	type row struct {
		start, slope, ratio float64
		group               int64
		depth               int
	}
	r, ok := map[string]row{
		"x002": {24, 36.44, 2.49, 8, 13}, "x004": {24, 24.48, 2.54, 16, 22}, "x006": {48, 36.97, 2.24, 24, 16}, "x008": {56, 35.73, 2.28, 16, 16},
		"x016": {80, 34.01, 2.25, 24, 18}, "x032": {88, 26.31, 2.25, 48, 25}, "x040": {96, 38.65, 2.43, 40, 23}, "x064": {184, 60.83, 2.07, 56, 17},
		"x080": {80, 49.56, 2.88, 120, 23}, "x120": {168, 73.36, 2.37, 112, 19}, "x160": {216, 55.59, 2.1, 128, 22}, "x320": {320, 69.86, 2, 168, 23},
		"y002": {24, 36.44, 2.49, 8, 13}, "y004": {48, 27.89, 2.09, 8, 16}, "y006": {48, 32.54, 2.32, 16, 15}, "y008": {56, 38.84, 2.4, 16, 14},
		"y016": {48, 20.71, 2.65, 24, 27}, "y032": {80, 42.63, 2.66, 24, 21}, "y040": {96, 31.41, 2.24, 64, 22}, "y064": {112, 33.22, 2.27, 72, 25},
		"y080": {192, 76.82, 2.19, 56, 17}, "y120": {168, 73.36, 2.37, 112, 19}, "y160": {200, 106.23, 2.48, 112, 18}, "y320": {232, 115.89, 2.53, 232, 20},
	}[kind+number]
	if !ok {
		return nil
	}
	n := &regnet{start: r.start, slope: r.slope, ratio: r.ratio, group: r.group, depth: r.depth}
	if kind == "y" {
		n.se = 0.25
	}
	return n
}

// stages returns the widths and depths, and the group of each stage.
func (r *regnet) stages() (widths, groups []int64, depths []int) {
	for i := range r.depth {
		u := r.start + r.slope*float64(i)
		k := math.RoundToEven(math.Log(u/r.start) / math.Log(r.ratio))
		w := int64(math.RoundToEven(r.start*math.Pow(r.ratio, k)/8)) * 8
		if len(widths) > 0 && widths[len(widths)-1] == w {
			depths[len(depths)-1]++
			continue
		}
		widths, depths = append(widths, w), append(depths, 1)
	}
	for i, w := range widths {
		g := min(r.group, w)
		n := max(g, int64(float64(w)+float64(g)/2)/g*g)
		if r.minRatio > 0 && float64(n) < r.minRatio*float64(w) {
			n += g
		}
		widths[i], groups = n, append(groups, g)
	}
	return widths, groups, depths
}

// forward adds the network.
func (r *regnet) forward(b *net, x graph.Value, classes int64) graph.Value {
	maps := r.features(b, x, -1)
	return b.classifier(maps[len(maps)-1], classes, 0)
}

// features returns the maps of the stages, of which the first are not trained; -1:
// all and the stem are.
func (r *regnet) features(b *net, x graph.Value, frozen int) []graph.Value {
	widths, groups, depths := r.stages()
	b.frozen = frozen >= 0
	x = b.convNorm(x, "stem", 32, 3, graph.ConvOpt{Stride: 2, Padding: 1}, relu)
	var maps []graph.Value
	for stage, n := range depths {
		b.frozen = stage < frozen
		for i := range n {
			stride := int64(1)
			if i == 0 {
				stride = 2
			}
			b.In(block("s", stage+1, i), func() {
				in, w := b.Shape(x)[1], widths[stage]
				y := b.convNorm(x, "conv1", w, 1, graph.ConvOpt{}, relu)
				y = b.convNorm(y, "conv2", w, 3, graph.ConvOpt{Stride: stride, Padding: 1, Groups: w / groups[stage]}, relu)
				if r.se > 0 {
					y = b.squeeze(y, "se", int64(math.RoundToEven(float64(in)*r.se)), graph.ReLU, graph.Sigmoid)
				}
				y = b.convNorm(y, "conv3", w, 1, graph.ConvOpt{}, none)
				if stride != 1 || in != w {
					x = b.convNorm(x, "downsample", w, 1, graph.ConvOpt{Stride: stride}, none)
				}
				x = b.Act(graph.ReLU, b.Add(y, x), true)
			})
		}
		maps = append(maps, x)
	}
	b.frozen = false
	return maps
}

var (
	regnetName      = regexp.MustCompile(`^regnet([xy])_(\d{3})$`)
	regnetTorchName = regexp.MustCompile(`^regnet_([xy])_(?:(\d+)mf|(\d)_(\d)gf|(\d+)gf)$`)
)

// zooRegNet reads the names of timm (regnety_016) and torchvision
// (regnet_y_1_6gf).
func zooRegNet(name string, _ bool) *Spec {
	if m := regnetName.FindStringSubmatch(name); m != nil && regnets(m[1], m[2]) != nil {
		return &Spec{Builder: "regnet", Method: m[1], Backbone: m[2], Image: 224}
	}
	m := regnetTorchName.FindStringSubmatch(name)
	if m == nil {
		return nil
	}
	number := m[2]
	switch {
	case m[2] != "":
		number = "00" + m[2][:1]
	case m[3] != "":
		number = "0" + m[3] + m[4]
	default:
		n, _ := strconv.Atoi(m[5])
		number = strconv.Itoa(10 * n)
		for len(number) < 3 {
			number = "0" + number
		}
	}
	if regnets(m[1], number) == nil {
		return nil
	}
	return &Spec{Builder: "regnet", Method: m[1], Backbone: number, Image: 224, Same: true}
}
