package vision

import "unoom/internal/model/graph"

// latent is the side of a picture by that of its latent: the autoencoders of
// Stable Diffusion and DiT halve it three times.
const latent = 8

// promptTokens is the length of CLIP's prompts.
const promptTokens = 77

// unet is the conditional U-Net of Stable Diffusion as diffusers builds it. Of
// the spec it reads widths (of the levels), depths (transformer blocks of each
// level, 0: none), heads (of each level), layers (residual blocks of a level),
// context (width of the prompt's states), linear (projections are dense) and
// extra (width of SDXL's additional conditions).
func unet(b *net, s *Spec, in Input) {
	n := in.Batch
	h, w := (in.Height+latent-1)/latent, (in.Width+latent-1)/latent
	if len(s.Widths) == 0 || len(s.Depths) != len(s.Widths) || len(s.Heads) != len(s.Widths) {
		b.Fail("a U-Net wants widths, depths and heads for each level")
		return
	}
	u := &unetNet{net: b, spec: s, n: n, temb: 4 * s.Widths[0], prompt: b.Input(graph.Float, n, promptTokens, max(1, s.Context))}
	x := b.Input(graph.Float, n, s.channels(), h, w)
	u.time = u.embedding("time_embedding", s.Widths[0])
	if s.Extra > 0 {
		u.time = b.Add(u.time, u.embedding("add_embedding", s.Extra))
	}
	b.Hold(u.time, u.prompt)
	x = b.Conv(x, "conv_in", s.Widths[0], 3, graph.ConvOpt{Padding: 1, Bias: true})
	layers := max(1, s.Layers)
	skips := []graph.Value{x}
	last := len(s.Widths) - 1
	for i, c := range s.Widths {
		for k := range layers {
			b.In(block("down_blocks.", i, k), func() { x = u.level(x, c, i) })
			skips = append(skips, x)
		}
		if i < last {
			x = b.Conv(x, block("down_blocks.down.", i, 0), c, 3, graph.ConvOpt{Stride: 2, Padding: 1, Bias: true})
			skips = append(skips, x)
		}
	}
	b.In("mid_block", func() {
		c := s.Widths[last]
		depth := s.Depths[last]
		if depth == 0 {
			depth = 1
		}
		b.In("0", func() { x = u.residual(x, c) })
		x = u.transformer(x, "attentions", s.Heads[last], depth)
		b.In("1", func() { x = u.residual(x, c) })
	})
	for i := last; i >= 0; i-- {
		c := s.Widths[i]
		for k := range layers + 1 {
			skip := skips[len(skips)-1]
			skips = skips[:len(skips)-1]
			b.In(block("up_blocks.", last-i, k), func() { x = u.level(b.Cat(1, x, skip), c, i) })
		}
		if i > 0 {
			sh := b.Shape(skips[len(skips)-1])
			x = b.Resize(x, sh[2], sh[3])
			x = b.Conv(x, block("up_blocks.up.", last-i, 0), c, 3, graph.ConvOpt{Padding: 1, Bias: true})
		}
	}
	x = b.Act(graph.SiLU, b.GroupNorm(x, "conv_norm_out", 32), false)
	x = b.Conv(x, "conv_out", 4, 3, graph.ConvOpt{Padding: 1, Bias: true})
	b.meanSquare(x)
}

// channels are those of the network's input: 4, and 9 to fill a part in.
func (s *Spec) channels() int64 {
	if s.Channels > 0 {
		return s.Channels
	}
	return 4
}

// meanSquare is the loss against noise, in float32.
func (b *net) meanSquare(x graph.Value) {
	s := b.Shape(x)
	target := b.Constant(graph.Float32, s...)
	b.Start(b.Loss(graph.MSE, graph.Float32, []graph.Value{b.Float(x), target}, 1))
}

// unetNet is a U-Net under construction.
type unetNet struct {
	*net
	spec         *Spec
	n, temb      int64
	time, prompt graph.Value
}

// embedding is two dense layers over a vector that encodes a step or a
// condition.
func (u *unetNet) embedding(name string, width int64) graph.Value {
	x := u.Input(graph.Float, u.n, width)
	x = u.Linear(x, name+".linear_1", u.temb, true)
	x = u.Act(graph.SiLU, x, false)
	return u.Linear(x, name+".linear_2", u.temb, true)
}

// level is one residual block and, where the level has them, its transformers.
func (u *unetNet) level(x graph.Value, c int64, i int) graph.Value {
	u.In("resnets", func() { x = u.residual(x, c) })
	if u.spec.Depths[i] > 0 {
		x = u.transformer(x, "attentions", u.spec.Heads[i], u.spec.Depths[i])
	}
	return x
}

// residual is diffusers' ResnetBlock2D.
func (u *unetNet) residual(x graph.Value, c int64) graph.Value {
	y := u.Act(graph.SiLU, u.GroupNorm(x, "norm1", 32), false)
	y = u.Conv(y, "conv1", c, 3, graph.ConvOpt{Padding: 1, Bias: true})
	t := u.Linear(u.Act(graph.SiLU, u.time, false), "time_emb_proj", c, true)
	y = u.Add(y, u.View(t, u.n, c, 1, 1))
	y = u.Act(graph.SiLU, u.GroupNorm(y, "norm2", 32), false)
	y = u.Conv(y, "conv2", c, 3, graph.ConvOpt{Padding: 1, Bias: true})
	if u.Shape(x)[1] != c {
		x = u.Conv(x, "conv_shortcut", c, 1, graph.ConvOpt{Bias: true})
	}
	return u.Act(graph.Scale, u.Add(x, y), false)
}

// transformer is Transformer2DModel over a map.
func (u *unetNet) transformer(x graph.Value, name string, heads int64, depth int) graph.Value {
	s := u.Shape(x)
	n, c, h, w := s[0], s[1], s[2], s[3]
	if heads < 1 || c%heads != 0 {
		u.Fail("%d heads do not divide %d channels", heads, c)
		return x
	}
	residual := x
	u.In(name, func() {
		y := u.GroupNorm(x, "norm", 32)
		if u.spec.Linear {
			y = u.Copy(y, n, h*w, c)
			y = u.Linear(y, "proj_in", c, true)
		} else {
			y = u.Conv(y, "proj_in", c, 1, graph.ConvOpt{Bias: true})
			y = u.Copy(y, n, h*w, c)
		}
		for i := range depth {
			u.In(block("transformer_blocks.", i, 0), func() {
				y = u.Add(u.attention(u.LayerNorm(y, "norm1"), graph.None, "attn1", heads), y)
				y = u.Add(u.attention(u.LayerNorm(y, "norm2"), u.prompt, "attn2", heads), y)
				f := u.Linear(u.LayerNorm(y, "norm3"), "ff.net.0.proj", 8*c, true)
				a, g := u.Part(f, n, h*w, 4*c), u.Part(f, n, h*w, 4*c)
				f = u.Binary(graph.Mul, a, u.Act(graph.GELU, g, false))
				y = u.Add(u.Linear(f, "ff.net.2", c, true), y)
			})
		}
		if u.spec.Linear {
			y = u.Linear(y, "proj_out", c, true)
			y = u.Copy(y, n, c, h, w)
		} else {
			y = u.Copy(y, n, c, h, w)
			y = u.Conv(y, "proj_out", c, 1, graph.ConvOpt{Bias: true})
		}
		x = u.Add(y, residual)
	})
	return x
}

// attention is over x itself, or over a context.
func (u *unetNet) attention(x, context graph.Value, name string, heads int64) graph.Value {
	s := u.Shape(x)
	n, l, c := s[0], s[1], s[2]
	from := x
	if context != graph.None {
		from = context
	}
	k := u.Shape(from)[1]
	u.In(name, func() {
		q := u.View(u.Linear(x, "to_q", c, false), n, heads, l, c/heads)
		kk := u.View(u.Linear(from, "to_k", c, false), n, heads, k, c/heads)
		v := u.View(u.Linear(from, "to_v", c, false), n, heads, k, c/heads)
		y := u.View(u.Attention(q, kk, v, graph.None), n, l, c)
		x = u.Linear(y, "to_out.0", c, true)
	})
	return x
}

// dit is the class-conditional diffusion transformer as diffusers builds it: each
// block has its own embedding of step and class. Of the spec it reads widths
// (one), depth, heads (one), patch and classes.
func dit(b *net, s *Spec, in Input) {
	if len(s.Widths) != 1 || len(s.Heads) != 1 || s.Depth < 1 || s.Depth > 1024 {
		b.Fail("a diffusion transformer wants one width, heads and a depth")
		return
	}
	n, c, heads, p := in.Batch, s.Widths[0], s.Heads[0], max(1, s.Patch)
	h, w := (in.Height+latent-1)/latent, (in.Width+latent-1)/latent
	if heads < 1 || c%heads != 0 {
		b.Fail("%d heads do not divide a width of %d", heads, c)
		return
	}
	const step = 256 // channels of the encoded step
	x := b.Input(graph.Float, n, 4, h, w)
	t := b.Input(graph.Float, n, step)
	label := b.Input(graph.Int64, n)
	x = b.tokensOf(b.Conv(x, "pos_embed.proj", c, p, graph.ConvOpt{Stride: p, Bias: true}))
	l := b.Shape(x)[1]
	x = b.Act(graph.Scale, x, false) // positions are added
	modulated := func(x graph.Value, name string, shift, scale graph.Value) graph.Value {
		y := b.Plain(graph.LayerNorm, x, name)
		y = b.Binary(graph.Mul, y, b.Act(graph.Scale, scale, false))
		return b.Add(y, shift)
	}
	condition := func(name string, width int64) graph.Value {
		e := b.Linear(t, name+".timestep_embedder.linear_1", c, true)
		e = b.Linear(b.Act(graph.SiLU, e, false), name+".timestep_embedder.linear_2", c, true)
		e = b.Add(e, b.Looked(name+".class_embedder", label, s.Classes+1, n, c))
		return b.Linear(b.Act(graph.SiLU, e, false), name+".linear", width, true)
	}
	for i := range s.Depth {
		b.In(block("transformer_blocks.", 0, i), func() {
			e := condition("norm1", 6*c)
			part := func() graph.Value { return b.Part(e, n, 1, c) }
			y := modulated(x, "norm1.norm", part(), part())
			q := b.View(b.Linear(y, "attn1.to_q", c, true), n, heads, l, c/heads)
			k := b.View(b.Linear(y, "attn1.to_k", c, true), n, heads, l, c/heads)
			v := b.View(b.Linear(y, "attn1.to_v", c, true), n, heads, l, c/heads)
			y = b.Linear(b.View(b.Attention(q, k, v, graph.None), n, l, c), "attn1.to_out.0", c, true)
			x = b.Add(b.Binary(graph.Mul, y, part()), x)
			y = modulated(x, "norm3", part(), part())
			y = b.Act(graph.GELU, b.Linear(y, "ff.net.0.proj", 4*c, true), false)
			y = b.Linear(y, "ff.net.2", c, true)
			x = b.Add(b.Binary(graph.Mul, y, part()), x)
		})
	}
	b.In("transformer_blocks.0.0", func() {
		var e graph.Value
		b.Again(func() { // the first block's embedding conditions the output too
			e = b.Linear(t, "norm1.timestep_embedder.linear_1", c, true)
			e = b.Linear(b.Act(graph.SiLU, e, false), "norm1.timestep_embedder.linear_2", c, true)
			e = b.Add(e, b.Looked("norm1.class_embedder", label, s.Classes+1, n, c))
		})
		t = b.Act(graph.SiLU, e, false)
	})
	e := b.Linear(t, "proj_out_1", 2*c, true)
	x = modulated(x, "norm_out", b.Part(e, n, 1, c), b.Part(e, n, 1, c))
	x = b.Linear(x, "proj_out_2", p*p*8, true)
	b.meanSquare(b.Part(b.Copy(x, n, 8, h, w), n, 4, h, w))
}
