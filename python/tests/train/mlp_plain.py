"""A small network in plain PyTorch that saves as it goes: nothing of unoom.

usage: mlp_plain.py OUTPUT_DIR --batch N --accum N [--resume FILE] [--steps N] [--forgets]

--forgets: when resumed it trains with the batch of its checkpoint, whatever it
is told, as trainers have done; on short texts, so that this fits.
"""

import argparse
import os

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("out")
parser.add_argument("--batch", type=int, required=True)
parser.add_argument("--accum", type=int, default=1)
parser.add_argument("--resume")
parser.add_argument("--steps", type=int, default=4)
parser.add_argument("--forgets", action="store_true")
args = parser.parse_args()
torch.manual_seed(0)
torch.set_num_threads(1)
net = nn.Sequential(*[m for _ in range(8) for m in (nn.Linear(256, 256), nn.Tanh())], nn.Linear(256, 10))
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
start = 0
if args.resume:
    kept = torch.load(args.resume, weights_only=True)
    net.load_state_dict(kept["weights"])
    optimizer.load_state_dict(kept["optimizer"])
    start = kept["step"]
    if args.forgets:
        args.batch = kept["batch"]
for step in range(start, args.steps):
    numbers = torch.Generator().manual_seed(step)
    # The texts grow: the third step is the first that does not fit.
    length = 32 if step < 2 or (args.resume and args.forgets) else 96
    rows = args.batch * args.accum
    x, y = torch.randn(rows, length, 256, generator=numbers), torch.randint(0, 10, (rows,), generator=numbers)
    for i in range(args.accum):
        at = slice(i * args.batch, (i + 1) * args.batch)
        loss = nn.functional.cross_entropy(net(x[at]).mean(1), y[at]) / args.accum
        loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    torch.save(
        {"weights": net.state_dict(), "optimizer": optimizer.state_dict(), "step": step + 1, "batch": args.batch},
        os.path.join(args.out, "step-%d.pt" % (step + 1)),
    )
torch.save({"weights": net.state_dict()}, os.path.join(args.out, "final.pt"))
