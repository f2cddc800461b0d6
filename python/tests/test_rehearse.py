import os
import random
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")
from unoom import _checkpoint, _release, _rehearse  # noqa: E402

HERE = os.path.dirname(os.path.abspath(__file__))
MIB = 1 << 20


def check(a):
    """No two free neighbours, sums that agree, segments of the right sizes."""
    free = 0
    for small, pool in enumerate(a.pools):
        assert pool == sorted(pool, key=lambda e: e[:2])
        for size, addr, block in pool:
            assert block.free and block.size == size and block.addr == addr
            for n in (block.prev, block.next):
                assert n is None or not n.free
            free += size
    assert a.allocated + free == a.reserved <= a.capacity


def test_the_allocator_keeps_its_rules():
    dice = random.Random(5)
    a = _rehearse.Allocator(300 * MIB)
    live = []
    for _ in range(4000):
        if live and dice.random() < 0.48:
            a.release(live.pop(dice.randrange(len(live))))
        else:
            size = int(2 ** dice.uniform(4, 25))
            try:
                block = a.malloc(size)
                assert block.size >= size and block.size % 512 == 0
                live.append(block)
            except _rehearse.OutOfRoom:
                pass
        check(a)
    for b in live:
        a.release(b)
    a.flush()
    assert a.reserved == a.allocated == 0


@pytest.mark.parametrize(
    "size,reserved",
    [(1, 2 * MIB), (MIB, 2 * MIB), (MIB + 1, 20 * MIB), (10 * MIB - 512, 20 * MIB), (10 * MIB, 10 * MIB), (11 * MIB, 12 * MIB)],
)
def test_segments(size, reserved):
    a = _rehearse.Allocator(1 << 30)
    a.malloc(size)
    assert a.reserved == reserved


@pytest.mark.parametrize("n,text", [(512, "512 bytes"), (1025, "1.00 KiB"), (MIB, "1024.00 KiB"), (20 * MIB, "20.00 MiB"), ((1 << 30) + 1, "1.00 GiB")])
def test_sizes_print_as_torch_prints_them(n, text):
    assert _rehearse.format_size(n) == text


def test_tensors_are_counted_while_they_live():
    code = """
import torch
from unoom import _rehearse
m = _rehearse.start(64 << 20)
x = torch.zeros(1 << 20)          # 4 MiB
view = x.view(2, -1)
assert m.allocated() == 4 << 20
del x
assert m.allocated() == 4 << 20, "a view holds its storage"
del view
assert m.allocated() == 0 and m.reserved() == 20 << 20
try:
    torch.zeros((16 << 20) + 1)
    raise SystemExit("no OOM")
except torch.OutOfMemoryError as e:
    assert "Tried to allocate 66.00 MiB. GPU 0 has a total capacity of 64.00 MiB of which 64.00 MiB is free" in str(e), e
w = torch.nn.Linear(256, 256)
w(torch.zeros(8, 256)).sum().backward()
assert w.weight.grad is not None and m.allocated() >= 2 * 256 * 256 * 4
"""
    done = subprocess.run([sys.executable, "-c", code], env=dict(os.environ, PYTHONPATH=os.path.dirname(HERE)), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.norm, self.drop = torch.nn.Linear(6, 6), torch.nn.BatchNorm1d(6), torch.nn.Dropout(0.3)

    def forward(self, x, scale=1.0):
        return x + self.drop(torch.relu(self.norm(self.a(x)))) * scale


def test_recomputation_changes_nothing():
    def train(checkpointed):
        torch.manual_seed(0)
        model = torch.nn.Sequential(*[Block() for _ in range(4)]).double()
        if checkpointed:
            assert _checkpoint.enable(torch, model) == 4
        for i in range(3):
            model(torch.randn(9, 6, dtype=torch.float64, requires_grad=True)).square().mean().backward()
        return [p.grad for p in model.parameters()], list(model.buffers()), torch.rand(3)

    for a, b in zip(train(False), train(True)):
        for x, y in zip(a, b):
            assert torch.equal(x, y)


def test_release_lets_go_of_what_an_exception_holds():
    import weakref

    kept = []

    def fails():
        x = torch.zeros(10)
        kept.append(weakref.ref(x))
        raise RuntimeError("CUDA out of memory.")

    try:
        fails()
    except RuntimeError as e:
        sys.last_value = e
    _release.release()
    assert kept[0]() is None
