package memory

import (
	"bytes"
	"encoding/json"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"unoom/internal/model"
)

// torchPython is the Python that has torch and transformers.
func torchPython(t *testing.T) string {
	if os.Getenv("UNOOM_TORCH") == "" {
		t.Skip("SKIPPED: set UNOOM_TORCH=1 (make test-torch) to compare with real PyTorch")
	}
	python, err := filepath.Abs("../../.venv/bin/python")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(python); err != nil {
		t.Skip("SKIPPED: no .venv with torch and transformers (make venv)")
	}
	return python
}

// What one layer saves for backward is what torch's autograd saves for it. Dropout
// is off: its masks have four bytes for each element on CPUs, one on GPUs.
func TestLayersSaveWhatTorchSaves(t *testing.T) {
	python := torchPython(t)
	type config map[string]any
	type small struct {
		Type   string  `json:"type"`
		Layers string  `json:"layers"`
		Config config  `json:"config"`
		Batch  int64   `json:"batch"`
		Seq    int64   `json:"seq"`
		within float64 // share
		encode bool
	}
	decoder := config{"hidden_size": 64, "intermediate_size": 160, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 100, "max_position_embeddings": 128,
		"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
	with := func(more config) config { c := maps.Clone(decoder); maps.Copy(c, more); return c }
	cases := []small{
		{"llama", "num_hidden_layers", decoder, 2, 64, 0.001, false},
		{"qwen3", "num_hidden_layers", with(config{"head_dim": 16}), 2, 64, 0.001, false},
		{"gpt2", "n_layer", config{"n_embd": 64, "n_head": 4, "n_positions": 128, "vocab_size": 100, "bos_token_id": 1, "eos_token_id": 2, "attn_pdrop": 0, "resid_pdrop": 0}, 2, 64, 0.001, false},
		{"mixtral", "num_hidden_layers", with(config{"intermediate_size": 96, "num_local_experts": 4, "num_experts_per_tok": 2}), 2, 64, 0.01, false},
		{"deepseek_v3", "num_hidden_layers", with(config{"num_key_value_heads": 4, "moe_intermediate_size": 48, "n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 1,
			"topk_group": 1, "first_k_dense_replace": 0, "q_lora_rank": 32, "kv_lora_rank": 16, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 16, "n_shared_experts": 1}), 2, 64, 0.03, false},
		{"mistral", "num_hidden_layers", with(config{"sliding_window": nil}), 2, 64, 0.001, false},
		{"qwen2", "num_hidden_layers", decoder, 2, 64, 0.001, false},
		{"gemma", "num_hidden_layers", with(config{"head_dim": 16}), 2, 64, 0.002, false},
		{"gemma2", "num_hidden_layers", with(config{"head_dim": 16}), 2, 64, 0.002, false},
		{"gemma3_text", "num_hidden_layers", with(config{"head_dim": 16}), 2, 64, 0.002, false},
		{"phi3", "num_hidden_layers", decoder, 2, 64, 0.001, false},
		{"stablelm", "num_hidden_layers", decoder, 2, 64, 0.001, false},
		{"cohere", "num_hidden_layers", decoder, 2, 64, 0.001, false},
		{"cohere2", "num_hidden_layers", decoder, 2, 64, 0.001, false},
		{"olmo", "num_hidden_layers", decoder, 2, 64, 0.001, false},
		{"olmo2", "num_hidden_layers", decoder, 2, 64, 0.001, false},
		{"granite", "num_hidden_layers", decoder, 2, 64, 0.001, false},
		{"nemotron", "num_hidden_layers", decoder, 2, 64, 0.002, false},
		{"smollm3", "num_hidden_layers", decoder, 2, 64, 0.001, false},
		{"glm", "num_hidden_layers", with(config{"head_dim": 16}), 2, 64, 0.011, false},
		{"glm4", "num_hidden_layers", with(config{"head_dim": 16}), 2, 64, 0.011, false},
		{"seed_oss", "num_hidden_layers", with(config{"head_dim": 16, "attention_dropout": 0, "residual_dropout": 0}), 2, 64, 0.001, false},
		{"arcee", "num_hidden_layers", decoder, 2, 64, 0.001, false},
		{"exaone4", "num_hidden_layers", with(config{"sliding_window": 4096}), 2, 64, 0.001, false},
		{"ernie4_5", "num_hidden_layers", with(config{"head_dim": 16}), 2, 64, 0.011, false},
		{"hunyuan_v1_dense", "num_hidden_layers", with(config{"head_dim": 16}), 2, 64, 0.001, false},
		{"hyperclovax", "num_hidden_layers", decoder, 2, 64, 0.001, false},
		{"vaultgemma", "num_hidden_layers", with(config{"head_dim": 16}), 2, 64, 0.002, false},
		{"minicpm3", "num_hidden_layers", with(config{"num_key_value_heads": 4, "q_lora_rank": 32, "kv_lora_rank": 16, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 16}), 2, 64, 0.001, false},
		{"gpt_neox", "num_hidden_layers", with(config{"hidden_dropout": 0, "attention_dropout": 0}), 2, 64, 0.001, false},
		{"gptj", "n_layer", config{"n_embd": 64, "n_head": 4, "n_positions": 128, "rotary_dim": 8, "vocab_size": 100, "bos_token_id": 1, "eos_token_id": 2}, 2, 64, 0.011, false},
		{"phi", "num_hidden_layers", decoder, 2, 64, 0.001, false},
		{"starcoder2", "num_hidden_layers", with(config{"residual_dropout": 0, "embedding_dropout": 0, "attention_dropout": 0}), 2, 64, 0.001, false},
		{"gpt_bigcode", "n_layer", config{"n_embd": 64, "n_head": 4, "n_positions": 128, "vocab_size": 100, "bos_token_id": 1, "eos_token_id": 2, "attn_pdrop": 0, "resid_pdrop": 0, "embd_pdrop": 0}, 2, 64, 0.001, false},
		{"opt", "num_hidden_layers", config{"hidden_size": 64, "ffn_dim": 160, "num_attention_heads": 4, "vocab_size": 100, "max_position_embeddings": 128, "word_embed_proj_dim": 64, "dropout": 0, "attention_dropout": 0}, 2, 64, 0.001, false},
		{"bloom", "n_layer", config{"hidden_size": 64, "n_head": 4, "vocab_size": 100, "hidden_dropout": 0, "attention_dropout": 0}, 2, 64, 0.001, false},
		{"falcon", "num_hidden_layers", config{"hidden_size": 64, "num_attention_heads": 4, "vocab_size": 100, "hidden_dropout": 0, "attention_dropout": 0}, 2, 64, 0.001, false},
		{"mpt", "n_layers", config{"d_model": 64, "n_heads": 4, "max_seq_len": 128, "vocab_size": 100, "resid_pdrop": 0, "emb_pdrop": 0}, 2, 64, 0.001, false},
		{"qwen3_moe", "num_hidden_layers", with(config{"head_dim": 16, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 48}), 2, 64, 0.01, false},
		{"qwen2_moe", "num_hidden_layers", with(config{"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 48, "shared_expert_intermediate_size": 96}), 2, 64, 0.01, false},
		{"olmoe", "num_hidden_layers", with(config{"num_experts": 4, "num_experts_per_tok": 2}), 2, 64, 0.01, false},
		{"dots1", "num_hidden_layers", with(config{"n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2, "moe_intermediate_size": 48}), 2, 64, 0.01, false},
		{"minimax_m2", "num_hidden_layers", with(config{"head_dim": 16, "num_local_experts": 4, "num_experts_per_tok": 2}), 2, 64, 0.01, false},
		{"bert", "num_hidden_layers", config{"hidden_size": 64, "intermediate_size": 256, "num_attention_heads": 4, "vocab_size": 100, "max_position_embeddings": 128,
			"hidden_dropout_prob": 0, "attention_probs_dropout_prob": 0}, 2, 64, 0.001, true},
	}
	text := with(config{"head_dim": 16, "num_hidden_layers": 1, "rope_parameters": config{"rope_type": "default", "rope_theta": 10000.0, "mrope_section": []int{2, 3, 3}}})
	as := func(kind string, more config) config {
		c := maps.Clone(text)
		maps.Copy(c, more)
		c["model_type"] = kind
		return c
	}
	sees := config{"hidden_size": 32, "intermediate_size": 80, "num_attention_heads": 2, "image_size": 112, "patch_size": 14}
	seeing := func(kind string, more config) config {
		c := maps.Clone(sees)
		maps.Copy(c, more)
		if kind != "" {
			c["model_type"] = kind
		}
		return c
	}
	qwen := config{"hidden_size": 32, "intermediate_size": 80, "num_heads": 2, "out_hidden_size": 64, "num_position_embeddings": 64, "deepstack_visual_indexes": []int{0}, "fullatt_block_indexes": []int{0, 1, 2}}
	clip, siglip := seeing("clip_vision_model", nil), seeing("siglip_vision_model", config{"vision_use_head": false})
	for _, c := range []small{
		{"qwen2_vl", "vision_config.depth", config{"text_config": as("qwen2_vl_text", nil), "vision_config": config{"embed_dim": 32, "hidden_size": 64, "num_heads": 2, "mlp_ratio": 4}}, 1, 64, 0.001, false},
		{"qwen2_5_vl", "vision_config.depth", config{"text_config": as("qwen2_5_vl_text", nil), "vision_config": qwen}, 1, 64, 0.001, false},
		{"qwen3_vl", "vision_config.depth", config{"text_config": as("qwen3_vl_text", nil), "vision_config": qwen}, 1, 64, 0.001, false},
		{"llava", "vision_config.num_hidden_layers", config{"text_config": as("llama", nil), "vision_config": clip}, 2, 64, 0.001, false},
		{"llava", "vision_config.num_hidden_layers", config{"text_config": as("qwen2", nil), "vision_config": siglip}, 2, 64, 0.001, false},
		{"mistral3", "vision_config.num_hidden_layers", config{"text_config": as("mistral", nil), "vision_config": seeing("pixtral", config{"head_dim": 16})}, 1, 64, 0.001, false},
		{"gemma3", "vision_config.num_hidden_layers", config{"text_config": as("gemma3_text", nil), "vision_config": siglip, "mm_tokens_per_image": 16}, 2, 64, 0.001, false},
		{"paligemma", "vision_config.num_hidden_layers", config{"text_config": as("gemma", nil), "vision_config": siglip, "projection_dim": 64}, 2, 64, 0.001, false},
		{"internvl", "vision_config.num_hidden_layers", config{"text_config": as("qwen2", nil), "vision_config": seeing("internvl_vision", config{"image_size": []int{112, 112}, "patch_size": []int{14, 14}})}, 2, 64, 0.001, false},
		{"smolvlm", "vision_config.num_hidden_layers", config{"text_config": as("llama", nil), "vision_config": seeing("", nil), "scale_factor": 2}, 2, 64, 0.001, false},
	} {
		cases = append(cases, c)
	}
	if only := os.Getenv("UNOOM_TORCH"); only != "1" { // names of types
		cases = slices.DeleteFunc(cases, func(c small) bool { return !slices.Contains(strings.Split(only, ","), c.Type) })
	}
	in, err := json.Marshal(cases)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(python, "testdata/saved.py")
	cmd.Stdin = bytes.NewReader(in)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	raw, err := cmd.Output()
	if err != nil {
		t.Fatalf("saved.py: %v\n%s", err, &stderr)
	}
	var torch struct {
		Transformers, Torch string
		Bytes               []float64
	}
	if err := json.Unmarshal(raw, &torch); err != nil {
		t.Fatalf("saved.py printed %q: %v", raw, err)
	}
	t.Logf("transformers %s, torch %s", torch.Transformers, torch.Torch)
	for i, c := range cases {
		cfg := maps.Clone(c.Config)
		cfg["model_type"] = c.Type
		tower := strings.HasPrefix(c.Layers, "vision_config.")
		if tower {
			v := maps.Clone(cfg["vision_config"].(config))
			v[strings.TrimPrefix(c.Layers, "vision_config.")] = 3
			cfg["vision_config"] = v
		} else {
			cfg[c.Layers] = 1
		}
		data, _ := json.Marshal(cfg)
		m, err := model.Parse(c.Type, data, model.Options{})
		if err != nil {
			t.Fatal(err)
		}
		got, want := float64(savedByLayer(m, c.Batch, c.Seq, c.encode, tower)), torch.Bytes[i]
		off := (got - want) / want
		t.Logf("%s: %.0f bytes, torch %.0f (%+.1f %%)", c.Type, got, want, 100*off)
		if max(off, -off) > c.within {
			t.Errorf("%s: a layer saves %.0f bytes, torch saves %.0f (%+.1f %%)", c.Type, got, want, 100*off)
		}
	}
}

// savedByLayer plays the first layer in float32 with eager attention and sums
// what its nodes hold, parameters and rotary tables aside.
func savedByLayer(m *model.Model, batch, seq int64, encoder, tower bool) int64 {
	x := &machine{dev: &plainDevice{}, training: true}
	x.item = x.items.id("", "other")
	x.begin(Forward, "forward", 0)
	x.newTape()
	p := &player{x: x, batch: batch, seq: seq, lib: library{attn: attnEager, sharedRope: true}}
	one := func(*model.Module) int64 { return 1 }
	p.net = x.load(m, &plainLoader{train: func(place) bool { return true }}, func(int, int) bool { return true }, func(string) bool { return true }, one)
	own := len(x.sts)
	width, st := m.Hidden, p.net.text()
	if tower {
		st = p.net.tower.st
		p.seq += m.Sight.Class
		width = st.s.Hidden
		dim := st.blocks[0].l.Attention.HeadDim
		p.cos, p.sin = x.tensor(seq*dim, f32), x.tensor(seq*dim, f32)
		own = len(x.sts)
	} else if !encoder && p.headDim() > 0 {
		p.cos, p.sin = p.ropeTables(1, f32)
		own = len(x.sts)
	}
	x.grad = true
	in := x.newParam("input", p.tokens()*width, 1, 1, f32, true)
	b := st.blocks[0]
	if encoder {
		p.postNormLayer(b, in, none())
	} else {
		p.decoderLayer(b, in)
	}
	return x.savedSince(own)
}

// savedSince sums what the tape keeps of the storages from a number on, each once.
func (x *machine) savedSince(own int) int64 {
	seen := map[int32]bool{}
	var sum int64
	for _, st := range x.tape.saved {
		if st >= int32(own) && !seen[st] {
			seen[st] = true
			sum += x.sts[st].bytes
		}
	}
	return sum
}

// plainDevice hands out exactly what is asked for.
type plainDevice struct{ next int32 }

func (d *plainDevice) malloc(n int64, _ uint32) (int32, int64) { d.next++; return d.next, n }
func (d *plainDevice) free(int32)                              {}
