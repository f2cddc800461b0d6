package memory

import (
	"math"
	"testing"

	"unoom/internal/model"
	"unoom/internal/model/vision"
	"unoom/internal/workload"
)

// segmentation is a run of mmsegmentation's model zoo: four V100s, SGD with
// momentum, torch of 2020.
func segmentation(t *testing.T, config string, batch, height, width int64) *workload.Workload {
	t.Helper()
	spec := vision.ParseName(config)
	if spec == nil {
		t.Fatalf("%s is not understood", config)
	}
	m, err := model.FromVision(config, *spec)
	if err != nil {
		t.Fatal(err)
	}
	return &workload.Workload{Model: m, Framework: workload.OpenMMLab, Versions: map[string]string{"torch": "1.5"}, Method: workload.Full, Precision: workload.FP32,
		MicroBatch: batch, Image: [2]int64{height, width}, Optimizer: workload.Optimizer{Name: "sgd-momentum"}, Parallel: workload.Parallel{World: 4, Data: 4}}
}

// playImages plays a run with the choices of the catalogue.
func playImages(t *testing.T, w *workload.Workload) (*played, error) {
	t.Helper()
	e, err := New()
	if err != nil {
		t.Fatal(err)
	}
	lib, err := e.libraryOf(w)
	if err != nil {
		t.Fatal(err)
	}
	return play(w, lib, 0)
}

// The figures are those of mmsegmentation 0.11's pages, "Mem (GB)", which fit
// GiB rounded to one decimal.
func TestPublishedPeaksOfSegmentation(t *testing.T) {
	for _, c := range []struct {
		config        string
		batch         int64
		height, width int64
		want          float64
	}{
		{"fcn_r50-d8_512x1024_40k_cityscapes", 2, 512, 1024, 5.7},
		{"fcn_r101-d8_512x512_80k_ade20k", 4, 512, 512, 12.0},
		{"danet_r50-d8_769x769_40k_cityscapes", 2, 769, 769, 8.8},
		{"encnet_r101-d8_512x1024_40k_cityscapes", 2, 512, 1024, 12.1},
		{"ccnet_r101-d8_512x512_80k_ade20k", 4, 512, 512, 12.2},
	} {
		p, err := playImages(t, segmentation(t, c.config, c.batch, c.height, c.width))
		if err != nil {
			t.Errorf("%s: %v", c.config, err)
			continue
		}
		got := float64(p.peak.allocated) / (1 << 30)
		if math.Abs(got/c.want-1) > 0.012 {
			t.Errorf("%s: %.3f GiB, published are %.1f (%+.1f %%)", c.config, got, c.want, 100*(got/c.want-1))
		}
	}
}

func TestImagesLeaveNothingBehind(t *testing.T) {
	w := segmentation(t, "fcn_r18-d8_512x1024_80k_cityscapes", 1, 64, 64)
	p, err := playImages(t, w)
	if err != nil {
		t.Fatal(err)
	}
	if p.ends[0] != p.ends[1] {
		t.Errorf("%d bytes are allocated after the first iteration, %d after the second", p.ends[0], p.ends[1])
	}
	// Weights, gradients (which zero_grad keeps), momentum and DDP's buckets are
	// four times the parameters; buffers and rounding are little beside them.
	if got, want := float64(p.ends[1]), 16*float64(w.Model.Params()); got < want || got > 1.02*want {
		t.Errorf("%.0f bytes are left, 16 for each parameter are %.0f", got, want)
	}
}

// The figures are those of mmdetection 2.11's and detectron2's pages, MiB divided
// by 1000 and rounded to one decimal; the images are the largest of COCO's.
func TestPublishedPeaksOfDetection(t *testing.T) {
	for config, published := range map[string]float64{
		"faster_rcnn_r50_fpn_1x_coco": 4.0, "cascade_mask_rcnn_x101_64x4d_fpn_1x_coco": 12.2, "retinanet_x101_64x4d_fpn_1x_coco": 10.0, "atss_r50_fpn_1x_coco": 3.7,
		"mask_rcnn_r101_fpn_gn-all_2x_coco": 9.9, "cascade_rcnn_hrnetv2p_w32_20e_coco": 9.4, "COCO-Detection/faster_rcnn_R_101_C4_3x": 5.9,
		"COCO-InstanceSegmentation/mask_rcnn_R_101_DC5_3x": 7.6,
	} {
		w := segmentation(t, config, 2, 800, 1344)
		p, err := playImages(t, w)
		if err != nil {
			t.Errorf("%s: %v", config, err)
			continue
		}
		got, want := float64(p.peak.allocated)/(1<<20), published*1000
		if math.Abs(got/want-1) > 0.035 {
			t.Errorf("%s: %.0f MiB, published are %.0f (%+.1f %%)", config, got, want, 100*(got/want-1))
		}
	}
}
