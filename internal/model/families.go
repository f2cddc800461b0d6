package model

import (
	"maps"
	"slices"
)

// A builder reads one family's configuration. It reports what is wrong through
// the config and always returns a model.
type builder func(*config) *Model

// builders maps model_type to the family's reader. The types are those of
// transformers; where a family is published with its own code, its model_type
// is that of the published config.json.
func builders() map[string]builder {
	return map[string]builder{
		// Llama and its relatives: llamalike.go
		"llama": llama, "mistral": mistral, "ministral": mistral, "qwen2": qwen2, "qwen3": qwen3, "qwen": qwen1,
		"gemma": gemma, "gemma2": gemma2, "gemma3_text": gemma3, "gemma3": gemma3,
		"phi3": phi3, "stablelm": stablelm, "cohere": cohere, "cohere2": cohere,
		"olmo": olmo, "olmo2": olmo2, "olmo3": olmo2, "granite": granite, "nemotron": nemotron,
		"minicpm": minicpm, "smollm3": smollm3, "internlm": internlm, "internlm2": internlm2,
		"internlm3": internlm3, "baichuan": baichuan,
		"chatglm": chatglm, "glm": glm, "glm4": glm, "seed_oss": seedOSS, "aquila": llama, "Yi": llama,
		"helium": llama, "arcee": arcee, "exaone": exaone, "exaone4": exaone4, "ernie4_5": ernie,
		"hunyuan_v1_dense": hunyuan, "hyperclovax": hyperclovax, "iquestcoder": llama, "cwm": llama,
		"ministral3": mistral, "vaultgemma": vaultgemma,

		// GPT-2 and its relatives: gptlike.go
		"gpt2": gpt2, "gpt_neo": gptNeo, "gpt_neox": gptNeoX, "gptj": gptJ, "codegen": gptJ,
		"falcon": falcon, "RefinedWeb": falcon, "RefinedWebModel": falcon, "opt": opt, "bloom": bloom, "mpt": mpt,
		"gpt_bigcode": gptBigCode, "starcoder2": starcoder2, "phi": phi,

		// Mixture of experts: moe.go
		"mixtral": mixtral, "qwen2_moe": qwenMoE, "qwen3_moe": qwenMoE, "deepseek": deepseek,
		"deepseek_v2": deepseek, "deepseek_v3": deepseek, "kimi_k2": deepseek, "phimoe": phimoe,
		"dbrx": dbrx, "granitemoe": graniteMoE, "granitemoeshared": graniteMoE, "olmoe": olmoe,
		"gpt_oss": gptOSS, "llama4": llama4, "llama4_text": llama4, "glm4_moe": glm4MoE, "ernie4_5_moe": ernieMoE,
		"minicpm3": deepseek, "youtu": deepseek, "glm4_moe_lite": deepseek, "dots1": dots, "minimax_m2": minimaxM2,
		"exaone_moe": sharedMoE, "sarvam_moe": sharedMoE, "hy_v3": sharedMoE, "solar_open": sharedMoE,
		"hunyuan_v1_moe": hunyuanMoE, "flex_olmo": flexOLMo,

		// State space and hybrids: hybrid.go
		"mamba": mamba, "falcon_mamba": mamba, "mamba2": mamba2, "jamba": jamba, "bamba": bamba,
		"granitemoehybrid": graniteHybrid, "nemotron_h": nemotronH,

		// Vision-language: visionlanguage.go
		"qwen2_vl": qwenVL, "qwen2_5_vl": qwenVL, "qwen3_vl": qwenVL, "qwen3_vl_moe": qwenVL, "llava": llava, "llava_next": llava,
		"llava_onevision": llava, "mistral3": mistral3, "paligemma": paligemma, "internvl": internvl, "idefics3": idefics3, "smolvlm": idefics3,
		"qwen2_vl_text": qwen2, "qwen2_5_vl_text": qwen2, "qwen3_vl_text": qwen3, "qwen3_vl_moe_text": qwenMoE,

		// Encoders: encoder.go, vit.go
		"bert": bert, "roberta": roberta, "xlm-roberta": roberta, "camembert": roberta, "distilbert": distilbert,
		"electra": electra, "albert": albert, "deberta-v2": deberta, "deberta": deberta, "mpnet": mpnet,
		"modernbert": modernbert, "xlnet": xlnet,
		"vit": vit, "deit": vit, "dinov2": dinov2, "beit": beit,

		// Image networks: imagenet.go
		"resnet": resnetImages, "convnext": convnextImages, "convnextv2": convnextImages, "swin": swinImages, "segformer": segformer,

		// Diffusion, by the class that diffusers names: diffusion.go
		"UNet2DConditionModel": unetCondition, "Transformer2DModel": ditModel, "DiTTransformer2DModel": ditModel,

		// Encoder-decoders: encdec.go
		"t5": t5, "mt5": t5, "umt5": t5, "bart": bart, "mbart": bart, "pegasus": bart, "marian": bart,
		"m2m_100": bart, "whisper": whisper,
	}
}

func builderOf(kind string) builder { return builders()[kind] }

// KnownTypes lists the model_type values that Parse understands.
func KnownTypes() []string {
	var known []string
	for kind, b := range maps.All(builders()) {
		if b != nil {
			known = append(known, kind)
		}
	}
	slices.Sort(known)
	return known
}
