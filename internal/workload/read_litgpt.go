package workload

import (
	"path"
	"strconv"
	"strings"
)

func looksLitGPT(n *node) int {
	if n.at("train.micro_batch_size") == nil && n.at("train.global_batch_size") == nil || n.child("checkpoint_dir") == nil && n.child("model_name") == nil && n.child("precision") == nil {
		return 0
	}
	return 4 + among(0, "checkpoint_dir", "model_name", "precision", "quantize", "devices", "lora_r", "out_dir")(n)
}

// litGPT reads the YAML of litgpt finetune and litgpt pretrain.
// Source: litgpt finetune/full.py, finetune/lora.py, pretrain.py, args.py.
func (r *reader) litGPT(n *node) {
	r.put(FieldFramework, string(LitGPT), "train", n.get("train"))
	if v, key := r.use(n, "model_name", "checkpoint_dir"); v != nil {
		s, _ := v.str()
		r.put(FieldModel, path.Base(path.Clean(s)), key, v)
	}
	r.use(n, "checkpoint_dir")
	r.quiet(n, "checkpoint_dir", "initial_checkpoint_dir", "tokenizer_dir", "model_config")
	precision := map[string][2]string{"bf16-true": {"bf16", "none"}, "16-true": {"fp16", "none"}, "bf16-mixed": {"fp32", "bf16"}, "16-mixed": {"fp32", "fp16"}, "32-true": {"fp32", "none"}}
	if v, key := r.use(n, "precision"); v != nil {
		s, _ := v.str()
		if p, ok := precision[s]; ok {
			r.put(FieldWeights, p[0], key, v)
			r.put(FieldAutocast, p[1], key, v)
		} else {
			r.warn(WarnUnknownValue, v, key, s)
		}
	} else {
		r.assume(FieldAutocast, "none", "precision", "litgpt: precision is bf16-true on a card that has it")
		r.assume(FieldWeights, "bf16", "precision", "litgpt: precision is bf16-true on a card that has it")
	}
	lora := n.get("lora_r") != nil
	if lora {
		r.number(FieldRank, n, "lora_r")
		r.text(FieldDropout, n, "lora_dropout")
		r.put(FieldMethod, string(LoRA), "lora_r", n.get("lora_r"))
		var targets []string
		for _, t := range []struct{ key, module string }{{"lora_query", "q_proj"}, {"lora_key", "k_proj"}, {"lora_value", "v_proj"}, {"lora_projection", "o_proj"}, {"lora_mlp", "gate_proj,up_proj,down_proj"}} {
			def := t.key == "lora_query" || t.key == "lora_value"
			on, said, _, _ := r.flag(n, t.key)
			if on || !said && def {
				targets = append(targets, t.module)
			}
		}
		if len(targets) > 0 {
			r.put(FieldTargets, strings.Join(targets, ","), "lora_query …", n.get("lora_query"))
		}
		r.notModelled(n, "lora_head")
	}
	r.words(FieldBase, n, map[string]string{"bnb.nf4": "nf4", "bnb.nf4-dq": "nf4-double", "bnb.fp4": "nf4", "bnb.fp4-dq": "nf4-double", "bnb.int8-training": "int8", "bnb.int8": "int8"}, "quantize")
	devices, _ := n.get("devices").integer()
	nodes, ok := n.get("num_nodes").integer()
	if !ok {
		nodes = 1
	}
	if v, key := r.use(n, "devices"); v != nil && devices > 0 {
		r.put(FieldGPUs, strconv.FormatInt(devices*nodes, 10), key, v)
	}
	r.use(n, "num_nodes")
	if devices*nodes > 1 { // FSDP over blocks; fine-tuning also recomputes each block
		r.put(FieldSharding, string(FSDP), "devices", n.get("devices"))
		if n.get("model_name") == nil {
			r.put(FieldCheckpointing, "full", "devices", n.get("devices"))
		}
	}
	t := n.get("train")
	r.number(FieldMicroBatch, t, "micro_batch_size")
	r.number(FieldGlobalBatch, t, "global_batch_size")
	if _, said := r.number(FieldSeq, t, "max_seq_length"); !said {
		if _, said := r.number(FieldSeq, n, "data.init_args.max_seq_length"); !said {
			r.use(t, "max_seq_length")
		}
	}
	r.optimizerClass(n)
	r.quiet(t, "max_tokens", "tie_embeddings", "max_additional_steps")
	r.quiet(n, "data", "eval", "optimizer", "generate", "log")
}

// optimizerClass reads an optimizer by its Python class.
func (r *reader) optimizerClass(n *node) {
	o := n.get("optimizer")
	name, _ := o.str()
	at := o
	if o != nil && o.shape == object {
		at = o.get("class_path")
		name, _ = at.str()
	}
	if name == "" {
		r.assume(FieldOptimizer, "adamw", "optimizer", "litgpt: optimizer is AdamW")
		return
	}
	base := strings.ToLower(name[strings.LastIndex(name, ".")+1:])
	switch {
	case strings.Contains(base, "pagedadamw") && !strings.Contains(base, "8bit"):
		base = "paged_adamw"
	case strings.Contains(base, "8bit"):
		base = "adamw_8bit"
	}
	r.put(FieldOptimizer, base, "optimizer", at)
}
