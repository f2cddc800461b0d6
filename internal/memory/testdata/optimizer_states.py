"""Prints how many bytes of state torch.optim's optimizers keep for one matrix.

stdin: {"rows": n, "cols": n, "optimizers": [{"name": class, "arguments": {...}}]}; stdout: a list of {dtype: bytes}.
"""
import json
import sys

import torch

question = json.load(sys.stdin)
answer = []
for o in question["optimizers"]:
    kept = {}
    for dtype in ("float32", "bfloat16"):
        p = torch.nn.Parameter(torch.ones(question["rows"], question["cols"], dtype=getattr(torch, dtype)))
        optimizer = getattr(torch.optim, o["name"])([p], lr=1e-3, **o["arguments"])
        p.grad = torch.ones_like(p)
        optimizer.step()
        # Step counters and the like are single numbers.
        kept[dtype] = sum(t.numel() * t.element_size() for t in optimizer.state[p].values() if torch.is_tensor(t) and t.numel() > 1)
    answer.append(kept)
json.dump(answer, sys.stdout)
