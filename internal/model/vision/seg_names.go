package vision

import (
	"regexp"
	"strings"
)

// segForms are the names of segmentation configurations that do not begin with a
// method and a backbone, in the older and the newer order of OpenMMLab's words.
var segForms = []struct {
	from             *regexp.Regexp
	method, backbone string
}{
	{regexp.MustCompile(`^swin-(tiny|small|base|large)-(patch4-window\d+)(?:-\w+)*_upernet_`), "upernet", "swin-$1-$2"},
	{regexp.MustCompile(`^upernet_swin_(tiny|small|base|large)_(patch4_window\d+)_`), "upernet", "swin-$1-$2"},
	{regexp.MustCompile(`^convnext-(tiny|small|base|large|xlarge)_upernet_`), "upernet", "convnext-$1"},
	{regexp.MustCompile(`^upernet_convnext_(tiny|small|base|large|xlarge)_`), "upernet", "convnext-$1"},
	{regexp.MustCompile(`^(beit|mae)-(base|large)_upernet_`), "upernet", "$1-$2"},
	{regexp.MustCompile(`^upernet_(beit|mae)-(base|large)_`), "upernet", "$1-$2"},
	{regexp.MustCompile(`^vit_vit-b16(-ln)?(?:_(mln))?_upernet_`), "upernet", "vit-b16$1-$2"},
	{regexp.MustCompile(`^vit_deit-([sb])16(-ln)?(?:[_-](mln))?_upernet_`), "upernet", "deit-${1}16$2-$3"},
	{regexp.MustCompile(`^upernet_(vit|deit)-([sb])16(?:_(ln))?(?:_(mln))?_`), "upernet", "$1-${2}16-$3-$4"},
	{regexp.MustCompile(`^twins_(pcpvt|svt)-([sbl])_fpn_`), "fpn", "$1-$2"},
	{regexp.MustCompile(`^twins_(pcpvt|svt)-([sbl])_uperhead_`), "upernet", "$1-$2"},
	{regexp.MustCompile(`^segformer_mit-(b[0-5])_`), "segformer", "mit-$1"},
	{regexp.MustCompile(`^fpn_poolformer_([sm]\d\d)_`), "fpn", "poolformer-$1"},
	{regexp.MustCompile(`^segnext_mscan-([tsbl])_`), "ham", "mscan-$1"},
	{regexp.MustCompile(`^setr_vit-l(?:arge)?[_-](naive|pup|mla)_`), "setr-$1", "setr"},
	{regexp.MustCompile(`^setr_(naive|pup|mla)_`), "setr-$1", "setr"},
	{regexp.MustCompile(`^segmenter_vit-([tsbl])_(mask|fcn|linear)_`), "segmenter-$2", "segmenter-$1"},
	{regexp.MustCompile(`^dpt_vit-b16_`), "dpt", "dpt"},
	{regexp.MustCompile(`^bisenetv1_r(18|50|101)-d32[_-]`), "bisenetv1", "r$1"},
	{regexp.MustCompile(`^bisenetv2_fcn_`), "bisenetv2", "bisenetv2"},
	{regexp.MustCompile(`^stdc([12])(?:-in1k-pre|_in1k-pre)?_`), "stdc", "stdc$1"},
	{regexp.MustCompile(`^icnet_r(18|50|101)-d8`), "icnet", "r$1"},
	{regexp.MustCompile(`^erfnet_fcn_`), "erfnet", "erfnet"},
	{regexp.MustCompile(`^ddrnet_23(-slim)?[_-]`), "ddrnet", "ddr23$1"},
	{regexp.MustCompile(`^pidnet-([sml])_`), "pidnet", "pid-$1"},
	{regexp.MustCompile(`^knet-?_?s3_(r50|r101)-d8_(fcn|pspnet|deeplabv3)_`), "knet-$2", "$1-d8"},
	{regexp.MustCompile(`^knet-?_?s3_(r50|r101)-d8_(upernet)_`), "knet-$2", "$1"},
	{regexp.MustCompile(`^knet-?_?s3_(?:upernet_)?swin-([tl])_`), "knet-upernet", "swin-$1"},
	{regexp.MustCompile(`^fcn-d6_(r\d+b?-d16)_`), "fcn", "$1-d6"},
	{regexp.MustCompile(`^(?:fastfcn)_(r50)-d32_jpu_(aspp|psp|enc)_`), "fastfcn-$2", "$1-d32"},
	{regexp.MustCompile(`^mobilenet-v3-d8(?:-scratch)?(-s)?_lraspp_`), "lraspp", "m-v3-d8$1"},
	{regexp.MustCompile(`^lraspp_m-v3(s)?-d8_`), "lraspp", "m-v3-d8$1"},
}

// segForm reads such a name: the method and the backbone's tag, "" where it is of
// no such form.
func segForm(name string) (method, backbone string) {
	for _, f := range segForms {
		if m := f.from.FindStringSubmatchIndex(name); m != nil {
			method = string(f.from.ExpandString(nil, f.method, name, m))
			backbone = string(f.from.ExpandString(nil, f.backbone, name, m))
			return method, strings.TrimRight(strings.ReplaceAll(backbone, "--", "-"), "-")
		}
	}
	return "", ""
}
