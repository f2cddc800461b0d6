package vision

import (
	"strings"

	"unoom/internal/model/graph"
)

// The transformers that OpenMMLab's segmentation networks stand on.

// transformer adds such a backbone, and reports whether the tag names one: "swin-t",
// "vit-b16", "deit-s16-ln-mln", "beit-base", "mae-base", "convnext-tiny",
// "pcpvt-s", "svt-s", "mit-b0", "poolformer-s12", "mscan-t".
//
// Source: mmsegmentation configs/_base_/models and configs/<family>.
func (s *segNet) transformer(b *net, x graph.Value) (segFeatures, bool) {
	kind, size, _ := strings.Cut(s.backbone, "-")
	f := segFeatures{channels: 512, aux: 2, auxWidth: 256}
	switch kind {
	case "swin":
		f.maps = b.swinMaps(x, size)
	case "convnext":
		f.maps = b.convnextMaps(x, size)
	case "vit", "deit":
		f.maps = s.vitMaps(b, x, size)
		f.aux = 3
	case "beit", "mae":
		f.maps = b.beitMaps(x, size, kind == "mae")
		f.channels = b.Shape(f.maps[0])[1]
	case "pcpvt", "svt":
		f.maps = b.twinsMaps(x, size, kind == "svt")
	case "mit":
		f.maps = b.mitMaps(x, size)
		f.channels, f.aux = 256, -1
	case "poolformer":
		f.maps = b.poolformerMaps(x, size)
	case "mscan":
		f.maps = b.mscanMaps(x, size)
		f.aux = -1
	default:
		return f, false
	}
	return f, true
}

// dropAt is the share of stochastic depth at block i of n.
func dropAt(most float64, i, n int) float64 { return most * float64(i) / float64(max(1, n-1)) }

// sum adds the entries of a list.
func sum(ns []int) int {
	n := 0
	for _, k := range ns {
		n += k
	}
	return n
}

// asMap is a sequence of patches as a map of its own.
func (b *net) asMap(x graph.Value, h, w int64) graph.Value {
	s := b.Shape(x)
	return b.Copy(x, s[0], s[2], h, w)
}

// swinMaps is Swin with a norm on every stage's map.
func (b *net) swinMaps(x graph.Value, size string) []graph.Value {
	letter, window, _ := strings.Cut(size, "-patch4-window")
	s := zooSwin("swin_"+letter[:min(1, len(letter))], false)
	if s == nil {
		b.Fail("no Swin has the size %q", size)
		return []graph.Value{x, x, x, x}
	}
	if window == "12" {
		s.Window = 12
	}
	var maps []graph.Value
	swinStages(b, x, s.Widths[0], s.Depths, s.Heads, s.Window, 0.3, func(stage int, x graph.Value) {
		maps = append(maps, b.Copy(b.channelsFirst(b.LayerNorm(x, block("norm", stage, 0)))))
	})
	return maps
}

// convnextMaps is ConvNeXt with a norm on every stage's map.
func (b *net) convnextMaps(x graph.Value, size string) []graph.Value {
	s := zooConvNeXt("convnext_"+size, false)
	if s == nil {
		b.Fail("no ConvNeXt has the size %q", size)
		return []graph.Value{x, x, x, x}
	}
	var maps []graph.Value
	convnextStages(b, x, s.Depths, s.Widths, 0.4, false, func(stage int, x graph.Value) {
		maps = append(maps, b.Copy(b.norm2d(x, block("norm", stage, 0))))
	})
	return maps
}

// multihead is torch's MultiheadAttention as mmcv calls it, length first, with the
// weights returned: each projection copies its input. To other maps, keys and
// values are one projection.
//
// Source: mmcv cnn/bricks/transformer.py, MultiheadAttention; pytorch
// torch/nn/functional.py, multi_head_attention_forward.
func (b *net) multihead(x, from graph.Value, heads int64, bias bool) graph.Value {
	s := b.Shape(x)
	n, l, c := s[0], s[1], s[2]
	if heads < 1 || c%heads != 0 {
		b.Fail("%d heads do not divide a width of %d", heads, c)
		return x
	}
	k := b.Shape(from)[1]
	project := func(x graph.Value, name string, l int64) graph.Value {
		return b.View(b.Linear(b.Copy(x), name, c, bias), n*heads, l, c/heads)
	}
	q := project(x, "attn.q", l)
	var kk, v graph.Value
	if from == x {
		kk, v = project(from, "attn.k", k), project(from, "attn.v", k)
	} else {
		kv := b.Copy(b.Linear(b.Copy(from), "attn.kv", 2*c, bias))
		kk, v = b.Part(kv, n*heads, k, c/heads), b.Part(kv, n*heads, k, c/heads)
	}
	p := b.Act(graph.Softmax, b.MatMul(b.Act(graph.Scale, q, false), kk, true), false)
	y := b.Copy(b.MatMul(p, v, false), n, l, c)
	b.NoGrad(func() { b.Reduce(graph.Mean, p, n, l, k) })
	return b.Linear(y, "attn.out_proj", c, bias)
}

// encoder is a pre-norm block of mmcv's parts.
func (b *net) encoder(x graph.Value, name string, heads, mlp int64, drop float64) graph.Value {
	b.In(name, func() {
		c := b.Shape(x)[2]
		y := b.LayerNorm(x, "ln1")
		x = b.Add(x, b.Dropout(graph.DropPath, b.multihead(y, y, heads, true), drop))
		y = b.Linear(b.LayerNorm(x, "ln2"), "ffn.layers.0.0", mlp, true)
		y = b.Linear(b.Act(graph.GELU, y, false), "ffn.layers.1", c, true)
		x = b.Add(x, b.Dropout(graph.DropPath, y, drop))
	})
	return x
}

// vitSize is the width, depth and heads of an image transformer by its letter.
func vitSize(letter string) (width int64, depth int, heads int64) {
	switch letter {
	case "t":
		return 192, 12, 3
	case "s":
		return 384, 12, 6
	case "b":
		return 768, 12, 12
	case "l":
		return 1024, 24, 16
	}
	return 0, 0, 0
}

// plainViT runs an image transformer and returns the sequences after some blocks,
// and the sides of the patches.
type plainViT struct {
	at   []int
	drop float64
	norm bool  // a norm on the last
	bare bool  // no class token
	side int64 // of the map that positions are stored for, 0: the image's
}

func (v *plainViT) run(b *net, x graph.Value, size string) (outs []graph.Value, h, w int64) {
	width, depth, heads := vitSize(size[:min(1, len(size))])
	if depth == 0 {
		b.Fail("no image transformer has the size %q", size)
		return []graph.Value{x}, 1, 1
	}
	n := b.Shape(x)[0]
	x = b.Conv(x, "patch_embed.projection", width, 16, graph.ConvOpt{Stride: 16})
	h, w = b.Shape(x)[2], b.Shape(x)[3]
	x = b.tokensOf(x)
	x = b.Cat(1, b.Parameter("cls_token", n, 1, width), x)
	positions := h * w
	if v.side > 0 { // the rest is interpolated
		positions = v.side * v.side
	}
	x = b.Plus(x, "pos_embed", 1, positions+1, width)
	if v.bare {
		x = b.Part(x, n, h*w, width)
	}
	for i := range depth {
		x = b.encoder(x, block("layers.", 0, i), heads, 4*width, dropAt(v.drop, i, depth))
		if v.norm && i == depth-1 {
			x = b.LayerNorm(x, "ln1")
		}
		for _, at := range v.at {
			if at == i {
				outs = append(outs, x)
			}
		}
	}
	return outs, h, w
}

// patches are the maps of sequences, without the class token.
func (b *net) patches(outs []graph.Value, h, w int64) []graph.Value {
	maps := make([]graph.Value, len(outs))
	for i, x := range outs {
		s := b.Shape(x)
		maps[i] = b.asMap(b.Part(x, s[0], h*w, s[2]), h, w)
	}
	return maps
}

// vitMaps is a plain image transformer, and perhaps a neck that makes maps of four
// sizes ("mln"), with a norm on the last ("ln").
func (s *segNet) vitMaps(b *net, x graph.Value, size string) []graph.Value {
	v := plainViT{at: []int{2, 5, 8, 11}, norm: strings.Contains(size, "-ln")}
	if strings.HasPrefix(s.backbone, "deit") {
		v.drop = 0.1
	}
	maps := b.patches(v.run(b, x, size))
	if !strings.Contains(size, "mln") {
		return maps
	}
	b.In("neck", func() { // MultiLevelNeck
		width := b.Shape(maps[0])[1]
		lat := make([]graph.Value, len(maps))
		for i, m := range maps {
			lat[i] = b.Conv(m, block("lateral_convs.", i, 0), width, 1, graph.ConvOpt{Bias: true})
		}
		for i, twice := range []int64{8, 4, 2, 1} {
			sh := b.Shape(lat[i])
			maps[i] = b.Conv(b.Resize(lat[i], sh[2]*twice/2, sh[3]*twice/2), block("convs.", i, 0), width, 3, graph.ConvOpt{Padding: 1, Bias: true})
		}
	})
	return maps
}

// beitMaps is BEiT, or MAE's transformer in its form, with a neck that makes maps
// of four sizes.
func (b *net) beitMaps(x graph.Value, size string, mae bool) []graph.Value {
	width, depth, heads := vitSize(size[:min(1, len(size))])
	if depth == 0 {
		b.Fail("no BEiT has the size %q", size)
		return []graph.Value{x, x, x, x}
	}
	n := b.Shape(x)[0]
	x = b.Conv(x, "patch_embed.projection", width, 16, graph.ConvOpt{Stride: 16, Bias: true})
	h, w := b.Shape(x)[2], b.Shape(x)[3]
	x = b.Cat(1, b.Parameter("cls_token", n, 1, width), b.tokensOf(x))
	if mae {
		x = b.Plus(x, "pos_embed", 1, h*w+1, width)
	}
	v := vitNet{width: width, heads: heads, mlp: 4 * width, scale: true, relative: true, keysPlain: !mae}
	var outs []graph.Value
	for i := range depth {
		v.drop = dropAt(0.1, i, depth)
		b.In(block("layers.", 0, i), func() { x = v.layer(b, x, h, w) })
		if (i+1)%(depth/4) == 0 && depth > 12 || depth == 12 && (i == 3 || i == 5 || i == 7 || i == 11) {
			outs = append(outs, x)
		}
	}
	maps := b.patches(outs, h, w)
	b.In("neck", func() { // Feature2Pyramid
		up := func(x graph.Value, name string) graph.Value {
			return b.ConvTranspose(x, name, width, 2, graph.ConvOpt{Stride: 2, Bias: true})
		}
		y := b.normed(up(maps[0], "upsample_4x.0"), "upsample_4x.1")
		maps[0] = up(b.Act(graph.GELU, y, false), "upsample_4x.3")
		maps[1] = up(maps[1], "upsample_2x.0")
		maps[3] = b.MaxPool(maps[3], 2, 2, 0, false)
	})
	return maps
}

// reduced attends to maps made smaller by a factor, with mmcv's attention.
//
// Source: mmsegmentation models/backbones/mit.py, EfficientMultiheadAttention.
func (b *net) reduced(x graph.Value, heads, factor, h, w int64, bias bool) graph.Value {
	c := b.Shape(x)[2]
	from := b.View(x, b.Shape(x)...)
	if factor > 1 {
		y := b.Conv(b.asMap(x, h, w), "attn.sr", c, factor, graph.ConvOpt{Stride: factor, Bias: true})
		from = b.LayerNorm(b.Copy(b.tokensOf(y)), "attn.norm")
	}
	return b.multihead(x, from, heads, bias)
}

// mitMaps is SegFormer's transformer as mmsegmentation builds it.
func (b *net) mitMaps(x graph.Value, size string) []graph.Value {
	s := zooSegFormer("mit_"+size, false)
	if s == nil {
		b.Fail("no mix transformer has the size %q", size)
		return []graph.Value{x, x, x, x}
	}
	total, at := sum(s.Depths), 0
	var maps []graph.Value
	for stage, width := range s.Widths {
		kernel, stride := int64(3), int64(2)
		if stage == 0 {
			kernel, stride = 7, 4
		}
		x = b.Conv(x, block("layers.patch.", stage, 0), width, kernel, graph.ConvOpt{Stride: stride, Padding: kernel / 2, Bias: true})
		h, w := b.Shape(x)[2], b.Shape(x)[3]
		x = b.LayerNorm(b.tokensOf(x), block("layers.patch.norm.", stage, 0))
		for i := range s.Depths[stage] {
			p := dropAt(0.1, at, total)
			at++
			b.In(block("layers.", stage, i), func() {
				y := b.reduced(b.LayerNorm(x, "norm1"), s.Heads[stage], s.Reductions[stage], h, w, true)
				x = b.Add(x, b.Dropout(graph.DropPath, y, p))
				y = b.asMap(b.LayerNorm(x, "norm2"), h, w)
				y = b.Conv(y, "ffn.0", 4*width, 1, graph.ConvOpt{Bias: true})
				y = b.Conv(y, "ffn.1", 4*width, 3, graph.ConvOpt{Padding: 1, Groups: 4 * width, Bias: true})
				y = b.Conv(b.Act(graph.GELU, y, false), "ffn.4", width, 1, graph.ConvOpt{Bias: true})
				x = b.Add(x, b.Dropout(graph.DropPath, b.tokensOf(y), p))
			})
		}
		x = b.asMap(b.LayerNorm(x, block("layers.norm.", stage, 0)), h, w)
		maps = append(maps, x)
	}
	return maps
}

// twinsMaps is Twins: attention to reduced maps, in SVT every other block within
// windows instead.
func (b *net) twinsMaps(x graph.Value, size string, svt bool) []graph.Value {
	widths, heads, reductions, drop := []int64{64, 128, 320, 512}, []int64{1, 2, 5, 8}, []int64{8, 4, 2, 1}, 0.2
	depths := map[string][]int{"s": {3, 4, 6, 3}, "b": {3, 4, 18, 3}, "l": {3, 8, 27, 3}}[size]
	mlps := []int64{8, 8, 4, 4}
	if svt {
		depths = map[string][]int{"s": {2, 2, 10, 4}, "b": {2, 2, 18, 2}, "l": {2, 2, 18, 2}}[size]
		widths = map[string][]int64{"s": {64, 128, 256, 512}, "b": {96, 192, 384, 768}, "l": {128, 256, 512, 1024}}[size]
		heads = map[string][]int64{"s": {2, 4, 8, 16}, "b": {3, 6, 12, 24}, "l": {4, 8, 16, 32}}[size]
		mlps = []int64{4, 4, 4, 4}
	}
	if depths == nil {
		b.Fail("no Twins has the size %q", size)
		return []graph.Value{x, x, x, x}
	}
	total, at := sum(depths), 0
	var maps []graph.Value
	for stage, width := range widths {
		patch := int64(2)
		if stage == 0 {
			patch = 4
		}
		n := b.Shape(x)[0]
		x = b.Conv(x, block("patch_embeds.", stage, 0), width, patch, graph.ConvOpt{Stride: patch, Bias: true})
		h, w := b.Shape(x)[2], b.Shape(x)[3]
		x = b.LayerNorm(b.tokensOf(x), block("patch_embeds.norm.", stage, 0))
		for i := range depths[stage] {
			p := dropAt(drop, at, total)
			at++
			b.In(block("layers.", stage, i), func() {
				y := b.LayerNorm(x, "norm1")
				if svt && i%2 == 0 {
					y = b.Copy(b.grouped(b.View(y, n, h, w, width), heads[stage], 7), n, h*w, width)
					y = b.Linear(y, "attn.proj", width, true)
				} else {
					y = b.reduced(y, heads[stage], reductions[stage], h, w, true)
				}
				x = b.Add(x, b.Dropout(graph.DropPath, y, p))
				y = b.Act(graph.GELU, b.Linear(b.LayerNorm(x, "norm2"), "ffn.0", mlps[stage]*width, true), false)
				y = b.Linear(y, "ffn.1", width, true)
				x = b.Add(x, b.Dropout(graph.DropPath, y, p))
			})
			if i == 0 { // the position is a depthwise convolution
				m := b.View(x, n, width, h, w)
				y := b.Conv(m, block("position_encodings.", stage, 0), width, 3, graph.ConvOpt{Padding: 1, Groups: width, Bias: true})
				x = b.View(b.Add(y, m), n, h*w, width)
			}
		}
		if svt {
			x = b.LayerNorm(x, block("norm_list.", stage, 0))
		}
		x = b.asMap(x, h, w)
		maps = append(maps, x)
	}
	return maps
}

// grouped is attention within windows, with a mask for what was padded.
func (b *net) grouped(x graph.Value, heads, window int64) graph.Value {
	return b.windowed(x, window, false, func(x, _ graph.Value) graph.Value {
		s := b.Shape(x)
		windows, l, c := s[0], s[1], s[2]
		d := c / heads
		qkv := b.Linear(x, "attn.qkv", 3*c, true)
		part := func() graph.Value { return b.Copy(b.Part(qkv, windows, heads, l, d)) }
		p := b.Act(graph.Scale, b.MatMul(part(), part(), true), false)
		p = b.Act(graph.Softmax, b.Add(p, b.Constant(graph.Float, windows, 1, l, l)), false)
		return b.Copy(b.MatMul(p, part(), false), windows, l, c)
	})
}

// poolformerMaps mixes positions by an average pool.
//
// Source: mmpretrain models/backbones/poolformer.py.
func (b *net) poolformerMaps(x graph.Value, size string) []graph.Value {
	depths := map[string][]int{"s12": {2, 2, 6, 2}, "s24": {4, 4, 12, 4}, "s36": {6, 6, 18, 6}, "m36": {6, 6, 18, 6}, "m48": {8, 8, 24, 8}}[size]
	widths := []int64{64, 128, 320, 512}
	if strings.HasPrefix(size, "m") {
		widths = []int64{96, 192, 384, 768}
	}
	var maps []graph.Value
	for stage, n := range depths {
		c := widths[stage]
		if stage == 0 {
			x = b.Conv(x, "patch_embed.proj", c, 7, graph.ConvOpt{Stride: 4, Padding: 2, Bias: true})
		} else {
			x = b.Conv(x, block("network.down", stage, 0), c, 3, graph.ConvOpt{Stride: 2, Padding: 1, Bias: true})
		}
		for i := range n {
			b.In(block("network.", stage, i), func() {
				y := b.GroupNorm(x, "norm1", 1)
				y = b.Binary(graph.Sub, b.AvgPool(y, 3, 1, 1, false), y)
				x = b.Add(x, b.Scaled(y, "layer_scale_1", c, 1, 1))
				y = b.Act(graph.GELU, b.Conv(b.GroupNorm(x, "norm2", 1), "mlp.fc1", 4*c, 1, graph.ConvOpt{Bias: true}), false)
				y = b.Conv(y, "mlp.fc2", c, 1, graph.ConvOpt{Bias: true})
				x = b.Add(x, b.Scaled(y, "layer_scale_2", c, 1, 1))
			})
		}
		maps = append(maps, b.GroupNorm(x, block("norm", stage, 0), 1))
	}
	if len(maps) == 0 {
		b.Fail("no PoolFormer has the size %q", size)
		return []graph.Value{x, x, x, x}
	}
	return maps
}

// mscanMaps is SegNeXt's network of strip convolutions.
func (b *net) mscanMaps(x graph.Value, size string) []graph.Value {
	depths := map[string][]int{"t": {3, 3, 5, 2}, "s": {2, 2, 4, 2}, "b": {3, 3, 12, 3}, "l": {3, 5, 27, 3}}[size]
	widths, drop := []int64{64, 128, 320, 512}, 0.1
	if size == "t" {
		widths = []int64{32, 64, 160, 256}
	}
	if size == "l" {
		drop = 0.3
	}
	total, at := sum(depths), 0
	var maps []graph.Value
	for stage, n := range depths {
		c := widths[stage]
		down := func(x graph.Value, name string, out int64) graph.Value {
			return b.normed(b.Conv(x, name, out, 3, graph.ConvOpt{Stride: 2, Padding: 1, Bias: true}), name+".norm")
		}
		if stage == 0 {
			x = b.Act(graph.GELU, down(x, "patch_embed1.0", c/2), false)
			x = down(x, "patch_embed1.3", c)
		} else {
			x = down(x, block("patch_embed", stage, 0), c)
		}
		mlp := int64(8)
		if stage > 1 {
			mlp = 4
		}
		for i := range n {
			p := dropAt(drop, at, total)
			at++
			b.In(block("block", stage, i), func() {
				one := func(x graph.Value, name string, out int64) graph.Value {
					return b.Conv(x, name, out, 1, graph.ConvOpt{Bias: true})
				}
				y := b.normed(x, "norm1")
				short := b.Copy(y)
				y = b.Act(graph.GELU, one(y, "attn.proj_1", c), false)
				u := b.Copy(y)
				a := b.Conv(y, "attn.conv0", c, 5, graph.ConvOpt{Padding: 2, Groups: c, Bias: true})
				sum := a
				var strips []graph.Value
				for k, long := range []int64{7, 11, 21} {
					z := b.Conv(a, block("attn.conv", k, 1), c, 1, graph.ConvOpt{KernelW: long, PadW: long / 2, Groups: c, Bias: true})
					strips = append(strips, b.Conv(z, block("attn.conv", k, 2), c, long, graph.ConvOpt{KernelW: 1, Padding: long / 2, PadW: -1, Groups: c, Bias: true}))
				}
				for _, z := range strips {
					sum = b.Add(sum, z)
				}
				y = b.Binary(graph.Mul, one(sum, "attn.conv3", c), u)
				y = b.Scaled(b.Add(one(y, "attn.proj_2", c), short), "layer_scale_1", c, 1, 1)
				x = b.Add(x, b.Dropout(graph.DropPath, y, p))
				y = one(b.normed(x, "norm2"), "mlp.fc1", mlp*c)
				y = b.Conv(y, "mlp.dwconv", mlp*c, 3, graph.ConvOpt{Padding: 1, Groups: mlp * c, Bias: true})
				y = b.Scaled(one(b.Act(graph.GELU, y, false), "mlp.fc2", c), "layer_scale_2", c, 1, 1)
				x = b.Add(x, b.Dropout(graph.DropPath, y, p))
			})
		}
		h, w := b.Shape(x)[2], b.Shape(x)[3]
		x = b.asMap(b.LayerNorm(b.tokensOf(x), block("norm", stage, 0)), h, w)
		maps = append(maps, x)
	}
	if len(maps) == 0 {
		b.Fail("no MSCAN has the size %q", size)
		return []graph.Value{x, x, x, x}
	}
	return maps
}
