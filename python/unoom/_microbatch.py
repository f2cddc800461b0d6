"""One optimizer step's gradients, exact, however small the pieces must be.

    step = unoom.Microbatch(model, loss_sum, count)
    for batch in loader:
        stats = step(batch)          # leaves exact gradients in .grad
        clip_grad_norm_(...); optimizer.step(); scheduler.step()

loss_sum(module, batch) returns the SUM of the losses of the rows of a batch,
count(batch) what they are averaged over (tokens, rows), known without a
forward pass. Each piece's sum is divided by the count of the whole batch over
all ranks, so the gradients are those of the unsplit batch up to rounding; the
mean of means that accumulation loops take is off by 7 to 177 % where the
counts differ.

On an out-of-memory all ranks agree, over gloo and without the GPU, to throw the
gradients away and to take the same batch again in smaller pieces. Nobody waits
for a rank that failed: there is no collective in the guarded part, and every
rank comes to the agreement whatever happened to it.

Pieces are halved until they fit. After two calls that fitted, a size between
that and the one that did not is tried, until the largest is known to a tenth;
each try that fails costs one more pass over a batch, and there are four at most.

It refuses what cannot be split: BatchNorm in training mode, losses that look at
other rows of the batch, parameters that are sharded, gradients that are used
up inside backward.
"""

import random
import sys

import torch

from . import _calibrate, _events, _memory, _release

BUCKET = 25 << 20  # bytes of gradients that are reduced at once, as DDP does
NEVER = 1 << 40  # rows of a piece that did not fit, where none failed


class CannotSplit(RuntimeError):
    """The batch cannot be made to fit, or the model's result would change."""


class PeerFailed(RuntimeError):
    """Another rank met an error that is not an out-of-memory."""


class Stats:
    """What one step did: rows, pieces, attempts, count over all ranks, loss."""

    __slots__ = ("rows", "pieces", "attempts", "count", "loss")

    def __init__(self, rows, pieces, attempts, count, loss):
        self.rows, self.pieces, self.attempts, self.count, self.loss = rows, pieces, attempts, count, loss

    def __repr__(self):
        return "Stats(rows=%d, pieces=%d, attempts=%d, count=%g, loss=%g)" % (
            self.rows,
            self.pieces,
            self.attempts,
            self.count,
            self.loss,
        )


def rows(batch, start, stop):
    """The default split: rows start to stop of every tensor of the batch."""
    n = _calibrate.rows_of(torch, batch)

    def cut(t):
        return t[start:stop] if t.dim() > 0 and t.shape[0] == n else t

    return _calibrate._map(torch, batch, cut)


def _rng_state():
    state = {"cpu": torch.get_rng_state(), "python": random.getstate()}
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        state["cuda"] = torch.cuda.get_rng_state()
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        state["numpy"] = numpy.random.get_state()
    return state


def _set_rng_state(state):
    torch.set_rng_state(state["cpu"])
    random.setstate(state["python"])
    if "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"])
    if "numpy" in state:
        sys.modules["numpy"].random.set_state(state["numpy"])


class _Alone:
    """The agreement of one process with itself."""

    size = 1

    def max(self, x):
        return x

    min = sum = max

    def mask(self, bits):
        return bits


class _Control:
    """Agreement over gloo: it works when the GPU has no memory left."""

    def __init__(self, group, timeout):
        import datetime

        import torch.distributed as dist

        self.dist = dist
        ranks = dist.get_process_group_ranks(group) if group is not None else list(range(dist.get_world_size()))
        self.size = len(ranks)
        self.group = dist.new_group(ranks, backend="gloo", timeout=datetime.timedelta(seconds=timeout))

    def _reduce(self, x, op):
        t = torch.tensor([float(x)], dtype=torch.float64)
        self.dist.all_reduce(t, op, group=self.group)
        return t.item()

    def max(self, x):
        return self._reduce(x, self.dist.ReduceOp.MAX)

    def min(self, x):
        return self._reduce(x, self.dist.ReduceOp.MIN)

    def sum(self, x):
        return self._reduce(x, self.dist.ReduceOp.SUM)

    def mask(self, bits):
        t = torch.tensor(bits, dtype=torch.uint8)
        self.dist.all_reduce(t, self.dist.ReduceOp.MAX, group=self.group)
        return t.tolist()


class Microbatch:
    def __init__(
        self, model, loss_sum, count, split=rows, group=None, max_rows=None, scaler=None, check=True, attempts=8, timeout=600
    ):
        """model may be wrapped in DistributedDataParallel; group are the ranks
        that share a batch (default: all). Every rank must make one, and call it
        equally often. scaler is a GradScaler, whose unscale_ the caller does.
        check=False leaves out the test that the loss is a sum over rows."""
        dist = torch.distributed
        self.model = model
        self.module = model.module if type(model).__name__ in ("DistributedDataParallel", "DataParallel") else model
        self.loss_sum, self.count, self.split = loss_sum, count, split
        self.group, self.micro, self.scaler = group, max_rows, scaler
        self.check, self.attempts = check, attempts
        # Rows of a piece: the fewest that did not fit, the most that did in two
        # calls, and calls in a row that fitted at the present size.
        self.bad, self.good, self.clean = NEVER, 0, 0
        if dist.is_available() and dist.is_initialized() and dist.get_world_size(group) > 1:
            self.control = _Control(group, timeout)
        else:
            self.control = _Alone()
        self._refuse(self.module)

    def _refuse(self, module):
        reason = None
        if type(module).__name__ == "DeepSpeedEngine":
            reason = "DeepSpeed's engine owns the gradients; set train_micro_batch_size_per_gpu instead"
        for m in module.modules():
            if isinstance(m, torch.nn.modules.batchnorm._BatchNorm) and m.training:
                reason = "%s in training mode takes its statistics over the batch" % type(m).__name__
        for p in module.parameters():
            if type(p).__name__ == "DTensor" or type(p.data).__name__ == "DTensor" or hasattr(p, "_is_sharded"):
                reason = "the parameters are sharded over ranks; only a restart can change the batch"
            elif getattr(p, "_post_accumulate_grad_hooks", None):
                reason = "a hook uses the gradients up inside backward"
        if type(module).__name__ == "FullyShardedDataParallel":
            reason = "the parameters are sharded over ranks; only a restart can change the batch"
        # Agree, or the others would wait for this rank at the first step.
        if self.control.max(1 if reason else 0):
            raise CannotSplit(reason or "another rank's model cannot be split")

    def _check_sum(self, batch, n):
        """Whether two rows together lose what they lose one by one."""
        bad, text = 0, ""
        if n >= 2:
            training = self.module.training
            state = _rng_state()
            try:
                self.module.eval()
                with torch.no_grad():
                    k = min(n, 4)
                    whole = float(self.loss_sum(self.module, self.split(batch, 0, k)))
                    parts = sum(float(self.loss_sum(self.module, self.split(batch, i, i + 1))) for i in range(k))
                scale = max(abs(whole), abs(parts), 1e-12)
                low = any(t.dtype in (torch.float16, torch.bfloat16) for t in self.module.parameters())
                if not abs(whole - parts) <= (0.05 if low else 1e-3) * scale:  # also NaN
                    bad = 1
                    text = "the loss of %d rows together is %g, one by one %g: it is no sum over rows" % (k, whole, parts)
            except Exception as e:
                if not _memory.is_oom(e):
                    bad, text = 1, "the loss cannot be computed on single rows: %s" % e
                _release.forget_exceptions(e)
            finally:
                self.module.train(training)
                _set_rng_state(state)
        if self.control.max(bad):
            raise CannotSplit(text or "another rank's loss is no sum over rows")

    def __call__(self, batch):
        control = self.control
        n_rows = _calibrate.rows_of(torch, batch)
        if self.check:
            self.check = False
            self._check_sum(batch, n_rows)
        total = control.sum(float(self.count(batch)))
        self._zero()
        if total == 0:
            return Stats(n_rows, 0, 0, 0.0, 0.0)
        micro = self.micro or max(1, n_rows)
        state = _rng_state()
        buffers = [(b, b.detach().clone()) for b in self.module.buffers()]
        attempt = 1
        while True:
            pieces = int(control.max(max(1, -(-n_rows // micro))))
            status, error, loss = self._guarded(batch, n_rows, micro, total)
            worst = control.max(status)
            if worst == 0:
                break
            if worst == 2:
                if error is not None:
                    raise error
                raise PeerFailed("another rank failed; its own message says why")
            del error
            self._recover(buffers, state)
            largest = min(n_rows, micro)
            stuck = control.max(1 if status == 1 and largest <= 1 else 0)
            if stuck or attempt >= self.attempts:
                _events.emit("microbatch", rows=n_rows, pieces=pieces, attempts=attempt, ok=False)
                raise CannotSplit("one row does not fit" if stuck else "did not fit after %d attempts" % attempt)
            self.bad = int(control.min(largest if status == 1 else NEVER))
            if self.good >= self.bad:
                self.good = 0
            micro = self.good or max(1, self.bad // 2)
            attempt += 1
        if self.bad < NEVER:
            self._narrow(micro, attempt, int(control.max(min(n_rows, micro))))
        if attempt > 1:
            _events.emit("microbatch", rows=n_rows, pieces=pieces, attempts=attempt, ok=True, peak=_memory.current().peak())
        self._reduce()
        return Stats(n_rows, pieces, attempt, total, control.sum(loss) / total)

    def _narrow(self, micro, attempts, largest):
        """Chooses the size of the next call, between what fitted and what did
        not. All ranks have the same numbers, and choose the same."""
        self.clean = self.clean + 1 if attempts == 1 and largest >= micro else 0
        self.micro = micro
        if self.clean >= 2:
            self.good, self.clean = max(self.good, micro), 0
            if self.bad - micro > max(1, micro // 10):
                self.micro = (micro + self.bad) // 2

    def _guarded(self, batch, n_rows, micro, total):
        """The part that may fail. No collective in here."""
        loss = 0.0
        try:
            for start in range(0, n_rows, micro):
                piece = self.loss_sum(self.module, self.split(batch, start, min(start + micro, n_rows)))
                loss += float(piece.detach())
                piece = piece / total
                if self.scaler is not None:
                    piece = self.scaler.scale(piece)
                piece.backward()
                del piece
            return 0, None, loss
        except BaseException as e:
            if not _memory.is_oom(e):
                return 2, e, 0.0
            failed = e
        # Outside the except block, or the frames would stay.
        _release.forget_exceptions(failed)
        del failed
        return 1, None, 0.0

    def _zero(self):
        for p in self.module.parameters():
            p.grad = None

    def _recover(self, buffers, state):
        self._zero()
        _release.release()
        with torch.no_grad():
            for b, kept in buffers:
                b.copy_(kept)
        _set_rng_state(state)

    def _reduce(self):
        """Sums the gradients over the ranks. They are shares of one mean
        already, so it is a sum, not DDP's mean."""
        if self.control.size == 1:
            return
        dist = torch.distributed
        params = [p for p in self.module.parameters() if p.requires_grad]
        used = self.control.mask([0 if p.grad is None else 1 for p in params])
        grads = []
        for p, some in zip(params, used):
            if some and p.grad is None:
                p.grad = torch.zeros_like(p)  # a peer has one
            if some:
                grads.append(p.grad)
        by_type = {}
        for g in grads:
            by_type.setdefault((g.dtype, g.device), []).append(g)
        for (dtype, device), same in by_type.items():
            room = BUCKET // same[0].element_size()
            try:
                flat = torch.empty(min(room, sum(g.numel() for g in same)), dtype=dtype, device=device)
                short = 0
            except RuntimeError as e:
                _release.forget_exceptions(e)
                flat, short = None, 1
            if self.control.max(short):  # then one by one, in place
                del flat
                for g in same:
                    dist.all_reduce(g, group=self.group)
                continue
            bucket, filled = [], 0
            for g in same + [None]:
                if g is not None and g.numel() <= room - filled:
                    bucket.append((g, filled))
                    filled += g.numel()
                    continue
                if bucket:
                    for b, at in bucket:
                        flat[at : at + b.numel()].copy_(b.reshape(-1))
                    dist.all_reduce(flat[:filled], group=self.group)
                    for b, at in bucket:
                        b.copy_(flat[at : at + b.numel()].view_as(b))
                bucket, filled = [], 0
                if g is None:
                    break
                if g.numel() > room:
                    dist.all_reduce(g, group=self.group)
                else:
                    bucket, filled = [(g, 0)], g.numel()
