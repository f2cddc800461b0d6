package vision

import (
	"regexp"
	"strings"
)

// timmTag is what timm's names end in for weights of another training, which
// change nothing in the network.
var timmTag = regexp.MustCompile(`(_(in21k|in22k|in22ft1k|in21ft1k|ns|ap|miil|fb|sam|dino|clip_laion2b|augreg|1k))+$`)

// hubTag is what names of the hub end in for another training.
var hubTag = regexp.MustCompile(`(_(1k|22k|22k_1k|pt22k|ft22k|finetuned|in21k))+$`)

// torchvisionNames are the names that differ from timm's for the same network.
var torchvisionNames = []struct {
	from *regexp.Regexp
	to   string
}{
	{regexp.MustCompile(`^(resnet)_(\d+)$`), "$1$2"},
	{regexp.MustCompile(`^regnet_([xy])_(\d{3})$`), "regnet${1}_$2"},
	{regexp.MustCompile(`^mobilenet_v3_(large|small)$`), "mobilenetv3_${1}_100"},
	{regexp.MustCompile(`^mobilenet_v([12])_1\.?0?_\d+$`), "mobilenetv${1}_100"},
	{regexp.MustCompile(`^efficientnet_v2_([sml])$`), "efficientnetv2_$1"},
	{regexp.MustCompile(`^mnasnet(\d)_(\d)$`), "mnasnet_${1}${2}0"},
	{regexp.MustCompile(`^vit_b_(16|32)$`), "vit_base_patch${1}_224"},
	{regexp.MustCompile(`^vit_l_(16|32)$`), "vit_large_patch${1}_224"},
	{regexp.MustCompile(`^vit_h_14$`), "vit_huge_patch14_224"},
}

// parseZoo reads a name of timm's or torchvision's collections of classification
// networks. Each family knows its own names.
func parseZoo(name string) *Spec {
	name = strings.ToLower(name)
	name = strings.TrimPrefix(strings.TrimPrefix(strings.TrimPrefix(name, "hf_hub:"), "hf-hub:"), "timm/")
	name, _, _ = strings.Cut(name, ".")
	name = strings.ReplaceAll(name, "-", "_") // the hub's way of writing them
	name = hubTag.ReplaceAllString(name, "")
	for _, r := range torchvisionNames {
		name = r.from.ReplaceAllString(name, r.to)
	}
	name = timmTag.ReplaceAllString(name, "")
	same := strings.HasPrefix(name, "tf_")
	name = strings.TrimPrefix(name, "tf_")
	for _, family := range []func(string, bool) *Spec{zooMobile, zooViT, zooResNet, zooRegNet, zooConvNeXt, zooCSP, zooPlain, zooSwin, zooSwinV2, zooHRNet, zooMixer, zooGhost, zooRepVGG, zooVoV, zooSegFormer, zooNFNet} {
		if s := family(name, same); s != nil {
			return s
		}
	}
	return nil
}

// percent is the width in a name: "100" is 1, "140" is 1.4.
func percent(text string) float64 {
	v := 0.0
	for _, c := range text {
		v = 10*v + float64(c-'0')
	}
	return v / 100
}
