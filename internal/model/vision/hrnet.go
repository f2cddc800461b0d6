package vision

import (
	"regexp"
	"strconv"

	"unoom/internal/model/graph"
)

// hrnet keeps maps of four sizes side by side and exchanges them.
func hrnet(b *net, x graph.Value, width int64, small bool) []graph.Value {
	x = b.convNorm(x, "conv1", 64, 3, graph.ConvOpt{Stride: 2, Padding: 1}, relu)
	x = b.convNorm(x, "conv2", 64, 3, graph.ConvOpt{Stride: 2, Padding: 1}, relu)
	r := plainResNet(50)
	r.norm = b.norm
	blocks, modules, first := 4, []int{1, 4, 3}, 4
	if small {
		blocks, modules, first = 2, []int{1, 3, 2}, 2
	}
	for i := range first {
		b.In(block("layer", 1, i), func() { x = r.bottleneck(b, x, 64, 1, 1, 0, false) })
	}
	xs := []graph.Value{x}
	for stage := range 3 {
		n := stage + 2
		widths := make([]int64, n)
		for i := range widths {
			widths[i] = width << i
		}
		b.In(block("transition", stage+1, 0), func() {
			next := make([]graph.Value, n)
			for i := range n {
				switch {
				case i < len(xs) && b.Shape(xs[i])[1] == widths[i]:
					next[i] = xs[i]
				case i < len(xs):
					next[i] = b.convNorm(xs[i], block("", i, 0), widths[i], 3, graph.ConvOpt{Padding: 1}, relu)
				default:
					next[i] = b.convNorm(xs[len(xs)-1], block("", i, 0), widths[i], 3, graph.ConvOpt{Stride: 2, Padding: 1}, relu)
				}
			}
			xs = next
		})
		for m := range modules[stage] {
			b.In(block("stage", stage+2, m), func() { xs = hrModule(b, r, xs, blocks) })
		}
	}
	return xs
}

// hrModule runs the branches and adds each to every other.
func hrModule(b *net, r *resnet, xs []graph.Value, blocks int) []graph.Value {
	for i := range xs {
		for k := range blocks {
			b.In(block("branches.", i, k), func() { xs[i] = r.basic(b, xs[i], b.Shape(xs[i])[1], 1, 1) })
		}
	}
	out := make([]graph.Value, len(xs))
	for i := range xs {
		s := b.Shape(xs[i])
		var y graph.Value
		for j := range xs {
			z := xs[j]
			name := block("fuse_layers.", i, j)
			switch {
			case j > i:
				z = b.convNorm(z, name, s[1], 1, graph.ConvOpt{}, none)
				t := b.Shape(z) // nn.Upsample by a factor, then to the size
				z = b.Resize(z, t[2]<<(j-i), t[3]<<(j-i))
				if b.Shape(z)[2] != s[2] || b.Shape(z)[3] != s[3] {
					z = b.Resize(z, s[2], s[3])
				}
			case j < i:
				for k := range i - j {
					c, a := b.Shape(z)[1], relu
					if k == i-j-1 {
						c, a = s[1], none
					}
					z = b.convNorm(z, name+"."+strconv.Itoa(k), c, 3, graph.ConvOpt{Stride: 2, Padding: 1}, a)
				}
			}
			if j == 0 {
				y = z // 0 + z makes a new tensor: y is an int before
				y = b.Act(graph.Scale, y, false)
				continue
			}
			y = b.AddTo(y, z)
		}
		out[i] = b.Act(graph.ReLU, y, true)
	}
	return out
}

// hrnetClassify is HRNet with its classification head: each map is widened and
// added to the next smaller one.
func hrnetClassify(b *net, x graph.Value, width int64, small bool, classes int64) graph.Value {
	xs := hrnet(b, x, width, small)
	r := plainResNet(50)
	var y graph.Value
	for i, m := range xs {
		b.In(block("incre_modules.", 0, i), func() { m = r.bottleneck(b, m, 32<<i, 1, 1, 0, false) })
		if i == 0 {
			y = m
			continue
		}
		down := b.convNorm(y, block("downsamp_modules.", 0, i), 128<<i, 3, graph.ConvOpt{Stride: 2, Padding: 1, Bias: true}, relu)
		y = b.Add(m, down)
	}
	y = b.convNorm(y, "final_layer", 2048, 1, graph.ConvOpt{Bias: true}, relu)
	return b.classifier(y, classes, 0)
}

var hrnetName = regexp.MustCompile(`^hrnet_w(\d+)(_small)?$`)

// zooHRNet reads timm's names.
func zooHRNet(name string, _ bool) *Spec {
	m := hrnetName.FindStringSubmatch(name)
	if m == nil {
		return nil
	}
	w, err := strconv.ParseInt(m[1], 10, 64)
	if err != nil || w < 1 || w > 128 || m[2] != "" {
		return nil
	}
	return &Spec{Builder: "hrnet", Widths: []int64{w}, Image: 224}
}
