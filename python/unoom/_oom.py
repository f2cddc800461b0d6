"""Says that memory ran out: before the exception unwinds, and when nobody
caught it; then lets the dying process find out what would have fitted.
"""

import json
import os
import sys
import tempfile
import threading
import time

from . import _events, _memory

COUNTED = 3  # optimizer steps whose rows are counted

_root = {"module": None, "sample": None, "library": True, "autocast": None}
_reported = {"raised": False, "previous": None, "snapshot": False, "needed": 0}


def attach(torch):
    """Asks CUDA's allocator to call us before it raises."""
    register = getattr(torch._C, "_cuda_attach_out_of_memory_observer", None)
    if register is not None:
        torch.cuda._lazy_call(lambda: register(observer))


def observer(device, size, device_alloc, device_free):
    """Called by the allocator in the thread that failed, before it raises."""
    if _events._state.get("over"):
        return  # a trial of the calibration
    try:
        memory = _memory.current()
        allocated = memory.allocated()
        _reported["needed"] = allocated + size
        _events.emit(
            "oom_observed",
            index=device,
            tried=size,
            total=memory.total(),
            allowed=device_alloc,
            free=device_free,
            allocated=allocated,
            reserved=memory.reserved(),
            phase=phase_of_stack(),
            step=_events.current_step(),
        )
        if _events.config().get("snapshot") and not _reported["snapshot"]:
            _reported["snapshot"] = True
            _save_snapshot(memory)
    except Exception:
        pass


def record_history(torch):
    """Keeps the trace that a snapshot at the first out-of-memory will hold."""
    rehearsal = _memory._rehearsal
    if rehearsal is not None:
        rehearsal.record_history()
        return
    torch.cuda._lazy_call(lambda: torch.cuda.memory._record_memory_history(max_entries=100_000, stacks="python"))


def _save_snapshot(memory):
    """Writes what the allocator holds now, as torch.cuda.memory._dump_snapshot does."""
    import pickle

    taken = memory.snapshot()
    if taken is None:
        return
    name = "snapshot.rank%s.pickle" % os.environ.get("RANK", "0")
    path = os.path.join(_events.config()["events"], name)
    part = "%s.%d.part" % (path, os.getpid())
    with open(part, "wb") as f:
        pickle.dump(taken, f, protocol=4)
    os.replace(part, path)
    _events.emit("snapshot", path=path)


# Where a frame lies tells what the program is doing; the innermost decides.
_PLACES = (
    ("/torch/optim/", "optimizer_step"),
    ("/torch/autograd/graph.py", "backward"),
    ("/torch/autograd/__init__.py", "backward"),
    ("/torch/_tensor.py", "backward"),
    ("/torch/nn/modules/loss.py", "loss"),
    ("/torch/utils/data/", "data"),
    ("/torch/serialization.py", "load"),
)


def phase_of_stack(frames=None):
    """The phase that the stack shows; the user's own marks come first."""
    named = _events.current_phase()
    if named:
        return named
    if frames is None:
        # In backward on a GPU the failing thread has no Python frames; the
        # main thread waits in the call.
        main = sys._current_frames().get(threading.main_thread().ident)
        frames = []
        for f in (sys._getframe(), main):
            while f is not None:
                frames.append(f)
                f = f.f_back
    phase = None
    for f in frames:
        code = f.f_code
        if code.co_filename.endswith("/unoom/_oom.py"):
            continue
        for place, name in _PLACES:
            if place in code.co_filename:
                if name == "backward" and code.co_name not in ("_engine_run_backward", "backward", "grad"):
                    continue
                if name == "optimizer_step" and phase:
                    return phase  # Lightning calls the model from within step()
                return name
        if code.co_filename.endswith("/torch/nn/modules/module.py"):
            if code.co_name == "_call_impl" and phase is None:
                phase = "forward"
            elif code.co_name in ("load_state_dict", "_apply", "to", "cuda"):
                return "load"
        elif code.co_name in ("save", "save_model", "save_checkpoint", "_save_checkpoint"):
            return "save"
        elif code.co_name in ("evaluate", "evaluation_loop", "validation_step", "predict"):
            return "evaluation" if phase == "forward" or phase is None else phase
    return phase or ""


def install():
    """Reports exceptions that nobody caught."""
    _reported["previous"] = sys.excepthook
    sys.excepthook = hook


def hook(kind, error, trace):
    previous = _reported["previous"] or sys.__excepthook__
    try:
        if not issubclass(kind, (KeyboardInterrupt, SystemExit)):
            report(error, trace)
    except Exception:
        pass
    try:
        previous(kind, error, trace)
    except Exception:
        sys.__excepthook__(kind, error, trace)
    try:
        if _memory.is_oom(error):
            target = [_target(trace)]
            del trace
            after_death(error, target)
    except BaseException as e:
        _events.emit("not_applied", what="calibration", why=str(e)[:300])


def at_exit():
    """A program may have put its own excepthook over ours."""
    error = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
    if error is None or _reported["raised"]:
        return
    try:
        report(error, error.__traceback__)
        if _memory.is_oom(error):
            after_death(error, [_target(error.__traceback__)])
    except BaseException:
        pass


def report(error, trace):
    _reported["raised"] = True
    frames, origin = [], ""
    while trace is not None:
        frames.append(trace.tb_frame)
        name = trace.tb_frame.f_code.co_filename
        if "site-packages" not in name and not name.startswith("<"):
            origin = "%s:%d" % (name, trace.tb_lineno)
        trace = trace.tb_next
    frames.reverse()  # the innermost first
    oom = _memory.is_oom(error)
    phase = _events._state.get("failed_phase") or phase_of_stack(frames)
    _events.emit(
        "oom_raised" if oom else "exception",
        type=type(error).__module__ + "." + type(error).__qualname__,
        text=str(error)[:2000],
        phase=phase,
        step=_events.current_step(),
        origin=origin,
    )
    _error_file(error)


def _error_file(error):
    """torchrun shows the root cause of a rank only if it finds this file, which
    otherwise just a decorated main function writes."""
    path = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if not path or "RANK" not in os.environ or os.path.exists(path):
        return
    import traceback

    message = "%s: %s" % (type(error).__name__, error)
    stack = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    doc = {"message": {"message": message, "extraInfo": {"py_callstack": stack, "timestamp": str(int(time.time()))}}}
    try:
        folder = os.path.dirname(path)
        os.makedirs(folder, exist_ok=True)
        fd, tmp = tempfile.mkstemp(dir=folder)
        with os.fdopen(fd, "w") as f:
            json.dump(doc, f)
        os.replace(tmp, path)
    except OSError:
        pass


def watch_root(torch):
    """Keeps one row of the first training batch and the module it went to.

    The first call of a module in training mode is that of the whole model. It
    is caught by a __call__ that puts the old one back at once.
    """
    module_class = torch.nn.Module
    original = module_class.__call__

    def __call__(self, *args, **kwargs):
        try:
            if self.training and torch.is_grad_enabled() and next(self.parameters(), None) is not None:
                if module_class.__call__ is __call__:
                    module_class.__call__ = original
                _remember(torch, self, args, kwargs, sys._getframe(1))
        except Exception:
            module_class.__call__ = original
        return original(self, *args, **kwargs)

    module_class.__call__ = __call__


def _remember(torch, module, args, kwargs, caller):
    import weakref

    from . import _calibrate

    _root["module"] = weakref.ref(module)
    _root["rows"] = _calibrate.rows_of(torch, (args, kwargs))
    with _memory.untracked():
        _root["sample"] = _calibrate.keep_row(torch, (args, kwargs), _root["rows"])
    _root["library"] = "site-packages" in caller.f_code.co_filename
    _root["autocast"] = _calibrate.autocast_state(torch)
    _events.emit("first", rows=_root["rows"])
    _count_rows(torch, module)


def _count_rows(torch, module):
    """Counts the rows of the first optimizer steps, for the supervisor to see
    that they are as many as before the restart."""
    from . import _calibrate

    if getattr(module, "_compiled_call_impl", None) is not None:
        return  # a hook would be compiled with it

    def count(module, args, kwargs):
        try:
            state = _events._state
            if state["step"] >= COUNTED or state.get("over"):
                handle.remove()
            elif module.training and torch.is_grad_enabled():
                state["rows"] += _calibrate.rows_of(torch, (args, kwargs))
        except Exception:
            pass

    handle = module.register_forward_pre_hook(count, with_kwargs=True)


def _target(trace):
    """The model and the batch that failed: from the traceback, where the
    outermost call of a module still has its arguments."""
    torch = sys.modules["torch"]
    library = True
    while trace is not None:
        code = trace.tb_frame.f_code
        if code.co_filename.endswith("/torch/nn/modules/module.py") and code.co_name == "_wrapped_call_impl":
            local = trace.tb_frame.f_locals
            module, args, kwargs = local.get("self"), local.get("args", ()), local.get("kwargs", {})
            if isinstance(local, dict):
                local.clear()  # a copy that the frame would keep, even when it is cleared
            del local
            if isinstance(module, torch.nn.Module) and module.training:
                return module, (args, kwargs), library
        if "/unoom/" not in code.co_filename:
            library = "site-packages" in code.co_filename
        trace = trace.tb_next
    module = _root["module"] and _root["module"]()
    if module is None or _root["sample"] is None:
        return None
    return module, None, _root["library"]


def after_death(error, target):
    """The process is about to end. It is the best place to find out what would
    have fitted: the model, the optimizer and the batch are all there."""
    seconds = _events.config().get("calibrate_seconds") or 0
    if target[0] is None or seconds <= 0:
        return
    from . import _calibrate, _release

    limit = threading.Timer(seconds + 20, os._exit, (1,))
    limit.daemon = True
    limit.start()
    _release.forget_exceptions(error)
    try:
        _calibrate.run(target, _root, seconds, _reported["needed"])
    finally:
        limit.cancel()
