"""A ResNet-50 in plain PyTorch, as anybody would write it: nothing of unoom.

usage: resnet_plain.py --out FILE --batch N --accum N [--steps N] [--norm batch|group] [--width N] [--image N]
"""

import argparse
import os

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--out", required=True)
parser.add_argument("--batch", type=int, required=True)
parser.add_argument("--accum", type=int, default=1)
parser.add_argument("--steps", type=int, default=3)
parser.add_argument("--norm", default="group")
parser.add_argument("--width", type=int, default=16)  # 64 is ResNet-50
parser.add_argument("--image", type=int, default=64)  # 224
args = parser.parse_args()
torch.manual_seed(0)
torch.set_num_threads(int(os.environ.get("THREADS", "1")))


def norm(channels):
    return nn.BatchNorm2d(channels) if args.norm == "batch" else nn.GroupNorm(min(32, channels // 16), channels)


class Bottleneck(nn.Module):
    def __init__(self, inside, width, stride):
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(inside, width, 1, bias=False), norm(width)
        self.conv2, self.norm2 = nn.Conv2d(width, width, 3, stride, 1, bias=False), norm(width)
        self.conv3, self.norm3 = nn.Conv2d(width, 4 * width, 1, bias=False), norm(4 * width)
        nn.init.zeros_(self.norm3.weight)  # each block begins as the identity, as in Goyal et al. 2017
        self.shortcut = None
        if stride != 1 or inside != 4 * width:
            self.shortcut = nn.Sequential(nn.Conv2d(inside, 4 * width, 1, stride, bias=False), norm(4 * width))

    def forward(self, x):
        y = torch.relu(self.norm1(self.conv1(x)))
        y = torch.relu(self.norm2(self.conv2(y)))
        y = self.norm3(self.conv3(y))
        return torch.relu(y + (x if self.shortcut is None else self.shortcut(x)))


class ResNet50(nn.Module):
    def __init__(self, width, classes=100):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, width, 7, 2, 3, bias=False), norm(width), nn.ReLU(), nn.MaxPool2d(3, 2, 1))
        inside, stages = width, []
        for i, blocks in enumerate((3, 4, 6, 3)):
            stage = []
            for j in range(blocks):
                stage.append(Bottleneck(inside, width << i, 2 if j == 0 and i > 0 else 1))
                inside = 4 * (width << i)
            stages.append(nn.Sequential(*stage))
        self.stages, self.head = nn.Sequential(*stages), nn.Linear(inside, classes)

    def forward(self, x):
        return self.head(self.stages(self.stem(x)).mean((2, 3)))


model = ResNet50(args.width)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4)
numbers = torch.Generator().manual_seed(1)
images = torch.randn(96, 3, args.image, args.image, generator=numbers)
labels = torch.randint(0, 100, (96,), generator=numbers)
at = 0
for step in range(args.steps):
    optimizer.zero_grad()
    for _ in range(args.accum):
        rows = torch.arange(at, at + args.batch) % 96
        at += args.batch
        loss = nn.functional.cross_entropy(model(images[rows]), labels[rows]) / args.accum
        loss.backward()
    optimizer.step()
    print("step", step, "loss", round(loss.item() * args.accum, 4), flush=True)
torch.save({"weights": model.state_dict()}, args.out)
