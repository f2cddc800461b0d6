"""What unoom puts into a training process, and what a script may call itself.

    import unoom

    step = unoom.Microbatch(model, loss_sum, count)   # exact, splits on OOM
    unoom.release()                                   # give cached memory back
    unoom.record(loss=1.23, tokens=4096)              # into the run's ledger
    with unoom.phase("evaluation"): ...

The package uses the standard library only and never imports torch by itself:
where torch is needed, the script has it already. Nothing here raises into the
script, except Microbatch, whose refusals are its answer. UNOOM_DISABLE=1 turns
all of it off.

`unoom run` brings the package along; `pip install ./python` installs it, so that
a script that uses it also runs without.
"""

from ._events import phase, record
from ._release import release

__version__ = "0.1.0"

__all__ = ["CannotSplit", "Microbatch", "PeerFailed", "phase", "record", "release"]


def __getattr__(name):
    if name in ("Microbatch", "CannotSplit", "PeerFailed"):
        from . import _microbatch  # imports torch, which the caller uses anyway

        return getattr(_microbatch, name)
    raise AttributeError("module 'unoom' has no attribute %r" % name)
