package vision

import (
	"bufio"
	"fmt"
	"os"
	"strings"
	"testing"

	"unoom/internal/model/graph"
)

// table calls f with the fields of each line of a test table.
func table(t *testing.T, name string, f func(line string)) {
	t.Helper()
	file, err := os.Open("testdata/" + name)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		if line := lines.Text(); line != "" && !strings.HasPrefix(line, "#") {
			f(line)
		}
	}
}

func TestNetworksHaveTheirParameters(t *testing.T) {
	compareParams(t, "segmentation_params.txt", 150)
	compareParams(t, "detection_params.txt", 20)
}

// compareParams builds every network of a table.
func compareParams(t *testing.T, file string, least int) {
	t.Helper()
	n := 0
	table(t, file, func(line string) {
		var name string
		var want int64
		if _, err := fmt.Sscan(line, &name, &want); err != nil {
			t.Fatal(line, err)
		}
		n++
		s := ParseName(name)
		if s == nil {
			t.Errorf("%s: the name is not understood", name)
			return
		}
		h, w := s.Size()
		g, err := s.Build(Input{1, h, w})
		if err != nil {
			t.Errorf("%s: %v", name, err)
			return
		}
		if got := g.Params(); got != want {
			t.Errorf("%s: %d parameters, want %d (%+d)", name, got, want, got-want)
		}
	})
	if n < least {
		t.Errorf("%s: only %d networks were compared", file, n)
	}
}

func TestNamesOfEarlierReleasesAreUnderstood(t *testing.T) {
	for name, want := range map[string]Spec{
		"deeplabv3_r101-d16-mg124_512x1024_40k_cityscapes": {Method: "deeplabv3", Backbone: "r101-d16-mg124", Classes: 19, Crop: []int64{512, 1024}},
		"fcn_d6_r50-d16_769x769_80k_cityscapes":            {Method: "fcn", Backbone: "r50-d16", Classes: 19, Dilation: 6, Crop: []int64{769, 769}},
		"fcn_unet_s5-d16_64x64_40k_drive":                  {Method: "fcn", Backbone: "unet", Classes: 2, Crop: []int64{64, 64}},
		"cgnet_680x680_60k_cityscapes":                     {Method: "cgnet", Backbone: "m3n21", Classes: 19, Crop: []int64{680, 680}},
		"deeplabv3_r101-d8_480x480_40k_pascal_context":     {Method: "deeplabv3", Backbone: "r101-d8", Classes: 60, Crop: []int64{480, 480}},
		"pspnet_r101-d8_512x1024_80k_fp16_cityscapes":      {Method: "pspnet", Backbone: "r101-d8", Classes: 19, FP16: true, Crop: []int64{512, 1024}},
		"ocrnet_hr48_512x512_80k_ade20k":                   {Method: "ocrnet", Backbone: "hr48", Classes: 150, Crop: []int64{512, 512}},
	} {
		got := ParseName(name)
		want.Builder = "segmentation"
		if got == nil || fmt.Sprint(*got) != fmt.Sprint(want) {
			t.Errorf("%s: %+v, want %+v", name, got, want)
		}
	}
	for _, name := range []string{"", "llama-2-7b", "fcn", "fcn_", "fcn_r50-d8_512x1024", "resnet51", strings.Repeat("fcn_", 100)} {
		if s := ParseName(name); s != nil {
			t.Errorf("%q was taken for %+v", name, s)
		}
	}
}

func TestSpecsThatCannotBeAreRefused(t *testing.T) {
	for _, s := range []Spec{
		{Builder: "swin"}, {Builder: "swin_v2", Widths: []int64{96}, Heads: []int64{3}, Depths: []int{2}}, {Builder: "mixer", Widths: []int64{8}}, {Builder: "densenet"},
		{Builder: "convnext", Depths: []int{1, 2}, Widths: []int64{8}}, {Builder: "vit"}, {Builder: "hrnet"}, {Builder: "segformer"}, {Builder: "nfnet", Depth: -1},
		{Builder: "swin", Widths: []int64{96}, Heads: []int64{5}, Depths: []int{2}, Window: 7}, {Builder: "mobile", Method: "x"}, {Builder: "nothing"}, {Builder: "resnet", Depth: 51},
		{Builder: "detector", Method: "faster"}, {Builder: "detector", Method: "faster", Backbone: "q9"}, {Builder: "detector", Method: "faster", Backbone: "hrx"}, {Builder: "resnet", Depth: 50, Widths: []int64{-1}},
	} {
		if _, err := s.Build(Input{1, 64, 64}); err == nil {
			t.Errorf("%+v was built", s)
		}
	}
}

// Both orders of OpenMMLab's words name the same network.
func TestNamesOfSegmentationInBothOrders(t *testing.T) {
	for older, newer := range map[string]string{
		"upernet_swin_tiny_patch4_window7_512x512_160k_ade20k_pretrain_224x224_1K": "swin-tiny-patch4-window7-in1k-pre_upernet_8xb2-160k_ade20k-512x512",
		"upernet_convnext_base_fp16_640x640_160k_ade20k":                           "convnext-base_upernet_8xb2-amp-160k_ade20k-640x640",
		"upernet_vit-b16_ln_mln_512x512_160k_ade20k":                               "vit_vit-b16-ln_mln_upernet_8xb2-160k_ade20k-512x512",
		"upernet_beit-base_8x2_640x640_160k_ade20k":                                "beit-base_upernet_8xb2-160k_ade20k-640x640",
		"lraspp_m-v3s-d8_512x1024_320k_cityscapes":                                 "mobilenet-v3-d8-s_lraspp_4xb4-320k_cityscapes-512x1024",
		"setr_mla_512x512_160k_b8_ade20k":                                          "setr_vit-l-mla_8xb1-160k_ade20k-512x512",
		"fcn_d6_r50-d16_512x1024_40k_cityscapes":                                   "fcn-d6_r50-d16_4xb2-40k_cityscapes-512x1024",
		"fastfcn_r50-d32_jpu_aspp_512x1024_80k_cityscapes":                         "fastfcn_r50-d32_jpu_aspp_4xb2-80k_cityscapes-512x1024",
	} {
		a, b := ParseName(older), ParseName(newer)
		if a == nil || b == nil {
			t.Errorf("%s: %v, %s: %v", older, a, newer, b)
			continue
		}
		ga, err := a.Build(Input{1, 256, 256})
		gb, err2 := b.Build(Input{1, 256, 256})
		if err != nil || err2 != nil || ga.Params() != gb.Params() || ga.Saved(4, false) != gb.Saved(4, false) || a.FP16 != b.FP16 {
			t.Errorf("%s and %s differ: %v, %v", older, newer, err, err2)
		}
	}
}

func FuzzParseName(f *testing.F) {
	for _, s := range []string{"deeplabv3_r101-d16-mg124_512x1024_40k_cityscapes", "fcn_unet_s5-d16_64x64_40k_drive", "ocrnet_hr48_512x512_80k_ade20k", "timm/swinv2_tiny_window8_256", "COCO-Detection/faster_rcnn_R_50_C4_1x", "cascade-mask-rcnn_x101-64x4d_fpn_1x_coco"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, name string) {
		s := ParseName(name)
		if s == nil {
			return
		}
		if g, err := s.Build(Input{1, 64, 64}); err == nil && g.Params() <= 0 {
			t.Fatalf("%s: %d parameters", name, g.Params())
		}
	})
}

func TestSavedActivationsOfSegmentationNetworks(t *testing.T) {
	table(t, "segmentation_saved.txt", func(line string) {
		var name string
		var h, w, want int64
		if _, err := fmt.Sscan(line, &name, &h, &w, &want); err != nil {
			t.Fatal(line, err)
		}
		s := ParseName(name)
		if s == nil {
			t.Errorf("%s: the name is not understood", name)
			return
		}
		g, err := s.Build(Input{2, h, w})
		if err != nil {
			t.Errorf("%s: %v", name, err)
			return
		}
		// Masks of dropout were floats there. A few bytes are small tensors of
		// divisors and counts.
		got := g.Saved(4, false)
		for i := range g.Nodes {
			if n := &g.Nodes[i]; n.Op == graph.Dropout {
				got += 3 * g.Tensors[n.Out[0]].Elements()
			}
		}
		if got < want-16384 || got > want+16384 {
			t.Errorf("%s: %d bytes are saved, want %d (%+.3f %%)", name, got, want, 100*(float64(got)/float64(want)-1))
		}
	})
}
