"""A small network on several ranks, with DDP or FSDP2 over gloo, that saves as it
goes: nothing of unoom.

usage: torchrun ... ranks_plain.py OUTPUT_DIR --batch N --accum N [--resume FILE] [--fsdp]

The texts of the last rank are longer from the third step on: it alone runs out
of memory.
"""

import argparse
import os

import torch
import torch.distributed as dist
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("out")
parser.add_argument("--batch", type=int, required=True)
parser.add_argument("--accum", type=int, default=1)
parser.add_argument("--resume")
parser.add_argument("--steps", type=int, default=4)
parser.add_argument("--fsdp", action="store_true")
args = parser.parse_args()
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
torch.set_num_threads(1)
plain = nn.Sequential(*[nn.Sequential(nn.Linear(256, 256), nn.Tanh()) for _ in range(8)], nn.Linear(256, 10))
start, kept = 0, None
if args.resume:
    kept = torch.load(args.resume, weights_only=True)
    plain.load_state_dict(kept["weights"])
    start = kept["step"]
if args.fsdp:
    from torch.distributed.fsdp import fully_shard

    for block in plain[:-1]:
        fully_shard(block)
    net = fully_shard(plain)
else:
    net = nn.parallel.DistributedDataParallel(plain)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)  # no state: the weights are all there is to save


def whole_weights():
    state = {}
    for name, p in plain.state_dict().items():
        state[name] = p.full_tensor() if hasattr(p, "full_tensor") else p.clone()
    return state


for step in range(start, args.steps):
    numbers = torch.Generator().manual_seed(step * world + rank)
    length = 96 if step >= 2 and rank == world - 1 else 32
    rows = args.batch * args.accum
    x, y = torch.randn(rows, length, 256, generator=numbers), torch.randint(0, 10, (rows,), generator=numbers)
    for i in range(args.accum):
        last = i == args.accum - 1
        if args.fsdp:
            net.set_requires_gradient_sync(last)
        else:
            net.require_backward_grad_sync = last
        at = slice(i * args.batch, (i + 1) * args.batch)
        loss = nn.functional.cross_entropy(net(x[at]).mean(1), y[at]) / args.accum
        loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    weights = whole_weights()
    if rank == 0:
        torch.save({"weights": weights, "step": step + 1}, os.path.join(args.out, "step-%d.pt" % (step + 1)))
    dist.barrier()
if rank == 0:
    torch.save({"weights": weights}, os.path.join(args.out, "final.pt"))
dist.destroy_process_group()
