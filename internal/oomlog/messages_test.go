package oomlog

import (
	"testing"

	"unoom/internal/units"
)

// Each message is written in its producer's format with our own numbers.
func TestMessagesOfEachProducer(t *testing.T) {
	for _, c := range []struct {
		name, text string
		pattern    string
		class      Class
		tried      units.Bytes
		device     string
	}{
		// PyTorch beside the native allocator's form.
		{"no figures", "RuntimeError: CUDA out of memory", "torch.bare", ClassVRAM, 0, "CUDA"},
		{"class name only", "torch.OutOfMemoryError", "torch.bare", ClassVRAM, 0, "CUDA"},
		{"notebook", "OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB (GPU 0; 14.75 GiB total capacity; 12.66 GiB already allocated; 1.02 GiB free; 12.70 GiB reserved in total by PyTorch)", "torch.1.4", ClassVRAM, 2 * units.GiB, "CUDA"},
		{"cut", "RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB", "torch.cut", ClassVRAM, 2 * units.GiB, "CUDA"},
		{"1EB", "RuntimeError: CUDA out of memory. Tried to allocate more than 1EB memory.", "torch.1eb", ClassSize, 0, "CUDA"},
		{"preemptive", "torch.OutOfMemoryError: CUDA out of memory. Allocation was preemptively rejected because it would exceed per_process_memory_fraction limit. Requested size: 3.00 GiB", "torch.fraction_preemptive", ClassLimit, 3 * units.GiB, "CUDA"},
		{"cudaMallocAsync, first line", "torch.cuda.OutOfMemoryError: Allocation on device", "torch.async", ClassVRAM, 0, "CUDA"},
		{"NVML assert", "RuntimeError: NVML_SUCCESS == r INTERNAL ASSERT FAILED at \"/opt/pytorch/c10/cuda/CUDACachingAllocator.cpp\":1131, please report a bug to PyTorch.", "torch.nvml_assert", ClassVRAMMasked, 0, "CUDA"},
		{"driver API", "RuntimeError: CUDA driver error: out of memory", "torch.driver_oom", ClassVRAM, 0, "CUDA"},
		{"MPS", "RuntimeError: MPS backend out of memory (MPS allocated: 17.40 GB, other allocations: 1.06 GB, max allowed: 18.13 GB). Tried to allocate 512.00 MB on private pool. Use PYTORCH_MPS_HIGH_WATERMARK_RATIO=0.0 to disable upper limit for memory allocations (may cause system failure).", "torch.mps", ClassVRAM, 512 * units.MiB, "MPS"},
		{"MPS, newer units", "RuntimeError: MPS backend out of memory (MPS allocated: 30.02 GiB, other allocations: 384.00 KiB). Tried to allocate 256 bytes on shared pool.", "torch.mps", ClassVRAM, 256, "MPS"},
		{"Metal buffer", "RuntimeError: Invalid buffer size: 22.50 GB", "torch.mps_buffer", ClassVRAM, gib(22.5), "MPS"},
		{"XPU 2.4", "RuntimeError: XPU out of memory, please use `empty_cache` to release all unoccupied cached memory.", "torch.xpu_short", ClassVRAM, 0, "XPU"},
		{"Intel's extension", "RuntimeError: Allocation is out of device memory on current platform.", "xpu.ipex", ClassVRAM, 0, "XPU"},
		{"Level Zero", "RuntimeError: level_zero backend failed with error: 39 (UR_RESULT_ERROR_OUT_OF_DEVICE_MEMORY)", "xpu.level_zero", ClassVRAM, 0, "XPU"},
		{"Habana", "RuntimeError: FATAL ERROR :: MODULE:PT_DEVMEM Allocation failed for size::2147483648 (2048)MB", "habana.oom", ClassVRAM, 2 * units.GiB, "HPU"},
		{"CPU", "RuntimeError: [enforce fail at alloc_cpu.cpp:117] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to allocate 137438953472 bytes. Error code 12 (Cannot allocate memory)", "torch.cpu", ClassHost, 128 * units.GiB, "CPU"},
		{"CPU on Windows", "RuntimeError: [enforce fail at alloc_cpu.cpp:80] data. DefaultCPUAllocator: not enough memory: you tried to allocate 26214400 bytes.", "torch.cpu", ClassHost, 25 * units.MiB, "CPU"},
		{"before 0.4", "RuntimeError: cuda runtime error (2) : out of memory at /opt/conda/pytorch/aten/src/THC/generic/THCStorage.cu:58", "cuda.runtime_2", ClassVRAM, 0, "CUDA"},
		{"before 0.4, the check's own line", "THCudaCheck FAIL file=/build/torch/lib/THC/generic/THCStorage.cu line=58 error=2 : out of memory", "cuda.runtime_2", ClassVRAM, 0, "CUDA"},
		{"Paddle before its allocator grew", "EnforceNotMet: enforce allocating <= available failed, 8589934592 > 1073741824 at [gpu_info.cc:89]", "paddle.chunk", ClassVRAM, 8 * units.GiB, "CUDA"},
		{"Paddle 1.6", "Out of memory error on GPU 0. Cannot allocate 512.500000MB GPU memory, available memory is 64.250000MB.", "paddle.oom", ClassVRAM, 1025 * units.MiB / 2, "CUDA"},
		{"thrust's error as Python's", "MemoryError: bad allocation: cudaErrorMemoryAllocation: out of memory", "cuda.error_oom", ClassVRAM, 0, "CUDA"},
		{"Paddle, translated", "GPU 1上出现内存不足错误。无法在GPU 1上分配64.000000MB内存，已分配7.500000GB内存，可用内存仅为0.000000B。", "paddle.chinese", ClassVRAM, 64 * units.MiB, "CUDA"},
		{"cuBLAS in a framework's words", "Check failed: status == ok  Cublas Error: not initialized, Cublas create handle faild!", "library.create", ClassVRAMProbable, 0, "CUDA"},
		{"Ray's advice alone", "Consider more memory on this node. To adjust the kill threshold, set the environment variable `RAY_memory_usage_threshold` when starting Ray.", "host.ray", ClassHost, 0, ""},
		{"a short write", "torch/File.lua:210: write error: wrote 100 blocks instead of 250", "disk.short_write", ClassDisk, 0, ""},
		{"a write that failed", "RuntimeError: write(): fd 31 failed with Input/output error", "disk.short_write", ClassDisk, 0, ""},
		{"a file that torch cannot make", "RuntimeError: File out/epoch_3.pt cannot be opened.", "disk.cannot_open", ClassDisk, 0, ""},
		{"a card that is not there", "RuntimeError: CUDA error: invalid device ordinal", "ordinal", ClassBusy, 0, ""},
		{"Theano", "MemoryError: ('Error allocating 33554432 bytes of device memory (out of memory).', \"use borrow=True\")", "theano.oom", ClassVRAM, 32 * units.MiB, "CUDA"},
		{"TensorFlow on ROCm", "E tensorflow/stream_executor/rocm/rocm_driver.cc:601] failed to allocate 4.00G (4294967296 bytes) from device: hipError_t(1002)", "tf.device_alloc", ClassVRAM, 4 * units.GiB, "TF"},
		{"accelerate", "RuntimeError: No executable batch size found, reached zero.", "accelerate.no_batch", ClassVRAM, 0, "CUDA"},

		// The runtime and libraries.
		{"runtime", "RuntimeError: CUDA error: out of memory", "cuda.error_oom", ClassVRAM, 0, "CUDA"},
		{"HIP runtime", "RuntimeError: HIP error: out of memory", "hip.error_oom", ClassVRAM, 0, "HIP"},
		{"CTranslate2", "RuntimeError: CUDA failed with error out of memory", "cuda.error_oom", ClassVRAM, 0, "CUDA"},
		{"extension", "CUDA error (/src/flash_fwd.cu:112): out of memory", "cuda.error_oom", ClassVRAM, 0, "CUDA"},
		{"numba", "numba.cuda.cudadrv.driver.CudaAPIError: [2] Call to cuMemAlloc results in CUDA_ERROR_OUT_OF_MEMORY", "cuda.error_oom", ClassVRAM, 0, "CUDA"},
		{"thrust", "RuntimeError: parallel_for failed: cudaErrorMemoryAllocation: out of memory", "cuda.error_oom", ClassVRAM, 0, "CUDA"},
		{"cuBLAS", "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`", "library.alloc", ClassVRAMMasked, 0, "CUDA"},
		{"cuBLAS not initialised", "RuntimeError: CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`", "library.init", ClassVRAMProbable, 0, "CUDA"},
		{"cuSOLVER", "RuntimeError: cusolver error: CUSOLVER_STATUS_INTERNAL_ERROR, when calling `cusolverDnCreate(handle)`", "library.create", ClassVRAMProbable, 0, "CUDA"},
		{"cuDNN 9", "RuntimeError: cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED", "library.alloc", ClassVRAMMasked, 0, "CUDA"},
		{"cuDNN host", "RuntimeError: cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED", "cudnn.host", ClassHost, 0, "CUDA"},
		{"cuDNN no algorithm", "RuntimeError: Unable to find a valid cuDNN algorithm to run convolution", "cudnn.no_algorithm", ClassVRAMProbable, 0, "CUDA"},
		{"cuDNN engine", "RuntimeError: GET was unable to find an engine to execute this computation", "cudnn.no_algorithm", ClassVRAMProbable, 0, "CUDA"},
		{"NCCL", "gpu7:911:1203 [3] include/alloc.h:205 NCCL WARN Failed to CUDA calloc async 608 bytes", "nccl.calloc", ClassVRAM, 608, "CUDA"},
		{"NCCL failure", "gpu7:911:1203 [3] transport/p2p.cc:275 NCCL WARN Cuda failure 'out of memory'", "nccl.cuda_failure", ClassVRAM, 0, "CUDA"},
		{"bitsandbytes", "Error out of memory at line 380 in file /src/csrc/pythonInterface.cpp", "bitsandbytes.error", ClassVRAM, 0, "CUDA"},
		{"DeepSpeed buffer", "AssertionError: Not enough memory in buffer. Allocation failed", "deepspeed.buffer", ClassVRAM, 0, "CUDA"},

		// Other frameworks.
		{"JAX", "jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 8589934592 bytes.", "xla.bytes", ClassVRAM, 8 * units.GiB, "XLA"},
		{"JAX, newer", "jax.errors.JaxRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 3.50GiB. [executable_name='jit_train_step']", "xla.bytes", ClassVRAM, gib(3.5), "XLA"},
		{"JAX request", "RESOURCE_EXHAUSTED: Failed to allocate request for 64.00MiB (67108864B) on device ordinal 0", "xla.bytes", ClassVRAM, 64 * units.MiB, "XLA"},
		{"TPU", "RESOURCE_EXHAUSTED: Attempting to allocate 6.10G. That was not possible. There are 5.90G free.; (0x0x0_HBM0)", "xla.tpu", ClassVRAM, gib(6.10), "XLA"},
		{"TPU compile", "Ran out of memory in memory space hbm. Used 17.2G of 15.5G hbm. Exceeded hbm capacity by 1.7G.", "xla.hbm", ClassVRAM, 0, "XLA"},
		{"BFC", "W external/local_xla/xla/tsl/framework/bfc_allocator.cc:497] Allocator (GPU_0_bfc) ran out of memory trying to allocate 2.00GiB (rounded to 2147483648)requested by op MatMul", "tf.bfc", ClassVRAM, 2 * units.GiB, "TF"},
		{"BFC, not fatal", "W tensorflow/core/common_runtime/bfc_allocator.cc:245] Allocator (GPU_0_bfc) ran out of memory trying to allocate 1.13GiB. The caller indicates that this is not a failure, but may mean that there could be performance gains if more memory were available.", "tf.bfc_warning", ClassSecondary, 0, "TF"},
		{"TensorFlow", "tensorflow.python.framework.errors_impl.ResourceExhaustedError: OOM when allocating tensor with shape[64,512,56,56] and type float on /job:localhost/replica:0/task:0/device:GPU:0 by allocator GPU_0_bfc [Op:Conv2D]", "tf.tensor", ClassVRAM, 64 * 512 * 56 * 56 * 4, "TF"},
		{"TensorFlow on the host", "ResourceExhaustedError: OOM when allocating tensor with shape[90000,90000] and type float on /job:localhost/replica:0/task:0/device:CPU:0 by allocator cpu", "tf.tensor", ClassHost, 90000 * 90000 * 4, "CPU"},
		{"TensorFlow session", "E tensorflow/stream_executor/cuda/cuda_driver.cc:828] failed to allocate 7.30G (7838315315 bytes) from device: CUDA_ERROR_OUT_OF_MEMORY: out of memory", "tf.device_alloc", ClassVRAM, 7838315315, "TF"},
		{"TensorFlow pinned", "E tensorflow/stream_executor/cuda/cuda_driver.cc:893] failed to alloc 17179869184 bytes on host: CUDA_ERROR_OUT_OF_MEMORY: out of memory", "tf.pinned", ClassPinned, 16 * units.GiB, "CUDA"},
		{"TensorFlow cuDNN handle", "E tensorflow/stream_executor/cuda/cuda_dnn.cc:329] Could not create cudnn handle: CUDNN_STATUS_INTERNAL_ERROR", "tf.handle", ClassVRAMMasked, 0, "TF"},
		{"PaddlePaddle", "ResourceExhaustedError: Out of memory error on GPU 1. Cannot allocate 1.171875GB memory on GPU 1, 15.2GB memory has been allocated and available memory is only 512.5MB.", "paddle.oom", ClassVRAM, gib(1.171875), "CUDA"},
		{"vLLM blocks", "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when initializing the engine.", "vllm.cache_blocks", ClassEngine, 0, "CUDA"},
		{"vLLM start", "ValueError: Free memory on device (11.20/23.53 GiB) on startup is less than desired GPU memory utilization (0.9, 21.18 GiB). Decrease GPU memory utilization or reduce GPU memory used by other processes.", "vllm.startup", ClassEngine, 0, "CUDA"},
		{"vLLM length", "ValueError: To serve at least one request with the models's max seq len (131072), (16.00 GiB KV cache is needed, which is larger than the available KV cache memory (5.25 GiB). Based on the available memory, the estimated maximum model length is 43008. Try increasing `gpu_memory_utilization` or decreasing `max_model_len` when initializing the engine.", "vllm.kv_needed", ClassEngine, 0, "CUDA"},
		{"vLLM length, older", "ValueError: The model's max seq len (32768) is larger than the maximum number of tokens that can be stored in KV cache (21120). Try increasing `gpu_memory_utilization` or decreasing `max_model_len` when initializing the engine.", "vllm.max_len", ClassEngine, 0, "CUDA"},
		{"SGLang", "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.", "sglang.static", ClassEngine, 0, "CUDA"},
		{"TGI", "Method Warmup encountered an error: Not enough memory to handle 4096 prefill tokens. You need to decrease `--max-batch-prefill-tokens`", "tgi.prefill", ClassEngine, 0, "CUDA"},
		{"llama.cpp", "ggml_backend_cuda_buffer_type_alloc_buffer: allocating 2560.00 MiB on device 0: cudaMalloc failed: out of memory", "ggml.cuda", ClassVRAM, 2560 * units.MiB, "CUDA"},
		{"llama.cpp reserve", "ggml_gallocr_reserve_n: failed to allocate CUDA0 buffer of size 3221225472", "ggml.buffer", ClassVRAM, 3 * units.GiB, "CUDA"},
		{"Ollama", "Error: model requires more system memory (38.4 GiB) than is available (21.0 GiB)", "ollama.system", ClassHost, 0, "CUDA"},
		{"ONNX Runtime", "[ONNXRuntimeError] : 6 : RUNTIME_EXCEPTION : Non-zero status code returned while running Conv node. BFCArena::AllocateRawInternal Failed to allocate memory for requested buffer of size 1073741824", "onnx.arena", ClassVRAM, units.GiB, "CUDA"},
		{"TensorRT", "[TRT] [E] 2: [virtualMemoryBuffer.cpp::resizePhysical::145] Error Code 2: OutOfMemory (Requested size was 4294967296 bytes.)", "tensorrt.oom", ClassVRAM, 0, "CUDA"},
		{"TensorRT request", "[TRT] [E] Requested amount of GPU memory (4294967296 bytes) could not be allocated. There may not be enough free memory for allocation to succeed.", "tensorrt.oom", ClassVRAM, 4 * units.GiB, "CUDA"},
		{"CuPy", "cupy.cuda.memory.OutOfMemoryError: Out of memory allocating 8,589,934,592 bytes (allocated so far: 12,884,901,888 bytes).", "cupy.oom", ClassVRAM, 8 * units.GiB, "CUDA"},
		{"RMM", "MemoryError: std::bad_alloc: out_of_memory: CUDA error at: /src/rmm/include/rmm/mr/device/cuda_memory_resource.hpp:60: cudaErrorMemoryAllocation out of memory", "rmm.oom", ClassVRAM, 0, "CUDA"},
		{"FAISS", "RuntimeError: Error in faiss: Error: 'err == cudaSuccess' failed: StandardGpuResources: alloc fail type TemporaryMemoryOverflow dev 0 space Device stream 0x5 size 1610612736 bytes (cudaMalloc error out of memory [2])", "faiss.oom", ClassVRAM, 1536 * units.MiB, "CUDA"},

		// The host.
		{"worker killed", "RuntimeError: DataLoader worker (pid 4711) is killed by signal: Killed. ", "worker.killed", ClassHostKilled, 0, "CUDA"},
		{"kernel log", "Out of memory: Killed process 4711 (python) total-vm:71234567kB, anon-rss:60123456kB, file-rss:128kB, shmem-rss:0kB", "host.kernel_kill", ClassHost, 0, "CUDA"},
		{"cgroup", "Memory cgroup out of memory: Killed process 99 (python3) total-vm:14119556kB, anon-rss:6538204kB", "host.kernel_kill", ClassHost, 0, "CUDA"},
		{"cgroup record", "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=c1,mems_allowed=0,oom_memcg=/docker/c1,task=python,pid=99,uid=0", "host.kernel_kill", ClassHost, 0, "CUDA"},
		{"Kubernetes", "    reason: OOMKilled", "host.kernel_kill", ClassHost, 0, "CUDA"},
		{"Slurm", "slurmstepd: error: Detected 1 oom-kill event(s) in StepId=1234.0. Some of your processes may have been killed by the cgroup out-of-memory handler.", "host.kernel_kill", ClassHost, 0, "CUDA"},
		{"Ray", "ray.exceptions.OutOfMemoryError: Task was killed due to the node running low on memory.", "host.ray", ClassHost, 0, "CUDA"},
		{"shell", "./run.sh: line 7:  4711 Killed                  python train.py", "shell.killed", ClassHostKilled, 0, "CUDA"},
		{"bare Killed", "Killed", "shell.killed", ClassHostKilled, 0, "CUDA"},
		{"torchrun", "  traceback : Signal 9 (SIGKILL) received by PID 4711", "signal.kill", ClassHostKilled, 0, "CUDA"},
		{"exit 137", "Command terminated: exit code 137", "signal.kill", ClassHostKilled, 0, "CUDA"},
		{"numpy", "numpy.core._exceptions._ArrayMemoryError: Unable to allocate 14.9 GiB for an array with shape (2000000, 1000) and data type float64", "host.numpy", ClassHost, gib(14.9), "CUDA"},
		{"MemoryError", "MemoryError", "host.memory_error", ClassHost, 0, "CUDA"},
		{"paging file", "OSError: [WinError 1455] The paging file is too small for this operation to complete. Error loading \"C:\\py\\torch\\lib\\cudnn.dll\" or one of its dependencies.", "host.paging", ClassHost, 0, "CUDA"},
		{"errno 12", "OSError: [Errno 12] Cannot allocate memory", "host.errno12", ClassHost, 0, "CUDA"},
		{"bad_alloc", "terminate called after throwing an instance of 'std::bad_alloc'", "host.bad_alloc", ClassHost, 0, "CUDA"},
		{"Java", "Exception in thread \"main\" java.lang.OutOfMemoryError: Java heap space", "host.java", ClassHost, 0, "CUDA"},
		{"Rust", "memory allocation of 34359738368 bytes failed", "host.rust", ClassHost, 32 * units.GiB, "CUDA"},

		// Look-alikes.
		{"Triton", "triton.runtime.errors.OutOfResources: out of resource: shared memory, Required: 135168, Hardware limit: 101376. Reducing block sizes or `num_stages` may help.", "triton.resources", ClassOnChip, 0, "CUDA"},
		{"Triton registers", "triton.runtime.errors.OutOfResources: out of resource: registers, Required: 131072, Hardware limit: 65536.", "triton.resources", ClassOnChip, 0, "CUDA"},
		{"launch", "RuntimeError: CUDA error: too many resources requested for launch", "cuda.launch_resources", ClassOnChip, 0, "CUDA"},
		{"illegal access", "RuntimeError: CUDA error: an illegal memory access was encountered", "illegal_access", ClassIllegal, 0, "CUDA"},
		{"misaligned", "RuntimeError: CUDA error: misaligned address", "illegal_access", ClassIllegal, 0, "CUDA"},
		{"assert", "RuntimeError: CUDA error: device-side assert triggered", "device_assert", ClassAssert, 0, "CUDA"},
		{"assert line", "../aten/src/ATen/native/cuda/Loss.cu:250: nll_loss_forward_reduce_cuda_kernel_2d: block: [0,0,0], thread: [4,0,0] Assertion `t >= 0 && t < n_classes` failed.", "device_assert", ClassAssert, 0, "CUDA"},
		{"bus error", "RuntimeError: DataLoader worker (pid 18) is killed by signal: Bus error. It is possible that dataloader's workers are out of shared memory. Please try to raise your shared memory limit.", "shm.bus_error", ClassSharedMemory, 0, "CUDA"},
		{"shm segment", "NCCL WARN Error while creating shared memory segment /dev/shm/nccl-RyPmxZ (size 9637888), error: No space left on device (28)", "shm.limit", ClassSharedMemory, 0, "CUDA"},
		{"shm file", "RuntimeError: unable to write to file </torch_4711_123_0>: No space left on device (28)", "shm.torch_file", ClassSharedMemory, 0, "CUDA"},
		{"disk", "OSError: [Errno 28] No space left on device", "disk.full", ClassDisk, 0, "CUDA"},
		{"disk writer", "RuntimeError: [enforce fail at inline_container.cc:603] . unexpected pos 5368709184 vs 5368709078", "disk.stream_writer", ClassDisk, 0, "CUDA"},
		{"arch", "RuntimeError: CUDA error: no kernel image is available for execution on the device", "driver", ClassDriver, 0, "CUDA"},
		{"driver too old", "RuntimeError: The NVIDIA driver on your system is too old (found version 11040).", "driver", ClassDriver, 0, "CUDA"},
		{"busy", "RuntimeError: CUDA error: all CUDA-capable devices are busy or unavailable", "busy", ClassBusy, 0, "CUDA"},
		{"busy, newer", "RuntimeError: CUDA error: CUDA-capable device(s) is/are busy or unavailable", "busy", ClassBusy, 0, "CUDA"},
		{"NaN", "FloatingPointError: Minimum loss scale reached (0.0001). Your loss is probably exploding. Try lowering the learning rate, using gradient clipping or increasing the batch size.", "numerical", ClassNumerical, 0, "CUDA"},
		{"capture", "RuntimeError: CUDA error: operation not permitted when stream is capturing", "capture", ClassSecondary, 0, "CUDA"},
		{"peer", "torch.distributed.DistBackendError: NCCL error: remote process exited or there was a network error: ncclRemoteError: Connection reset by peer", "nccl.peer", ClassSecondary, 0, "CUDA"},
		{"worker exited", "RuntimeError: DataLoader worker (pid(s) 11, 12) exited unexpectedly", "worker.exited", ClassSecondary, 0, "CUDA"},
		{"FSDP clone", "/env/torch/distributed/fsdp/fully_sharded_data_parallel.py:2224: UserWarning: Failed to clone() tensor with name model.embed_tokens.weight. Error: CUDA out of memory. Tried to allocate 250.00 MiB (GPU 3; 39.59 GiB total capacity; 36.00 GiB already allocated; 101.19 MiB free; 37.00 GiB reserved in total by PyTorch)", "fsdp.clone_failed", ClassHandled, 250 * units.MiB, "CUDA"},
	} {
		t.Run(c.name, func(t *testing.T) {
			res := ScanString("log", c.text)
			if len(res.Failures) == 0 {
				t.Fatalf("nothing found in %q", c.text)
			}
			f := res.Failures[0]
			if f.Pattern != c.pattern || f.Class != c.class {
				t.Errorf("%q\n is %s %s, want %s %s", c.text, f.Pattern, f.Class, c.pattern, c.class)
			}
			if f.Figures.Tried.Bytes != c.tried {
				t.Errorf("tried %d, want %d", f.Figures.Tried.Bytes, c.tried)
			}
			if c.class.IsOOM() && f.Device != c.device {
				t.Errorf("device %q, want %q", f.Device, c.device)
			}
			if len(res.Failures) > 1 {
				t.Errorf("one message gave %d failures: %s", len(res.Failures), res.Failures[1].Pattern)
			}
		})
	}
}

// What training logs are full of and what must not be taken for a failure.
func TestOrdinaryLinesAreNoFailure(t *testing.T) {
	for _, text := range []string{
		"Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.",
		"CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be incorrect.",
		"WARNING: Sequence group 3 is preempted by PreemptionMode.RECOMPUTE mode because of memory pressure",
		"Setting OMP_NUM_THREADS environment variable for each process to be 1 in default",
		"INFO: Killed 0 stale workers",
		"[2026-05-01 12:00:00] loss=1.0 nan_count=0 memory=12.3GiB",
		"from torch.cuda import OutOfMemoryError  # handled below",
		"parser.add_argument('--oom_batch', help='skip batches that run out')",
		"Shared memory: 100 MiB per worker",
		"{'eval_loss': 0.41, 'eval_error: rate': 0.02}",
		"gradient overflow, skipping step, reducing loss scale to 32768",
		"NCCL INFO Channel 00/02 : 0 1 2 3",
	} {
		if res := ScanString("log", text+"\n"); len(res.Failures) != 0 {
			t.Errorf("%q taken for %s", text, res.Failures[0].Pattern)
		}
	}
}
