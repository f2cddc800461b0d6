package plan

import (
	"encoding/csv"
	"os"
	"strconv"
	"strings"
	"testing"

	"unoom/internal/model"
	"unoom/internal/units"
	"unoom/internal/workload"
)

func imageWorkload(t testing.TB, name string, micro, size int64) *workload.Workload {
	t.Helper()
	catalogue, err := model.Published()
	if err != nil {
		t.Fatal(err)
	}
	m, err := catalogue.Named(name, model.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return &workload.Workload{
		Model: m, Framework: workload.HFTrainer, Method: workload.Full, Precision: workload.AMPFP16, MicroBatch: micro, Accumulation: 1, Seq: 1,
		Image: [2]int64{size, size}, Optimizer: workload.Optimizer{Name: "sgd"}, Sharding: workload.NoSharding,
	}
}

// timm's benchmark goes down through these batches until one fits a card of
// 24 GiB, so each row says of one batch that it fits and of the next that it does
// not.
func TestImageNetworksFitThePublishedBatchAndNotTheNext(t *testing.T) {
	f, err := os.Open("../speed/testdata/images.csv")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	rows, err := csv.NewReader(f).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	const card = 23.69
	next := map[int64]int64{384: 512, 256: 384, 192: 256, 128: 192, 96: 128, 64: 96}
	for _, r := range rows[1:] {
		source, name, layout := r[0], r[2], r[8]
		if source != "timm" {
			continue
		}
		micro, _ := strconv.ParseInt(r[5], 10, 64)
		size, _ := strconv.ParseInt(r[6], 10, 64)
		w := imageWorkload(t, name, micro, size)
		image, _, err := imageOf(w)
		if err != nil {
			t.Fatal(err)
		}
		form := &form{s: newShape(w.Model, image, nil), outside: float64(512 * units.MiB)}
		c := choiceOf(w)
		if got := form.peak(&c).total / float64(units.GiB); got > card {
			t.Errorf("%s, %d images of %d: %.1f GiB of %.1f, but it fits", name, micro, size, got, card)
		}
		// Of these timm's network is the same as ours; its transformers of 2022
		// kept the scores of attention.
		same := strings.HasPrefix(name, "ResNet") || strings.HasPrefix(name, "VGG") || strings.HasPrefix(name, "EfficientNet") || strings.HasPrefix(name, "DenseNet")
		if n := next[micro]; n > 0 && same && layout == "nchw" {
			c.Micro = int(n)
			if got := form.peak(&c).total / float64(units.GiB); got < 0.95*card {
				t.Errorf("%s, %d images of %d: %.1f GiB of %.1f, but it does not fit", name, n, size, got, card)
			}
		}
	}
}

func TestBatchNormKeepsTheMicroBatchWhereItFits(t *testing.T) {
	card := Hardware{Name: "RTX-3090", Count: 1, Capacity: units.FromGiB(23.69), Outside: 512 * units.MiB, Device: *h100()}
	for _, c := range []struct {
		model string
		batch int64
		exact bool
	}{
		{"ResNet-50", 256, true},   // fits as it is
		{"ResNet-50", 1024, false}, // only with accumulation, which BatchNorm sees
		{"ViT-B-16", 1024, true},   // LayerNorm does not see the batch
	} {
		r, err := Make(&Request{Workload: imageWorkload(t, c.model, c.batch, 224), Hardware: card})
		if err != nil {
			t.Fatal(err)
		}
		if len(r.Plans) == 0 {
			t.Fatalf("%s, %d images: no plan", c.model, c.batch)
		}
		p := &r.Plans[0]
		if p.Exact != c.exact || p.Choice.Batch() != int(c.batch) {
			t.Errorf("%s, %d images: batch %s, exact %v, want %v", c.model, c.batch, p.Choice.BatchName(), p.Exact, c.exact)
		}
		if r.Tokens() || r.Explain().Token != 0 {
			t.Errorf("%s: images have tokens", c.model)
		}
		for _, s := range p.Steps {
			if s.Code == "accumulate.split" && s.Exact != c.exact {
				t.Errorf("%s: step %s exact %v", c.model, s.Code, s.Exact)
			}
		}
	}
}

func TestImageNetworksNeedAStackThatTrainsThem(t *testing.T) {
	w := imageWorkload(t, "ResNet-50", 8, 224)
	_, err := Make(&Request{Workload: w, Targets: []Target{Megatron}, Hardware: Hardware{Count: 1, Capacity: 24 * units.GiB, Device: *h100()}})
	if e, ok := err.(*RequestError); !ok || e.Code != "image_target" {
		t.Errorf("got %v, want image_target", err)
	}
}
