"""Recomputes activations in backward, in any model with repeated blocks.

Blocks are the children of a ModuleList or Sequential of which two or more have
the same class, and which are modules of several parts themselves. The result is
the same: random numbers are replayed, and BatchNorm's running statistics are
not updated a second time.
"""

from . import _events


def blocks_of(torch, root):
    """The repeated blocks of a model, outermost only."""
    found, inside = [], set()
    for module in root.modules():
        if not isinstance(module, (torch.nn.ModuleList, torch.nn.Sequential)):
            continue
        if id(module) in inside:
            continue
        children = [c for c in module.children() if _is_block(torch, c)]
        classes = [type(c) for c in children]
        for c in children:
            if classes.count(type(c)) >= 2:
                found.append(c)
                inside.update(id(m) for m in c.modules())
    return found


def _is_block(torch, module):
    builtin = type(module).__module__.startswith("torch.nn.modules") and not isinstance(
        module, (torch.nn.TransformerEncoderLayer, torch.nn.TransformerDecoderLayer)
    )
    return not builtin and any(True for _ in module.parameters()) and sum(1 for _ in module.modules()) > 2


def wrap(torch, block):
    """Makes the block's forward run under checkpoint; returns the way back."""
    from torch.utils.checkpoint import checkpoint

    if getattr(block, "_unoom_checkpointed", False):
        return lambda: None
    original = block.forward
    norms = [m for m in block.modules() if isinstance(m, torch.nn.modules.batchnorm._NormBase)]

    class Recompute:
        """The second time, the running statistics are updated in copies."""

        names = ("running_mean", "running_var", "num_batches_tracked")

        def __enter__(self):
            self.kept = []
            for m in norms:
                for name in self.names:
                    t = m._buffers.get(name)
                    if t is not None:
                        self.kept.append((m, name, t))
                        m._buffers[name] = t.clone()

        def __exit__(self, *exc):
            for m, name, t in self.kept:
                m._buffers[name] = t
            return False

    import contextlib

    def contexts():
        return contextlib.nullcontext(), Recompute()

    def forward(*args, **kwargs):
        if not (block.training and torch.is_grad_enabled()):
            return original(*args, **kwargs)
        more = {"context_fn": contexts} if norms else {}
        return checkpoint(original, *args, use_reentrant=False, **more, **kwargs)

    block.forward = forward
    block._unoom_checkpointed = True

    def undo():
        if block.__dict__.get("forward") is forward:
            del block.__dict__["forward"]
            if getattr(original, "__func__", None) is not type(block).forward:
                block.forward = original
        block._unoom_checkpointed = False

    return undo


def enable(torch, root):
    """Switches recomputation on in a model. Returns how many blocks it has."""
    blocks = blocks_of(torch, root)
    for b in blocks:
        wrap(torch, b)
    return len(blocks)


def install(torch):
    """Does so for the first model that is trained, at its first call."""
    module_class = torch.nn.Module
    original = module_class.__call__

    def __call__(self, *args, **kwargs):
        try:
            if self.training and torch.is_grad_enabled() and next(self.parameters(), None) is not None:
                if module_class.__call__ is __call__:
                    module_class.__call__ = original
                if getattr(self, "is_gradient_checkpointing", False):
                    n = -1  # the framework did it
                else:
                    n = enable(torch, self)
                if n == 0:
                    _events.emit("not_applied", what="checkpointing", why="no repeated blocks in %s" % type(self).__name__)
                else:
                    _events.emit("applied", what="checkpointing", to="full", blocks=n)
        except Exception as e:
            module_class.__call__ = original
            _events.emit("not_applied", what="checkpointing", why=str(e)[:200])
        return original(self, *args, **kwargs)

    module_class.__call__ = __call__
