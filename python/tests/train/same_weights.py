"""Prints how far the weights in two files are apart: the largest difference.

usage: same_weights.py A B
"""

import sys

import torch

a, b = (torch.load(p, weights_only=True)["weights"] for p in sys.argv[1:3])
assert a.keys() == b.keys()
print(max((a[k].double() - b[k].double()).abs().max().item() for k in a))
