package vision

import (
	"regexp"
	"strconv"
	"strings"

	"unoom/internal/model/graph"
)

// residualTag is the tag of a residual backbone: r50, x101_32x4d, r2-101 (Res2Net),
// s50 (ResNeSt).
var residualTag = regexp.MustCompile(`^(r|x|r2-|s)(\d+)(?:_(\d+)x(\d+)d)?$`)

// features adds the backbone and returns its maps.
func (d *detector) features(b *net, x graph.Value) []graph.Value {
	if width, ok := strings.CutPrefix(d.backbone, "hr"); ok {
		return d.highResolution(b, x, width)
	}
	if number, ok := strings.CutPrefix(d.backbone, "regnetx-"); ok {
		r := regnets("x", number)
		if r == nil {
			b.Fail("no RegNet has the number %q", number)
			return nil
		}
		b.normEval = true
		return r.features(b, x, 1)
	}
	m := residualTag.FindStringSubmatch(d.backbone)
	if m == nil {
		b.Fail("backbone %q is not known", d.backbone)
		return nil
	}
	depth, _ := strconv.Atoi(m[2])
	r := plainResNet(depth)
	if m[3] != "" {
		r.groups, _ = strconv.ParseInt(m[3], 10, 64)
		r.widthPerGroup, _ = strconv.ParseInt(m[4], 10, 64)
	}
	switch m[1] {
	case "r2-":
		r.scales, r.widthPerGroup, r.deepStem, r.avgDown, r.avgAlways = 4, 26, true, true, true
	case "s":
		r.splits, r.deepStem, r.avgDown, r.avgAlways = 2, true, true, true
		if depth > 50 {
			r.stemChannels = 128
		}
	}
	r.caffe, r.frozen, r.normEval, r.context = d.caffe, 1, true, d.context
	switch {
	case d.group:
		r.norm, r.normEval = graph.GroupNorm, false
		b.groups, b.centred = 32, d.standard
	case d.sync:
		r.norm, r.normEval = graph.SyncNorm, false
	}
	switch d.neck {
	case "c4":
		r.upTo = 3
	case "dc5":
		r.strides, r.dilations = []int64{1, 2, 2, 1}, []int64{1, 1, 1, 2}
	}
	d.resnet, b.folded = r, d.folded
	maps := r.forward(b, x)
	b.centred = false
	return maps
}

// highResolution adds HRNet, all of whose maps are joined at the size of the first
// and pooled again.
func (d *detector) highResolution(b *net, x graph.Value, width string) []graph.Value {
	w, err := strconv.ParseInt(width, 10, 64)
	if err != nil || w < 1 || w > 128 {
		b.Fail("backbone %q is not known", d.backbone)
		return nil
	}
	maps := hrnet(b, x, w, false)
	s := b.Shape(maps[0])
	joined := []graph.Value{maps[0]}
	for _, m := range maps[1:] {
		joined = append(joined, b.Resize(m, s[2], s[3]))
	}
	y := b.Conv(b.Cat(1, joined...), "neck.reduction_conv", pyramidWidth, 1, graph.ConvOpt{Bias: true})
	outs := []graph.Value{y}
	for i := range 3 {
		k := int64(2) << i
		outs = append(outs, b.AvgPool(y, k, k, 0, false))
	}
	return outs
}
