package vision

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// datasets gives the classes of the data sets that OpenMMLab's segmentation
// configurations name.
func datasets() map[string]int64 {
	return map[string]int64{
		"cityscapes": 19, "ade20k": 150, "voc12aug": 21, "voc12": 21, "pascal_context": 60, "pascal-context": 60, "pascal_context_59": 59,
		"pascal-context-59": 59, "coco-stuff10k": 171, "coco-stuff164k": 171, "drive": 2, "stare": 2, "chase_db1": 2, "chase-db1": 2, "hrf": 2,
		"loveda": 7, "potsdam": 6, "vaihingen": 6, "isaid": 16, "mapillary_v1": 66, "mapillary_v1_65": 65, "mapillary_v2": 124, "mapillay_v1_65": 65, "refuge": 2, "bdd100k": 19, "levir": 2,
	}
}

// cropSize is the crop in a configuration's name: 512x1024.
var cropSize = regexp.MustCompile(`(?:^|[_-])(\d{2,4})x(\d{2,4})(?:$|[_-])`)

// segMethods are the methods that ParseName knows, by the name that
// configurations give them.
func segMethods() []string {
	return []string{"ann", "apcnet", "ccnet", "cgnet", "danet", "deeplabv3", "deeplabv3plus", "dmnet", "dnl", "emanet", "encnet", "fastfcn",
		"fast_scnn", "fcn", "fpn", "gcnet", "isanet", "lraspp", "nonlocal", "ocrnet", "pointrend", "psanet", "pspnet", "upernet"}
}

// parseSegmentation reads a name such as
// "deeplabv3_r101-d8_512x1024_40k_cityscapes" or, in the newer order,
// "fcn_r50-d8_4xb2-40k_cityscapes-512x1024". It returns nil where the name is
// of another form.
func parseSegmentation(name string) *Spec {
	low := strings.TrimPrefix(strings.ToLower(name), "resnest_")
	first, rest, _ := strings.Cut(low, "_")
	for _, two := range []string{"unet_s5-d16", "fast_scnn"} { // names with an underscore of their own
		if strings.HasPrefix(low, two+"_") {
			first, rest = two, low[len(two)+1:]
		}
	}
	second, _, _ := strings.Cut(rest, "_")
	method, dilation, _ := strings.Cut(first, "-d")
	s := &Spec{Builder: "segmentation", Method: method, Backbone: second}
	known, tag := segForm(low)
	switch {
	case known != "":
		s.Method, s.Backbone, dilation = known, tag, ""
	case slices.Contains(segMethods(), method) && (dilation == "" || dilation == "6"):
	case slices.Contains(segMethods(), second): // the backbone stands first
		s.Method, s.Backbone, dilation = second, first, ""
	default:
		return nil
	}
	if dilation == "6" || s.Backbone == "d6" || strings.HasSuffix(s.Backbone, "-d6") {
		s.Dilation = 6
		s.Backbone = strings.TrimSuffix(s.Backbone, "-d6")
	}
	if s.Backbone == "d6" { // fcn_d6_r50-d16_…
		s.Backbone, _, _ = strings.Cut(strings.TrimPrefix(rest, "d6_"), "_")
	}
	s.Backbone = strings.Replace(s.Backbone, "mobilenet-v", "m-v", 1)
	if s.Method == "fastfcn" {
		s.Method = "fastfcn-psp"
		for _, top := range []string{"aspp", "enc"} {
			if strings.Contains(rest, "_jpu_"+top+"_") {
				s.Method = "fastfcn-" + top
			}
		}
	}
	best := ""
	for d, classes := range datasets() {
		for _, sep := range []string{"_" + d, "-" + d} {
			if i := strings.LastIndex(low, sep); i >= 0 && len(d) > len(best) && (i+len(sep) == len(low) || !('a' <= low[i+len(sep)] && low[i+len(sep)] <= 'z')) {
				best, s.Classes = d, classes
			}
		}
	}
	if best == "" {
		return nil
	}
	if m := cropSize.FindStringSubmatch(low); m != nil {
		h, _ := strconv.ParseInt(m[1], 10, 64)
		w, _ := strconv.ParseInt(m[2], 10, 64)
		s.Crop = []int64{h, w}
	}
	s.FP16 = strings.Contains(low, "fp16") || strings.Contains(low, "-amp-") || strings.Contains(low, "_amp-")
	switch s.Method {
	case "cgnet":
		s.Backbone = "m3n21"
	case "fast_scnn":
		s.Backbone = "fastscnn"
	}
	return s
}

// ParseName reads the name of a network that a naming convention describes: an
// OpenMMLab configuration, or a network of timm. It returns nil where the name
// follows none.
func ParseName(name string) *Spec {
	name = strings.TrimSuffix(strings.TrimSpace(name), ".py")
	if len(name) > 200 {
		return nil
	}
	folder := ""
	if i := strings.LastIndexByte(name, '/'); i >= 0 {
		folder, name = name[:i], name[i+1:]
	}
	if s := parseSegmentation(name); s != nil {
		return s
	}
	if s := parseYOLO3(name); s != nil {
		return s
	}
	if s := parseYOLO(name); s != nil {
		return s
	}
	if s := parseDetector(folder, name); s != nil {
		return s
	}
	return parseZoo(name)
}

// Size returns the size of input the network is published for.
func (s *Spec) Size() (height, width int64) {
	switch {
	case len(s.Crop) == 2:
		return s.Crop[0], s.Crop[1]
	case s.Image > 0:
		return s.Image, s.Image
	}
	return 224, 224
}

// check finds settings that no network has, before they are used.
func (s *Spec) check(in Input) error {
	if in.Batch < 1 || in.Height < 1 || in.Width < 1 || in.Batch > 1<<20 || in.Height > 1<<16 || in.Width > 1<<16 {
		return fmt.Errorf("%d images of %d×%d are not an input", in.Batch, in.Height, in.Width)
	}
	if s.Classes < 0 || s.Classes > 1<<24 {
		return fmt.Errorf("%d classes are not a number of classes", s.Classes)
	}
	for _, w := range s.Widths {
		if w < 1 || w > 1<<16 {
			return fmt.Errorf("%d is not a width a network can have", w)
		}
	}
	switch s.Builder {
	case "densenet", "hrnet", "mixer", "swin", "swin_v2":
		if len(s.Widths) != 1 {
			return fmt.Errorf("%s wants one width, %d are given", s.Builder, len(s.Widths))
		}
	case "convnext":
		if len(s.Widths) != len(s.Depths) || len(s.Widths) == 0 {
			return fmt.Errorf("convnext wants as many widths as depths, %d and %d are given", len(s.Widths), len(s.Depths))
		}
	}
	switch s.Builder {
	case "swin", "swin_v2":
		if len(s.Heads) != len(s.Depths) || len(s.Heads) == 0 || s.Window < 1 {
			return fmt.Errorf("%s wants a window and as many numbers of heads as depths, %d and %d are given", s.Builder, len(s.Heads), len(s.Depths))
		}
		for i, h := range s.Heads {
			if h < 1 || s.Widths[0]<<min(i, 16)%h != 0 {
				return fmt.Errorf("%d heads do not divide the width of stage %d", h, i+1)
			}
		}
	case "mixer":
		if s.Patch < 1 || s.Depth < 1 || s.Depth > 1<<10 {
			return fmt.Errorf("a mixer wants a patch and a depth")
		}
	case "nfnet":
		if s.Depth < 0 || s.Depth > 16 {
			return fmt.Errorf("no NFNet has the number %d", s.Depth)
		}
	}
	return nil
}
