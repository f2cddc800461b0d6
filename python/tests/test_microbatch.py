import gc
import os
import subprocess
import sys
import weakref

import pytest

torch = pytest.importorskip("torch")
import unoom  # noqa: E402

HERE = os.path.dirname(os.path.abspath(__file__))


def batch(rows=12, seed=0):
    g = torch.Generator().manual_seed(seed)
    return {"x": torch.randn(rows, 5, generator=g, dtype=torch.float64), "w": torch.randint(0, 3, (rows,), generator=g)}


def loss_sum(module, b):
    return ((module(b["x"]) ** 2).sum(1) * b["w"]).sum()


def count(b):
    return b["w"].sum()


def net():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.Dropout(0.0), torch.nn.Linear(7, 2)).double()


class Limit(torch.nn.Module):
    """Runs out of memory above a number of rows, in forward or in backward."""

    def __init__(self, inner, rows, where):
        super().__init__()
        self.inner, self.rows, self.where, self.failures = inner, rows, where, 0

    def forward(self, x):
        out = self.inner(x)
        if x.shape[0] > self.rows:
            if self.where == "forward":
                self.fail()
            out.register_hook(lambda g: self.fail())
        return out

    def fail(self):
        self.failures += 1
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 MiB.")


@pytest.mark.parametrize("where", ["forward", "backward"])
@pytest.mark.parametrize("fits", [1, 2, 5, 11])
def test_gradients_are_those_of_the_whole_batch(where, fits):
    model = net()
    b = batch()
    loss_sum(model, b).div(count(b)).backward()
    want = [p.grad.clone() for p in model.parameters()]
    limited = Limit(model, fits, where)
    stats = unoom.Microbatch(limited, loss_sum, count, check=False)(b)
    assert limited.failures == stats.attempts - 1 > 0
    for p, g in zip(model.parameters(), want):
        assert (p.grad - g).norm() <= 1e-12 * g.norm()


def test_the_size_that_fits_is_kept():
    limited = Limit(net(), 4, "forward")
    step = unoom.Microbatch(limited, loss_sum, count)
    first, second = step(batch()), step(batch(seed=1))
    assert first.attempts > 1 and second.attempts == 1


@pytest.mark.parametrize("rows,fits", [(48, 20), (48, 47), (100, 61), (512, 300), (31, 1), (12, 5)])
def test_the_largest_size_is_found_to_a_tenth(rows, fits):
    """In few calls, and at most four passes are lost to it after the first call."""
    limited = Limit(net(), fits, "backward")
    step = unoom.Microbatch(limited, loss_sum, count, check=False)
    step(batch(rows))
    lost = limited.failures
    for i in range(20):
        step(batch(rows, i))
    assert step.micro <= fits <= max(step.micro + 1, 1.1 * step.micro + 1)
    assert limited.failures - lost <= 4
    before = limited.failures
    assert step(batch(rows)).attempts == 1 and limited.failures == before


def test_random_numbers_are_replayed():
    model = torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.Dropout(0.5)).double()
    torch.manual_seed(3)
    plain = unoom.Microbatch(model, loss_sum, count, max_rows=3, check=False)(batch())
    want = [p.grad.clone() for p in model.parameters()]
    torch.manual_seed(3)
    limited = Limit(model, 4, "backward")
    stats = unoom.Microbatch(limited, loss_sum, count, check=False)(batch())
    # In the same pieces in the end, hence with the same masks.
    assert stats.attempts > 1 and stats.pieces == plain.pieces == 4
    for p, g in zip(model.parameters(), want):
        assert torch.equal(p.grad, g)


def test_nothing_to_learn_from():
    b = batch()
    b["w"].zero_()
    stats = unoom.Microbatch(net(), loss_sum, count)(b)
    assert stats.count == 0 and stats.pieces == 0


def test_one_row_does_not_fit():
    with pytest.raises(unoom.CannotSplit):
        unoom.Microbatch(Limit(net(), 0, "forward"), loss_sum, count, check=False)(batch())


def test_batch_norm_is_refused():
    model = torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.BatchNorm1d(7)).double()
    with pytest.raises(unoom.CannotSplit, match="BatchNorm1d"):
        unoom.Microbatch(model, loss_sum, count)
    model.eval()
    unoom.Microbatch(model, loss_sum, count)


def test_losses_that_look_at_other_rows_are_refused():
    def contrastive(module, b):
        z = torch.nn.functional.normalize(module(b["x"]), dim=1)
        return torch.nn.functional.cross_entropy(z @ z.T, torch.arange(len(z)), reduction="sum")

    with pytest.raises(unoom.CannotSplit, match="no sum over rows"):
        unoom.Microbatch(net(), contrastive, lambda b: len(b["x"]))(batch())

    def mean(module, b):  # a mean is no sum either
        return module(b["x"]).square().mean()

    with pytest.raises(unoom.CannotSplit, match="no sum over rows"):
        unoom.Microbatch(net(), mean, lambda b: len(b["x"]))(batch())


def test_gradients_used_up_in_backward_are_refused():
    model = net()
    next(model.parameters()).register_post_accumulate_grad_hook(lambda p: None)
    with pytest.raises(unoom.CannotSplit, match="backward"):
        unoom.Microbatch(model, loss_sum, count)


def test_a_bug_is_raised_as_it_is():
    def broken(module, b):
        if len(b["x"]) > 4:
            raise KeyError("the script's own")
        return loss_sum(module, b)

    with pytest.raises(KeyError, match="own"):
        unoom.Microbatch(net(), broken, count)(batch())


def test_a_failed_attempt_holds_nothing():
    kept = []

    def watched(module, b):
        out = module(b["x"])
        kept.append(weakref.ref(out))
        loss = ((out**2).sum(1) * b["w"]).sum()
        if len(b["x"]) > 3:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 MiB.")
        return loss

    unoom.Microbatch(net(), watched, count, check=False)(batch())
    gc.collect()
    assert not [r for r in kept if r() is not None]


@pytest.mark.parametrize("ranks", [2] + ([3, 4] if os.environ.get("UNOOM_SLOW") else []))
def test_ranks_agree_and_never_hang(ranks):
    env = dict(os.environ, PYTHONPATH=os.path.dirname(HERE), OMP_NUM_THREADS="1", CASES="200" if os.environ.get("UNOOM_SLOW") else "25")
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(ranks), "--rdzv-backend", "c10d",
         "--rdzv-endpoint", "localhost:0", os.path.join(HERE, "microbatch_ranks.py")],
        env=env, capture_output=True, text=True, timeout=900,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    print(done.stdout)
