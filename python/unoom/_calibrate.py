"""Finds out, in a process that ran out of memory and is about to end, how
memory grows with the rows of a batch, and which sizes would have fitted.

It makes the state of an accumulating training: gradients in place, optimizer
state in place (for what is not there yet, as much memory as it will take), then
forward and backward over the first rows of the batch that failed. Nothing is
stepped, so the weights stay what they were.

It needs a model that runs without other ranks: under FSDP, tensor parallelism,
or SyncBatchNorm it does nothing.
"""

import bisect
import gc
import time

from . import _events, _memory, _release


def tensors(torch, tree):
    """All tensors in nested tuples, lists, dicts and mappings."""
    if isinstance(tree, torch.Tensor):
        yield tree
    elif isinstance(tree, (list, tuple)):
        for x in tree:
            yield from tensors(torch, x)
    elif hasattr(tree, "items"):
        for _, x in tree.items():
            yield from tensors(torch, x)


def rows_of(torch, tree):
    """The size of the batch: the first dimension that the inputs share."""
    sizes = [t.shape[0] for t in tensors(torch, tree) if t.dim() > 0]
    if not sizes:
        return 0
    return max(set(sizes), key=lambda n: (sizes.count(n), n))


def _map(torch, tree, f):
    if isinstance(tree, torch.Tensor):
        return f(tree)
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return type(tree)(*(_map(torch, x, f) for x in tree))
    if isinstance(tree, (list, tuple)):
        return type(tree)(_map(torch, x, f) for x in tree)
    if isinstance(tree, dict) or hasattr(tree, "items"):
        return {k: _map(torch, x, f) for k, x in tree.items()}
    return tree


def keep_row(torch, tree, rows):
    """A copy of the first row on the CPU, with where it came from."""
    if rows <= 0:
        return None

    def one(t):
        if t.dim() > 0 and t.shape[0] == rows:
            return ("row", t[:1].detach().to("cpu", copy=True), t.device)
        return ("all", t.detach(), t.device)

    return _map(torch, tree, one)


def _spread(torch, sample, rows):
    """A batch of rows equal rows."""

    def back(x):
        if isinstance(x, tuple) and len(x) == 3 and x[0] in ("row", "all"):
            kind, t, device = x
            return t.to(device).repeat_interleave(rows, 0) if kind == "row" else t
        if isinstance(x, (list, tuple)):
            return type(x)(back(y) for y in x)
        if isinstance(x, dict):
            return {k: back(y) for k, y in x.items()}
        return x

    return back(sample)


def _on_host(torch, tree):
    """A copy that takes no memory of the card, as (device, tensor) pairs."""
    return _map(torch, tree, lambda t: (_Kept(t.device), t.detach().to("cpu", copy=True)))


class _Kept(str):
    """Marks a pair made by _on_host."""

    def __new__(cls, device):
        return super().__new__(cls, str(device))


def _first(tree, have, want):
    """The first rows of what _on_host kept, back on the card."""
    if isinstance(tree, tuple) and len(tree) == 2 and isinstance(tree[0], _Kept):
        device, t = tree
        if t.dim() > 0 and t.shape[0] == have:
            t = t[:want]
        return t.to(str(device), copy=True)
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return type(tree)(*(_first(x, have, want) for x in tree))
    if isinstance(tree, (list, tuple)):
        return type(tree)(_first(x, have, want) for x in tree)
    if isinstance(tree, dict):
        return {k: _first(x, have, want) for k, x in tree.items()}
    return tree


def autocast_state(torch):
    out = []
    for device in ("cuda", "cpu"):
        try:
            if torch.is_autocast_enabled(device):
                out.append((device, torch.get_autocast_dtype(device)))
        except TypeError:  # before 2.4
            return []
    return out


def _unwrap(torch, module):
    """The model itself, and None if it does not run without other ranks."""
    for _ in range(8):
        name = type(module).__name__
        if name in ("DistributedDataParallel", "DataParallel"):
            module = module.module
        elif name == "OptimizedModule":
            module = module._orig_mod
        else:
            break
    for m in module.modules():
        name = type(m).__name__
        if name in ("SyncBatchNorm", "FullyShardedDataParallel") or name.startswith("FSDP"):
            return None
    for p in module.parameters():
        if type(p).__name__ == "DTensor" or type(p.data).__name__ == "DTensor":
            return None
    return module


def _loss(torch, out):
    """Something to go backward from, that needs what a loss needs."""
    loss = getattr(out, "loss", None)
    if loss is None and isinstance(out, dict):
        loss = out.get("loss")
    if isinstance(loss, torch.Tensor) and loss.dim() == 0 and loss.requires_grad:
        return loss
    total = None
    for t in tensors(torch, out):
        if not t.is_floating_point() or not t.requires_grad:
            continue
        if t.dim() >= 2 and t.shape[-1] >= 256:
            flat = t.reshape(-1, t.shape[-1])
            part = torch.nn.functional.cross_entropy(flat.float(), torch.zeros(flat.shape[0], dtype=torch.long, device=t.device))
        else:
            part = t.float().square().mean()
        total = part if total is None else total + part
    return total


def _drop_graphs(torch):
    """Frees the activations that variables of the script still hold, such as
    the loss of a backward that did not come to its end."""
    for o in gc.get_objects():
        if issubclass(type(o), torch.Tensor) and o.grad_fn is not None:
            try:
                o.detach_()
            except Exception:
                pass  # a view


def _drop_batches(torch, module, optimizers, full, sample):
    """Empties the tensors that have as many rows as the batch: that batch, the
    next one that a loader has already fetched, outputs that a trainer keeps. In
    a run with a smaller batch they are smaller, and here they would be counted
    in full. The process is about to end; what the model needs is left alone."""
    keep = {t.data_ptr() for t in tensors(torch, sample)}
    for t in list(module.parameters()) + list(module.buffers()):
        keep.add(t.data_ptr())
    for o in optimizers.list:
        for t in tensors(torch, list(getattr(o, "optimizer", o).state.values())):
            keep.add(t.data_ptr())
    for o in gc.get_objects():
        if type(o) is torch.Tensor and o.dim() > 0 and o.shape[0] == full and o.data_ptr() not in keep:
            try:
                o.data = torch.empty(0, dtype=o.dtype, device=o.device)
            except Exception:
                pass


def _persistent(torch, module, optimizers):
    """Weights, buffers, gradients and the optimizer state that is there."""
    seen = {}
    for t in list(module.parameters()) + list(module.buffers()):
        seen[t.data_ptr()] = t.numel() * t.element_size()
    grads = sum(p.numel() * p.element_size() for p in module.parameters() if p.requires_grad)
    for o in optimizers.list:
        for t in tensors(torch, list(getattr(o, "optimizer", o).state.values())):
            seen[t.data_ptr()] = t.numel() * t.element_size()
    return sum(seen.values()) + grads


class Optimizers:
    """What the optimizers hold already, and what they will hold in addition."""

    def __init__(self, torch, module):
        self.torch = torch
        params = {id(p) for p in module.parameters()}
        self.list = [
            o
            for o in gc.get_objects()
            if issubclass(type(o), torch.optim.Optimizer)  # isinstance would ask lazy objects
            and o.param_groups
            and any(id(p) in params for g in o.param_groups for p in g["params"])
        ]
        # A wrapper such as accelerate's holds the real one.
        inner = {id(getattr(o, "optimizer", None)) for o in self.list}
        self.list = [o for o in self.list if id(o) not in inner or not hasattr(o, "optimizer")]
        seen, unique = set(), []
        for o in self.list:
            key = id(o.param_groups[0]["params"][0]) if o.param_groups[0]["params"] else id(o)
            if key not in seen:
                seen.add(key)
                unique.append(o)
        self.list = unique

    def missing(self):
        """Per parameter without state: how many bytes its state will have.

        What an optimizer keeps for a parameter is found out by letting one of
        its class take a step on a small parameter.
        """
        out = []
        for o in self.list:
            real = getattr(o, "optimizer", o)
            share = None
            for g in real.param_groups:
                for p in g["params"]:
                    if not p.requires_grad or real.state.get(p):
                        continue
                    if share is None:
                        share = self._share(real, g, p)
                    out.append((p, int(p.numel() * share)))
        return out

    def _share(self, optimizer, group, like):
        torch = self.torch
        n = 4096
        p = torch.nn.Parameter(torch.zeros(64, 64, dtype=like.dtype, device=like.device))
        p.grad = torch.ones_like(p)
        try:
            options = {k: v for k, v in group.items() if k in optimizer.defaults}
            trial = type(optimizer)([p], **options)
            trial.step()
            held = sum(t.numel() * t.element_size() for t in tensors(torch, dict(trial.state[p])) if t.numel() > 1)
            return held / n
        except Exception:
            return 8.0  # two numbers of 4 bytes, as Adam keeps

    def step_more(self):
        """Temporaries of the step: one more gradient where it is done for all
        parameters at once (foreach, the default on a GPU)."""
        most = 0
        for o in self.list:
            for g in getattr(o, "optimizer", o).param_groups:
                params = [p for p in g["params"] if p.requires_grad]
                if not params:
                    continue
                each = [p.numel() * p.element_size() for p in params]
                foreach = g.get("foreach")
                if foreach is None:
                    foreach = params[0].is_cuda and not g.get("fused")
                most = max(most, sum(each) if foreach else max(each))
        return most


def _candidates(full, product, micro, uneven):
    """Row counts worth trying, smallest first: those of the permitted batches.

    Where the pieces need not be equal every number is permitted; then the
    neighbours are 4 % apart, so that the largest that fits is missed by no more.
    """
    per = full // micro if product and micro and full % micro == 0 else 0
    if per and uneven:
        sizes, at = [], 1
        while at < micro:
            sizes.append(at * per)
            at += max(1, at // 25)
    elif per:
        sizes = [d * per for d in range(1, micro) if product % d == 0]
    else:
        sizes = [d for d in range(1, full) if full % d == 0]
    return sizes


def run(target, remembered, seconds, needed=0):
    import sys

    torch = sys.modules["torch"]
    module, batch, library = target.pop()  # nobody else may hold the batch
    memory = _memory.current()
    if not memory.known:
        return
    module = _unwrap(torch, module)
    if module is None:
        _events.emit("not_applied", what="calibration", why="the model is sharded over ranks")
        return
    _events._state["over"] = True  # what follows is no training
    deadline = time.monotonic() + seconds
    full = rows_of(torch, batch) if batch is not None else remembered.get("rows", 0)
    if full <= 0:
        return
    with _memory.untracked():
        sample = None if batch is None else _on_host(torch, batch)  # also free of the graph
    del batch
    config = _events.config()
    from . import _apply

    micro, product, uneven = _apply.batch_in_force(config)
    optimizers = Optimizers(torch, module)
    module.zero_grad(set_to_none=True)
    for o in optimizers.list:
        o.zero_grad(set_to_none=True)
    _release.forget_exceptions()
    _drop_graphs(torch)
    _drop_batches(torch, module, optimizers, full, (sample, remembered.get("sample")))
    gc.collect()
    memory.empty_cache()
    trials = []
    result = {"batch_rows": full, "micro_batch": micro, "trials": trials, "step_more": optimizers.step_more()}
    missing = optimizers.missing()
    result["state_more"] = sum(n for _, n in missing)
    result["persistent"] = _persistent(torch, module, optimizers) + result["state_more"]
    filler = []
    try:
        for p in module.parameters():
            if p.requires_grad:
                p.grad = torch.zeros_like(p)
        for p, n in missing:
            if n:
                filler.append(torch.empty(n, dtype=torch.uint8, device=p.device))
    except Exception as e:
        _release.forget_exceptions(e)
        filler.clear()
        _events.emit("calibration", **result)
        return
    session = _Session(torch, module, sample, full, memory, remembered, library)
    # The whole batch needs at least what it had got when it failed, and the state
    # that was still to come.
    session.needed = needed + result["state_more"] if needed else 0
    try:
        sizes = _candidates(full, product, micro, uneven)
        _search(session, trials, sizes, False, deadline)
        best = max((t["rows"] for t in trials if t["ok"]), default=None)
        norms = any(isinstance(m, torch.nn.modules.batchnorm._BatchNorm) and m.training for m in module.modules())
        wants = best is None or norms or (config.get("settings") or {}).get("want_checkpointing")
        if wants and (config.get("settings") or {}).get("checkpointing") != "full":
            from . import _checkpoint

            if _checkpoint.enable(torch, module):
                _search(session, trials, sizes + [full], True, deadline)
    finally:
        result["milliseconds"] = int((time.monotonic() - deadline + seconds) * 1000)
        _events.emit("calibration", **result)


class _Session:
    def __init__(self, torch, module, sample, full, memory, remembered, library):
        self.torch, self.module, self.sample, self.full = torch, module, sample, full
        self.memory, self.remembered, self.library = memory, remembered, library
        with _memory.untracked():
            self.buffers = [(b, b.detach().clone()) for b in module.buffers() if b.numel() < 1 << 20]

    def batch(self, rows):
        if self.sample is not None:
            return _first(self.sample, self.full, rows)
        return _spread(self.torch, self.remembered["sample"], rows)

    def trial(self, rows, checkpointing):
        """Whether two passes over so many rows fit, and what they needed."""
        torch, memory = self.torch, self.memory
        gc.collect()
        memory.empty_cache()
        memory.reset_peak()
        ok = True
        try:
            self.passes(rows)
        except Exception as e:
            ok = False
            bug = not _memory.is_oom(e)
            text = str(e)
            _release.forget_exceptions(e)
            if bug:
                _events.emit("not_applied", what="calibration", why=text[:300])
                raise StopIteration
        peak, reserved = memory.peak(), memory.peak_reserved()
        for b, kept in self.buffers:
            with torch.no_grad():
                b.copy_(kept)
        for p in self.module.parameters():
            if p.grad is not None:
                p.grad.zero_()
        gc.collect()
        return {"rows": rows, "ok": ok, "peak": peak if ok else 0, "reserved": reserved if ok else 0, "checkpointing": checkpointing}

    def passes(self, rows):
        torch = self.torch
        kept = None  # a script's own loop still holds the last outputs in the next forward
        for _ in range(2):
            args, kwargs = self.batch(rows)
            contexts = [torch.autocast(d, dtype=t) for d, t in self.remembered.get("autocast") or []]
            for c in contexts:
                c.__enter__()
            try:
                out = self.module(*args, **kwargs)
                loss = _loss(torch, out)
            finally:
                for c in reversed(contexts):
                    c.__exit__(None, None, None)
            if self.library:
                del out  # a trainer's step hands on the loss alone, before backward
                loss.backward()
                del loss
            else:
                loss.backward()
                kept = out, loss
        del kept


def _search(session, trials, sizes, checkpointing, deadline):
    """Tries sizes until the border between fitting and not is known."""
    done = {}

    def fits(rows):
        if rows not in done:
            if time.monotonic() > deadline:
                raise StopIteration
            done[rows] = session.trial(rows, checkpointing)
            trials.append(done[rows])
        return done[rows]["ok"]

    try:
        if checkpointing and fits(sizes[-1]):
            return  # all of it: what recomputation is for
        if not all(fits(rows) for rows in sizes[:2]) or len(sizes) < 2:
            return
        a, b = done[sizes[0]], done[sizes[1]]
        slope = (b["peak"] - a["peak"]) / (b["rows"] - a["rows"])
        if session.needed and not checkpointing:
            # What does not grow with the rows can hide what does in the small ones.
            slope = max(slope, (session.needed - a["peak"]) / (session.full - a["rows"]))
        room = session.memory.free() + session.memory.reserved()
        most = (room - a["peak"]) / slope + a["rows"] if slope > 0 else sizes[-1]
        # From the predicted size outwards in growing steps, then halving.
        low, high = 1, len(sizes) - checkpointing  # the first fits, the second does not
        at, step, crossed = bisect.bisect_right(sizes, most) - 1, 1, set()
        while high - low > 1:
            at = min(max(at, low + 1), high - 1)
            ok = fits(sizes[at])
            crossed.add(ok)
            if ok:
                low, at = at, at + step
            else:
                high, at = at, at - step
            step *= 2
            if len(crossed) == 2:
                at = (low + high) // 2
    except StopIteration:
        return
