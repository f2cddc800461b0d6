package model

import "testing"

// The configurations are those that the hub has; the counts are the published
// ones of the same networks.
func TestImageNetworksOfTransformers(t *testing.T) {
	for name, c := range map[string]struct {
		config string
		want   int64
	}{
		"microsoft/resnet-50":                       {`{"model_type":"resnet","architectures":["ResNetForImageClassification"],"depths":[3,4,6,3],"hidden_sizes":[256,512,1024,2048],"layer_type":"bottleneck","num_labels":1000}`, 25557032},
		"microsoft/resnet-18":                       {`{"model_type":"resnet","depths":[2,2,2,2],"hidden_sizes":[64,128,256,512],"layer_type":"basic","num_labels":1000}`, 11689512},
		"facebook/convnext-tiny-224":                {`{"model_type":"convnext","depths":[3,3,9,3],"hidden_sizes":[96,192,384,768],"image_size":224,"num_labels":1000}`, 28589128},
		"facebook/convnextv2-tiny-1k-224":           {`{"model_type":"convnextv2","depths":[3,3,9,3],"hidden_sizes":[96,192,384,768],"image_size":224,"num_labels":1000}`, 28635496},
		"microsoft/swin-tiny-patch4-window7-224":    {`{"model_type":"swin","depths":[2,2,6,2],"num_heads":[3,6,12,24],"embed_dim":96,"window_size":7,"num_labels":1000}`, 28288354},
		"nvidia/segformer-b0-finetuned-ade-512-512": {`{"model_type":"segformer","depths":[2,2,2,2],"hidden_sizes":[32,64,160,256],"decoder_hidden_size":256,"num_attention_heads":[1,2,5,8],"sr_ratios":[8,4,2,1],"num_labels":150}`, 3752694},
		"google/vit-base-patch16-224 as operations": {`{"model_type":"vit","hidden_size":768,"intermediate_size":3072,"num_hidden_layers":12,"num_attention_heads":12,"image_size":224,"patch_size":16,"num_labels":1000}`, 86567656},
	} {
		m, err := Parse(name, []byte(c.config), Options{})
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		got := m.Params()
		if m.Tower != nil { // both forms of it
			tower, err := FromVision(name, *m.Tower)
			if err != nil {
				t.Errorf("%s: %v", name, err)
				continue
			}
			if got != c.want {
				t.Errorf("%s, by layers: %d parameters, want %d", name, got, c.want)
			}
			got = tower.Params()
		}
		if got != c.want {
			t.Errorf("%s: %d parameters, want %d (%+d)", name, got, c.want, got-c.want)
		}
	}
	if _, err := Parse("odd", []byte(`{"model_type":"resnet","depths":[1,2,3,4]}`), Options{}); err == nil {
		t.Error("a ResNet of odd depths was taken")
	}
}
