package vision

import (
	"regexp"
	"strings"
)

// detectorName is how mmdetection's configurations name a detector, and with
// its words in lower case how detectron2's do.
var detectorName = regexp.MustCompile(`^(rpn|faster_rcnn|mask_rcnn|cascade_rcnn|cascade_mask_rcnn|retinanet|retinanet_ghm|fcos|atss)_(?:center-normbbox-centeronreg-giou_)?` +
	`(r50|r_50|r101|r_101|x101_32x4d|x101_64x4d|x_101_32x8d|hrnetv2p_w18|hrnetv2p_w32|hrnetv2p_w40|hrnetv2p_w48)(_caffe)?(?:_(fpn|c4|dc5))?((?:[_-][a-z0-9.-]+)*)$`)

// refused are words of a detector's name that change the network in ways that
// are not built.
var refused = []string{"dcn", "dpool", "mdpool", "pafpn", "carafe", "groie", "attention", "scratch", "sac"}

// objectClasses are those of the data set that a configuration's name or folder
// tells.
func objectClasses(text string) int64 {
	text = strings.ToLower(text)
	for _, d := range []struct {
		word    string
		classes int64
	}{{"pascalvoc", 20}, {"_voc", 20}, {"wider_face", 1}} {
		if strings.Contains(text, d.word) {
			return d.classes
		}
	}
	return 80
}

// parseDetector reads such a name, nil if it is of another form.
func parseDetector(folder, name string) *Spec {
	low := strings.ToLower(name)
	second := strings.Contains(name, "_R_") || strings.Contains(name, "_X_") // detectron2 writes R_50
	low = strings.NewReplacer("-rcnn", "_rcnn", "cascade-mask", "cascade_mask", "x101-32x4d", "x101_32x4d", "x101-64x4d", "x101_64x4d", "r50-caffe", "r50_caffe", "r101-caffe", "r101_caffe",
		"hrnetv2p-w", "hrnetv2p_w").Replace(low)
	m := detectorName.FindStringSubmatch(low)
	if m == nil {
		return nil
	}
	for _, word := range refused {
		if strings.Contains(m[5], word) {
			return nil
		}
	}
	for _, set := range []string{"lvis", "cityscapes", "openimages"} { // of other sizes, and with more objects than COCO
		if strings.Contains(strings.ToLower(folder)+low, set) {
			return nil
		}
	}
	s := &Spec{Builder: "detector", Classes: objectClasses(folder + " " + name), Crop: []int64{800, 1344}, Least: []int64{800, 1088}}
	s.Method = strings.TrimSuffix(strings.TrimSuffix(m[1], "_rcnn"), "_ghm")
	s.Method = strings.TrimSuffix(strings.Replace(s.Method, "cascade_mask_rcnn", "cascade_mask", 1), "_rcnn")
	backbone := strings.Replace(strings.Replace(m[2], "r_", "r", 1), "x_", "x", 1)
	s.Backbone = strings.Replace(backbone, "hrnetv2p_w", "hr", 1)
	s.Caffe = m[3] != "" || second
	s.Group = strings.Contains(m[5], "gn-all") || second && strings.HasSuffix(m[5], "_gn")
	s.Folded = second && !s.Group
	if m[4] != "fpn" {
		s.Neck = m[4]
	}
	switch s.Method {
	case "rpn", "faster", "mask":
	default:
		if s.Neck != "" {
			return nil
		}
	}
	if strings.Contains(m[5], "syncbn") || s.Neck != "" && s.Backbone[0] == 'h' {
		return nil // norms that see the whole batch; no last stage
	}
	s.FP16 = strings.Contains(m[5], "fp16") || strings.Contains(m[5], "amp")
	return s
}
