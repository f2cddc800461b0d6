"""Cuts the rows of each optimizer step into pieces that need not be equal.

The batches that a loader would have made are joined for one step and cut again:
48 rows in pieces of 20 are 20, 20 and 8. Which samples belong to a step, on
which rank, and in which order stays what it was, also at the end of an epoch.
"""

import torch


class Pieces(torch.utils.data.BatchSampler):
    """Stands in for a rank's own batch sampler.

    inner makes batches of batch rows, of which group belong to one optimizer
    step; a piece has at most micro rows.
    """

    def __init__(self, inner, batch, group, micro):
        self.inner, self.group, self.micro = inner, group, micro
        self.per_step = batch * group
        self.rows = _rows(inner, batch)

    def __iter__(self):
        rows, batches = [], 0
        for batch in self.inner:
            rows.extend(batch)
            batches += 1
            if batches == self.group:
                yield from self._cut(rows)
                rows, batches = [], 0
        yield from self._cut(rows)

    def _cut(self, rows):
        for at in range(0, len(rows), self.micro):
            yield rows[at : at + self.micro]

    def __len__(self):
        steps, last = divmod(self.rows, self.per_step)
        return steps * -(-self.per_step // self.micro) + -(-last // self.micro)

    def __getattr__(self, name):  # set_epoch, sampler, drop_last: as before
        if name == "inner":
            raise AttributeError(name)
        return getattr(self.inner, name)


def _rows(inner, batch):
    """How many rows a rank gets in an epoch."""
    if hasattr(inner, "num_processes"):  # accelerate's shard: whole batches only
        if getattr(inner, "split_batches", False) or not (inner.even_batches or inner.drop_last):
            raise ValueError("the batches of the ranks are not all whole")
        return len(inner) * batch
    if type(inner) is not torch.utils.data.BatchSampler or inner.batch_size != batch:
        raise ValueError("batches are made by %s" % type(inner).__name__)
    n = len(inner.sampler)
    return n // batch * batch if inner.drop_last else n


def cut(loader, batch, group, micro):
    """Puts Pieces into a DataLoader, plain or as accelerate prepared it."""
    holder = getattr(loader, "base_dataloader", loader)
    pieces = Pieces(holder.batch_sampler, batch, group, micro)
    object.__setattr__(holder, "batch_sampler", pieces)
    if holder is not loader and "batch_sampler" in getattr(loader, "__dict__", {}):
        object.__setattr__(loader, "batch_sampler", pieces)
    return loader
