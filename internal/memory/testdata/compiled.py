"""Says how many bytes a compiled layer keeps for backward, by torch's partitioner.

Reads {"config": {...}, "batch": b, "seq": s} and prints {"bytes": n}: what the
forward graph hands on beside its result, its parameters and the rotary tables.
Views of one storage count once.
"""

import json
import sys

import torch
from functorch.compile import min_cut_rematerialization_partition
from torch._dynamo.backends.common import aot_autograd
from torch._inductor.decomposition import select_decomp_table
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRotaryEmbedding

case = json.load(sys.stdin)
config = LlamaConfig(num_hidden_layers=1, attn_implementation="sdpa", **case["config"])
layer = LlamaDecoderLayer(config, 0).to(torch.bfloat16)
shape = (case["batch"], case["seq"], config.hidden_size)
x = torch.randn(shape, dtype=torch.bfloat16, requires_grad=True)
with torch.no_grad():
    tables = LlamaRotaryEmbedding(config)(x, torch.arange(case["seq"])[None])
kept = 0


def storage(node):
    """The node whose memory a view shows."""
    while node.op == "call_function" and any(w in node.name for w in ("view", "alias", "permute", "transpose")):
        node = node.args[0]
    return node


def forward(graph, inputs):
    global kept
    output = [n for n in graph.graph.nodes if n.op == "output"][0].args[0]
    seen = set()
    for node in output[1:]:
        value = node.meta.get("val")
        if not isinstance(value, torch.Tensor) or storage(node) in seen:
            continue
        seen.add(storage(node))
        if node.op != "placeholder" or tuple(value.shape) == shape:
            kept += value.numel() * value.element_size()
    return graph


backend = aot_autograd(
    fw_compiler=forward,
    bw_compiler=lambda graph, inputs: graph,
    partition_fn=min_cut_rematerialization_partition,
    decompositions=select_decomp_table(),
)
torch.compile(lambda x: layer(x, position_embeddings=tables, attention_mask=None), backend=backend)(x)
print(json.dumps({"bytes": kept}))
