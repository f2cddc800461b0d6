package vision

import (
	"cmp"
	"errors"
	"fmt"

	"unoom/internal/model/graph"
)

// An Input is the size for which a graph is made.
type Input struct {
	Batch, Height, Width int64
}

// A Spec is a network by its builder and settings. Which settings a builder
// reads is said at the builder.
type Spec struct {
	Builder string  `json:"builder"`
	Classes int64   `json:"classes"`
	Image   int64   `json:"image_size"` // the size it is published for
	Depth   int     `json:"depth"`
	Width   float64 `json:"width"`
	Scale   float64 `json:"scale"` // of the depth
	Depths  []int   `json:"depths"`
	Widths  []int64 `json:"widths"`
	Heads   []int64 `json:"heads"`
	Patch   int64   `json:"patch"`
	MLP     int64   `json:"mlp"`
	Window  int64   `json:"window"`
	Growth  int64   `json:"growth"`
	Groups  int64   `json:"groups"`
	Drop    float64 `json:"drop"`      // stochastic depth
	Dropout float64 `json:"dropout"`   // before the classifier
	Norm    bool    `json:"batchnorm"` // VGG with batch norm
	// LastScale deepens the last two stages otherwise than Scale.
	LastScale float64 `json:"last_scale"`
	Same      bool    `json:"same"` // TensorFlow's padding

	// Of transformers.
	Tokens     int64   `json:"tokens"`      // beside the patches; 0: one
	LayerScale bool    `json:"layer_scale"` // a scale for each channel of a branch
	PreNorm    bool    `json:"pre_norm"`    // a norm before the first block
	Relative   bool    `json:"relative"`    // biases by distance in every layer
	MeanPool   bool    `json:"mean_pool"`   // the head takes the mean of the patches
	Bare       bool    `json:"bare"`        // positions are of the patches alone
	Eager      bool    `json:"eager"`       // attention operation by operation
	Reductions []int64 `json:"reductions"`  // of the maps that attention looks at

	ResponseNorm bool   `json:"response_norm"` // ConvNeXt V2's norm by energy
	Stem         string `json:"stem"`          // "deep": three convolutions instead of one; "deep-avg": and pooled shortcuts
	Squeeze      int64  `json:"squeeze"`       // squeeze-and-excitation by this factor in each block

	Method   string  `json:"method"`   // of segmentation and detection
	Backbone string  `json:"backbone"` // by OpenMMLab's tag
	Crop     []int64 `json:"crop"`     // height and width
	Dilation int64   `json:"dilation"` // of an FCN head; 0: 1
	Layers   int     `json:"layers"`   // residual blocks of a level
	Context  int64   `json:"context"`  // width of a prompt's states
	Linear   bool    `json:"linear"`   // a U-Net's projections are dense
	Extra    int64   `json:"extra"`    // width of additional conditions
	// Channels of a diffusion network\'s input; 0: 4.
	Channels int64 `json:"channels"`

	// Of detectors.
	Caffe  bool   `json:"caffe"`  // strides in 1×1 convolutions
	Folded bool   `json:"folded"` // frozen norms are a product and a sum
	Group  bool   `json:"group"`  // group norm everywhere
	Neck   string `json:"neck"`   // "c4", "dc5": heads on one map; "": a pyramid
	// SplitNorm says that group norm is a norm, then a product and a sum.
	SplitNorm bool    `json:"split_norm"`
	Standard  bool    `json:"standard"` // group norm is on standardised kernels
	Sync      bool    `json:"sync"`     // the backbone's norms are trained, over the whole batch
	Global    int64   `json:"global"`   // reduction of global context blocks
	Largest   int64   `json:"largest"`  // the side to which training resizes batches of the published size at most
	Least     []int64 `json:"least"`    // height and width of a small batch, where batches differ

	Boxes int64 `json:"boxes"` // objects of an image in the fullest batch; 0: boxesShown
	Masks bool  `json:"masks"` // a detector predicts instance masks
	P6    bool  `json:"p6"`    // a detector has a fourth map
	FP16  bool  `json:"fp16"`  // its name says that it is trained under autocast
}

// Build returns the graph of one forward pass with its loss.
func (s *Spec) Build(in Input) (*graph.Graph, error) {
	if err := s.check(in); err != nil {
		return nil, err
	}
	b := newNet()
	b.split = s.SplitNorm
	switch s.Builder {
	case "segmentation": // method, backbone, classes
		n := segNet{backbone: s.Backbone, method: s.Method, classes: s.Classes, dilation: max(1, s.Dilation)}
		n.build(b, in)
		return b.finish()
	case "detector": // method, backbone, classes, caffe, folded, group, neck
		d := detector{backbone: s.Backbone, method: s.Method, caffe: s.Caffe, folded: s.Folded, group: s.Group, standard: s.Standard, sync: s.Sync, context: s.Global, neck: s.Neck, classes: s.Classes}
		d.build(b, in)
		return b.finish()
	case "segformer": // see segFormer
		segFormer(b, s, in)
		return b.finish()
	case "unet": // see unet
		unet(b, s, in)
		return b.finish()
	case "dit": // see dit
		dit(b, s, in)
		return b.finish()
	case "yolo3": // classes
		yolo3(b, in, s.Classes)
		return b.finish()
	case "yolo": // method (v5, v8, x), backbone (the size), classes, masks, p6
		n := newYOLO(s)
		if n == nil {
			return nil, fmt.Errorf("YOLO%s has no size %q", s.Method, s.Backbone)
		}
		n.build(b, in)
		return b.finish()
	}
	x := b.Input(graph.Float, in.Batch, 3, in.Height, in.Width)
	logits, err := s.forward(b, x)
	if err != nil {
		return nil, err
	}
	b.crossEntropy(logits)
	return b.finish()
}

// classes is the number of classes, ImageNet's where it is not said.
func (s *Spec) classes() int64 { return cmp.Or(s.Classes, 1000) }

// forward adds a classification network up to its logits.
func (s *Spec) forward(b *net, x graph.Value) (graph.Value, error) {
	classes := s.classes()
	switch s.Builder {
	case "resnet": // depth, groups, width (of a group), stem, squeeze
		r := plainResNet(s.Depth)
		r.deepStem, r.avgDown, r.squeeze = s.Stem != "", s.Stem == "deep-avg", s.Squeeze
		if s.Groups > 0 {
			r.groups = s.Groups
		}
		if s.Width > 0 {
			r.widthPerGroup = int64(s.Width)
		}
		outs := r.forward(b, x)
		return b.classifier(outs[3], classes, 0), nil
	case "vgg": // depth, batchnorm
		return vgg(b, x, s.Depth, s.Norm, classes), nil
	case "mobile": // method, width, scale, last_scale, same, linear (the stem and the ends are fixed)
		n := s.mobile()
		if n == nil {
			return graph.None, fmt.Errorf("no network of inverted residuals is called %q", s.Method)
		}
		return n.forward(b, x, classes, s.Dropout), nil
	case "mobilenet_v2": // width
		return mobilenetV2(b, x, s.Width, classes), nil
	case "efficientnet": // width, scale, dropout
		return efficientNet(b, x, s.Width, s.Scale, s.Dropout, classes), nil
	case "densenet": // depths, growth, widths (the stem)
		return densenet(b, x, s.Depths, s.Growth, s.Widths[0], classes), nil
	case "convnext": // depths, widths, drop, response_norm
		return convnext(b, x, s.Depths, s.Widths, s.Drop, s.ResponseNorm, classes), nil
	case "swin_v2": // widths, depths, heads, window, drop
		return swinV2(b, x, s.Widths[0], s.Depths, s.Heads, s.Window, s.Drop, classes), nil
	case "hrnet": // widths (one)
		return hrnetClassify(b, x, s.Widths[0], false, classes), nil
	case "mixer": // patch, widths, depth
		return mixer(b, x, s.Patch, s.Widths[0], s.Depth, classes), nil
	case "ghostnet": // width
		return ghostnet(b, x, s.Width, classes), nil
	case "repvgg": // method (the name's ending)
		r := repVGGs(s.Method)
		if r == nil {
			return graph.None, fmt.Errorf("no RepVGG is called %q", s.Method)
		}
		return r.forward(b, x, classes), nil
	case "vovnet": // method (the name)
		v := vovNets(s.Method)
		if v == nil {
			return graph.None, fmt.Errorf("no VoVNet is called %q", s.Method)
		}
		return v.forward(b, x, classes), nil
	case "nfnet": // depth (the number in its name), same (DeepMind's form)
		f := nfNet{scale: int64(s.Depth) + 1, paper: s.Same}
		return f.forward(b, x, classes), nil
	case "alexnet":
		return alexnet(b, x, classes), nil
	case "googlenet":
		return googlenet(b, x, classes), nil
	case "squeezenet": // same (version 1.0)
		return squeezenet(b, x, s.Same, classes), nil
	case "shufflenet": // width
		return shufflenet(b, x, s.Width, classes), nil
	case "inception_v3": // dropout
		return inceptionV3(b, x, s.Dropout, classes), nil
	case "xception":
		return xception(b, x, classes), nil
	case "regnet": // method (x or y), backbone (the number), same (torchvision's rounding)
		r := regnets(s.Method, s.Backbone)
		if r == nil {
			return graph.None, fmt.Errorf("no RegNet is called %s%s", s.Method, s.Backbone)
		}
		if s.Same {
			r.minRatio = 0.9
		}
		return r.forward(b, x, classes), nil
	case "csp": // method (the name)
		c := cspNets(s.Method)
		if c == nil {
			return graph.None, fmt.Errorf("no cross stage partial network is called %q", s.Method)
		}
		return c.forward(b, x, classes), nil
	case "vit": // see vit
		if len(s.Widths) != 1 || len(s.Heads) != 1 || s.Patch < 1 || s.Depth < 1 || s.Depth > 1024 {
			return graph.None, errors.New("an image transformer wants a patch, one width, heads and a depth")
		}
		return s.vit(classes).image(b, x), nil
	case "swin": // widths, depths, heads, window, drop
		return swin(b, x, s.Widths[0], s.Depths, s.Heads, s.Window, s.Drop, classes), nil
	}
	return graph.None, fmt.Errorf("builder %q is not known", s.Builder)
}
