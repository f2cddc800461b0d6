package vision

import (
	"strings"
	"testing"
)

// The counts are torchvision's, with 90 classes; its heads have a box and a mask
// for the background too, by 4100 and 257 parameters.
func TestDetectorsHaveTheirParameters(t *testing.T) {
	for method, want := range map[string]int64{"faster": 41755286 - 4100, "mask": 44401393 - 4100 - 257} {
		s := Spec{Builder: "detector", Method: method, Backbone: "r50", Folded: true, Classes: 90}
		g, err := s.Build(Input{1, 320, 320})
		if err != nil {
			t.Errorf("%s: %v", method, err)
			continue
		}
		if got := g.Params(); got != want {
			t.Errorf("%s: %d parameters, want %d (%+d)", method, got, want, got-want)
		}
	}
}

func TestNamesOfYOLO3(t *testing.T) {
	for name, size := range map[string]int64{"yolov3_d53_320_273e_coco": 320, "yolov3_d53_mstrain-608_273e_coco": 608, "yolov3_d53_8xb8-320-273e_coco": 320, "yolov3_d53_8xb8-amp-ms-608-273e_coco": 608} {
		s := ParseName(name)
		if s == nil || s.Builder != "yolo3" || s.Image != size || s.FP16 != strings.Contains(name, "amp") {
			t.Errorf("%s: %+v", name, s)
		}
	}
	if s := ParseName("yolov3_mobilenetv2_8xb24-320-300e_coco"); s != nil {
		t.Errorf("another backbone was taken for %+v", s)
	}
}

func TestDetectorNames(t *testing.T) {
	for name, want := range map[string]Spec{
		"faster_rcnn_r50_fpn_1x_coco":                   {Method: "faster", Backbone: "r50"},
		"mask-rcnn_r50-caffe_fpn_ms-poly-3x_coco":       {Method: "mask", Backbone: "r50", Caffe: true},
		"cascade_mask_rcnn_x101_64x4d_fpn_20e_coco":     {Method: "cascade_mask", Backbone: "x101_64x4d"},
		"cascade-rcnn_hrnetv2p-w32-20e_coco":            {Method: "cascade", Backbone: "hr32"},
		"retinanet_ghm_r101_fpn_1x_coco":                {Method: "retinanet", Backbone: "r101"},
		"fcos_r50_caffe_fpn_gn-head_1x_coco":            {Method: "fcos", Backbone: "r50", Caffe: true},
		"faster_rcnn R-50-FPN":                          {Method: "faster", Backbone: "r50"},
		"retinanet_regnetx-800MF_fpn_1x_coco":           {Method: "retinanet", Backbone: "regnetx-008"},
		"mask_rcnn_r50_fpn_gn-all_2x_coco":              {Method: "mask", Backbone: "r50", Group: true},
		"COCO-Detection/faster_rcnn_X_101_32x8d_FPN_3x": {Method: "faster", Backbone: "x101_32x8d", Caffe: true, Folded: true},
	} {
		got := ParseName(name)
		if got == nil {
			t.Errorf("%s is not understood", name)
			continue
		}
		if got.Method != want.Method || got.Backbone != want.Backbone || got.Caffe != want.Caffe || got.Folded != want.Folded || got.Group != want.Group {
			t.Errorf("%s: %+v, want %+v", name, *got, want)
		}
	}
	for _, name := range []string{"faster_rcnn_r50_fpn_dpool_1x_coco", "LVISv0.5-InstanceSegmentation/mask_rcnn_R_50_FPN_1x", "retinanet_r50_nasfpn_crop640_50e_coco", "atss_r50_fpn_dyhead_1x_coco",
		"faster_rcnn_r50_fpg_crop640_50e_coco", "cascade_rcnn_r50_rfp_1x_coco", "faster-rcnn_r50-attn1111_fpn_1x_coco"} {
		if s := ParseName(name); s != nil {
			t.Errorf("%s was taken for %+v", name, s)
		}
	}
}
