"""Run by test_microbatch.py under torchrun: Microbatch on several ranks."""

import os
import random
import sys
import time

import torch
import torch.distributed as dist

import unoom

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.set_num_threads(1)
LIMIT = {"rows": None, "where": None, "bug": False}


class Fails(torch.autograd.Function):
    """Runs out of memory above a number of rows, in forward or in backward."""

    @staticmethod
    def forward(ctx, x):
        ctx.rows = x.shape[0]
        Fails.at("forward", ctx.rows)
        return x.clone()

    @staticmethod
    def backward(ctx, g):
        Fails.at("backward", ctx.rows)
        return g

    @staticmethod
    def at(where, rows):
        if LIMIT["where"] == where and rows > LIMIT["rows"]:
            if LIMIT["bug"]:
                raise ValueError("a bug of the script")
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 MiB.")


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Embedding(50, 8)
        self.hidden = torch.nn.Linear(8, 16)
        self.head = torch.nn.Linear(16, 50)
        self.unused = torch.nn.Linear(3, 3)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, ids):
        self.calls += 1
        return self.head(torch.tanh(self.hidden(Fails.apply(self.embed(ids)))))


def loss_sum(net, batch):
    out = net(batch["ids"])
    return torch.nn.functional.cross_entropy(out.flatten(0, 1), batch["labels"].flatten(), ignore_index=-100, reduction="sum")


def count(batch):
    return (batch["labels"] != -100).sum()


def make(seed, rows):
    g = torch.Generator().manual_seed(seed)
    ids = torch.randint(0, 50, (rows, 7), generator=g)
    labels = ids.clone()
    labels[torch.rand(rows, 7, generator=g) < 0.5] = -100  # uneven token counts
    return {"ids": ids, "labels": labels}


torch.manual_seed(0)
net = Net().double()
ddp = torch.nn.parallel.DistributedDataParallel(net, find_unused_parameters=True)
worst = 0.0
began = time.time()
for case in range(int(os.environ.get("CASES", "40"))):
    dice = random.Random(case)
    sizes = [dice.randint(1, 17) for _ in range(world)]
    batches = [make(1000 * case + r, n) for r, n in enumerate(sizes)]
    where, who = dice.choice([None, "forward", "backward"]), dice.randrange(world)
    limit = dice.randint(1, max(1, sizes[who] - 1))
    LIMIT.update(where=where if who == rank else None, rows=limit)
    step = unoom.Microbatch(ddp, loss_sum, count, max_rows=dice.choice([None, 3, 5]))
    stats = step(batches[rank])
    LIMIT["where"] = None
    got = [None if p.grad is None else p.grad.clone() for p in net.parameters()]
    # The truth: one process, all rows at once.
    net.zero_grad(set_to_none=True)
    total = sum(int(count(b)) for b in batches)
    if total == 0:
        continue
    sum(loss_sum(net, b) for b in batches).div(total).backward()
    for a, p in zip(got, net.parameters()):
        if p.grad is None:
            assert a is None, "a gradient where there is none"
            continue
        worst = max(worst, ((a - p.grad).norm() / p.grad.norm().clamp_min(1e-30)).item())
    assert stats.count == total, (stats, total)
    if where and sizes[who] > limit and stats.pieces > 1:
        assert stats.attempts >= 1
# One of the ranks has a bug: all must hear of it, none may wait.
for where in ("forward", "backward"):
    LIMIT.update(where=where if rank == world - 1 else None, rows=0, bug=True)
    step = unoom.Microbatch(ddp, loss_sum, count, check=False)
    try:
        step(make(1, 5))
        raise SystemExit("no error")
    except ValueError:
        assert rank == world - 1
    except unoom.PeerFailed:
        assert rank != world - 1
    LIMIT.update(where=None, bug=False)
# One row does not fit on one of the ranks.
LIMIT.update(where="backward" if rank == 0 else None, rows=0)
try:
    unoom.Microbatch(ddp, loss_sum, count, check=False)(make(2, 6))
    raise SystemExit("no error")
except unoom.CannotSplit:
    pass
if rank == 0:
    print("worst relative error %.3g, %.1f s" % (worst, time.time() - began))
assert worst <= 1e-12, worst
dist.destroy_process_group()
