"""Giving memory back, in the order that works.

What keeps memory after an out-of-memory is mostly the exception: its traceback
holds every frame, and each frame its tensors. Inside the except block nothing
can be freed; after it, gc and empty_cache can.
"""

import gc
import sys


def release(*drop, empty_cache=True):
    """Frees what can be freed; returns the bytes that are allocated after it.

    Call it after, not inside, the except block. Objects given are emptied if
    they can be (a module's or optimizer's gradients, a dict, a list).
    """
    torch = sys.modules.get("torch")
    for x in drop:
        _empty(x)
    forget_exceptions()
    gc.collect()
    from . import _memory

    memory = _memory.current()
    if torch is not None and torch.cuda.is_available() and torch.cuda.is_initialized():
        try:
            torch.cuda.synchronize()
        except Exception:
            pass
    if empty_cache:
        memory.empty_cache()
    return memory.allocated()


def _empty(x):
    zero_grad = getattr(x, "zero_grad", None)
    if callable(zero_grad):
        try:
            zero_grad(set_to_none=True)
        except TypeError:
            zero_grad()
    elif isinstance(x, (dict, list, set, bytearray)):
        x.clear()


def forget_exceptions(error=None):
    """Lets go of the frames that the last exceptions hold."""
    import traceback

    seen = set()
    stack = [error, getattr(sys, "last_value", None), getattr(sys, "last_exc", None)]
    while stack:
        e = stack.pop()
        if e is None or id(e) in seen:
            continue
        seen.add(id(e))
        stack += [e.__cause__, e.__context__]
        if e.__traceback__ is not None:
            traceback.clear_frames(e.__traceback__)
            e.__traceback__ = None
    for name in ("last_type", "last_value", "last_traceback", "last_exc"):
        if hasattr(sys, name):
            setattr(sys, name, None)
