"""Prints what autograd saves for one more layer of small models, in bytes.

The models are those of the JSON list on standard input: {"type", "layers" (the
name of the number of layers), "config"}. A storage counts once; parameters and
buffers do not count. Where the layers are those of "vision_config", it is the
image tower that runs.
"""

import json
import sys

import torch
import transformers
from transformers import AutoConfig, AutoModel


def see(model, config, images, patches):
    """Runs the tower on images of so many patches."""
    v = config.vision_config
    side = v.patch_size if isinstance(v.patch_size, int) else v.patch_size[0]
    if "qwen" in config.model_type:
        pixels = torch.randn(images * patches, 3 * v.temporal_patch_size * side * side)
        grid = torch.tensor([[1, int(patches**0.5), int(patches**0.5)]] * images)
        return model.get_image_features(pixels, grid)
    size = side * int(patches**0.5)
    if config.model_type in ("idefics3", "smolvlm"):
        return model.get_image_features(torch.randn(images, 1, 3, size, size))
    if config.model_type == "mistral3":
        return model.get_image_features(torch.randn(images, 3, size, size), image_sizes=[(size, size)] * images)
    return model.get_image_features(torch.randn(images, 3, size, size))


def configuration(m, layers):
    """The configuration with a number of layers, whose name may be a path."""
    values = json.loads(json.dumps(m["config"]))
    *path, last = m["layers"].split(".")
    inner = values
    for k in path:
        inner = inner[k]
    inner[last] = layers
    return AutoConfig.for_model(m["type"], **values)


def saved(config, batch, seq, tower):
    torch.manual_seed(0)
    model = AutoModel.from_config(config, attn_implementation="eager").train()
    own = {t.untyped_storage().data_ptr() for t in (*model.parameters(), *model.buffers())}
    seen, kept = {}, []

    def pack(t):
        s = t.untyped_storage()
        if s.data_ptr() not in own:
            seen[s.data_ptr()] = s.nbytes()
            kept.append(t)
        return t

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        if tower:
            see(model, config, batch, seq)
        else:
            model(torch.randint(0, config.vocab_size, (batch, seq))).last_hidden_state.sum()
    return sum(seen.values())


def main():
    transformers.logging.set_verbosity_error()
    out = []
    for m in json.load(sys.stdin):
        both = [
            saved(configuration(m, n), m["batch"], m["seq"], m["layers"].startswith("vision_config."))
            for n in ((2, 3) if m["layers"].startswith("vision_config.") else (1, 2))
        ]
        out.append(both[1] - both[0])
    print(json.dumps({"transformers": transformers.__version__, "torch": torch.__version__, "bytes": out}))


main()
