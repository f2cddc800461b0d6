package diagnose

import (
	"fmt"
	"strings"
	"testing"

	"unoom/internal/oomlog"
	"unoom/internal/remedy"
)

// torchOld writes PyTorch's message up to 2.0; sizes as "1.20 GiB".
func torchOld(tried, total, allocated, free, reserved string) string {
	return fmt.Sprintf("torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate %s (GPU 0; %s total capacity; %s already allocated; %s free; %s reserved in total by PyTorch) If reserved memory is >> allocated memory try setting max_split_size_mb to avoid fragmentation.  See documentation for Memory Management and PYTORCH_CUDA_ALLOC_CONF\n",
		tried, total, allocated, free, reserved)
}

// torchNew writes PyTorch's message from 2.2 on; processes stand before "Of the".
func torchNew(tried, total, free, processes, allocated, cached string) string {
	return fmt.Sprintf("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate %s. GPU 0 has a total capacity of %s of which %s is free. %sOf the allocated memory %s is allocated by PyTorch, and %s is reserved by PyTorch but unallocated. If reserved but unallocated memory is large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation.  See documentation for Memory Management  (https://pytorch.org/docs/stable/notes/cuda.html#environment-variables)\n",
		tried, total, free, processes, allocated, cached)
}

// full is a card filled by its own job, which alone decides nothing.
var full = torchNew("192.00 MiB", "23.64 GiB", "60.81 MiB", "Including non-PyTorch memory, this process has 23.57 GiB memory in use. ", "22.80 GiB", "311.20 MiB")

const bare = "RuntimeError: CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be incorrect.\nFor debugging consider passing CUDA_LAUNCH_BLOCKING=1.\nCompile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.\n"

// calls writes a traceback: "file func code" per line.
func calls(lines ...string) string {
	var b strings.Builder
	b.WriteString("Traceback (most recent call last):\n")
	for i, l := range lines {
		f := strings.SplitN(l, " ", 3)
		fmt.Fprintf(&b, "  File \"%s\", line %d, in %s\n", f[0], 10+i, f[1])
		if len(f) > 2 {
			fmt.Fprintf(&b, "    %s\n", f[2])
		}
	}
	return b.String()
}

const site = "/env/lib/python3.11/site-packages/"

func diagnosed(text string) Diagnosis {
	return Log(oomlog.ScanString("train.log", text), Given{})
}

// What a message, with its traceback and the lines around it, says of the cause.
func TestCauses(t *testing.T) {
	for _, c := range []struct {
		name string
		text string
		want remedy.Cause
		// among says that the label need only be one of the first three.
		among bool
	}{
		// Paddle, and TensorFlow's summary line before its figures.
		{name: "Paddle counts the card, not the job", want: remedy.BatchTooLarge, among: true,
			text: "RuntimeError: ResourceExhaustedError:\n\nOut of memory error on GPU 0. Cannot allocate 256.000000MB memory on GPU 0, 7.500000GB memory has been allocated and available memory is only 100.000000MB.\n"},
		{name: "the size stands under the summary", want: remedy.BatchTooLarge,
			text: "tensorflow.python.framework.errors_impl.ResourceExhaustedError: 2 root error(s) found.\n  (0) Resource exhausted: Out of memory while trying to allocate 9663676416 bytes.\n"},
		{name: "the check of old PyTorch is its own OOM", want: remedy.BatchTooLarge,
			text: "THCudaCheck FAIL file=/pytorch/torch/lib/THC/generic/THCStorage.cu line=66 error=2 : out of memory\n" + calls("main.py train out = net(x)", "net.py forward x = self.conv3(x)") + "RuntimeError: cuda runtime error (2) : out of memory at /pytorch/torch/lib/THC/generic/THCStorage.cu:66\n"},
		{name: "batches are skipped", want: remedy.LongestBatch,
			text: torchOld("40.00 MiB", "10.76 GiB", "9.92 GiB", "11.44 MiB", "10.11 GiB") + "| WARNING: out of memory, skipping batch\n"},
		{name: "ranks in an nvidia-smi table", want: remedy.RanksShareGPU,
			text: torchOld("128.00 MiB", "23.70 GiB", "18.90 GiB", "80.00 MiB", "19.20 GiB") + "|    0   N/A  N/A     41001      C   python3     19801MiB |\n|    0   N/A  N/A     41002      C   python3      917MiB |\n|    0   N/A  N/A     41003      C   python3      917MiB |\n|    0   N/A  N/A     41004      C   python3      921MiB |\n"},
		{name: "a conditional expression that joins predictions", want: remedy.EvalAccumulatesPredictions,
			text: calls("main.py main trainer.evaluate()", site+"mylib/loop.py evaluate_all scores = new if scores is None else torch.cat((scores, new), dim=0)") + full},
		{name: "IPython's arrow", want: remedy.EvalAccumulatesPredictions,
			text: "OutOfMemoryError                          Traceback (most recent call last)\n<ipython-input-7-0a1b2c3d4e5f> in <module>\n----> 1 result = validate(net, loader)\n\n~/code/loop.py in validate(net, loader)\n     40         with torch.no_grad():\n     41             y = net(x)\n---> 42         outputs = y if outputs is None else torch.cat([outputs, y])\n     43     return outputs\n\n" + full},
		{name: "a network that joins features in evaluation", want: remedy.EvalWorkloadLarger,
			text: calls("main.py validate out = net(x)", site+"torch/nn/modules/module.py _call_impl return forward_call(*args)", "net.py forward x = torch.cat(features, 1)") + full},
		{name: "others hold a fifth, the job the rest", want: remedy.OtherProcess, among: true,
			text: torchNew("64.00 MiB", "10.75 GiB", "40.00 MiB", "Process 321 has 2.40 GiB memory in use. Including non-PyTorch memory, this process has 8.30 GiB memory in use. ", "7.60 GiB", "210.00 MiB")},

		{name: "a buffer of generated code as wide as a vocabulary", want: remedy.LogitsVocab,
			text: calls("train.py step loss = compiled(batch)", "/tmp/torchinductor_u/ab/cabc.py call buf3 = empty_strided_cuda((s0, 151936), (151936, 1), torch.float32)") + torchNew("9.10 GiB", "79.11 GiB", "5.20 GiB", "Including non-PyTorch memory, this process has 73.80 GiB memory in use. ", "70.10 GiB", "2.40 GiB")},
		{name: "a large request in a language trainer", want: remedy.LogitsVocab, among: true,
			text: calls("/home/ana/sft.py main trainer.train()", site+"transformers/trainer.py compute_loss outputs = model(**inputs)") + torchNew("5.30 GiB", "79.11 GiB", "2.20 GiB", "Including non-PyTorch memory, this process has 76.80 GiB memory in use. ", "73.10 GiB", "2.40 GiB")},
		{name: "an evaluation that grows by as much each time", want: remedy.EvalAccumulatesPredictions, among: true,
			text: "Evaluation [10/90] max mem: 9012\nEvaluation [20/90] max mem: 9031\nEvaluation [30/90] max mem: 9050\nEvaluation [40/90] max mem: 9069\nEvaluation [50/90] max mem: 9089\nEvaluation [60/90] max mem: 9108\nEvaluation [70/90] max mem: 9127\nEvaluation [80/90] max mem: 9146\nEvaluation [85/90] max mem: 9165\n" + full},

		{name: "who asks says that it is in validation", want: remedy.EvalWorkloadLarger,
			text: torchOld("24.00 MiB", "31.75 GiB", "27.10 GiB", "18.10 MiB", "28.00 GiB") + "第一轮训练完开始验证时报错\n"},
		{name: "a small card with a desktop on it is nobody else's", want: remedy.GPUTooSmall, among: true,
			text: torchOld("900.00 MiB", "6.00 GiB", "4.10 GiB", "160.00 MiB", "4.45 GiB")},
		{name: "experience that is kept on the card", want: remedy.LeakStateGrowth, among: true,
			text: bare + "    state = torch.tensor(state).cuda()\n    self.memory.append((state, action, reward))\n"},
		{name: "a server of its own has no trainer beside it", want: remedy.GPUTooSmall,
			text: "python -m vllm.entrypoints.openai.api_server --model org/m-14b --gpu-memory-utilization 0.95\nValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when initializing the engine.\n"},
		{name: "TensorFlow got next to nothing of the card", want: remedy.OtherProcess,
			text: "Stats: \nLimit:                    12000000\nInUse:                    11000000\nResource exhausted: OOM when allocating tensor of shape [1,400,500,3] and type float\n"},
		{name: "a loss with one number for each label has no vocabulary", want: remedy.BatchTooLarge, among: true,
			text: calls("utils.py compute_loss obj += bce(pi[..., 4], target)", site+"torch/nn/functional.py binary_cross_entropy_with_logits return torch.binary_cross_entropy_with_logits(input, target)") + torchOld("2.00 MiB", "15.90 GiB", "14.40 GiB", "1.50 MiB", "15.10 GiB")},
		{name: "the runtime fails within a step", want: remedy.BatchTooLarge,
			text: calls("train.py main loss.backward()", site+"torch/_tensor.py backward torch.autograd.backward(self)") + bare},
		{name: "logits in fp32", want: remedy.LogitsVocab,
			text: calls("sft.py main trainer.train()", site+"accelerate/utils/operations.py _convert_to_fp32 return tensor.float()") + "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 9.20 GiB. GPU 0 has a total capacity of 22.17 GiB of which 5.10 GiB is free. Process 71 has 17.05 GiB memory in use. Of the"},
		{name: "the only process listed is the job, if nothing is left beside it", want: remedy.BatchTooLarge,
			text: "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 700.00 MiB. GPU 0 has a total capacity of 39.56 GiB of which 96.81 MiB is free. Process 71 has 39.46 GiB memory in use. Of the"},
		{name: "cudaMallocAsync on a full card", want: remedy.ActivationsNoCheckpointing,
			text: "torch.OutOfMemoryError: Allocation on device 0 would exceed allowed memory. (out of memory)\nCurrently allocated     : 6.60 GiB\nRequested               : 64.00 MiB\nDevice limit            : 8.00 GiB\nFree (according to CUDA): 0 bytes\nPyTorch limit (set by user-supplied memory fraction)\n                        : 17179869184.00 GiB\n"},
		{name: "the same in a program that only runs models", want: remedy.GPUTooSmall,
			text: "got prompt\nstarting ComfyUI\ntorch.OutOfMemoryError: Allocation on device 0 would exceed allowed memory. (out of memory)\nCurrently allocated     : 6.60 GiB\nRequested               : 64.00 MiB\nDevice limit            : 8.00 GiB\nFree (according to CUDA): 0 bytes\nPyTorch limit (set by user-supplied memory fraction)\n                        : 17179869184.00 GiB\n"},

		// The figures.
		{name: "another process by subtraction", want: remedy.OtherProcess,
			text: torchOld("512.00 MiB", "31.75 GiB", "3.10 GiB", "101.19 MiB", "3.40 GiB")},
		{name: "another process by its line", want: remedy.OtherProcess,
			text: torchNew("512.00 MiB", "79.15 GiB", "90.12 MiB", "Process 88121 has 61.70 GiB memory in use. Including non-PyTorch memory, this process has 17.34 GiB memory in use. ", "16.10 GiB", "720.00 MiB")},
		{name: "seven like processes", want: remedy.RanksShareGPU,
			text: torchNew("52.00 MiB", "31.74 GiB", "39.62 MiB", strings.Repeat("Process 101 has 1.21 GiB memory in use. ", 7)+"Including non-PyTorch memory, this process has 23.10 GiB memory in use. ", "21.54 GiB", "677.26 MiB")},
		{name: "sixteen bare contexts", want: remedy.WorkerCUDAContexts, among: true,
			text: torchNew("52.00 MiB", "23.64 GiB", "39.62 MiB", strings.Repeat("Process 7 has 420.00 MiB memory in use. ", 16)+"Including non-PyTorch memory, this process has 16.70 GiB memory in use. ", "15.54 GiB", "677.26 MiB")},
		{name: "fragmented", want: remedy.Fragmentation,
			text: torchOld("1.90 GiB", "23.70 GiB", "13.41 GiB", "1.30 GiB", "21.20 GiB")},
		{name: "the hint is printed but could not help", want: remedy.BatchTooLarge,
			text: torchOld("1.90 GiB", "23.70 GiB", "22.01 GiB", "1.10 GiB", "22.20 GiB")},
		{name: "a limit", want: remedy.MemoryCap,
			text: "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 64.00 MiB. GPU 0 has a total capacity of 79.11 GiB of which 60.19 GiB is free. Including non-PyTorch memory, this process has 18.90 GiB memory in use. 18.00 GiB allowed; Of the allocated memory 17.48 GiB is allocated by PyTorch, and 480.00 MiB is reserved by PyTorch but unallocated.\n"},
		{name: "a limit by preemption", want: remedy.MemoryCap,
			text: "torch.OutOfMemoryError: CUDA out of memory. Allocation was preemptively rejected because it would exceed per_process_memory_fraction limit. Requested size: 3.00 GiB\n"},
		{name: "more than the card", want: remedy.InputTooLarge, text: torchOld("74.51 GiB", "23.70 GiB", "0.40 GiB", "22.10 GiB", "0.52 GiB")},
		{name: "garbage", want: remedy.DriverOrHardware, text: "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2350741.10 GiB (GPU 0; 23.70 GiB total capacity; 1.20 GiB already allocated; 21.01 GiB free; 1.31 GiB reserved in total by PyTorch)\n"},
		{name: "1EB after a timeout", want: remedy.CascadeFromOtherError,
			text: "[rank1]:[E ProcessGroupNCCL.cpp:475] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=91, OpType=BROADCAST, Timeout(ms)=600000)\ntorch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate more than 1EB memory.\n"},
		{name: "an APU", want: remedy.UnifiedMemoryBoard,
			text: "torch.OutOfMemoryError: HIP out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total capacity of 15.41 GiB of which 15.20 GiB is free. Of the allocated memory 0 bytes is allocated by PyTorch, and 0 bytes is reserved by PyTorch but unallocated.\n"},
		{name: "a board by its capacity", want: remedy.UnifiedMemoryBoard, among: true,
			text: torchNew("2.00 GiB", "119.64 GiB", "1.80 GiB", "Including non-PyTorch memory, this process has 101.00 GiB memory in use. ", "98.00 GiB", "1.20 GiB")},
		{name: "a tiny full card", want: remedy.GPUTooSmall, text: torchOld("20.00 MiB", "3.95 GiB", "3.20 GiB", "11.00 MiB", "3.31 GiB")},
		{name: "a whole card on top of a full one", want: remedy.ShapeOrDataBug, text: torchOld("9.90 GiB", "11.91 GiB", "10.20 GiB", "410.00 MiB", "10.90 GiB")},
		{name: "private pools", want: remedy.CompileOrCUDAGraph,
			text: "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 320.00 MiB. GPU 0 has a total capacity of 79.11 GiB of which 203.19 MiB is free. Including non-PyTorch memory, this process has 78.90 GiB memory in use. Of the allocated memory 75.48 GiB is allocated by PyTorch, with 14.12 GiB allocated in private pools (e.g., CUDA Graphs), and 1.97 GiB is reserved by PyTorch but unallocated.\n"},
		{name: "a small full card", want: remedy.ActivationsNoCheckpointing, among: true, text: torchOld("128.00 MiB", "8.00 GiB", "7.01 GiB", "0 bytes", "7.20 GiB")},
		{name: "a process that holds much outside PyTorch", want: remedy.NCCLOutsideAllocator,
			text: torchNew("512.00 MiB", "79.15 GiB", "90.12 MiB", "Including non-PyTorch memory, this process has 79.04 GiB memory in use. ", "64.10 GiB", "220.00 MiB")},

		// Library errors.
		{name: "NCCL", want: remedy.NCCLOutsideAllocator,
			text: "gpu7:911:1203 [3] include/alloc.h:205 NCCL WARN Cuda failure 2 'out of memory'\ngpu7:911:1203 [3] include/alloc.h:221 NCCL WARN Failed to CUDA calloc async 4194304 bytes\ntorch.distributed.DistBackendError: NCCL error in: ../torch/csrc/distributed/c10d/NCCLUtils.hpp:340, unhandled cuda error (run with NCCL_DEBUG=INFO for details), NCCL version 2.21.5\n"},
		{name: "cuBLAS", want: remedy.MaskedLibraryInit, text: calls("/home/me/train.py main loss.backward()") + "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`\n"},
		{name: "cuDNN", want: remedy.MaskedLibraryInit, text: "RuntimeError: cuDNN error: CUDNN_STATUS_NOT_INITIALIZED\n"},
		{name: "NVML", want: remedy.MaskedNVMLAssert, text: "RuntimeError: NVML_SUCCESS == r INTERNAL ASSERT FAILED at \"../c10/cuda/CUDACachingAllocator.cpp\":1090, please report a bug to PyTorch.\n"},
		{name: "an unchecked kernel", want: remedy.MaskedIllegalAccess, text: "out of memory\ninvalid argument\nRuntimeError: CUDA error: an illegal memory access was encountered\n"},

		// Optimizer.
		{name: "Adam's state", want: remedy.OptimizerState,
			text: calls("/home/me/train.py main optimizer.step()", site+"torch/optim/optimizer.py wrapper out = func(*args, **kwargs)", site+"torch/optim/adamw.py step has_complex = self._init_group(", site+"torch/optim/adamw.py _init_group state[\"exp_avg\"] = torch.zeros_like(") + full},
		{name: "DeepSpeed's state", want: remedy.OptimizerState,
			text: calls("/home/me/train.py main model, optimizer = setup()", site+"deepspeed/__init__.py initialize engine = DeepSpeedEngine(args)", site+"deepspeed/runtime/engine.py _configure_zero_optimizer optimizer = Stage(", site+"deepspeed/runtime/zero/stage_1_and_2.py initialize_optimizer_states self.optimizer.step()") + full},
		{name: "foreach", want: remedy.OptimizerForeachPeak,
			text: calls("/home/me/train.py main optimizer.step()", site+"torch/optim/adamw.py step adamw(", site+"torch/optim/adamw.py _multi_tensor_adamw exp_avg_sq_sqrt = torch._foreach_sqrt(device_exp_avg_sqs)") + full},

		// Loss, sequence, inputs.
		{name: "logits", want: remedy.LogitsVocab,
			text: calls("/home/me/train.py main loss = model(**batch).loss", site+"transformers/models/llama/modeling_llama.py forward loss = self.loss_function(logits=logits)", site+"transformers/loss/loss_utils.py ForCausalLMLoss logits = logits.float()") + full},
		{name: "cross entropy", want: remedy.LogitsVocab,
			text: calls("/home/me/train.py main loss = criterion(out, y)", site+"torch/nn/functional.py cross_entropy return torch._C._nn.cross_entropy_loss(input, target)") + full},
		{name: "label assignment", want: remedy.LongestBatch,
			text: calls("/src/yolo/train.py train loss = head(x)", "/src/yolo/assigner.py assign ious = bbox_overlaps(boxes, anchors)") + full},
		{name: "attention scores", want: remedy.SequenceTooLong,
			text: calls("/home/me/train.py main out = model(ids)", site+"transformers/models/bert/modeling_bert.py forward attention_scores = torch.matmul(query_layer, key_layer.transpose(-1, -2))") + full},
		{name: "a distance matrix", want: remedy.InputTooLarge,
			text: calls("/home/me/points.py nearest d = torch.cdist(a, b)") + torchOld("9.10 GiB", "23.70 GiB", "4.20 GiB", "8.10 GiB", "4.60 GiB")},
		{name: "late in the epoch", want: remedy.LongestBatch,
			text: " 61%|######    | 6100/10000 [1:40:12<1:04:03,  1.01it/s]\n" + calls("/home/me/train.py main out = model(ids)", site+"torch/nn/modules/module.py _call_impl return forward_call(*args, **kwargs)") + full},
		{name: "a bar that was done is no late step", want: remedy.BatchTooLarge,
			text: "100%|##########| 4000/4000 [00:12<00:00]\n" + calls("/home/me/train.py main out = model(images)", site+"torch/nn/modules/conv.py forward return self._conv_forward(input)") + full},
		{name: "first step", want: remedy.BatchTooLarge,
			text: "  0%|          | 0/10000 [00:00<?, ?it/s]\n" + calls("/home/me/train.py main out = model(images)", site+"torch/nn/modules/conv.py forward return self._conv_forward(input)") + full},
		{name: "no checkpointing in the arguments", want: remedy.ActivationsNoCheckpointing, among: true,
			text: "TrainingArguments(\nper_device_train_batch_size=1,\ngradient_checkpointing=False,\n)\n" + calls("/home/me/train.py main trainer.train()", site+"transformers/trainer.py training_step loss = self.compute_loss(model, inputs)", site+"transformers/models/qwen2/modeling_qwen2.py forward down_proj = self.down_proj(x)") + full},

		// Growth.
		{name: "a sum of losses", want: remedy.LeakGraphRetained, text: "train_loss += loss\n" + torchOld("2.00 MiB", "7.93 GiB", "7.10 GiB", "1.19 MiB", "7.20 GiB")},
		{name: "retained graph in the code", want: remedy.LeakGraphRetained,
			text: calls("/home/me/train.py main total_loss += loss", "/home/me/train.py step loss.backward(retain_graph=True)") + full},
		{name: "rising memory", want: remedy.LeakGraphRetained, text: rising("step") + full},
		{name: "rising memory in evaluation", want: remedy.EvalNoGrad, among: true, text: rising("Evaluation") + calls("/home/me/main.py evaluate out = model(x)") + full},
		{name: "metrics", want: remedy.LeakStateGrowth,
			text: calls("/home/me/module.py validation_step self.metrics.update(preds, y)", site+"torchmetrics/metric.py wrapped_func update(*args, **kwargs)") + full},
		{name: "a retry finds the card as full as before", want: remedy.ExceptionHoldsTensors,
			text: full + "Decreasing batch size to: 8.\n" + full},

		{name: "the handler runs out, too", want: remedy.ExceptionHoldsTensors, among: true,
			text: calls("/home/me/train.py main step(batch)") + full + "\nDuring handling of the above exception, another exception occurred:\n\n" + calls("/home/me/train.py main step(half)") + strings.Replace(full, "192.00", "96.00", 1)},

		// Evaluation.
		{name: "gathered predictions", want: remedy.EvalAccumulatesPredictions,
			text: calls("/home/me/train.py main trainer.train()", site+"transformers/trainer.py evaluation_loop all_preds.add(logits)", site+"transformers/trainer_pt_utils.py nested_concat return torch_pad_and_concatenate(tensors, new_tensors)") + full},
		{name: "a larger evaluation", want: remedy.EvalWorkloadLarger,
			text: calls("/home/me/train.py main validate(model)", "/home/me/train.py validate out = model(image)") + torchOld("7.90 GiB", "23.70 GiB", "9.20 GiB", "3.10 GiB", "18.10 GiB")},
		{name: "an evaluation with a graph", want: remedy.EvalNoGrad, among: true,
			text: calls("/home/me/train.py main val_one_epoch(model)", "/home/me/train.py val_one_epoch loss = model(x)", site+"torch/nn/modules/module.py _call_impl return forward_call(*args)") + full},

		// Saving and loading.
		{name: "save", want: remedy.SaveGathersFullState,
			text: calls("/home/me/train.py main trainer.save_model()", site+"transformers/trainer.py _save state_dict = self.model.state_dict()") + full},
		{name: "a failed clone", want: remedy.SaveGathersFullState,
			text: site + "torch/distributed/fsdp/fully_sharded_data_parallel.py:2224: UserWarning: Failed to clone() tensor with name model.norm.weight. Error: CUDA out of memory. Tried to allocate 250.00 MiB (GPU 3; 39.59 GiB total capacity; 36.00 GiB already allocated; 101.19 MiB free; 37.00 GiB reserved in total by PyTorch)\n"},
		{name: "resume", want: remedy.ResumeDoubleLoad,
			text: calls("/home/me/train.py main load_checkpoint(path)", "/home/me/train.py load_checkpoint optimizer.load_state_dict(ckpt)", site+"torch/optim/optimizer.py load_state_dict state_dict = deepcopy(state_dict)", "/usr/lib/python3.11/copy.py deepcopy y = copier(x, memo)") + full},
		{name: "a state dictionary that every rank is sent", want: remedy.ResumeDoubleLoad,
			text: calls("/home/me/train.py restart set_model_state_dict(model, state, options=options)", site+"torch/distributed/checkpoint/state_dict.py set_model_state_dict return _load_model_state_dict(model, model_state_dict, info)", site+"torch/distributed/_state_dict_utils.py _broadcast_tensors full_tensor = torch.empty(") + full},
		{name: "a run that goes on", want: remedy.ResumeDoubleLoad, text: "Resuming training from out\n" + full},
		{name: "the weights do not fit", want: remedy.GPUTooSmall,
			text: calls("/home/me/chat.py main model = AutoModel.from_pretrained(name).cuda()", site+"torch/nn/modules/module.py cuda return self._apply(lambda t: t.cuda(device))", site+"torch/nn/modules/module.py _apply param_applied = fn(param)") + full},
		{name: "a reference model", want: remedy.ExtraModelCopy, among: true,
			text: calls("/home/me/dpo.py main trainer = DPOTrainer(model)", site+"trl/trainer/dpo_trainer.py __init__ self.ref_model = create_reference_model(model)", "/usr/lib/python3.11/copy.py deepcopy y = copier(x, memo)") + full},
		{name: "a notebook's old model", want: remedy.ExtraModelCopy, among: true,
			text: "Cell In[17], line 3, in <cell line: 3>()\n----> 3 model = AutoModelForCausalLM.from_pretrained(name)\nFile " + site + "transformers/modeling_utils.py:3850, in from_pretrained(cls)\nFile " + site + "torch/nn/modules/module.py:1150, in to(self)\n" + full},

		// Placement.
		{name: "an engine in the trainer", want: remedy.ColocatedEngine,
			text: calls(site+"trl/trainer/grpo_trainer.py __init__ self.llm = LLM(", site+"vllm/entrypoints/llm.py __init__ self.llm_engine = LLMEngine.from_engine_args(", site+"vllm/worker/worker.py determine_num_available_blocks torch.cuda.empty_cache()") + full},
		{name: "an engine that wakes", want: remedy.ColocatedEngine, text: "RuntimeError: CUDA Error: out of memory at /workspace/csrc/cumem_allocator.cpp:62\n"},
		{name: "DataParallel", want: remedy.DPImbalance,
			text: calls("/home/me/train.py main out = model(x)", site+"torch/nn/parallel/data_parallel.py forward return self.gather(outputs, self.output_device)", site+"torch/nn/parallel/scatter_gather.py gather res = gather_map(outputs)") + full},
		{name: "unlike cards", want: remedy.MixedGPUs,
			text: site + "torch/nn/parallel/data_parallel.py:33: UserWarning: \n    There is an imbalance between your GPUs. You may want to exclude GPU 1 which\n    has less than 75% of the memory or cores of GPU 0.\nRuntimeError: CUDA error: out of memory\n"},
		{name: "a rank on the first card", want: remedy.RanksShareGPU,
			text: "[rank3]: " + torchNew("512.00 MiB", "79.15 GiB", "90.12 MiB", "Process 11 has 39.10 GiB memory in use. Process 12 has 38.90 GiB memory in use. Including non-PyTorch memory, this process has 1.04 GiB memory in use. ", "600.10 MiB", "20.00 MiB")},
		{name: "workers with CUDA", want: remedy.WorkerCUDAContexts,
			text: calls(site+"torch/utils/data/_utils/worker.py _worker_loop init_fn(worker_id)", "/home/me/data.py worker_init_fn torch.cuda.set_device(rank)") + bare},
		{name: "the wrong card", want: remedy.WrongGPU, text: smi + torchOld("512.00 MiB", "23.69 GiB", "1.10 GiB", "101.19 MiB", "1.40 GiB")},
		{name: "nobody in the table", want: remedy.OrphanProcess, text: smiEmpty + torchOld("512.00 MiB", "23.69 GiB", "1.10 GiB", "101.19 MiB", "1.40 GiB")},
		{name: "the first touch of a card", want: remedy.OtherProcess, text: calls("/home/me/train.py main model = model.to(device)") + bare},
		{name: "a device map and then one card", want: remedy.WrongPlacement,
			text: calls("/home/me/chat.py main model = AutoModel.from_pretrained(name, device_map=\"auto\").cuda()") + full},

		{name: "gradient buckets", want: remedy.TrainStateTooLarge,
			text: calls("/home/me/train.py main model = DistributedDataParallel(model)", site+"torch/nn/parallel/distributed.py __init__ self._ddp_init_helper(", site+"torch/nn/parallel/distributed.py _ddp_init_helper self.reducer = dist.Reducer(") +
				torchNew("12.55 GiB", "23.64 GiB", "10.20 GiB", "Including non-PyTorch memory, this process has 13.42 GiB memory in use. ", "12.90 GiB", "10.00 MiB")},

		// Settings without effect.
		{name: "the engine moves all of the model", want: remedy.ShardingNotEffective,
			text: calls("/home/me/train.py main engine = deepspeed.initialize(model=model)", site+"deepspeed/runtime/engine.py _configure_distributed_model self.module.to(self.device)") + full},
		{name: "upcast", want: remedy.PrecisionNotApplied,
			text: calls("/home/me/qlora.py main model = prepare_model_for_kbit_training(model)", site+"peft/utils/other.py prepare_model_for_kbit_training param.data = param.data.to(torch.float32)") + full},

		// Host and platform.
		{name: "pinned in the loader", want: remedy.PinnedHostMemory,
			text: calls(site+"torch/utils/data/dataloader.py __next__ data = self._next_data()", site+"torch/utils/data/_utils/pin_memory.py pin_memory return data.pin_memory()") + bare},
		{name: "pinned in TensorFlow", want: remedy.PinnedHostMemory, text: "E tensorflow/stream_executor/cuda/cuda_driver.cc:893] failed to alloc 4294967296 bytes on host: CUDA_ERROR_OUT_OF_MEMORY: out of memory\n"},
		{name: "free memory on Windows", want: remedy.HostRAMOrCommit,
			text: calls("C:\\Users\\me\\train.py main model.to(0)", "C:\\py\\lib\\site-packages\\torch\\nn\\modules\\module.py to return self._apply(convert)") + torchOld("20.00 MiB", "12.00 GiB", "1.20 GiB", "9.41 GiB", "1.31 GiB")},
		{name: "Jetson's allocator alone", want: remedy.UnifiedMemoryBoard, text: "NvMapMemAllocInternalTagged: 1075072515 error 12\n"},
		{name: "a driver warning before", want: remedy.BatchTooLarge, text: "UserWarning: NVIDIA GeForce RTX 5090 with CUDA capability sm_120 is not compatible with the current PyTorch installation.\n  0%|  | 0/100 [00:00<?, ?it/s]\n" + calls("/home/me/train.py main out = model(x)") + full},
		{name: "an overflow of the shape", want: remedy.ShapeOrDataBug, text: "RuntimeError: Storage size calculation overflowed with sizes=[8, 9223372036854775807]\n"},
		{name: "Jetson", want: remedy.UnifiedMemoryBoard, text: "NvMapMemAllocInternalTagged: 1075072515 error 12\nNvMapMemHandleAlloc: error 0\nRuntimeError: CUDA driver error: out of memory\n"},

		{name: "Triton's driver call", want: remedy.NCCLOutsideAllocator, text: "RuntimeError: Triton Error [CUDA]: out of memory\n"},

		// Other frameworks.
		{name: "TensorFlow's dst tensor", want: remedy.MaskedLibraryInit, text: "InternalError: Dst tensor is not initialized.\n"},
		{name: "Caffe", want: remedy.BatchTooLarge, text: "F0101 12:00:00.000000 123 syncedmem.cpp:71] Check failed: error == cudaSuccess (2 vs. 0)  out of memory\n"},
		{name: "JAX's pool", want: remedy.Preallocation, text: "jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 268435456 bytes.\n"},
		{name: "JAX's program", want: remedy.BatchTooLarge, text: "jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 42949672960 bytes.\n"},
		{name: "TensorFlow's session", want: remedy.Preallocation, text: "E tensorflow/stream_executor/cuda/cuda_driver.cc:828] failed to allocate 7.30G (7838315315 bytes) from device: CUDA_ERROR_OUT_OF_MEMORY: out of memory\n"},
		{name: "TensorFlow's tensor", want: remedy.BatchTooLarge, text: "ResourceExhaustedError: OOM when allocating tensor with shape[64,512,56,56] and type float on /job:localhost/replica:0/task:0/device:GPU:0 by allocator GPU_0_bfc [Op:Conv2D]\n"},

		{name: "after an update", want: remedy.LibraryRegression, text: "The same script ran out after upgrading to 4.48.\n" + full},

		// Not an out-of-memory of the GPU.
		{name: "Triton", want: remedy.NotOOMTritonSMEM, text: "triton.runtime.errors.OutOfResources: out of resource: shared memory, Required: 135168, Hardware limit: 101376. Reducing block sizes or `num_stages` may help.\n"},
		{name: "illegal access", want: remedy.NotOOMIllegalAccess, text: calls("/home/me/train.py main loss.backward()") + "RuntimeError: CUDA error: an illegal memory access was encountered\n"},
		{name: "assert", want: remedy.NotOOMDeviceAssert, text: "RuntimeError: CUDA error: device-side assert triggered\n"},
		{name: "disk", want: remedy.NotOOMDiskFull, text: "OSError: [Errno 28] No space left on device\n"},
		{name: "shm", want: remedy.NotOOMSharedMemory, text: "ERROR: Unexpected bus error encountered in worker. This might be caused by insufficient shared memory (shm).\n"},
		{name: "killed worker", want: remedy.NotOOMHostMemory, text: "RuntimeError: DataLoader worker (pid 4711) is killed by signal: Killed. \n"},
		{name: "host tensor", want: remedy.NotOOMHostMemory, text: "RuntimeError: [enforce fail at alloc_cpu.cpp:117] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to allocate 137438953472 bytes. Error code 12 (Cannot allocate memory)\n"},
		{name: "driver", want: remedy.NotOOMDriverMismatch, text: "RuntimeError: CUDA error: no kernel image is available for execution on the device\n"},
		{name: "a script's OOM that is none", want: remedy.NotOOMNumerical, text: "OOM on this batch, skipping: out of memory\nRuntimeError: svd_cuda: the updating process of SBDSDC did not converge (error: 11)\n"},
		{name: "a library failed while it ran", want: remedy.NotOOMIllegalAccess, text: "RuntimeError: CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasSgemm( handle, opa, opb, m, n, k)`\n"},
		{name: "a symbol", want: remedy.NotOOMDriverMismatch, text: "ImportError: /env/flash_attn_2_cuda.so: undefined symbol: _ZN3c104cuda9SetDeviceEi\n"},
		{name: "Slurm", want: remedy.NotOOMHostMemory, text: "srun: error: node7: task 0: Out Of Memory\n"},
		{name: "a card that is not there", want: remedy.NotOOMDriverMismatch, text: "RuntimeError: CUDA error: invalid device ordinal\n"},
		{name: "a disk that took a part", want: remedy.NotOOMDiskFull, text: calls("train.py main torch.save(net.state_dict(), path)", site+"torch/serialization.py _save storage._write_file(f)") + "RuntimeError: write(): fd 31 failed with Input/output error\n"},
		{name: "busy", want: remedy.NotOOMDeviceBusy, text: "RuntimeError: CUDA error: CUDA-capable device(s) is/are busy or unavailable\n"},
		{name: "NaN", want: remedy.NotOOMNumerical, text: "torch._C._LinAlgError: linalg.cholesky: The factorization could not be completed because the input is not positive-definite (the leading minor of order 3 is not positive-definite).\nOOM, skipping this batch\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := diagnosed(c.text)
			var got []string
			rank := -1
			for i, cause := range d.Causes {
				if cause.Label == c.want {
					rank = i
				}
				got = append(got, fmt.Sprintf("%s %.2f", cause.Label, cause.Confidence))
			}
			if rank < 0 || rank > 0 && !c.among || rank > 2 {
				t.Errorf("want %s, got %s", c.want, strings.Join(got, ", "))
			}
			if want := !notOOM(c.want); d.IsOOM() != want {
				t.Errorf("is_oom = %v, want %v", d.IsOOM(), want)
			}
		})
	}
}

// rising is a log whose printed memory grows by 0.5 GiB every hundred steps.
func rising(label string) string {
	var b strings.Builder
	for i := range 20 {
		if label == "Evaluation" {
			fmt.Fprintf(&b, "Evaluation  [%4d/5000]  eta: 0:01:53    time: 0.0506  max mem: %d\n", 100*i, 9000+512*i)
		} else {
			fmt.Fprintf(&b, "step %d/5000 loss 0.5 memory allocated: %.2f GiB\n", 100*i, 9+0.5*float64(i))
		}
	}
	return b.String()
}

const smiHead = `+-----------------------------------------------------------------------------+
| GPU  Name        Persistence-M| Bus-Id        Disp.A | Volatile Uncorr. ECC |
|   0  NVIDIA GeForce RTX 3090  On   | 00000000:3B:00.0 Off |                  N/A |
| 30%   54C    P2   345W / 350W |  23710MiB / 24259MiB |     99%      Default |
`

const smi = smiHead + `|   1  NVIDIA GeForce RTX 3090  On   | 00000000:5E:00.0 Off |                  N/A |
| 30%   31C    P8    25W / 350W |      5MiB / 24259MiB |      0%      Default |
|    0   N/A  N/A     41177      C   python                          23701MiB |
`

const smiEmpty = smiHead + `|  No running processes found                                                 |
`
