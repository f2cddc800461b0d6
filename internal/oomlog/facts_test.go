package oomlog

import (
	"fmt"
	"strings"
	"testing"

	"unoom/internal/units"
)

func TestFactsFromWhatRunsPrint(t *testing.T) {
	for _, c := range []struct {
		name, text string
		kind       FactKind
		want       string
		line       int
	}{
		{"TrainingArguments", "TrainingArguments(\n_n_gpu=1,\nper_device_train_batch_size=4,\nseed=42,\n)", FactBatch, "4", 3},
		{"its optimizer", "optim=OptimizerNames.ADAMW_TORCH,\n", FactOptimizer, "OptimizerNames.ADAMW_TORCH", 1},
		{"its optimizer, older", "optim=<OptimizerNames.ADAMW_BNB: 'adamw_bnb_8bit'>,\n", FactOptimizer, "adamw_bnb_8bit", 1},
		{"its precision", "bf16=True,\nfp16=False,\n", FactDType, "bf16", 1},
		{"running training", "***** Running training *****\n  Instantaneous batch size per device = 16\n", FactBatch, "16", 2},
		{"accumulation in words", "  Gradient Accumulation steps = 8\n", FactAccumulation, "8", 1},
		{"trainable", "trainable params: 4,194,304 || all params: 6,742,609,920 || trainable%: 0.0622\n", FactTrainable, "4,194,304", 1},
		{"all parameters", "trainable params: 4,194,304 || all params: 6,742,609,920 || trainable%: 0.0622\n", FactParameters, "6,742,609,920", 1},
		{"Namespace", "Namespace(arch='resnet50', batch_size=256, workers=8, lr=0.1)\n", FactBatch, "256", 1},
		{"Namespace, text", "Namespace(arch='resnet50', batch_size=256, workers=8, lr=0.1)\n", FactModel, "resnet50", 1},
		{"command line", "$ torchrun --nproc_per_node=8 train.py --model_name_or_path org/model-7b --per_device_train_batch_size 2 --gradient_checkpointing\n", FactModel, "org/model-7b", 1},
		{"command line, =", "$ torchrun --nproc_per_node=8 train.py --model_name_or_path org/model-7b\n", FactWorldSize, "8", 1},
		{"command line, switch", "python train.py --gradient_checkpointing --bf16 True\n", FactCheckpointing, "true", 1},
		{"launcher", "accelerate launch --num_processes 4 train.py\n", FactLauncher, "accelerate", 1},
		{"YAML", "cutoff_len: 4096\nper_device_train_batch_size: 1\n", FactSequence, "4096", 1},
		{"YAML, common word", "batch: 16\n", FactBatch, "16", 1},
		{"JSON", `{"train_micro_batch_size_per_gpu": 2, "zero_optimization": {"stage": 3}}` + "\n", FactZeROStage, "3", 1},
		{"JSON, pretty", "  \"gradient_accumulation_steps\": 16,\n", FactAccumulation, "16", 1},
		{"DeepSpeed's dump", "[2026-05-01 12:00:01,123] [INFO] [config.py:997:print]   zero_optimization_stage ...... 2\n", FactZeROStage, "2", 1},
		{"DeepSpeed's dump, aligned", "[2026-05-01 12:00:01,123] [INFO] [config.py:997:print]   train_micro_batch_size_per_gpu  4\n", FactBatch, "4", 1},
		{"dataclass repr", "GRPOConfig(max_prompt_length=512, vllm_gpu_memory_utilization=0.9)\n", FactEngineShare, "0.9", 1},
		{"Ultralytics", "engine/trainer: task=detect, mode=train, batch=64, imgsz=640, workers=8, optimizer=SGD\n", FactImage, "640", 1},
		{"a library's version in words", "torch 2.8.0+cu128, transformers 4.51.3\n", FactTransformers, "4.51.3", 1},
		{"a library's version, pinned", "transformers==4.40.2\n", FactTransformers, "4.40.2", 1},
		{"a library's version, transformers-cli env", "- `transformers` version: 4.44.0\n", FactTransformers, "4.44.0", 1},
		{"torch's version beside others", "python 3.11, torch 2.8.0+cu128\n", FactTorch, "2.8.0+cu128", 1},
		{"weights' type by its newer name", "model_name_or_path=org/m, dtype=bfloat16, max_seq_length=512\n", FactDType, "bfloat16", 1},
		{"environment", "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True\n", FactAllocConf, "expandable_segments:True", 1},
		{"environment with two options", "PYTORCH_CUDA_ALLOC_CONF=max_split_size_mb:512,expandable_segments:True python train.py\n", FactAllocConf, "max_split_size_mb:512,expandable_segments:True", 1},
		{"visible devices", "export CUDA_VISIBLE_DEVICES=2,3\n", FactVisible, "2,3", 1},
		{"version", "PyTorch version: 2.3.1+cu121\n", FactTorch, "2.3.1+cu121", 1},
		{"GPU", "GPU 0: NVIDIA A100-SXM4-80GB (UUID: GPU-1)\n", FactGPU, "NVIDIA A100-SXM4-80GB", 1},
		{"model in the code", "model = AutoModelForCausalLM.from_pretrained(\"org/model-7b\", torch_dtype=torch.bfloat16)\n", FactModel, "org/model-7b", 1},
		{"optimizer in the code", "optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)\n", FactOptimizer, "AdamW", 1},
		{"Trainer by its file", "  File \"/env/lib/python3.11/site-packages/transformers/trainer.py\", line 1, in train\n", FactFramework, "hf_trainer", 1},
		{"when it fails, in words", "It trains well, but runs out during the validation phase\n", FactPhase, "evaluation", 1},
		{"when it fails, in Chinese", "每次开始验证就爆显存\n", FactPhase, "evaluation", 1},
		{"TensorFlow's pool", "Stats: \nLimit:                    12000000\nInUse:  1\n", FactPool, "12000000", 2},
		{"a batch of all GPUs", "{\"train_batch_size\": 64}\n", FactGlobalBatch, "64", 1},
		{"a batch that a script takes as a flag", "accelerate launch train_unet.py --train_batch_size=2\n", FactBatch, "2", 1},
		{"Unsloth's banner", "O^O/ \\_/ \\    Batch size per device = 2 | Gradient accumulation steps = 4\n", FactBatch, "2", 1},
		{"a program on top of the Trainer", "  File \"/src/llamafactory/train/tuner.py\", line 5, in run_exp\n", FactFramework, "llamafactory", 1},
		{"WSL", "Linux box 5.15.90.1-microsoft-standard-WSL2 #1 SMP\n", FactPlatform, "wsl", 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			res := ScanString("train.log", c.text)
			f, ok := res.Facts.Get(c.kind)
			if !ok || f.Value != c.want || f.Source.Line != c.line || f.Source.Name != "train.log" {
				t.Errorf("%s = %q at %s, want %q at line %d; all: %+v", c.kind, f.Value, f.Source, c.want, c.line, res.Facts)
			}
		})
	}
}

// What looks like a setting and is none.
func TestCountersAndProseAreNoSettings(t *testing.T) {
	var b strings.Builder
	for i := range 200 {
		fmt.Fprintf(&b, "epoch=1, batch=%d, loss=0.5\n", i)
	}
	res := ScanString("log", b.String())
	if f, ok := res.Facts.Get(FactBatch); ok {
		t.Errorf("a counter became the batch: %+v", f)
	}
	for _, text := range []string{
		"Epoch 3 batch: 120 loss: 0.41\n",
		"the model: a small one\n",
		"tensor([1., 2.], device='cuda:0', dtype=torch.float32)\n",
		"If reserved but unallocated memory is large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation.\n",
		"  File \"a.py\", line 3, in f\n    model = build(batch_size=args.batch_size)\n",
	} {
		if res := ScanString("log", text); len(res.Facts) != 0 {
			t.Errorf("%q gives %+v", text, res.Facts)
		}
	}
}

// A variable that is handed on says nothing of the setting.
func TestAVariableIsNoSetting(t *testing.T) {
	res := ScanString("log", "    result = trainer.train(resume_from_checkpoint=last_checkpoint)\n")
	if f, ok := res.Facts.Get(FactResume); ok {
		t.Errorf("%+v", f)
	}
	res = ScanString("log", "trainer.train(resume_from_checkpoint=\"out/checkpoint-500\")\n")
	if f, _ := res.Facts.Get(FactResume); f.Value != "out/checkpoint-500" {
		t.Errorf("%+v", f)
	}
}

func TestTheMoreTellingNameWins(t *testing.T) {
	res := ScanString("log", "max_seq_length=4096\nGenerationConfig(max_length=20)\n")
	if n := res.Facts.Int(FactSequence); n != 4096 {
		t.Errorf("sequence %d", n)
	}
}

func TestProgressBeforeTheFailure(t *testing.T) {
	for _, c := range []struct {
		name, text  string
		step, total int64
		label       string
	}{
		{"tqdm", " 18%|#8        | 1935/10920 [17:45<1:13:32,  2.04it/s, loss=0.081]\n", 1935, 10920, ""},
		{"tqdm with a name", "Evaluating:  50%|#####     | 20/40 [00:10<00:10,  2.0it/s]\n", 20, 40, "Evaluating"},
		{"tqdm, carriage returns", "  1%| | 1/100 [00:01<01:00]\r  2%| | 2/100 [00:02<01:00]\r  3%| | 3/100 [00:03<01:00]\n", 3, 100, ""},
		{"torchvision", "Epoch: [3]  [ 120/5004]  eta: 0:10:11  lr: 0.1  max mem: 10240\n", 120, 5004, "Epoch: [3]"},
		{"plain", "step 120/5000 loss 1.2\n", 120, 5000, ""},
		{"key and value", "iter: 4500, loss: 0.2\n", 4500, 0, ""},
		{"not the tokenizer's", "  5%|5         | 50/1000 [00:30<09:00]\nMap: 100%|##########| 52002/52002 [00:12<00:00, 4000 examples/s]\n", 50, 1000, ""},
		{"in words", "training step 7 of 90\n", 7, 90, ""},
		{"not how many there will be", "step 3 of 90\nTotal steps = 60, gradient accumulation steps = 8, warmup steps: 10\n", 3, 90, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := one(t, c.text+message113)
			if f.At == nil || f.At.Step != c.step || f.At.Total != c.total || f.At.Label != c.label {
				t.Errorf("%+v, want %+v", f.At, c)
			}
		})
	}
}

func TestMemoryThatTheRunPrints(t *testing.T) {
	for _, c := range []struct {
		text      string
		allocated units.Bytes
		reserved  units.Bytes
	}{
		{"step 1 memory allocated: 12.50 GiB reserved: 14.00 GiB\n", gib(12.5), gib(14)},
		{"Epoch: [3]  [ 120/5004]  eta: 0:10:11  max mem: 10240\n", 10240 * units.MiB, 0},
		{"2026-05-01 12:00:00 - mmengine - INFO - Epoch(train) [1][50/7330] lr: 2e-3 memory: 3855 loss: 1.2\n", 3855 * units.MiB, 0},
		{"ep 13 train, step 95, mem_usage:cuda:0 8.9GB, 0.750 sec/step\n", gib(8.9), 0},
	} {
		res := ScanString("log", c.text)
		if len(res.Samples) != 1 || res.Samples[0].Allocated.Bytes != c.allocated || res.Samples[0].Reserved.Bytes != c.reserved {
			t.Errorf("%q: %+v", c.text, res.Samples)
		}
	}
}

func TestTheTableOfNvidiaSMI(t *testing.T) {
	res := ScanString("log", `+-----------------------------------------------------------------------------+
| NVIDIA-SMI 535.104.05   Driver Version: 535.104.05   CUDA Version: 12.2     |
|   0  NVIDIA A100-SXM4-40GB  On   | 00000000:07:00.0 Off |                    0 |
| N/A   34C    P0    56W / 400W |  31210MiB / 40960MiB |     99%      Default |
|   1  NVIDIA A100-SXM4-40GB  On   | 00000000:0F:00.0 Off |                    0 |
| N/A   31C    P0    52W / 400W |      4MiB / 40960MiB |      0%      Default |
| Processes:                                                                  |
|    0   N/A  N/A     41177      C   /env/bin/python                 31201MiB |
+-----------------------------------------------------------------------------+
`)
	if len(res.Cards) != 2 || res.Cards[0].InUse.Bytes != 31210*units.MiB || res.Cards[1].Index != 1 || res.Cards[1].Capacity.Bytes != 40960*units.MiB {
		t.Errorf("cards %+v", res.Cards)
	}
	if len(res.Holders) != 1 || res.Holders[0].PID != 41177 || res.Holders[0].Memory.Bytes != 31201*units.MiB || res.Holders[0].Card != 0 {
		t.Errorf("holders %+v", res.Holders)
	}
	if v, _ := res.Facts.Get(FactDriver); v.Value != "535.104.05" {
		t.Errorf("driver %+v", v)
	}
}

func TestMergeTakesTheRankFromTheName(t *testing.T) {
	for name, want := range map[string]int{
		"rank_3.log": 3, "logs/worker-12.err": 12, "/tmp/run/attempt_0/5/stderr.log": 5, "slurm-77_2.out": 2, "train.log": -1,
	} {
		if got := rankOfName([]string{name}); got != want {
			t.Errorf("%s: rank %d, want %d", name, got, want)
		}
	}
	a := ScanString("rank_0.log", "torch.distributed.DistBackendError: NCCL error: ncclRemoteError: connection closed by remote peer\n")
	b := ScanString("rank_3.log", message113+"\n")
	m := Merge(a, b)
	if len(m.Failures) != 2 || m.Failures[0].Rank != 3 || m.Failures[0].Class != ClassVRAM || m.Ranks != 4 {
		t.Errorf("%+v ranks %d", m.Failures, m.Ranks)
	}
}
