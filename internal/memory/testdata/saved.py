"""Prints what autograd saves for one more layer of small models, in bytes.

The models are those of the JSON list on standard input: {"type", "layers" (the
name of the number of layers), "config"}. A storage counts once; parameters and
buffers do not count.
"""

import json
import sys

import torch
import transformers
from transformers import AutoConfig, AutoModel


def saved(config, batch, seq):
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

    ids = torch.randint(0, config.vocab_size, (batch, seq))
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        model(ids).last_hidden_state.sum()
    return sum(seen.values())


def main():
    transformers.logging.set_verbosity_error()
    out = []
    for m in json.load(sys.stdin):
        both = [
            saved(AutoConfig.for_model(m["type"], **m["config"], **{m["layers"]: n}), m["batch"], m["seq"])
            for n in (1, 2)
        ]
        out.append(both[1] - both[0])
    print(json.dumps({"transformers": transformers.__version__, "torch": torch.__version__, "bytes": out}))


main()
