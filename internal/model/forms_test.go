package model

import (
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
