"""The search for the border between fitting and not, on modelled memory."""

import time

import pytest

pytest.importorskip("torch")
from unoom import _calibrate  # noqa: E402

GIB = 1 << 30


class Modelled:
    """A card of 24 GiB, and a step that needs the larger of two peaks: one that
    grows with the rows, one that does not, as a tied embedding's gradient."""

    def __init__(self, full, fits, fixed=0, needed=0, base=8 * GIB):
        self.full, self.fits, self.fixed, self.needed = full, fits, fixed, needed
        self.base, self.slope = base, (24 * GIB - base) / (fits + 0.5)
        self.memory, self.tried = self, []

    def free(self):
        return 24 * GIB

    def reserved(self):
        return 0

    def peak(self, rows):
        return int(max(self.fixed, self.base + rows * self.slope))

    def trial(self, rows, checkpointing):
        self.tried.append(rows)
        peak = self.peak(rows)
        ok = peak <= 24 * GIB
        return {"rows": rows, "ok": ok, "peak": peak if ok else 0, "reserved": peak if ok else 0, "checkpointing": checkpointing}


def search(session, sizes, checkpointing=False):
    trials = []
    _calibrate._search(session, trials, sizes, checkpointing, time.monotonic() + 60)
    return max((t["rows"] for t in trials if t["ok"]), default=None)


@pytest.mark.parametrize("full", [2, 12, 48, 512])
def test_the_border_is_found_in_few_trials(full):
    for uneven in (False, True):
        sizes = _calibrate._candidates(full, full, full, uneven)
        for fits in range(1, full):
            session = Modelled(full, fits)
            best = search(session, sizes)
            assert best == max(s for s in sizes if s <= fits)
            assert not uneven or fits <= max(best + 1, 1.05 * best)
            assert len(session.tried) <= 5


def test_what_does_not_grow_does_not_hide_what_does():
    """The peaks of 1 and 2 rows are the fixed one; what the whole batch had got
    when it failed tells how it grows."""
    sizes = _calibrate._candidates(48, 48, 48, True)
    blind, told = Modelled(48, 13, fixed=20 * GIB), Modelled(48, 13, fixed=20 * GIB)
    told.needed = int(0.8 * told.peak(48))
    assert search(blind, sizes) == search(told, sizes) == 13
    assert len(told.tried) < len(blind.tried)


def test_recomputation_is_tried_on_the_whole_batch_first():
    session = Modelled(48, 48)
    assert search(session, _calibrate._candidates(48, 48, 48, False) + [48], True) == 48 and session.tried == [48]
    session = Modelled(48, 17)
    assert search(session, _calibrate._candidates(48, 48, 48, False) + [48], True) == 16


def test_nothing_fits():
    session = Modelled(48, 0.2)
    assert search(session, _calibrate._candidates(48, 48, 48, True)) is None and session.tried == [1]
