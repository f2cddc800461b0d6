"""A loop with accelerate, as its documentation shows it: nothing of unoom.

usage: accelerate_loop.py OUTPUT_DIR [BATCH]
"""

import os
import sys

import torch
from accelerate import Accelerator
from torch import nn

out, batch = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 64
torch.manual_seed(0)
torch.set_num_threads(1)
accelerator = Accelerator(cpu=True, gradient_accumulation_steps=1)
numbers = torch.Generator().manual_seed(1)
data = torch.utils.data.TensorDataset(
    torch.randn(128, 96, 256, generator=numbers), torch.randint(0, 10, (128,), generator=numbers)
)
model = nn.Sequential(*[m for _ in range(12) for m in (nn.Linear(256, 256), nn.Tanh())], nn.Flatten(), nn.Linear(96 * 256, 10))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
loader = torch.utils.data.DataLoader(data, batch_size=batch)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
for x, y in loader:
    with accelerator.accumulate(model):
        loss = nn.functional.cross_entropy(model(x), y)
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
torch.save({"weights": accelerator.unwrap_model(model).state_dict()}, os.path.join(out, "final.pt"))
