"""A small network with Lightning, as anybody would write it: nothing of unoom.

usage: lightning_net.py OUTPUT_DIR [BATCH]
"""

import os
import sys

import lightning
import torch
from torch import nn

out, batch = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 64
torch.manual_seed(0)
torch.set_num_threads(1)


class Net(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(*[m for _ in range(12) for m in (nn.Linear(256, 256), nn.Tanh())], nn.Linear(256, 10))

    def training_step(self, batch, index):
        x, y = batch
        return nn.functional.cross_entropy(self.layers(x).mean(1), y)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


numbers = torch.Generator().manual_seed(1)
data = torch.utils.data.TensorDataset(
    torch.randn(128, 96, 256, generator=numbers), torch.randint(0, 10, (128,), generator=numbers)
)
net = Net()
trainer = lightning.Trainer(
    max_steps=2, accelerator="cpu", logger=False, enable_progress_bar=False, enable_model_summary=False, default_root_dir=out
)
trainer.fit(net, torch.utils.data.DataLoader(data, batch_size=batch))
torch.save({"weights": net.state_dict(), "step": trainer.global_step}, os.path.join(out, "final.pt"))
