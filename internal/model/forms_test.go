package model

import (
	"encoding/json"
	"os"
	"strings"
	"testing"
)

func TestFromCount(t *testing.T) {
	pythia := Dims{Layers: 16, Hidden: 2048, Heads: 8, FFN: 8192, Vocab: 50304}
	gpt2 := Dims{Layers: 12, Hidden: 768, Heads: 12, Vocab: 50257}
	llama := Dims{Layers: 32, Hidden: 4096, Heads: 32, FFN: 11008, Vocab: 32000}
	qwen := Dims{Layers: 28, Hidden: 1536, Heads: 12, KVHeads: 2, FFN: 8960, Vocab: 151936}
	bloom := Dims{Layers: 24, Hidden: 1024, Heads: 16, Vocab: 250880}
	mpt := Dims{Layers: 32, Hidden: 4096, Heads: 32, Vocab: 50432}
	for _, tc := range []struct {
		name   string
		dims   Dims
		params int64
		want   string // words of the form; "": none agrees
	}{
		{"Llama-2-7B", llama, 6738415616, "RMSNorm, gated MLP, rope, head of its own"},
		{"Qwen2-1.5B", qwen, 1543714304, "RMSNorm, gated MLP, biases on q, k and v, rope, tied head"},
		{"Pythia-1B", pythia, 1011781632, "LayerNorm, MLP of two matrices, biases, rope, head of its own"},
		{"GPT-2", gpt2, 124439808, "LayerNorm, MLP of two matrices, biases, 1024 learned positions, tied head"},
		{"BLOOM-560M", bloom, 559214592, "biases, alibi, a norm after the embeddings, tied head"},
		{"MPT-7B", mpt, 6649286656, "no biases, alibi, tied head"},
		{"rounded", llama, 6_700_000_000, "RMSNorm, gated MLP, rope, head of its own"},
		{"another network", llama, 5_123_456_789, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			m, form := FromCount(tc.name, tc.dims, tc.params)
			if tc.want == "" {
				if form != nil {
					t.Fatalf("form %v, want none", form)
				}
				return
			}
			if form == nil {
				t.Fatal("no form agrees")
			}
			if !strings.Contains(form.String(), tc.want) {
				t.Errorf("form %q, want %q", form, tc.want)
			}
			if off := m.Params() - tc.params; max(off, -off) != form.Off {
				t.Errorf("%d parameters, want %d", m.Params(), tc.params)
			}
		})
	}
}

// Tiny networks as transformers builds them, from the configurations that it
// saves: testdata/tiny.py. Infinity is what Python writes.
func TestNetworksHaveTransformersParameters(t *testing.T) {
	data, err := os.ReadFile("testdata/tiny.json")
	if err != nil {
		t.Fatal(err)
	}
	var recorded struct {
		Networks []struct {
			Params int64
			Config json.RawMessage
		}
	}
	infinity := strings.Count(string(data), "Infinity")
	if err := json.Unmarshal(withoutInfinity(data), &recorded); err != nil {
		t.Fatal(err)
	}
	if len(recorded.Networks) < 60 || infinity == 0 {
		t.Errorf("%d networks, %d times Infinity", len(recorded.Networks), infinity)
	}
	for _, n := range recorded.Networks {
		m, err := Parse("tiny", n.Config, Options{})
		if err != nil {
			t.Error(err)
		} else if got := m.Params(); got != n.Params {
			t.Errorf("%s: %d parameters, transformers has %d", m.Type, got, n.Params)
		}
	}
}
