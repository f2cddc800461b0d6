"""Finds the largest micro-batch with which a training really finishes, by
training with one after the other: what `unoom run` is measured against.

usage: largest.py CAPACITY_MIB ROWS_OF_A_STEP LOW HIGH -- SCRIPT ARGUMENT...

Sizes from LOW (known to fit) to HIGH (known not to) are halved between; the
script is one whose batch the shim can change.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(HERE)


def fits(capacity, rows, micro, argv):
    with tempfile.TemporaryDirectory() as folder:
        site = os.path.join(folder, "site")
        shutil.copytree(os.path.join(ROOT, "bootstrap"), site)
        pieces = -(-rows // micro)
        settings = {"micro_batch": micro, "accumulation": pieces, "samples": 0 if micro * pieces == rows else rows}
        config = dict(proto=1, run="r", attempt=1, events=folder, code=ROOT, settings=settings, rehearse_bytes=capacity << 20)
        with open(os.path.join(site, "unoom.json"), "w") as f:
            json.dump(config, f)
        done = subprocess.run([sys.executable, *argv], env=dict(os.environ, PYTHONPATH=site), capture_output=True, text=True)
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
