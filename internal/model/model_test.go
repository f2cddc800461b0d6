package model

import "testing"

// The counts are those that the models' publishers give, or that follow from
// the tensors of the published checkpoints.
func TestParamsAreTheSumOfTensors(t *testing.T) {
	for _, c := range []struct {
		name, config string
		want         int64
	}{
		{"Llama-2-7B", `{"model_type":"llama","hidden_size":4096,"intermediate_size":11008,"num_hidden_layers":32,"num_attention_heads":32,"num_key_value_heads":32,"vocab_size":32000}`, 6738415616},
		{"Mistral-7B-v0.1", `{"model_type":"mistral","hidden_size":4096,"intermediate_size":14336,"num_hidden_layers":32,"num_attention_heads":32,"num_key_value_heads":8,"vocab_size":32000,"sliding_window":4096}`, 7241732096},
		{"Qwen2.5-0.5B", `{"model_type":"qwen2","hidden_size":896,"intermediate_size":4864,"num_hidden_layers":24,"num_attention_heads":14,"num_key_value_heads":2,"vocab_size":151936,"tie_word_embeddings":true}`, 494032768},
		{"gpt2", `{"model_type":"gpt2","n_embd":768,"n_layer":12,"n_head":12,"vocab_size":50257,"n_positions":1024}`, 124439808},
	} {
		m, err := Parse(c.name, []byte(c.config), Options{})
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		if got := m.Params(); got != c.want {
			t.Errorf("%s: %d parameters, want %d", c.name, got, c.want)
		}
	}
}
