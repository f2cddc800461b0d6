package vision

import (
	"regexp"
	"strconv"

	"unoom/internal/model/graph"
)

// swin is the shifted-window transformer of torchvision.
func swin(b *net, x graph.Value, width int64, depths []int, heads []int64, window int64, drop float64, classes int64) graph.Value {
	x = swinStages(b, x, width, depths, heads, window, drop, nil)
	x = b.LayerNorm(x, "norm")
	x = b.AdaptivePool(b.channelsFirst(x), 1, 1)
	return b.Linear(b.View(x, b.Shape(x)[0], b.Shape(x)[1]), "head", classes, true)
}

// swinStages adds the stages, channels last; each is called with the end of every
// stage, nil: none.
func swinStages(b *net, x graph.Value, width int64, depths []int, heads []int64, window int64, drop float64, each func(stage int, x graph.Value)) graph.Value {
	x = b.Conv(x, "features.0.0", width, 4, graph.ConvOpt{Stride: 4, Bias: true})
	x = b.LayerNorm(b.channelsLast(x), "features.0.2")
	total, at := sum(depths), 0
	for stage, n := range depths {
		if stage > 0 {
			b.In(block("features.merge", stage, 0), func() { x = patchMerging(b, x) })
		}
		for i := range n {
			p := dropAt(drop, at, total)
			at++
			b.In(block("features.", stage, i), func() {
				y := b.LayerNorm(x, "norm1")
				y = windowAttention(b, y, heads[stage], window, i%2 == 1)
				x = b.Add(x, b.Dropout(graph.DropPath, y, p))
				c := b.Shape(x)[3]
				y = b.LayerNorm(x, "norm2")
				y = b.Act(graph.GELU, b.Linear(y, "mlp.0", 4*c, true), false)
				y = b.Linear(y, "mlp.3", c, true)
				x = b.Add(x, b.Dropout(graph.DropPath, y, p))
			})
		}
		if each != nil {
			each(stage, x)
		}
	}
	return x
}

// patchMerging halves a map's sides and doubles its channels.
func patchMerging(b *net, x graph.Value) graph.Value {
	s := b.Shape(x) // n, h, w, c
	h, w, c := (s[1]+1)/2, (s[2]+1)/2, s[3]
	if s[1]%2 != 0 || s[2]%2 != 0 {
		x = b.Moved(graph.Pad, x, s[0], 2*h, 2*w, c)
	}
	var parts []graph.Value
	for range 4 {
		parts = append(parts, b.Part(x, s[0], h, w, c))
	}
	x = b.Cat(3, parts...)
	x = b.LayerNorm(x, "norm")
	return b.Linear(x, "reduction", 2*c, false)
}

// windowed runs attention within windows over maps, every other time shifted:
// attend gets the windows (n, length, width) and the mask of the shift.
func (b *net) windowed(x graph.Value, window int64, shifted bool, attend func(x, mask graph.Value) graph.Value) graph.Value {
	s := b.Shape(x)
	n, h, w, c := s[0], s[1], s[2], s[3]
	ph, pw := (h+window-1)/window*window, (w+window-1)/window*window
	if ph != h || pw != w {
		x = b.Moved(graph.Pad, x, n, ph, pw, c)
	}
	shifted = shifted && (window < ph || window < pw)
	if shifted {
		x = b.Moved(graph.Roll, x, n, ph, pw, c)
	}
	l := window * window
	windows := n * ph / window * pw / window
	mask := graph.None
	if shifted {
		mask = b.Constant(graph.Float, windows/n, l, l)
	}
	y := attend(b.Copy(x, windows, l, c), mask)
	y = b.Copy(y, n, ph, pw, c)
	if shifted {
		y = b.Moved(graph.Roll, y, n, ph, pw, c)
	}
	if ph != h || pw != w {
		y = b.Copy(b.Part(y, n, h, w, c))
	}
	return y
}

// windowAttention is Swin's attention, with a bias for each distance.
func windowAttention(b *net, x graph.Value, heads, window int64, shifted bool) graph.Value {
	return b.windowed(x, window, shifted, func(x, mask graph.Value) graph.Value {
		s := b.Shape(x)
		windows, l, c := s[0], s[1], s[2]
		qkv := b.Linear(x, "attn.qkv", 3*c, true)
		d := c / heads
		q, k, v := b.Part(qkv, windows, heads, l, d), b.Part(qkv, windows, heads, l, d), b.Part(qkv, windows, heads, l, d)
		p := b.MatMul(b.Copy(b.Act(graph.Scale, q, false)), b.Copy(k), true)
		bias := b.Gathered("attn.relative_position_bias_table", []int64{(2*window - 1) * (2*window - 1), heads}, heads, l, l)
		p = b.Add(p, bias)
		if mask != graph.None {
			p = b.Add(p, mask)
		}
		p = b.Act(graph.Softmax, p, false)
		y := b.Copy(b.MatMul(p, b.Copy(v), false), windows, l, c)
		return b.Linear(y, "attn.proj", c, true)
	})
}

var swinName = regexp.MustCompile(`^swin_(?:(tiny|small|base|large)_patch4_window(\d+)_(\d+)|(t|s|b|l))$`)

// zooSwin reads the names of timm and torchvision.
func zooSwin(name string, _ bool) *Spec {
	m := swinName.FindStringSubmatch(name)
	if m == nil {
		return nil
	}
	s := &Spec{Builder: "swin", Depths: []int{2, 2, 18, 2}, Window: 7, Image: 224}
	size := m[1]
	if m[4] != "" {
		size = map[string]string{"t": "tiny", "s": "small", "b": "base", "l": "large"}[m[4]]
	} else {
		s.Window, _ = strconv.ParseInt(m[2], 10, 64)
		s.Image, _ = strconv.ParseInt(m[3], 10, 64)
	}
	width := map[string]int64{"tiny": 96, "small": 96, "base": 128, "large": 192}[size]
	s.Widths = []int64{width}
	for i := range 4 {
		s.Heads = append(s.Heads, width/32<<i)
	}
	if size == "tiny" {
		s.Depths[2] = 6
	}
	return s
}
