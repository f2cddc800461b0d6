"""Runs an emitted train_pytorch.py in two processes and compares the gradients
with those of the unsplit batch on one model.

usage: emit_gradients.py FILE...
"""

import importlib.util
import json
import os
import sys

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn


class Layer(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(d), nn.Linear(d, 2 * d), nn.Linear(2 * d, d)

    def forward(self, x):
        return x + self.down(torch.tanh(self.up(self.norm(x))))


class Net(nn.Module):
    def __init__(self, d=16, vocab=37):
        super().__init__()
        self.embed = nn.Embedding(vocab, d)
        self.layers = nn.ModuleList([Layer(d) for _ in range(4)])
        self.head = nn.Linear(d, vocab)

    def forward(self, input_ids):
        x = self.embed(input_ids)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def samples(n):
    """Samples with different numbers of targets."""
    g = torch.Generator().manual_seed(1)
    ids = torch.randint(0, 37, (n, 12), generator=g)
    labels = ids.clone()
    for i in range(n):
        labels[i, : int(torch.randint(0, 9, (1,), generator=g))] = -100
    return ids, labels


class Keep:
    """An optimizer that keeps the gradients instead of taking a step."""

    def __init__(self, model):
        self.model = model

    def step(self):
        self.grads = {}
        for name, p in self.model.named_parameters():
            g = p.grad
            if g is not None:
                g = g.full_tensor() if hasattr(g, "full_tensor") else g
                self.grads[name.replace("_checkpoint_wrapped_module.", "").removeprefix("module.")] = g.detach().float().clone()

    def zero_grad(self, set_to_none=True):
        pass


def rank_main(rank, world, paths, port):
    """All files in one pair of processes: loading torch is what takes time."""
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=world)
    for path in paths:
        try:
            got = check(rank, world, path)
        except Exception as e:
            got = {"error": "%s: %s" % (type(e).__name__, e)}
        if rank == 0 or "error" in got:
            print(json.dumps({"file": path, **got}), flush=True)
        if "error" in got:
            os._exit(1)  # the other process waits for this one
    dist.barrier()
    dist.destroy_process_group()


def check(rank, world, path):
    spec = importlib.util.spec_from_file_location("emitted", path)
    m = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(m)
    device = torch.device("cpu")
    torch.manual_seed(0)
    plain = Net()
    ids, labels = samples(world * m.ACCUMULATION * m.MICRO_BATCH)
    logits = plain(ids)[:, :-1]
    loss = nn.functional.cross_entropy(logits.flatten(0, 1), labels[:, 1:].flatten(), ignore_index=-100)
    loss.backward()
    want = {n: p.grad.clone() for n, p in plain.named_parameters()}
    torch.manual_seed(0)
    model = m.wrap(Net(), device)
    keep = Keep(model)
    per = m.ACCUMULATION * m.MICRO_BATCH
    mine_ids, mine_labels = ids[rank * per : (rank + 1) * per], labels[rank * per : (rank + 1) * per]
    split = [
        {"input_ids": a, "labels": b}
        for a, b in zip(mine_ids.split(m.MICRO_BATCH), mine_labels.split(m.MICRO_BATCH))
    ]
    total = m.train_step(model, keep, split, device, max_norm=None)
    assert set(keep.grads) == set(want), (sorted(keep.grads), sorted(want))
    worst = max(((keep.grads[n] - want[n]).norm() / want[n].norm()).item() for n in want)
    try:
        optimizer = m.make_optimizer(model, 1e-3)
        optimizer.step()
        made = type(optimizer).__name__
    except ImportError as e:
        made = str(e)
    return {"worst": worst, "loss": total.item() - loss.item(), "optimizer": made}


if __name__ == "__main__":
    mp.spawn(rank_main, (2, sys.argv[1:], 29650 + os.getpid() % 200), nprocs=2)
