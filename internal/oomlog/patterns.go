package oomlog

import (
	"regexp"
	"strings"
)

// A view is the form of the text that a pattern is matched on. All views are
// lower-cased, without prefixes, escapes and entities.
type view int

const (
	onLine     view = iota // the line of the anchor
	onBlock                // that line and those that continue it, joined by blanks
	onSqueezed             // the block without white space
)

// A pattern recognises one message.
type pattern struct {
	id     string
	class  Class
	device string // what the message is about, where the pattern settles it
	// anchors are literals of which the message has at least one. The scanner
	// looks for nothing else in the bulk of the text, so each is rare in logs
	// and has at least minAnchor bytes.
	anchors []string
	on      view
	expr    string // RE2; "" where the anchor says it all
	// unless is a literal of the block that rules the pattern out.
	unless []string
	// probable marks a pattern that needs support from elsewhere.
	probable bool
	figures  reader
}

// A reader says how the groups of a pattern are read.
type reader int

const (
	noFigures     reader = iota
	torchFigures         // PyTorch's native allocator
	triedBytes           // group 1: bytes asked for
	triedSize            // group 1 and 2: number and unit asked for
	asyncFigures         // cudaMallocAsync's table
	mpsFigures           // MPS
	requiredLimit        // group 1: needed, group 2: available, in bytes
	requiredSizes        // groups 1-2 needed, 3-4 available
	tpuFigures           // groups 1-2 tried, 3-4 free
	hbmFigures           // groups 1-2 used, 3-4 capacity
	cupyFigures          // group 1 tried, 2 allocated, in bytes
	tensorShape          // group 1 shape, 2 dtype, 3 device kind, 4 index
	paddleFigures        // groups 1-2 tried, 3 device, 4-5 taken by all, 6-7 free
	triedFree            // group 1 tried, 2 free, in bytes
	habanaFigures        // group 1 MB
)

// table is the one list of what is recognised. Order matters: the first
// pattern that matches wins. Sources: PyTorch c10/cuda/CUDACachingAllocator.cpp
// and CUDAMallocAsyncAllocator.cpp 1.13-2.12, torch/utils/data/_utils/
// signal_handling.py, NCCL 2.28 src/include/alloc.h, DeepSpeed, vLLM, SGLang,
// accelerate utils/memory.py, bitsandbytes csrc, and public reports.
func table() []pattern {
	return []pattern{
		// On-chip resources of one block: no VRAM is short.
		{id: "triton.resources", class: ClassOnChip, anchors: []string{"out of resource"}, on: onBlock,
			expr: `out of resources?: ?(?:shared memory|threads|registers|tensor memory)(?:[^.]*?required: ?(\d+))?(?:[^.]*?hardware limit: ?(\d+))?`, figures: requiredLimit},
		{id: "triton.no_config", class: ClassOnChip, anchors: []string{"no valid triton config"}, on: onLine},
		{id: "cuda.launch_resources", class: ClassOnChip, anchors: []string{"too many resources requested", "launch_out_of_resources", "launchoutofresources"}, on: onLine},
		{id: "ptxas.shared", class: ClassOnChip, anchors: []string{"uses too much shared data"}, on: onLine},
		{id: "kernel.shared_limit", class: ClassOnChip, anchors: []string{"shared memory"}, on: onLine,
			expr: `(?:exceeds?|larger than|more than|insufficient|failed to set|out of).{0,60}shared memory.{0,60}(?:per block|limit|size|kernel|device)|shared memory (?:size|usage|required|request).{0,60}(?:exceeds?|larger than|over)`, unless: []string{"/dev/shm", "worker", "segment"}},

		// Requests that no card could serve, and limits.
		{id: "torch.1eb", class: ClassSize, anchors: []string{"more than 1eb memory"}, on: onLine},
		{id: "torch.overflow", class: ClassSize, anchors: []string{"storage size calculation overflowed", "integer multiplication overflow", "tensor with negative dimension"}, on: onLine},
		{id: "torch.fraction_preemptive", class: ClassLimit, device: "CUDA", anchors: []string{"per_process_memory_fraction limit"}, on: onBlock,
			expr: `preemptively rejected because it would exceed per_process_memory_fraction limit\.?(?: requested size: ([\d.]+) ?(bytes|[kmgt]i?b))?`, figures: triedSize},

		// FSDP survives a failed clone with a warning, and the checkpoint is broken.
		{id: "fsdp.clone_failed", class: ClassHandled, anchors: []string{"failed to clone() tensor"}, on: onSqueezed,
			expr: `failedtoclone\(\)tensor`, figures: torchFigures},
		{id: "fsdp.state_dict_warning", class: ClassHandled, anchors: []string{"fsdp/_state_dict_utils.py", "fsdp\\_state_dict_utils.py"}, on: onLine,
			expr: `_state_dict_utils\.py:\d+: userwarning`, probable: true},

		// PyTorch on devices.
		{id: "torch.mps", class: ClassVRAM, device: "MPS", anchors: []string{"mps backend out of memory"}, on: onSqueezed,
			expr: `mpsbackendoutofmemory`, figures: mpsFigures},
		{id: "torch.mps_buffer", class: ClassVRAM, device: "MPS", anchors: []string{"invalid buffer size"}, on: onLine,
			expr: `invalid buffer size:? ([\d.]+) ?([kmgt]?i?b)`, figures: triedSize},
		{id: "torch.async", class: ClassVRAM, anchors: []string{"allocation on device"}, on: onSqueezed,
			expr: `allocationondevice(\d*)(?:wouldexceedallowedmemory|$|this|\\n)`, figures: asyncFigures},
		{id: "torch.native", class: ClassVRAM, anchors: []string{"tried to allocate", "total capacity", "total capacty", "already allocated", "reserved in total", "reserved by pytorch"}, on: onSqueezed,
			expr:   `(?:^|outofmemory\.?)triedtoallocate[\d.]+(?:bytes|[kmgt]ib)|triedtoallocate[\d.]+(?:bytes|[kmgt]?i?b)\.?(?:\(?(?:gpu|npu|musa|mlu|xpu|sdaa|gcu|device)?\d+;|(?:gpu|npu|musa|mlu|xpu|sdaa|gcu)\d+hasatotal)|totalcapac?i?tyof[\d.]+(?:bytes|[kmgt]?i?b)|[\d.]+[kmgt]ibtotalcapacity;|[\d.]+(?:bytes|[kmgt]ib)alreadyallocated;|isreservedbypytorchbutunallocated`,
			unless: []string{"defaultcpuallocator"}, figures: torchFigures},
		// As browsers and chat programs translate it for Chinese readers.
		{id: "torch.chinese", class: ClassVRAM, device: "CUDA", anchors: []string{"尝试分配", "试图分配", "内存不足", "显存不足", "内存溢出"}, on: onSqueezed,
			expr: `(?:尝试|试图)分配了?[\d.]+(?:bytes|字节|[kmgt]i?b)|cuda(?:错误:?)?(?:的?内存|显存)(?:不足|溢出)`, unless: []string{"cudaoutofmemory"}, figures: torchFigures},
		{id: "torch.cpu", class: ClassHost, device: "CPU", anchors: []string{"defaultcpuallocator"}, on: onBlock,
			expr: `defaultcpuallocator:? ?(?:can.?t allocate|not enough)? ?memory(?:[^\d]*tried to allocate (\d+) bytes)?`, figures: triedBytes},
		{id: "torch.xpu_short", class: ClassVRAM, device: "XPU", anchors: []string{"xpu out of memory"}, on: onLine},
		{id: "torch.nvml_assert", class: ClassVRAMMasked, device: "CUDA", anchors: []string{"nvml_success == r", "nvmlinit_v2_()", "nvmldevicegethandlebypcibusid"}, on: onBlock,
			expr: `internal assert failed`},
		{id: "torch.nvml_assert_squeezed", class: ClassVRAMMasked, device: "CUDA", anchors: []string{"internal assert failed"}, on: onSqueezed,
			expr: `nvml_success==rinternalassertfailed`},

		// Host memory behind a device's message.
		{id: "tf.pinned", class: ClassPinned, anchors: []string{"bytes on host: cuda_error_out_of_memory", "could not allocate pinned host memory"}, on: onLine,
			expr: `(?:failed to alloc|could not allocate pinned host memory of size:?) ?(\d+)?`, figures: triedBytes},
		{id: "cuda.host_register", class: ClassPinned, anchors: []string{"cudahostregister", "cudahostalloc", "cumemhostalloc", "cumemallochost", "cudamallochost"}, on: onBlock,
			expr: `(?:cudahostregister|cudahostalloc|cumemhostalloc|cumemallochost|cudamallochost).{0,200}(?:fail|error|out of memory|invalid argument)|(?:fail|error|out of memory|invalid argument).{0,200}(?:cudahostregister|cudahostalloc|cumemhostalloc|cumemallochost|cudamallochost)`},
		{id: "torch.pinned", class: ClassPinned, anchors: []string{"pinned memory", "pin memory thread", "page-locked"}, on: onLine,
			expr: `(?:fail|error|unable|could not|cannot|can't|out of).{0,80}(?:pinned memory|page-locked)|(?:pinned memory|page-locked).{0,80}(?:fail|out of memory|exhaust|limit)`},

		// NCCL's own allocations.
		{id: "nccl.calloc", class: ClassVRAM, device: "CUDA", anchors: []string{"failed to cuda "}, on: onLine,
			expr: `failed to cuda (?:calloc async|calloc|malloc|host alloc) (\d+) bytes`, figures: triedBytes},
		{id: "nccl.calloc_size", class: ClassVRAM, device: "CUDA", anchors: []string{"failed to cuda "}, on: onLine, expr: `failed to cuda (?:calloc|malloc)`},
		{id: "nccl.cuda_failure", class: ClassVRAM, device: "CUDA", anchors: []string{"cuda failure"}, on: onLine,
			expr: `cuda failure (?:2 )?'out of memory'`},

		// Libraries whose allocation failed.
		{id: "cudnn.host", class: ClassHost, anchors: []string{"host_allocation_failed"}, on: onLine},
		{id: "tf.handle", class: ClassVRAMMasked, device: "TF", anchors: []string{"could not create cudnn handle", "failed to create cublas handle", "create cublas handle failed", "could not create cublas handle", "dnn library is not found"}, on: onLine},
		{id: "library.alloc", class: ClassVRAMMasked, device: "CUDA", anchors: []string{"status_alloc_failed", "device_allocation_failed", "status_allocation_failed", "cufft_alloc_failed", "status_insufficient_resources", "hipblas_status_alloc", "rocblas_status_memory_error", "miopenstatusallocfailed"}, on: onLine},
		{id: "library.init", class: ClassVRAMProbable, device: "CUDA", anchors: []string{"cublas_status_not_initialized", "cudnn_status_not_initialized", "cusolver_status_not_initialized", "curand_status_initialization_failed", "cusparse_status_not_initialized"}, on: onLine, probable: true},
		{id: "library.create", class: ClassVRAMProbable, device: "CUDA", anchors: []string{"cusolverdncreate", "cublascreate", "cudnncreate", "cublasltcreate", "cublas create handle", "cudnn create handle"}, on: onLine,
			expr: `(?:cublas|cudnn) create handle fai|(?:internal_error|alloc|failed|not_initialized).{0,80}(?:cusolverdncreate|cublascreate|cudnncreate|cublasltcreate)|(?:cusolverdncreate|cublascreate|cudnncreate|cublasltcreate).{0,80}(?:internal_error|fail)`, probable: true},
		{id: "tf.dst_tensor", class: ClassVRAMMasked, device: "TF", anchors: []string{"dst tensor is not initialized"}, on: onLine},
		{id: "tf.blas", class: ClassVRAMMasked, device: "TF", anchors: []string{"gemm launch failed", "gemv launch failed", "xgemmbatched launch failed"}, on: onLine, probable: true},
		{id: "library.execution", class: ClassIllegal, anchors: []string{"status_execution_failed", "status_mapping_error"}, on: onLine, probable: true},
		{id: "library.unsupported", class: ClassDriver, anchors: []string{"cublas_status_not_supported", "cublas_status_invalid_value", "cublas_status_arch_mismatch"}, on: onLine, probable: true},
		{id: "build.symbol", class: ClassDriver, anchors: []string{"undefined symbol: "}, on: onLine, probable: true},
		{id: "cudnn.no_algorithm", class: ClassVRAMProbable, device: "CUDA", anchors: []string{"unable to find a valid cudnn", "unable to find an engine", "failed to get convolution algorithm", "no algorithm worked", "cudnn_status_not_supported"}, on: onLine, probable: true},

		// XLA and TensorFlow.
		{id: "xla.hbm", class: ClassVRAM, device: "XLA", anchors: []string{"ran out of memory in memory space"}, on: onLine,
			expr: `ran out of memory in memory space (?:hbm|vmem|smem)\.?(?: used ([\d.]+)([kmgt]?i?b?) of ([\d.]+)([kmgt]?i?b?) )?`, figures: hbmFigures},
		{id: "xla.tpu", class: ClassVRAM, device: "XLA", anchors: []string{"attempting to allocate", "attempting to reserve"}, on: onBlock,
			expr: `attempting to (?:allocate|reserve) ([\d.]+)([kmgt]i?b?)(?:[^.]*)\. that was not possible\. there are ([\d.]+)([kmgt]i?b?) free`, figures: tpuFigures},
		{id: "tf.bfc_warning", class: ClassSecondary, device: "TF", anchors: []string{"this is not a failure"}, on: onBlock},
		{id: "tf.tensor", class: ClassVRAM, device: "TF", anchors: []string{"oom when allocating tensor"}, on: onBlock,
			expr: `oom when allocating tensor(?: (?:with shape ?\[([^\]]*)\](?: and type (\S+))?(?: on \S*?device:(\w+):(\d+))?|of shape ?\[([^\]]*)\]))?`, figures: tensorShape},
		{id: "tf.bfc", class: ClassVRAM, device: "TF", anchors: []string{"ran out of memory trying to allocate"}, on: onBlock,
			expr: `ran out of memory trying to allocate ([\d.]+) ?([kmgt]?i?b)`, unless: []string{"not a failure", "performance gains"}, figures: triedSize},
		{id: "xla.bytes", class: ClassVRAM, device: "XLA", anchors: []string{"out of memory while trying to allocate", "out of memory allocating", "failed to allocate request"}, on: onBlock,
			expr:   `(?:out of memory (?:while trying to allocate|allocating)|failed to allocate request for) ([\d.]+) ?(bytes|[kmgt]?i?b)?`,
			unless: []string{"allocated so far"}, figures: triedSize},
		{id: "tf.device_alloc", class: ClassVRAM, device: "TF", anchors: []string{"from device: cuda_error_out_of_memory", "from device: cuda_error", "from device: hip"}, on: onLine,
			expr: `failed to alloc(?:ate)? [^(]*\((\d+) ?bytes\)`, figures: triedBytes},

		// Engines that check before they allocate.
		{id: "vllm.cache_blocks", class: ClassEngine, anchors: []string{"memory for the cache blocks"}, on: onLine},
		{id: "vllm.kv_needed", class: ClassEngine, anchors: []string{"available kv cache memory"}, on: onBlock,
			expr: `\(([\d.]+) ?(g(?:i)?b)\)? kv cache is needed.{0,80}available kv cache memory \(([\d.]+) ?(g(?:i)?b)|available kv cache memory`, figures: requiredSizes},
		{id: "vllm.startup", class: ClassEngine, anchors: []string{"less than desired gpu memory utilization"}, on: onBlock,
			expr: `free memory on device[^(]*\(([\d.]+) ?/ ?([\d.]+) ?gi?b\) on startup`, figures: noFigures},
		{id: "vllm.max_len", class: ClassEngine, anchors: []string{"be stored in kv cache", "stored in the kv cache"}, on: onLine},
		{id: "vllm.warmup", class: ClassVRAM, device: "CUDA", anchors: []string{"out of memory occurred when warming up"}, on: onLine},
		{id: "vllm.cumem", class: ClassVRAM, device: "CUDA", anchors: []string{"cumem_allocator.cpp"}, on: onLine, expr: `out of memory`},
		{id: "vllm.preempted", class: ClassSecondary, anchors: []string{"not enough kv cache space"}, on: onLine},
		{id: "sglang.static", class: ClassEngine, anchors: []string{"increase --mem-fraction-static", "increase mem_fraction_static"}, on: onLine},
		{id: "sglang.graph", class: ClassVRAM, device: "CUDA", anchors: []string{"capture cuda graph failed"}, on: onBlock, expr: `capture cuda graph failed.{0,400}out of memory`},
		{id: "sglang.prefill", class: ClassEngine, anchors: []string{"prefill out of memory", "decode out of memory"}, on: onLine},
		{id: "tgi.prefill", class: ClassEngine, anchors: []string{"not enough memory to handle"}, on: onLine},
		{id: "deepspeed.kv", class: ClassEngine, anchors: []string{"insufficient memory to allocate kv"}, on: onLine,
			expr: `insufficient memory to allocate kv-?caches?\.(?: required: (\d+), available: (\d+))?`, figures: requiredLimit},
		{id: "deepspeed.buffer", class: ClassVRAM, device: "CUDA", anchors: []string{"not enough memory in buffer"}, on: onLine},
		{id: "accelerate.no_batch", class: ClassVRAM, anchors: []string{"no executable batch size found"}, on: onLine},

		// llama.cpp, Ollama, ONNX Runtime, TensorRT, CuPy, RMM, PaddlePaddle, others.
		{id: "ollama.system", class: ClassHost, anchors: []string{"requires more system memory"}, on: onLine,
			expr: `requires more system memory \(([\d.]+) ?([kmgt]i?b)\) than is available \(([\d.]+) ?([kmgt]i?b)\)`, figures: requiredSizes},
		{id: "ggml.cuda", class: ClassVRAM, device: "CUDA", anchors: []string{"cudamalloc failed: out of memory", "hipmalloc failed: out of memory"}, on: onLine,
			expr: `(?:allocating ([\d.]+) ?([kmgt]ib) on device \d+: )?(?:cuda|hip)malloc failed: out of memory`, figures: triedSize},
		{id: "ggml.buffer", class: ClassVRAM, anchors: []string{"failed to allocate cuda", "failed to allocate rocm", "failed to allocate vulkan", "failed to allocate metal", "unable to allocate cuda", "unable to allocate rocm"}, on: onLine,
			expr: `(?:failed|unable) to allocate (?:cuda|rocm|vulkan|metal)\w* buffer(?: of size (\d+))?`, figures: triedBytes},
		{id: "ggml.kv", class: ClassVRAM, anchors: []string{"failed to allocate buffer for kv cache"}, on: onLine},
		{id: "onnx.arena", class: ClassVRAM, device: "CUDA", anchors: []string{"failed to allocate memory for requested buffer"}, on: onLine,
			expr: `requested buffer of size (\d+)`, figures: triedBytes},
		{id: "tensorrt.oom", class: ClassVRAM, device: "CUDA", anchors: []string{"error code 2: outofmemory", "requested amount of gpu memory"}, on: onLine,
			expr: `requested amount of gpu memory \((\d+)|error code 2: outofmemory`, figures: triedBytes},
		{id: "cupy.oom", class: ClassVRAM, device: "CUDA", anchors: []string{"out of memory allocating"}, on: onBlock,
			expr: `out of memory allocating ([\d,]+) bytes(?: \(allocated so far: ([\d,]+) bytes)?`, figures: cupyFigures},
		{id: "rmm.oom", class: ClassVRAM, device: "CUDA", anchors: []string{"bad_alloc: out_of_memory", "bad_alloc: cudaerror"}, on: onLine},
		{id: "paddle.oom", class: ClassVRAM, device: "CUDA", anchors: []string{"out of memory error on gpu"}, on: onBlock,
			expr: `out of memory error on gpu \d+\. cannot allocate ([\d.]+) ?([kmgt]?i?b)(?: gpu)? memory(?: on gpu (\d+))?(?:, ([\d.]+) ?([kmgt]?i?b) memory has been allocated)?(?:.{0,160}?available memory is(?: only)? ([\d.]+) ?([kmgt]?i?b))?`, figures: paddleFigures},
		{id: "paddle.chinese", class: ClassVRAM, device: "CUDA", anchors: []string{"上出现内存不足", "无法在gpu", "无法在 gpu"}, on: onBlock,
			expr: `(?:gpu ?\d+ ?上出现(?:内存|显存)不足[^无]{0,12})?无法在 ?gpu ?\d+ ?上分配 ?([\d.]+) ?([kmgt]?i?b) ?(?:gpu ?)?(?:的)?(?:内存|显存)()(?:[,，] ?(?:gpu ?\d+ ?上)?已分配 ?([\d.]+) ?([kmgt]?i?b) ?(?:的)?(?:内存|显存))?(?:.{0,60}可用(?:内存|显存)(?:仅|只)?为? ?([\d.]+) ?([kmgt]?i?b))?|gpu ?\d+ ?上出现内存不足`, figures: paddleFigures},
		{id: "paddle.chunk", class: ClassVRAM, device: "CUDA", anchors: []string{"allocating <= available failed"}, on: onLine,
			expr: `allocating <= available failed, (\d+) > (\d+)`, figures: triedFree},
		{id: "theano.oom", class: ClassVRAM, device: "CUDA", anchors: []string{"bytes of device memory"}, on: onLine,
			expr: `error allocating (\d+) bytes of device memory`, figures: triedBytes},
		{id: "mindspore.oom", class: ClassVRAM, device: "NPU", anchors: []string{"memory isn't enough and alloc failed", "memory not enough: current free memory"}, on: onLine},
		{id: "habana.oom", class: ClassVRAM, device: "HPU", anchors: []string{"allocation failed for size::"}, on: onLine, expr: `allocation failed for size::\d+ ?\((\d+)\)mb`, figures: habanaFigures},
		{id: "jetson.nvmap", class: ClassVRAM, device: "CUDA", anchors: []string{"nvmapmemalloc", "nvmapmemhandlealloc", "nvmapreserveop"}, on: onLine, expr: `error (?:12|0|-?\d+)|failed`},
		{id: "driver.no_memory", class: ClassVRAM, device: "CUDA", anchors: []string{"nv_err_no_memory"}, on: onLine},
		{id: "faiss.oom", class: ClassVRAM, device: "CUDA", anchors: []string{"cudamalloc error out of memory"}, on: onLine, expr: `size (\d+) bytes \(cudamalloc error|cudamalloc error out of memory`, figures: triedBytes},
		{id: "bitsandbytes.error", class: ClassVRAM, device: "CUDA", anchors: []string{"error out of memory at line"}, on: onLine},
		{id: "xpu.ipex", class: ClassVRAM, device: "XPU", anchors: []string{"allocation is out of device memory"}, on: onLine},
		{id: "xpu.level_zero", class: ClassVRAM, device: "XPU", anchors: []string{"out_of_device_memory", "ur_result_error_out_of_resources", "out_of_resources"}, on: onLine},
		{id: "ascend.oom", class: ClassVRAM, device: "NPU", anchors: []string{"available memory is insufficient"}, on: onLine},
		{id: "xla.exhausted", class: ClassVRAM, device: "XLA", anchors: []string{"resource_exhausted", "resourceexhausted", "resource exhausted"}, on: onLine,
			expr: `resource_?exhausted(?:error)?|resource exhausted:`, unless: []string{"device:cpu", "quota", "grpc", "too many requests", "received message larger"}},

		// Disk and /dev/shm before the general memory words.
		{id: "shm.bus_error", class: ClassSharedMemory, anchors: []string{"bus error"}, on: onLine, expr: `killed by signal: bus error|unexpected bus error encountered in worker|insufficient shared memory`},
		{id: "shm.bus_error_bare", class: ClassSharedMemory, anchors: []string{"bus error", "signal 7 (sigbus)"}, on: onLine, probable: true},
		{id: "shm.limit", class: ClassSharedMemory, anchors: []string{"insufficient shared memory", "out of shared memory", "error while creating shared memory segment", "unable to open shared memory object", "unable to allocate shared memory"}, on: onLine, unless: []string{"smem", "per block", "triton"}},
		{id: "shm.torch_file", class: ClassSharedMemory, anchors: []string{"from file </torch_", "to file </torch_", "file </torch_", "/dev/shm/"}, on: onLine,
			expr: `unable to (?:mmap|write|resize|open).{0,120}</torch_|no space left on device.{0,120}/dev/shm|/dev/shm/.{0,160}(?:no space left|cannot allocate|failed)|(?:failed|cannot|unable|error).{0,80}/dev/shm/`},
		{id: "disk.full", class: ClassDisk, anchors: []string{"no space left on device", "disk quota exceeded", "not enough space on the disk", "code: 28, kind: storagefull", "errno = 28", "no usable temporary directory", "disk is full", "requested and 0 written", "insufficient disk space"}, on: onLine, unless: []string{"/dev/shm", "shared memory", "</torch_"}},
		{id: "disk.shm", class: ClassSharedMemory, anchors: []string{"no space left on device"}, on: onBlock, expr: `/dev/shm|shared memory|</torch_`},
		{id: "disk.short_write", class: ClassDisk, anchors: []string{"write error: wrote ", "failed with input/output error", "failed with no space left"}, on: onLine, expr: `wrote \d+ blocks instead of \d+|write\(\): fd \d+ failed`},
		{id: "disk.cannot_open", class: ClassDisk, anchors: []string{" cannot be opened."}, on: onLine, expr: `runtimeerror: (?:file|parent directory) .{0,300} cannot be opened\.$`, probable: true},
		{id: "disk.stream_writer", class: ClassDisk, anchors: []string{"pytorchstreamwriter failed", "inline_container.cc"}, on: onLine, expr: `pytorchstreamwriter failed writing|unexpected pos \d+ vs \d+|file write failed`},

		// Host memory.
		{id: "host.kernel_kill", class: ClassHost, anchors: []string{"out of memory: kill", "oom-kill:", "oomkilled", "oom-kill event", "oom_kill event", "oom killed", "oom kill", "cgroup out-of-memory handler"}, on: onLine,
			expr: `out of memory: kill(?:ed)? process|oom-kill:|oomkilled"?\s*:?\s*(?:true|$)|reason:\s*oomkilled|oomkilled|detected \d+ oom[-_ ]kill event|oom killed|oom[- ]killer|cgroup out-of-memory handler`, unless: []string{`oomkilled": false`, `oomkilled":false`, `oomkilled: false`}},
		{id: "host.ray", class: ClassHost, anchors: []string{"node running low on memory", "killed due to memory pressure", "ray.exceptions.outofmemoryerror", "ray-oom-prevention", "ray_memory_usage_threshold"}, on: onLine},
		{id: "host.java", class: ClassHost, anchors: []string{"java.lang.outofmemoryerror"}, on: onLine},
		{id: "host.paging", class: ClassHost, anchors: []string{"paging file is too small", "winerror 1455", "os error 1455", "页面文件太小", "winerror 8]"}, on: onLine},
		{id: "host.errno12", class: ClassHost, anchors: []string{"cannot allocate memory", "code: 12, kind: outofmemory"}, on: onLine, unless: []string{"</torch_", "tls block"}},
		{id: "host.numpy", class: ClassHost, anchors: []string{"unable to allocate"}, on: onBlock,
			expr: `unable to allocate (?:array with shape|([\d.]+) ?([kmgt]?i?b|bytes) for an array)`, figures: triedSize},
		{id: "host.numpy_error", class: ClassHost, anchors: []string{"arraymemoryerror", "arrowmemoryerror"}, on: onLine},
		{id: "host.rust", class: ClassHost, anchors: []string{"memory allocation of"}, on: onLine, expr: `memory allocation of (\d+) bytes failed`, figures: triedBytes},
		{id: "cuda.bad_alloc", class: ClassVRAM, device: "CUDA", anchors: []string{"bad_alloc"}, on: onBlock, expr: `bad_alloc.{0,200}(?:cudaerrormemoryallocation|cuda_error_out|cuda error|out_of_memory)`},
		{id: "host.bad_alloc", class: ClassHost, anchors: []string{"std::bad_alloc"}, on: onLine},
		{id: "host.slurm", class: ClassHost, anchors: []string{"exceeded job memory limit", "exceeded step memory limit", "term_memlimit", "state out_of_memory", "state: out_of_memory"}, on: onLine},
		{id: "host.srun", class: ClassHost, anchors: []string{"out of memory"}, on: onLine, expr: `^(?:srun|slurmstepd|prun): error: .*out of memory$`},
		{id: "host.session", class: ClassHost, anchors: []string{"crashed after using all available ram", "tried to allocate more memory than is available"}, on: onLine},
		{id: "host.memory_error", class: ClassHost, anchors: []string{"memoryerror"}, on: onLine, expr: `(?:^|[^a-z_])memoryerror(?:$|[:( ])`, unless: []string{"outofmemoryerror", "cupy", "cudaerror", "cuda error", "device memory"}},

		// The runtime and the driver.
		{id: "illegal_access", class: ClassIllegal, anchors: []string{"illegal memory access", "misaligned address", "erorillegaladdress", "errorillegaladdress", "cuda_error_illegal_address", "memory access fault by gpu", "illegal instruction was encountered", "invalid program counter"}, on: onLine},
		{id: "launch_failure", class: ClassIllegal, anchors: []string{"unspecified launch failure", "cuda_error_launch_failed"}, on: onLine},
		{id: "device_assert", class: ClassAssert, anchors: []string{"device-side assert", "srcindex < srcselectdimsize", "` failed.", "errorassert", "cur_target >= 0 && cur_target"}, on: onLine,
			expr: `device-side assert(?:$|[^i])|srcindex < srcselectdimsize|block: \[\d+,\d+,\d+\], thread: \[\d+,\d+,\d+\] assertion|errorassert|cuda_error_assert|cur_target >= 0`},
		{id: "device_assert.block", class: ClassAssert, anchors: []string{"assertion `"}, on: onLine, expr: `thread: \[\d+,\d+,\d+\]`},
		{id: "busy", class: ClassBusy, anchors: []string{"devices are busy or unavailable", "device(s) is/are busy or unavailable", "errordevicesunavailable", "devicealreadyinuse", "exclusive_process", "exclusive-process", "exclusive process"}, on: onLine,
			expr: `busy or unavailable|devicesunavailable|devicealreadyinuse|(?:exclusive.process).{0,80}(?:in use|fail|error|busy|cannot)`},
		{id: "ordinal", class: ClassBusy, anchors: []string{"invalid device ordinal"}, on: onLine},
		{id: "driver", class: ClassDriver, anchors: []string{
			"no kernel image is available", "driver version is insufficient", "driver on your system is too old", "found no nvidia driver",
			"forward compatibility was attempted", "unsupported display driver", "driver/library version mismatch", "compiled with an unsupported toolchain",
			"not compiled with cuda enabled", "invalid device function", "cuda unknown error", "is not compatible with the current pytorch installation",
			"status_arch_mismatch", "cudnn version incompatibility", "libcuda.so.1: cannot open", "no cuda-capable device", "no cuda gpus are available",
			"uncorrectable ecc error", "fallen off the bus", "gpu is lost", "unsupportedptxversion", "cuda_error_no_binary_for_gpu", "system not yet initialized",
			"cuda initialization error", "cuda error: initialization error", "cuda error: unknown error", "cuda driver initialization failed",
		}, on: onLine},
		{id: "cufft.internal", class: ClassDriver, anchors: []string{"cufft_internal_error"}, on: onLine, probable: true},
		{id: "torch.driver_oom", class: ClassVRAM, device: "CUDA", anchors: []string{"cuda driver error: out of memory"}, on: onLine},
		{id: "cuda.runtime_2", class: ClassVRAM, device: "CUDA", anchors: []string{"cuda runtime error (2)", "thcudacheck fail"}, on: onLine,
			expr: `cuda runtime error \(2\)|(?:thcstorage|thccachingallocator|thctensor|thcblas).{0,80}error=2 `},
		{id: "framework.alloc", class: ClassVRAM, device: "CUDA", anchors: []string{"cudamalloc retry failed", "cudasuccess (2 vs. 0)", "pooled_storage_manager"}, on: onLine, expr: `out of memory`},
		{id: "triton.driver_oom", class: ClassVRAM, device: "CUDA", anchors: []string{"triton error [cuda]: out of memory"}, on: onLine},
		{id: "cuda.error_oom", class: ClassVRAM, device: "CUDA", anchors: []string{
			"cuda error: out of memory", "cuda_error_out_of_memory", "cudaerrormemoryallocation", "cuda failed with error out of memory", "cuda failure 2",
			"): out of memory", "cuda error 2", "failed: out of memory", "cudasuccess (2 vs. 0)", "cuda error:out of memory", "cuda error = 2", "errno: 2, out of memory",
			"cuda error (2)", "get_temporary_buffer failed", "thcudacheck fail",
		}, on: onLine, unless: []string{"bytes on host", "error=7", "error=5", "error=4", "error=3", "error=1 "}},
		{id: "hip.error_oom", class: ClassVRAM, device: "HIP", anchors: []string{"hip error: out of memory", "hiperroroutofmemory", "hiperrormemoryallocation"}, on: onLine},
		{id: "torch.bare", class: ClassVRAM, anchors: []string{"out of memory", "outofmemoryerror"}, on: onLine,
			expr: `(cuda|hip|xpu|npu|musa|mlu|gpu|mps|vram|device|cudamalloc)(?: is| ran| device)? out of memory|(?:torch|cuda|c10)\S*outofmemoryerror|(?:^|[ :(])outofmemoryerror(?:$|[: )])`, unless: sourceCode},
		{id: "bare.out_of_memory", class: ClassVRAM, anchors: []string{"out of memory"}, on: onLine,
			expr: `^(?:error:? |runtimeerror: )?out of memory[.!]?$|^(?:\w+ ?error|\w+):? out of memory|cuda.{0,120}out of memory|gpu.{0,60}out of memory|out of memory.{0,60}(?:gpu|cuda|device)|oom[: ].{0,40}ran out of memory`, probable: true, unless: sourceCode},
		{id: "squeezed.out_of_memory", class: ClassVRAM, anchors: []string{"memory. tried", "of memory. tried"}, on: onSqueezed, expr: `outofmemory\.?triedtoallocate`, figures: torchFigures},

		// Numerical failures that a script may call OOM.
		{id: "numerical", class: ClassNumerical, anchors: []string{
			"loss is nan", "loss is inf", "nan loss", "nan or inf", "inf or nan", "minimum loss scale reached", "not positive-definite", "not positive definite", "returned nan values", "failed to converge", "did not converge",
			"loss is probably exploding", "matrix is singular", "singular matrix", "nan detected", "contains nan", "probability tensor contains", "ill-conditioned", "linalgerror", "infs or nans",
		}, on: onLine,
			expr: `loss is (?:nan|inf)|minimum loss scale|not positive.definite|returned nan values|(?:failed to|did not) converge|probably exploding|matrix is singular|singular matrix|probability tensor contains|ill-conditioned|linalgerror|(?:error|exception|stopp|abort|found|detected|must not contain).{0,80}(?:nan|infs)|nan.{0,80}(?:error|stopp|abort|detected)`},

		// Killed, and consequences of an error elsewhere.
		{id: "worker.killed", class: ClassHostKilled, anchors: []string{"killed by signal: killed"}, on: onLine},
		{id: "signal.kill", class: ClassHostKilled, anchors: []string{"(sigkill)", "signal sigkill", "sigkill(-9)", "exitcode: -9", "exitcode  : -9", "return code -9", "exit code 137", "exit code: 137", "exitcode: 137", "exit status 137", "code=137", "exited with code 137", "returncode -9", "returned non-zero exit status 137", "died with <signals.sigkill", "exit code -9", "exits with return code = -9", "finished with exit code 137", "exited with 137", "exitcode 137", "status=137", "error code 137", "signal 9: sigkill", "by signal 9", "with signal 9", "signal: 9 (killed)", "killed: 9", "exit status -9", "signal: sigkill", "received sigkill"}, on: onLine},
		{id: "shell.killed", class: ClassHostKilled, anchors: []string{"killed"}, on: onLine,
			expr: `^killed$|^(?:/\S+: line \d+|\S*sh: line \d+|line \d+): +\d+ killed|^\[\d+\]\s*[+-]?\s*\d* ?killed|^zsh: killed|^\S+\s+killed\s+python|^killed(?:\s+(?:python|torchrun|accelerate|deepspeed)\S*)`},
		{id: "worker.exited", class: ClassSecondary, anchors: []string{"exited unexpectedly"}, on: onLine},
		{id: "nccl.peer", class: ClassSecondary, anchors: []string{"connection closed by remote peer", "connection reset by peer", "caught collective operation timeout", "watchdog", "collective operation timeout", "ncclremoteerror"}, on: onLine,
			expr: `closed by remote peer|reset by peer|operation timeout|watchdog.{0,120}(?:timeout|terminat|caught)|ncclremoteerror`},
		{id: "capture", class: ClassSecondary, anchors: []string{"when stream is capturing", "previous error during capture"}, on: onLine},
		{id: "nccl.unhandled", class: ClassSecondary, anchors: []string{"unhandled cuda error", "ncclunhandledcudaerror", "unhandled system error"}, on: onLine, probable: true},
	}
}

// sourceCode are marks of a line of source that speaks of the error: an import,
// a handler, a test of the message.
var sourceCode = []string{"import ", "except ", "isinstance(", " in str(", "print(", "raise ", "logger.", "warnings.warn(", "assert ", " in msg", "return "}

// minAnchor is the shortest anchor. The longer it is, the more bytes the search
// skips at a time. "killed" is shorter and has a search of its own.
const (
	minAnchor   = 8
	shortAnchor = "killed"
)

// errorAnchors mark lines that may be the last error of the text. Exceptions of
// other names are found through their traceback.
var errorAnchors = [...]string{
	"traceback (most recent", "runtimeerror", "valueerror", "typeerror", "keyerror", "importerror", "attributeerror", "indexerror", "assertionerror",
	"notfounderror", "connectionerror", "timeouterror", "notimplementederror", "systemerror", "childfailederror", "calledprocesserror", "oserror: ",
	"ioerror: ", "exception: ", " error: ", "[error] ", "error - ", "fatal error", "segmentation fault", "keyboardinterrupt", "systemexit", "nameerror", "syntaxerror",
	"zerodivisionerror", "permissionerror", "filenotfound", "floatingpointerror", "recursionerror", "command not found", "core dumped", "cuda error: ",
}

// compiled is the table with its expressions, compiled on first use, since a
// text needs few of them.
type compiled struct {
	patterns []pattern
	regexps  map[string]*regexp.Regexp
	search   *search
	byAnchor [][]int // pattern indices by anchor id, ascending
	native   int     // the pattern of PyTorch's allocator
	killed   int     // the id of shortAnchor; those after it only mark error lines
	torch    *torchReader
}

func newTable() *compiled {
	c := &compiled{patterns: table(), regexps: map[string]*regexp.Regexp{}}
	ids := map[string]int{}
	var anchors []string
	var short []int
	for i, p := range c.patterns {
		if p.id == "torch.native" {
			c.native = i
		}
		for _, a := range p.anchors {
			if a == shortAnchor {
				short = append(short, i)
				continue
			}
			id, ok := ids[a]
			if !ok {
				id = len(anchors)
				ids[a] = id
				anchors = append(anchors, a)
				c.byAnchor = append(c.byAnchor, nil)
			}
			c.byAnchor[id] = append(c.byAnchor[id], i)
		}
	}
	c.killed = len(anchors)
	c.byAnchor = append(c.byAnchor, short)
	anchors = append(append(anchors, "\x00"+shortAnchor+"\x00"), errorAnchors[:]...)
	c.search = newSearch(anchors)
	return c
}

// weak reports whether an anchor only marks an error line.
func (c *compiled) weak(id int) bool { return id > c.killed }

// anchor returns the text of an anchor.
func (c *compiled) anchor(id int) string {
	if id == c.killed {
		return shortAnchor
	}
	return c.search.anchors[id]
}

// match returns the groups of a pattern, nil where it does not match.
func (c *compiled) match(i int, text string) []string {
	if c.patterns[i].expr == "" {
		return []string{""}
	}
	return c.regexp(c.patterns[i].expr).FindStringSubmatch(text)
}

// regexp compiles an expression on its first use.
func (c *compiled) regexp(expr string) *regexp.Regexp {
	re := c.regexps[expr]
	if re == nil {
		re = regexp.MustCompile(expr)
		c.regexps[expr] = re
	}
	return re
}

func (p *pattern) ruledOut(block string) bool {
	for _, u := range p.unless {
		if strings.Contains(block, u) {
			return true
		}
	}
	return false
}
