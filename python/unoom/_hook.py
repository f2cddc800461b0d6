"""What happens when torch and the trainers are imported.

Every hook is guarded: what fails is written down once and left out. Nothing
here imports torch; it is handed over by the import that was hooked.
"""

import atexit
import json
import os
import sys
import time

from . import _events, _memory


def loaded(what, module, here):
    """Called by the bootstrap after a module of interest has been imported."""
    if what == "torch":
        with open(here + "/unoom.json") as f:
            _events.configure(json.load(f))
        _guard("torch", _on_torch, module)
        return
    if not _events.enabled():
        return
    from . import _apply

    _guard(what, getattr(_apply, what), module)


def _guard(name, function, *args):
    try:
        return function(*args)
    except Exception as e:
        _events.emit("not_applied", what=name, why="%s: %s" % (type(e).__name__, e))
        if os.environ.get("UNOOM_DEBUG"):
            import traceback

            traceback.print_exc()


def _on_torch(torch):
    config = _events.config()
    if not _events.emit("torch", threads=0):
        return
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_in_child)
    from . import _oom

    if config.get("rehearse_bytes"):
        _guard("rehearse", _rehearse, config["rehearse_bytes"], _oom.observer)
    else:
        _guard("observer", _oom.attach, torch)
    if config.get("snapshot"):
        _guard("snapshot", _oom.record_history, torch)
    _oom.install()
    _guard("steps", Steps(config).install, torch)
    _guard("batch_norm", _watch_batch_norm, torch)
    settings = config.get("settings") or {}
    if settings.get("fraction"):
        torch.cuda._lazy_call(lambda: torch.cuda.set_per_process_memory_fraction(settings["fraction"]))
    if settings.get("workers"):
        _guard("workers", _cap_workers, torch, settings["workers"])
    if settings.get("checkpointing") == "full" and not config.get("checkpointing_by_template"):
        from . import _checkpoint

        _guard("checkpointing", _checkpoint.install, torch)
    _guard("calibrate", _oom.watch_root, torch)
    atexit.register(_at_exit)


def _rehearse(capacity, observer):
    from . import _rehearse

    _memory.rehearse(_rehearse.start(capacity, observer))
    _events.emit("device", index=0, name="rehearsal", total=capacity)


def _in_child():
    """A forked child, such as a DataLoader's worker, is not the trainer."""
    _events.after_fork()
    rehearsal = _memory._rehearsal
    if rehearsal is not None:
        rehearsal.off = True


def _at_exit():
    from . import _oom

    _oom.at_exit()
    _events.emit("exit", step=_events.current_step())


class Steps:
    """Counts optimizer steps and notes, now and then, where memory stands.

    Each of the first steps is noted, later one a second: what a note costs,
    about 30 us, stays below a thousandth of the time.
    """

    FIRST, EVERY = 5, 1.0

    def __init__(self, config):
        self.counts = {}
        self.noted = 0.0
        self.last = None
        self.device_said = False

    def install(self, torch):
        import torch.optim.optimizer as module

        module.register_optimizer_step_post_hook(self.after)

    def after(self, optimizer, args, kwargs):
        try:
            state = _events._state
            if state.get("over"):
                return
            n = self.counts[id(optimizer)] = self.counts.get(id(optimizer), 0) + 1
            if n < state["step"]:
                return  # the second optimizer of a pair
            state["step"] = n
            now = time.monotonic()
            if n > self.FIRST and now - self.noted < self.EVERY:
                self.last = now
                return
            self.note(n, now)
        except Exception:
            pass

    def note(self, n, now):
        memory = _memory.current()
        if not self.device_said and memory.known:
            self.device_said = True
            if memory.name == "cuda":
                _events.emit("device", index=0, total=memory.total())
        _events.emit(
            "step",
            n=n,
            allocated=memory.allocated(),
            reserved=memory.reserved(),
            peak=memory.peak(),
            peak_reserved=memory.peak_reserved(),
            retries=memory.retries(),
            ooms=memory.ooms(),
            rows=_events._state["rows"],
            step_us=int((now - self.last) * 1e6) if self.last else 0,
        )
        _events._state["rows"] = 0
        self.noted = self.last = now


def _watch_batch_norm(torch):
    """Notes that the model has BatchNorm: its result depends on the micro-batch."""
    cls = torch.nn.modules.batchnorm._BatchNorm
    original = cls.__init__

    def __init__(self, *args, **kwargs):
        cls.__init__ = original
        _events.emit("batch_norm")
        return original(self, *args, **kwargs)

    cls.__init__ = __init__


def _cap_workers(torch, most):
    """After the host ran out of memory: fewer workers, no pinned memory."""
    cls = torch.utils.data.DataLoader
    original = cls.__init__

    def __init__(self, *args, **kwargs):
        if kwargs.get("num_workers", 0) > most:
            kwargs["num_workers"] = most
            _events.emit("applied", what="workers", to=most)
        if kwargs.get("pin_memory"):
            kwargs["pin_memory"] = False
        return original(self, *args, **kwargs)

    cls.__init__ = __init__
