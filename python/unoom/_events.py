"""The event file of this process: JSON lines, appended, at most 4 KiB each.

The first line says hello and names the protocol. Writing never raises: a full
disk costs events, not the training.
"""

import json
import os
import socket
import sys
import threading
import time

PROTO = 1
LONGEST = 4096

_state = {"fd": None, "pid": None, "config": None, "phase": None, "step": 0, "rows": 0, "failed": False}
_lock = threading.Lock()


def configure(config):
    """Takes the settings that lie beside the bootstrap."""
    _state["config"] = config


def config():
    return _state["config"] or {}


def enabled():
    return _state["config"] is not None and not os.environ.get("UNOOM_DISABLE")


def _open():
    """Opens the file of this process; a forked child gets its own."""
    pid = os.getpid()
    if _state["fd"] is not None and _state["pid"] == pid:
        return _state["fd"]
    name = "events.%s.%d.jsonl" % (socket.gethostname(), pid)
    path = os.path.join(config()["events"], name)
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | getattr(os, "O_CLOEXEC", 0), 0o644)
    _state.update(fd=fd, pid=pid)
    _write(fd, hello())
    return fd


def _number(name):
    try:
        return int(os.environ[name])
    except (KeyError, ValueError):
        return None


def start_ticks():
    """When this process started, in the kernel's ticks: tells it from a later one."""
    try:
        with open("/proc/self/stat", "rb") as f:
            return int(f.read().rpartition(b")")[2].split()[19])
    except Exception:
        return 0


def hello():
    torch = sys.modules.get("torch")
    rank = _number("RANK")
    if rank is None:
        rank = _number("SLURM_PROCID") if "SLURM_PROCID" in os.environ and "MASTER_ADDR" in os.environ else None
    return {
        "proto": PROTO,
        "kind": "hello",
        "torch": getattr(torch, "__version__", None) and str(torch.__version__),
        "cuda": getattr(getattr(torch, "version", None), "cuda", None),
        "python": sys.version.split()[0],
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "ppid": os.getppid(),
        "start": start_ticks(),
        "rank": rank,
        "local_rank": _number("LOCAL_RANK"),
        "world": _number("WORLD_SIZE"),
        "run": config().get("run"),
        "attempt": config().get("attempt"),
        "argv": [a[:200] for a in sys.argv[:20]],
        "t": time.time(),
    }


def _write(fd, event):
    line = json.dumps(event, separators=(",", ":"), default=str)
    if len(line) >= LONGEST:  # the only long field is text
        text = event.get("text")
        if isinstance(text, str):
            event = dict(event, text=text[: max(0, len(text) - (len(line) - LONGEST) - 64)])
            line = json.dumps(event, separators=(",", ":"), default=str)
        if len(line) >= LONGEST:
            return
    os.write(fd, line.encode() + b"\n")


def emit(kind, **data):
    """Writes one event. It returns whether that worked and never raises."""
    if not enabled():
        return False
    try:
        data["kind"] = kind
        data["t"] = time.time()
        with _lock:
            _write(_open(), data)
        return True
    except Exception as e:
        if not _state["failed"]:
            _state["failed"] = True
            if os.environ.get("UNOOM_DEBUG"):
                print("unoom: event not written: %r" % e, file=sys.stderr)
        return False


def after_fork():
    """In a forked child: its events are its own, the lock may be held."""
    global _lock
    _lock = threading.Lock()
    fd = _state["fd"]
    _state.update(fd=None, pid=None)
    if fd is not None:
        try:
            os.close(fd)
        except OSError:
            pass


def record(**values):
    """Notes numbers of the user's own, such as a loss, in the run's ledger."""
    emit("record", step=_state["step"], data=values)


class phase:
    """Names what the program is doing, for the account of a peak: a context
    manager, also usable as a decorator. load, forward, loss, backward,
    optimizer_step, evaluation, save and resume are the names that reports use.
    """

    def __init__(self, name):
        self.name = name
        self.outer = None

    def __enter__(self):
        self.outer, _state["phase"] = _state["phase"], self.name
        emit("phase", name=self.name, step=_state["step"])
        return self

    def __exit__(self, kind, value, trace):
        # An exception that leaves is reported with the phase it came from.
        if kind is not None:
            _state["failed_phase"] = self.name
        _state["phase"] = self.outer
        return False

    def __call__(self, function):
        import functools

        @functools.wraps(function)
        def wrapped(*args, **kwargs):
            with type(self)(self.name):
                return function(*args, **kwargs)

        return wrapped


def current_step():
    return _state["step"]


def current_phase():
    return _state["phase"]
