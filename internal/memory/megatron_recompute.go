package memory

import (
	"strconv"
	"strings"
)

// Recomputation in Megatron-Core: of whole layers, or of modules that are cheap
// to run again for what they keep.
// Source: megatron/core/transformer/transformer_block.py, _checkpointed_forward;
// transformer_config.py, recompute_modules; tensor_parallel/random.py,
// checkpoint and CheckpointWithoutOutput.

// recomputation is what the arguments say of it.
type recomputation struct {
	full    bool
	each    int // layers in one checkpoint
	first   int // with block: layers of a chunk that are recomputed, −1: all
	modules map[string]bool
}

func (m *megatron) readRecomputation(full, selective bool) error {
	r := &m.again
	r.each, r.first = 1, -1
	number := 1
	if n, err := strconv.Atoi(m.option("recompute-num-layers")); err == nil && n > 0 {
		number = n
	}
	switch {
	case full && m.option("recompute-method") == "block":
		r.full, r.first = true, number
	case full:
		r.full, r.each = true, number
	case selective:
		text := m.option("recompute-modules")
		if strings.Trim(text, "[] ") == "" {
			text = "core_attn"
		}
		r.modules = map[string]bool{}
		for _, name := range strings.FieldsFunc(text, func(c rune) bool { return strings.ContainsRune("[] ,'\"", c) }) {
			switch name {
			case "core_attn", "mlp", "moe", "shared_experts", "layernorm", "mla_up_proj", "moe_act":
				r.modules[name] = true
			default:
				return &NotModelled{"recomputation of " + name + " in Megatron"}
			}
		}
	}
	return nil
}

// throughLayers runs layers one after the other, recomputed as asked. It takes
// over h; held are further tensors that the layers read.
func (m *megatron) throughLayers(h tensor, blocks []*block, layer func(b *block, in tensor) tensor, held ...tensor) tensor {
	x, r := m.x, &m.again
	for i := 0; i < len(blocks); {
		n := 1
		if r.full && (r.first < 0 || i < r.first) {
			n = min(r.each, len(blocks)-i)
		}
		group := blocks[i : i+n]
		body := func(in tensor) tensor {
			h := x.keep(in)
			h.fn, h.leaf, h.slot = in.fn, in.leaf, in.slot
			for _, b := range group {
				out := m.unit(b, h, layer)
				x.drop(h)
				h = out
			}
			return h
		}
		var out tensor
		if r.full && (r.first < 0 || i < r.first) {
			out = x.checkpointReentrant(h, held, body)
		} else {
			out = body(h)
		}
		x.drop(h)
		h = out
		i += n
	}
	return h
}

// unit runs a layer, with its weights gathered where they are divided.
func (m *megatron) unit(b *block, in tensor, layer func(b *block, in tensor) tensor) tensor {
	if m.fsdp == nil {
		return layer(b, in)
	}
	return m.fsdp.around(b, in, func(in tensor) tensor { return layer(b, in) })
}

// checkpointed runs body without keeping anything but its inputs; backward runs
// it again. body takes over what it is given.
func (m *megatron) checkpointed(ins []tensor, body func(ins []tensor) tensor) tensor {
	x := m.x
	if !x.recording(ins...) {
		return body(kept(x, ins))
	}
	fn := x.push(1, ins, ins, nil)
	x.grad = false
	out := body(kept(x, ins))
	x.grad = true
	out.fn, out.leaf, out.slot = fn, 0, 0
	ins = append([]tensor(nil), ins...)
	x.tape.nodes[fn-1].run = func(f *frame) {
		x := f.x
		g := f.g[0]
		outer := x.newTape()
		first := len(x.params)
		res := body(leaves(x, ins))
		x.hold(g.st)
		x.deliver(target{res.fn, res.leaf, res.slot}, g)
		x.drain()
		x.drop(res)
		x.endTape(outer)
		sendLeaves(x, first, len(ins))
	}
	return out
}

// kept are further references to tensors, for someone who drops them.
func kept(x *machine, ts []tensor) []tensor {
	out := make([]tensor, len(ts))
	for i, t := range ts {
		out[i] = x.keep(t.detach())
	}
	return out
}

// leaves are detached inputs of a graph of its own, which records from here on.
func leaves(x *machine, ins []tensor) []tensor {
	out := make([]tensor, len(ins))
	for i, t := range ins {
		leaf := x.pseudoLeaf(t)
		out[i] = x.keep(x.params[leaf].t)
	}
	x.grad = true
	return out
}

// sendLeaves sends what leaves collected as the gradients of the running node's
// inputs, and forgets them.
func sendLeaves(x *machine, first, n int) {
	x.grad = false
	f := &x.frames[x.depth-1]
	for i := range n {
		p := &x.params[first+i]
		f.send(i, gradient{st: p.grad, n: p.t.n, dt: p.gdt, ok: p.grad >= 0})
	}
	x.params = x.params[:first]
}

// An outputless checkpoint gives its outputs' memory back when they have been
// used, and makes them again before the backward of what used them.
type outputless struct {
	outs  []tensor // with a reference each
	ins   []tensor
	body  func(ins []tensor) []tensor
	tape  *tape
	first int
	res   []tensor
}

// withoutOutput is CheckpointWithoutOutput around body, which takes over what it
// is given and returns outputs tensors. The caller drops them as usual, and calls
// discard with what used them.
func (m *megatron) withoutOutput(ins []tensor, outputs int, body func(ins []tensor) []tensor) ([]tensor, *outputless) {
	x := m.x
	if !x.recording(ins...) {
		return body(kept(x, ins)), nil
	}
	fn := x.push(outputs, ins, ins, nil)
	x.grad = false
	outs := body(kept(x, ins))
	x.grad = true
	c := &outputless{ins: append([]tensor(nil), ins...), body: body}
	for i := range outs {
		outs[i].fn, outs[i].leaf, outs[i].slot = fn, 0, uint16(i)
		c.outs = append(c.outs, x.keep(outs[i]))
	}
	x.tape.nodes[fn-1].run = func(f *frame) {
		x := f.x
		if c.tape == nil {
			c.again(x) // nothing was discarded
		}
		outer := x.tape
		x.tape = c.tape
		for i := range f.g {
			if f.g[i].ok {
				x.hold(f.g[i].st)
				x.deliver(target{c.res[i].fn, c.res[i].leaf, c.res[i].slot}, f.g[i])
			}
		}
		x.drain()
		x.drop(c.res...)
		x.drop(c.outs...)
		x.endTape(outer)
		sendLeaves(x, c.first, len(c.ins))
	}
	return outs, c
}

// again runs the body with a graph of its own, which waits for its gradients.
func (c *outputless) again(x *machine) {
	outer := x.newTape()
	c.first = len(x.params)
	c.res = c.body(leaves(x, c.ins))
	x.grad = false
	c.tape, x.tape = x.tape, outer
}

// discard empties the outputs, which user was made from; before the backward of
// user they are made again. It takes over user.
func (c *outputless) discard(x *machine, user tensor) tensor {
	if c == nil {
		return user
	}
	for _, t := range c.outs {
		if t.st >= 0 && !x.sts[t.st].empty {
			x.vacate(t.st)
		}
	}
	hooked := x.alias(user, func(f *frame) {
		c.again(f.x)
		for _, t := range c.outs {
			if t.st >= 0 && f.x.sts[t.st].empty {
				f.x.fill(t.st)
			}
		}
		f.pass(0)
	})
	x.drop(user)
	return hooked
}
