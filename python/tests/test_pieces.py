"""Unequal micro-batches: the same samples in the same steps, on every rank."""

import pytest

torch = pytest.importorskip("torch")
accelerate = pytest.importorskip("accelerate")

from accelerate.data_loader import BatchSamplerShard  # noqa: E402
from torch.utils.data import BatchSampler, SequentialSampler  # noqa: E402

from unoom._pieces import Pieces  # noqa: E402


def steps(batches, each):
    """The rows of each optimizer step, from as many batches."""
    batches = list(batches)
    return [[r for b in batches[i : i + each] for r in b] for i in range(0, len(batches), each)]


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("world", [1, 2, 3])
@pytest.mark.parametrize("rows,batch,group,micro", [(96, 48, 1, 20), (100, 16, 2, 12), (31, 31, 1, 11), (200, 48, 1, 47), (7, 4, 1, 3)])
def test_a_step_has_the_rows_that_it_had(rows, batch, group, micro, world, drop_last):
    for rank in range(world):
        inner = BatchSampler(SequentialSampler(range(rows)), batch, drop_last)
        if world > 1:
            inner = BatchSamplerShard(inner, world, rank)
        pieces = Pieces(inner, batch, group, micro)
        assert len(list(pieces)) == len(pieces)
        assert all(0 < len(p) <= micro for p in pieces)
        per_step = -(-batch * group // micro)
        assert steps(pieces, per_step) == steps(inner, group)


def test_what_cannot_be_counted_is_refused():
    inner = BatchSampler(SequentialSampler(range(10)), 4, False)
    with pytest.raises(ValueError):
        Pieces(inner, 8, 1, 3)
    with pytest.raises(ValueError):
        Pieces(BatchSamplerShard(inner, 2, 0, even_batches=False), 4, 1, 3)
