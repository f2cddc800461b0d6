"""A GPT-2 trained with Trainer, as anybody would write it: nothing of unoom.

usage: gpt2_trainer.py OUTPUT_DIR [BATCH [STEPS [SCALE]]]     SCALE full: GPT-2 small,
124 million parameters, on short texts
"""

import os
import sys

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

out = sys.argv[1]
batch = int(sys.argv[2]) if len(sys.argv) > 2 else 48
steps = int(sys.argv[3]) if len(sys.argv) > 3 else 3
full = len(sys.argv) > 4 and sys.argv[4] == "full"
torch.manual_seed(0)
torch.set_num_threads(int(os.environ.get("THREADS", "1")))
size = {} if full else {"n_layer": 3, "n_embd": 96, "n_head": 3, "n_positions": 128, "vocab_size": 1000}
model = GPT2LMHeadModel(
    GPT2Config(resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=0, eos_token_id=0, loss_type="ForCausalLM", **size)
)
tokens = torch.Generator().manual_seed(1)
length = 32 if full else 48
model = model.to(getattr(torch, os.environ.get("DTYPE", "float32")))
vocabulary = model.config.vocab_size
data = [{"input_ids": torch.randint(0, vocabulary, (length,), generator=tokens)} for _ in range(max(batch * 2, 96))]
for i, row in enumerate(data):
    row["labels"] = row["input_ids"].clone()
    row["labels"][: i % (length // 2)] = -100  # as prompts are: uneven counts
arguments = TrainingArguments(
    out,
    per_device_train_batch_size=batch,
    gradient_accumulation_steps=int(os.environ.get("ACCUM", "1")),
    max_steps=steps,
    learning_rate=float(os.environ.get("LR", "5e-5" if full else "1e-3")),  # the default; and a fast one
    save_steps=int(os.environ.get("SAVE_STEPS", "1000")),
    use_cpu=True,
    report_to=[],
    disable_tqdm=True,
    seed=7,
)
trainer = Trainer(model, arguments, train_dataset=data)
trainer.train()
torch.save({"weights": model.state_dict(), "step": trainer.state.global_step}, os.path.join(out, "final.pt"))
