"""Records tiny networks of transformers' own code: the configuration that it
saves, and the parameters that the network has (on the meta device, nothing is
downloaded). Written to tiny.json, which a test reads:

    .venv/bin/python internal/model/testdata/tiny.py
"""

import json
import pathlib
import warnings

import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText

TYPES = """
llama mistral ministral ministral3 qwen2 qwen3 gemma gemma2 gemma3_text vaultgemma phi3 stablelm cohere cohere2 olmo olmo2 olmo3 granite
nemotron smollm3 internlm3 glm glm4 seed_oss helium arcee exaone exaone4 ernie4_5 hunyuan_v1_dense hyperclovax cwm minicpm3 youtu
gpt2 gpt_neox gptj codegen falcon opt bloom mpt gpt_bigcode starcoder2 phi
mixtral qwen2_moe qwen3_moe deepseek_v2 deepseek_v3 phimoe granitemoe granitemoeshared olmoe flex_olmo gpt_oss llama4_text glm4_moe
glm4_moe_lite dots1 minimax_m2 exaone_moe solar_open hunyuan_v1_moe
mamba falcon_mamba jamba bamba granitemoehybrid nemotron_h
""".split()

SMALL = dict(
    hidden_size=64, intermediate_size=96, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2, head_dim=16, vocab_size=128,
    max_position_embeddings=256, pad_token_id=0, bos_token_id=1, eos_token_id=2, num_experts=8, num_local_experts=8, n_routed_experts=8,
    n_shared_experts=1, num_experts_per_tok=2, moe_intermediate_size=48,
)  # fmt: skip

# Networks that see: their text and their tower.
TEXT = {k: v for k, v in SMALL.items() if k != "intermediate_size"} | dict(
    intermediate_size=96, num_hidden_layers=2, rope_parameters={"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 3, 3]}
)  # fmt: skip
QWEN = dict(depth=3, hidden_size=32, intermediate_size=80, num_heads=2, out_hidden_size=64, num_position_embeddings=64, deepstack_visual_indexes=[0, 1])
TOWER = dict(hidden_size=32, intermediate_size=80, num_hidden_layers=2, num_attention_heads=2, image_size=56, patch_size=14)
CLIP = TOWER | dict(model_type="clip_vision_model")
SIGLIP = TOWER | dict(model_type="siglip_vision_model", vision_use_head=False)
SEEING = {
    "qwen2_vl": dict(vision_config=dict(depth=2, embed_dim=32, hidden_size=64, num_heads=2, mlp_ratio=4)),
    "qwen2_5_vl": dict(vision_config=QWEN | dict(fullatt_block_indexes=[1])),
    "qwen3_vl": dict(vision_config=QWEN),
    "qwen3_vl_moe": dict(vision_config=QWEN),
    "llava": dict(text="llama", vision_config=CLIP),
    "llava_next": dict(text="mistral", vision_config=CLIP),
    "llava_onevision": dict(text="qwen2", vision_config=SIGLIP),
    "mistral3": dict(text="mistral", vision_config=TOWER | dict(model_type="pixtral", head_dim=16)),
    "gemma3": dict(vision_config=SIGLIP, mm_tokens_per_image=4),
    "paligemma": dict(text="gemma", vision_config=SIGLIP, projection_dim=64),
    "internvl": dict(text="qwen2", vision_config=TOWER | dict(image_size=[56, 56], patch_size=[14, 14])),
    "idefics3": dict(text="llama", vision_config=TOWER, scale_factor=2),
    "smolvlm": dict(text="llama", vision_config=TOWER, scale_factor=2),
}

# What a configuration computes, and does not take.
REFUSED = {("falcon", "head_dim")}

# What every configuration holds and no network depends on.
NOISE = """
transformers_version architectures output_hidden_states output_attentions return_dict dtype chunk_size_feed_forward is_encoder_decoder id2label
label2id problem_type _name_or_path initializer_range use_cache pad_token_id bos_token_id eos_token_id
""".split()


def record(build, config):
    """The network's parameters, and the configuration without what says nothing."""
    with torch.device("meta"):
        network = build(config)

    def kept(values):
        return {k: kept(v) if isinstance(v, dict) else v for k, v in values.items() if k not in NOISE and v is not None}

    params = sum(p.numel() for p in network.parameters() if p.requires_grad)
    return {"params": params, "config": kept(json.loads(config.to_json_string(use_diff=False)))}


def main():
    warnings.filterwarnings("ignore")
    transformers.logging.set_verbosity_error()
    rows = []
    for kind in TYPES:
        config = AutoConfig.for_model(kind, **{k: v for k, v in SMALL.items() if (kind, k) not in REFUSED})
        rows.append(record(AutoModelForCausalLM.from_config, config))
    for kind, more in SEEING.items():
        text = TEXT | ({"model_type": more["text"]} if "text" in more else {})
        config = AutoConfig.for_model(kind, text_config=text, **{k: v for k, v in more.items() if k != "text"})
        rows.append(record(AutoModelForImageTextToText.from_config, config))
    file = pathlib.Path(__file__).with_name("tiny.json")
    head = json.dumps({"transformers": transformers.__version__})[:-1]
    file.write_text(head + ', "networks": [\n' + ",\n".join(json.dumps(r) for r in rows) + "\n]}\n")


if __name__ == "__main__":
    main()
