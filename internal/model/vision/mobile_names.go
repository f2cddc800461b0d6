package vision

import (
	"regexp"
	"strconv"
)

// compound gives width, depth and image size of the EfficientNets by number.
//
// Source: Tan, Le: EfficientNet, and its repository's efficientnet_builder.py.
func compound(number string) (width, depth float64, image int64) {
	switch number {
	case "0":
		return 1, 1, 224
	case "1":
		return 1, 1.1, 240
	case "2":
		return 1.1, 1.2, 260
	case "3":
		return 1.2, 1.4, 300
	case "4":
		return 1.4, 1.8, 380
	case "5":
		return 1.6, 2.2, 456
	case "6":
		return 1.8, 2.6, 528
	case "7":
		return 2, 3.1, 600
	case "8":
		return 2.2, 3.6, 672
	case "l2":
		return 4.3, 5.3, 800
	}
	return 0, 0, 0
}

var (
	efficientName = regexp.MustCompile(`^efficientnet_b(\d)$|^efficientnet_(l2)$`)
	liteName      = regexp.MustCompile(`^efficientnet_lite([0-4])$`)
	edgeName      = regexp.MustCompile(`^efficientnet_e([sml])$`)
	secondName    = regexp.MustCompile(`^efficientnetv2_(?:b([0-3])|(s|m|l|xl)|rw_(t|s|m))$`)
	mobileName    = regexp.MustCompile(`^(mobilenetv1|mobilenetv2|mobilenetv3_large|mobilenetv3_small|mnasnet|semnasnet|spnasnet|fbnetc|lcnet)_(\d{3})(d)?$`)
	tinyName      = regexp.MustCompile(`^tinynet_([a-e])$`)
)

// zooMobile reads the names of inverted residual networks in timm.
func zooMobile(name string, same bool) *Spec {
	s := &Spec{Builder: "mobile", Same: same, Image: 224}
	if name == "mobilenetv3_rw" {
		s.Method = name
		return s
	}
	if m := efficientName.FindStringSubmatch(name); m != nil {
		s.Method = "efficientnet"
		s.Width, s.Scale, s.Image = compound(m[1] + m[2])
		if s.Width == 0 {
			return nil
		}
		return s
	}
	if m := liteName.FindStringSubmatch(name); m != nil {
		s.Method = "efficientnet_lite"
		s.Width, s.Scale, _ = compound(m[1])
		s.Image = map[string]int64{"0": 224, "1": 240, "2": 260, "3": 280, "4": 300}[m[1]]
		return s
	}
	if m := edgeName.FindStringSubmatch(name); m != nil {
		s.Method = "efficientnet_edge"
		switch m[1] {
		case "m":
			s.Scale, s.Image = 1.1, 240
		case "l":
			s.Width, s.Scale, s.Image = 1.2, 1.4, 300
		}
		return s
	}
	if m := secondName.FindStringSubmatch(name); m != nil {
		switch {
		case m[1] != "":
			s.Method, s.Same = "efficientnetv2_b", same
			s.Width, s.Scale, _ = compound(m[1])
			s.Image = map[string]int64{"0": 192, "1": 192, "2": 208, "3": 240}[m[1]]
		case m[2] != "":
			s.Method = "efficientnetv2_" + m[2]
			s.Image = map[string]int64{"s": 288, "m": 320, "l": 384, "xl": 384}[m[2]]
		case m[3] == "t":
			s.Method, s.Width, s.Scale = "efficientnetv2_s", 0.8, 0.9
		case m[3] == "s":
			s.Method, s.Image = "efficientnetv2_rw", 288
		default:
			s.Method, s.Width, s.Scale, s.LastScale, s.Image = "efficientnetv2_rw", 1.2, 1.2, 1.6, 320
		}
		return s
	}
	if m := tinyName.FindStringSubmatch(name); m != nil {
		s.Method = "tinynet"
		t := map[string][3]float64{"a": {1, 1.2, 192}, "b": {0.75, 1.1, 188}, "c": {0.54, 0.85, 184}, "d": {0.54, 0.695, 152}, "e": {0.51, 0.6, 106}}[m[1]]
		s.Width, s.Scale, s.Image = t[0], t[1], int64(t[2])
		return s
	}
	if m := mobileName.FindStringSubmatch(name); m != nil {
		s.Method, s.Width = m[1], percent(m[2])
		if m[3] == "d" { // deeper
			s.Linear = true
			switch m[2] {
			case "110":
				s.Scale = 1.2
			case "120":
				s.Scale = 1.4
			default:
				return nil
			}
		}
		if _, err := strconv.Atoi(m[2]); err != nil || s.Width <= 0 || s.Width > 4 {
			return nil
		}
		return s
	}
	return nil
}
