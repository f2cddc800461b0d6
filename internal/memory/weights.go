package memory

import (
	"unoom/internal/model"
)

// vector is the weight and bias of a norm, or a bare parameter.
type vector struct {
	w, b  tensor
	width int64
	kind  model.NormKind
	style string
}

// block holds the weights of one layer by the part they play. A field is nil
// where the layer has no such module.
type block struct {
	l *model.Layer

	norm1, norm2, post1, post2, normCross *vector
	normQ, normK, normQA, normKVA         *vector

	q, k, v, qkv, o          *matrix
	qa, qb, kva, kvb         *matrix
	cq, ck, cv, ckv, co      *matrix
	gate, up, gateUp, down   *matrix
	router                   *matrix
	experts                  []expert
	shGate, shUp, shDown     *matrix
	shSwitch                 *matrix
	ssmIn, ssmX, ssmDT, ssmO *matrix
	ssmConv, ssmNorm         *vector
	relBias                  *matrix
	scale                    [2]tensor // of what attention and MLP add
	extra                    []tensor  // parameters used directly

	params []int32 // every parameter of the block, in order
}

// expert is one routed MLP. A grouped implementation has one entry whose
// matrices hold all experts.
type expert struct {
	gate, up, gateUp, down *matrix
	copies                 int64
}

// network is the whole model's weights.
type network struct {
	m      *model.Model
	embed  *matrix // tokens: in rows, out width
	pos    *matrix
	seg    *matrix
	embLN  *vector
	stacks []stack
	tower  *tower // nil: the model does not see
	head   *matrix
	// transform, headNorm, pooler and classifier are parts of heads.
	transform, pooler, classifier *matrix
	headNorm                      *vector
	projIn, projOut               *matrix
	embedParams, headParams       []int32
}

type stack struct {
	s      *model.Stack
	blocks []*block
	final  *vector
	tail   []int32
}

// place tells a loader where a parameter stands and how it is divided.
type place struct {
	part  string // "embed", "head", or the stack's name
	stack int
	layer int // −1 outside of layers
	mod   *model.Module
	split int64 // ranks that a matrix is divided over
}

// loader decides how parameters are stored.
type loader interface {
	// matrix returns the weight (and bias) of a linear module or a table.
	matrix(x *machine, p place, copies int64) *matrix
	vector(x *machine, p place) *vector
}

// load builds the network, module by module in the model's own order, with the
// layers from first to last of each stack (pipeline stages take a part).
func (x *machine) load(m *model.Model, ld loader, take func(stack, layer int) bool, ends func(part string) bool, split func(*model.Module) int64) *network {
	n := &network{m: m}
	outer := func(part string, mods []model.Module) {
		if !ends(part) {
			return
		}
		for i := range mods {
			mod := &mods[i]
			p := place{part: part, layer: -1, mod: mod, split: split(mod)}
			n.put(x, ld, p)
		}
	}
	outer("embed", m.Embed)
	for si, s := range m.Stacks {
		st := stack{s: s}
		for li, l := range s.Layers {
			if !take(si, li) {
				continue
			}
			b := &block{l: l}
			from := len(x.params)
			for k := range l.Modules {
				mod := &l.Modules[k]
				b.put(x, ld, place{part: s.Name, stack: si, layer: li, mod: mod, split: split(mod)})
			}
			for id := from; id < len(x.params); id++ {
				b.params = append(b.params, int32(id))
			}
			st.blocks = append(st.blocks, b)
		}
		n.stacks = append(n.stacks, st)
		if ends(s.Name) {
			from := len(x.params)
			for i := range s.Tail {
				mod := &s.Tail[i]
				p := place{part: s.Name, stack: si, layer: -1, mod: mod, split: split(mod)}
				if mod.Role == model.RoleNormFinal {
					n.stacks[si].final = ld.vector(x, p)
					n.stacks[si].final.describe(s.FinalNorm)
				} else if mod.Role == model.RoleProjector {
					n.putProjector(x, ld, p)
				} else if mod.Kind == model.Linear {
					n.projOut = ld.matrix(x, p, 1)
				}
			}
			for id := from; id < len(x.params); id++ {
				n.stacks[si].tail = append(n.stacks[si].tail, int32(id))
			}
		}
	}
	outer("head", m.Head)
	if n.tower != nil {
		n.tower.st = &n.stacks[0]
	}
	return n
}

// text is the stack that generates text, or the last one.
func (n *network) text() *stack { return &n.stacks[len(n.stacks)-1] }

// seen is the image part, made when its first module comes.
func (n *network) seen() *tower {
	if n.tower == nil {
		n.tower = &tower{}
	}
	return n.tower
}

// putProjector stores a module between the tower and the text.
func (n *network) putProjector(x *machine, ld loader, p place) {
	t := n.seen()
	link := n.m.Sight.Links[len(t.projector)]
	if link.Norm == nil {
		t.projector = append(t.projector, projection{mat: ld.matrix(x, p, 1)})
		return
	}
	v := ld.vector(x, p)
	v.describe(link.Norm)
	t.projector = append(t.projector, projection{norm: v})
}

func (v *vector) describe(n *model.Norm) {
	if v != nil && n != nil {
		v.kind, v.style, v.width = n.Kind, n.Style, n.Width
	}
}

// put stores a module outside of layers.
func (n *network) put(x *machine, ld loader, p place) {
	from := len(x.params)
	switch p.mod.Role {
	case model.RoleTokens:
		n.embed = ld.matrix(x, p, 1)
	case model.RolePosition:
		n.pos = ld.matrix(x, p, 1)
	case model.RoleSegment:
		n.seg = ld.matrix(x, p, 1)
	case model.RoleEmbedLN:
		n.embLN = ld.vector(x, p)
		n.embLN.describe(n.m.EmbedNorm)
	case model.RoleHead:
		if p.mod.Params[0].Tied && n.embed != nil {
			n.head = &matrix{same: n.embed, in: p.mod.In, out: p.mod.Out / p.split}
			if p.mod.Bias() {
				n.head.bias = ld.vector(x, place{part: p.part, layer: -1, mod: biasOf(p.mod), split: p.split}).w
				n.head.biased = true
			}
		} else {
			n.head = ld.matrix(x, p, 1)
		}
	case model.RoleSight:
		v := ld.vector(x, p)
		if p.mod.Kind == model.Normalize {
			v.kind, v.width = model.RMSNorm, p.mod.Out
			if p.mod.Bias() {
				v.kind = model.LayerNorm
			}
		}
		n.seen().embed = append(n.seen().embed, v)
	case model.RoleHeadTransform:
		n.transform = ld.matrix(x, p, 1)
	case model.RoleHeadNorm:
		n.headNorm = ld.vector(x, p)
		n.headNorm.kind, n.headNorm.width = model.LayerNorm, p.mod.Out
	case model.RolePooler:
		n.pooler = ld.matrix(x, p, 1)
	case model.RoleClassifier:
		n.classifier = ld.matrix(x, p, 1)
	default:
		if p.mod.Kind == model.Linear {
			n.projIn = ld.matrix(x, p, 1)
		} else {
			ld.vector(x, p)
		}
	}
	list := &n.embedParams
	if p.part == "head" {
		list = &n.headParams
	}
	for id := from; id < len(x.params); id++ {
		*list = append(*list, int32(id))
	}
}

// biasOf is a module of only the bias of a tied head.
func biasOf(m *model.Module) *model.Module {
	b := *m
	b.Kind, b.Params = model.ParamsAlone, m.Params[1:]
	return &b
}

// put stores a module of the layer.
func (b *block) put(x *machine, ld loader, p place) {
	norm := func(v **vector) {
		*v = ld.vector(x, p)
		n := b.l.Norm
		n.Width = p.mod.In
		(*v).describe(&n)
	}
	mat := func(m **matrix) { *m = ld.matrix(x, p, 1) }
	switch p.mod.Role {
	case model.RoleNorm1:
		norm(&b.norm1)
	case model.RoleNorm2:
		norm(&b.norm2)
	case model.RoleNormPost1:
		norm(&b.post1)
	case model.RoleNormPost2:
		norm(&b.post2)
	case model.RoleNormCross:
		norm(&b.normCross)
	case model.RoleNormQ:
		norm(&b.normQ)
	case model.RoleNormK:
		norm(&b.normK)
	case model.RoleNormQA:
		norm(&b.normQA)
	case model.RoleNormKVA:
		norm(&b.normKVA)
	case model.RoleQ:
		mat(&b.q)
	case model.RoleK:
		mat(&b.k)
	case model.RoleV:
		mat(&b.v)
	case model.RoleQKV:
		mat(&b.qkv)
	case model.RoleO:
		mat(&b.o)
	case model.RoleQA:
		mat(&b.qa)
	case model.RoleQB:
		mat(&b.qb)
	case model.RoleKVA:
		mat(&b.kva)
	case model.RoleKVB:
		mat(&b.kvb)
	case model.RoleCrossQ:
		mat(&b.cq)
	case model.RoleCrossK:
		mat(&b.ck)
	case model.RoleCrossV:
		mat(&b.cv)
	case model.RoleCrossKV:
		mat(&b.ckv)
	case model.RoleCrossO:
		mat(&b.co)
	case model.RoleGate:
		mat(&b.gate)
	case model.RoleUp:
		mat(&b.up)
	case model.RoleGateUp:
		mat(&b.gateUp)
	case model.RoleDown:
		mat(&b.down)
	case model.RoleRouter:
		mat(&b.router)
	case model.RoleExpertGate, model.RoleExpertUp, model.RoleExpertGateUp, model.RoleExpertDown:
		b.putExperts(x, ld, p)
	case model.RoleSharedGate:
		mat(&b.shGate)
	case model.RoleSharedUp, model.RoleSharedGateUp:
		mat(&b.shUp)
	case model.RoleSharedDown:
		mat(&b.shDown)
	case model.RoleSharedSwitch:
		mat(&b.shSwitch)
	case model.RoleSSMIn:
		mat(&b.ssmIn)
	case model.RoleSSMX:
		mat(&b.ssmX)
	case model.RoleSSMDT:
		mat(&b.ssmDT)
	case model.RoleSSMOut:
		mat(&b.ssmO)
	case model.RoleSSMConv:
		b.ssmConv = ld.vector(x, p)
	case model.RoleSSMNorm:
		b.ssmNorm = ld.vector(x, p)
	case model.RoleRelB:
		mat(&b.relBias)
	case model.RoleLayerScale:
		v := ld.vector(x, p)
		b.scale = [2]tensor{v.w, v.b}
	default:
		v := ld.vector(x, p)
		b.extra = append(b.extra, v.w)
	}
}

func (b *block) putExperts(x *machine, ld loader, p place) {
	m := ld.matrix(x, p, max(p.mod.Copies, 1))
	if len(b.experts) == 0 {
		b.experts = []expert{{copies: max(p.mod.Copies, 1)}}
	}
	e := &b.experts[0]
	switch p.mod.Role {
	case model.RoleExpertGate:
		e.gate = m
	case model.RoleExpertUp:
		e.up = m
	case model.RoleExpertGateUp:
		e.gateUp = m
	case model.RoleExpertDown:
		e.down = m
	}
}
