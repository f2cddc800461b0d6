"""Finds the largest micro-batch with which a training really finishes, by
training with one after the other: what `unoom run` is measured against.

usage: largest.py CAPACITY_MIB ROWS_OF_A_STEP LOW HIGH -- SCRIPT ARGUMENT...

Sizes from LOW (known to fit) to HIGH (known not to) are halved between; the
script is one whose batch the shim can change.
"""

import sys
import tempfile

from attempt import Attempt


def fits(capacity, rows, micro, argv):
    pieces = -(-rows // micro)
    settings = {"micro_batch": micro, "accumulation": pieces, "samples": 0 if micro * pieces == rows else rows}
    with tempfile.TemporaryDirectory() as folder:
        done = Attempt(folder, settings, rehearse_bytes=capacity << 20).python(*argv)
        if done.returncode and "out of memory" not in done.stderr:
            sys.exit(done.stderr)
        return done.returncode == 0


def main():
    capacity, rows, low, high = map(int, sys.argv[1:5])
    argv = sys.argv[sys.argv.index("--") + 1 :]
    while high - low > 1:
        middle = (low + high) // 2
        if fits(capacity, rows, middle, argv):
            low = middle
        else:
            high = middle
    print(low)


main()
