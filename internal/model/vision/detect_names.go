package vision

import (
	"regexp"
	"strconv"
	"strings"
)

// detectorName is how mmdetection's configurations name a detector, and with
// its words in lower case how detectron2's do: the method, the backbone, and words.
var detectorName = regexp.MustCompile(`^(rpn|faster_rcnn|dynamic_rcnn|mask_rcnn|cascade_rcnn|cascade_mask_rcnn|retinanet|retinanet_ghm|fcos|atss)[_ ](?:center-normbbox-centeronreg-giou_)?` +
	`(r-?18|r-?34|r-?50|r_50|r-?101|r_101|x-?50[_-]32x4d|x-?101[_-]32x4d|x-?101[_-]64x4d|x-?101[_-]32x8d|x_101_32x8d|hrnetv2p[_-]w18|hrnetv2p[_-]w32|hrnetv2p[_-]w40|hrnetv2p[_-]w48|` +
	`regnetx-[\d.]+(?:gf|mf)|r2_101|res2net-101|s50|s101)((?:[_+-][a-z0-9.]+)*)$`)

// harmless are the words of a detector's name that leave the network as it is, or
// change it as parseDetector says. A name with another word is refused: it may be
// another network.
var harmless = regexp.MustCompile(`^(?:fpn|c4|dc5|pafpn|caffe|pytorch|coco|voc|voc0712|wider|face|person|bicycle|car|\d+(?:\.\d+)?[xe]|\d+|\d+x\d+|\d+xb\d+|lr\d+|ms|mstrain|poly|range|` +
	`gn|all|ws|head|contrib|fp16|amp|iou|giou|ciou|bounded|ghm|dconv|mdconv|dcn|dcnv2|c3|c5|group\d|instaboost|albu|ohem|tnr|rsb|pre|r4|r16|gcb|syncbn|backbone|center|normbbox|centeronreg|soft|nms)$`)

// gigaflops are the numbers in RegNets' names, by OpenMMLab's.
func gigaflops(text string) string {
	million := strings.HasSuffix(text, "mf")
	v, err := strconv.ParseFloat(strings.TrimRight(text, "gmf"), 64)
	if err != nil {
		return ""
	}
	n := int(v*10 + 0.5)
	if million {
		n = int(v/100 + 0.5)
	}
	s := strconv.Itoa(n)
	return strings.Repeat("0", max(0, 3-len(s))) + s
}

// objectClasses are those of the data set that a configuration's name or folder
// tells.
func objectClasses(text string) int64 {
	text = strings.ToLower(text)
	for _, d := range []struct {
		word    string
		classes int64
	}{{"pascalvoc", 20}, {"_voc", 20}, {"wider_face", 1}, {"person-bicycle-car", 3}, {"coco-person", 1}} {
		if strings.Contains(text, d.word) {
			return d.classes
		}
	}
	return 80
}

// backboneOf is the tag of a backbone by its words in a name.
func backboneOf(text string) string {
	switch {
	case strings.HasPrefix(text, "hrnetv2p"):
		return "hr" + text[len("hrnetv2p_w"):]
	case strings.HasPrefix(text, "regnetx-"):
		return "regnetx-" + gigaflops(text[len("regnetx-"):])
	case text == "r2_101", text == "res2net-101":
		return "r2-101"
	}
	text = strings.NewReplacer("r-", "r", "r_", "r", "x-", "x", "x_", "x").Replace(text[:2]) + text[2:]
	return strings.Replace(text, "-", "_", 1)
}

// parseDetector reads such a name, nil if it is of another form.
func parseDetector(folder, name string) *Spec {
	low := strings.ToLower(name)
	second := strings.Contains(name, "_R_") || strings.Contains(name, "_X_") // detectron2 writes R_50
	low = strings.NewReplacer("-rcnn", "_rcnn", "cascade-mask", "cascade_mask").Replace(low)
	m := detectorName.FindStringSubmatch(low)
	if m == nil {
		return nil
	}
	words := strings.FieldsFunc(m[3], func(r rune) bool { return strings.ContainsRune("_-+", r) })
	has := map[string]bool{}
	for _, word := range words {
		if !harmless.MatchString(word) {
			return nil
		}
		has[word] = true
	}
	for _, set := range []string{"lvis", "cityscapes", "openimages"} { // of other sizes, and with more objects than COCO
		if strings.Contains(strings.ToLower(folder)+low, set) {
			return nil
		}
	}
	s := &Spec{Builder: "detector", Classes: objectClasses(folder + " " + name), Crop: []int64{800, 1344}, Least: []int64{800, 1088}}
	switch m[1] {
	case "dynamic_rcnn":
		s.Method = "faster"
	case "cascade_mask_rcnn":
		s.Method = "cascade_mask"
	default:
		s.Method = strings.TrimSuffix(strings.TrimSuffix(m[1], "_rcnn"), "_ghm")
	}
	s.Backbone = backboneOf(m[2])
	s.Caffe = has["caffe"] || second
	s.Standard = has["gn"] && has["ws"]
	s.Group = has["gn"] && (has["all"] || s.Standard) || second && strings.HasSuffix(low, "_gn")
	s.Folded = second && !s.Group
	s.Sync = has["syncbn"]
	if has["gcb"] {
		s.Global = 16
		if has["r4"] {
			s.Global = 4
		}
	}
	for _, neck := range []string{"pafpn", "c4", "dc5"} {
		if has[neck] {
			s.Neck = neck
		}
	}
	one := s.Neck == "c4" || s.Neck == "dc5"
	switch {
	case one && (s.Method != "rpn" && s.Method != "faster" && s.Method != "mask" || s.Backbone[0] != 'r' && s.Backbone[0] != 'x'):
		return nil
	case second && s.Sync:
		return nil
	}
	s.FP16 = has["fp16"] || has["amp"]
	return s
}
