package vision

import (
	"regexp"
	"strings"
)

// timmTag is what timm's names end in for weights of another training, which
// change nothing in the network.
var timmTag = regexp.MustCompile(`(_(in21k|in22k|in22ft1k|in21ft1k|ns|ap|miil|fb|sam|dino|clip_laion2b|augreg|1k))+$`)

// parseZoo reads a name of timm's or torchvision's collections of classification
// networks. Each family knows its own names.
func parseZoo(name string) *Spec {
	name = strings.ToLower(name)
	name = strings.TrimPrefix(strings.TrimPrefix(strings.TrimPrefix(name, "hf_hub:"), "hf-hub:"), "timm/")
	name, _, _ = strings.Cut(name, ".")
	name = timmTag.ReplaceAllString(name, "")
	same := strings.HasPrefix(name, "tf_")
	name = strings.TrimPrefix(name, "tf_")
	for _, family := range []func(string, bool) *Spec{zooMobile, zooViT, zooResNet, zooRegNet, zooConvNeXt, zooCSP, zooPlain, zooSwin, zooSwinV2, zooHRNet, zooMixer, zooGhost, zooRepVGG, zooVoV} {
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
