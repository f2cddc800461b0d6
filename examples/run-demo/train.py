"""A training without PyTorch and without a GPU, to see what `unoom run` does.

It fits a line to points, with exact fractions, so that two runs with the same
effective batch end with exactly the same numbers. Its "card" is a rule: what
stays takes 3 GiB, each sample of the micro-batch 1.3 GiB more; what goes beyond
the capacity fails with the words of PyTorch. Everything else is a script as
people write them: flags for batch, accumulation and resume, a checkpoint now and
then. Nothing of unoom is in it.
"""

import argparse
import json
import os
import random
import sys
import time
from fractions import Fraction

parser = argparse.ArgumentParser()
parser.add_argument("--batch", type=int, required=True, help="samples in one forward and backward pass")
parser.add_argument("--accum", type=int, default=1, help="passes in one optimizer step")
parser.add_argument("--steps", type=int, default=12)
parser.add_argument("--out", default="run-demo-out")
parser.add_argument("--resume", help="a checkpoint")
parser.add_argument("--capacity", type=float, default=24, help="GiB of the card; 0: no limit")
args = parser.parse_args()


def allocate(samples):
    need = 3 + 1.3 * samples
    if args.capacity and need > args.capacity:
        have = max(3.0, min(need - 2.6, args.capacity - 0.7))
        sys.exit(
            "Traceback (most recent call last):\n"
            '  File "train.py", line 60, in <module>\n    loss.backward()\n'
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.60 GiB. GPU 0 has a total capacity of "
            "%.2f GiB of which %.2f GiB is free. Including non-PyTorch memory, this process has %.2f GiB memory in "
            "use. Of the allocated memory %.2f GiB is allocated by PyTorch, and 102.40 MiB is reserved by PyTorch "
            "but unallocated." % (args.capacity, args.capacity - have - 0.3, have + 0.3, have)
        )


points = random.Random(1)
data = [(Fraction(points.randint(-50, 50), 10), Fraction(points.randint(-9, 9), 10)) for _ in range(4096)]
slope, offset, step = Fraction(0), Fraction(0), 0
if args.resume:
    with open(args.resume) as f:
        saved = json.load(f)
    slope, offset, step = Fraction(saved["slope"]), Fraction(saved["offset"]), saved["step"]
    print("resumed at step", step)
while step < args.steps:
    gs = go = Fraction(0)
    for piece in range(args.accum):
        # The third step has a longer batch than the others: it is the one that fails.
        allocate(args.batch * (2 if step == 2 else 1))
        first = (step * args.accum + piece) * args.batch
        for i in range(first, first + args.batch):
            x, noise = data[i % len(data)]
            error = slope * x + offset - (3 * x + 1 + noise)
            gs += error * x
            go += error
    n = args.batch * args.accum
    slope, offset = (v.limit_denominator(10**9) for v in (slope - gs / n / 10, offset - go / n / 10))
    step += 1
    print("step %d: slope %.4f offset %.4f" % (step, slope, offset), flush=True)
    time.sleep(0.05)
    os.makedirs(args.out, exist_ok=True)
    part = os.path.join(args.out, "part")
    with open(part, "w") as f:
        json.dump({"slope": str(slope), "offset": str(offset), "step": step}, f)
    os.replace(part, os.path.join(args.out, "step-%d.json" % step))
print("slope", slope, "offset", offset)
