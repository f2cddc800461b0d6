package diagnose

import (
	"slices"
	"strings"

	"unoom/internal/oomlog"
	"unoom/internal/remedy"
	"unoom/internal/units"
)

// A vote is what one observation says of one cause, in natural-log odds.
type vote struct {
	label  remedy.Cause
	points float64
}

// The strengths of a vote. They are set by how often the observation and the
// cause go together in the field's reports, not fitted to any of them.
const (
	decisive = 7.0 // the message itself says so
	strong   = 4.0
	fair     = 2.5
	weak     = 1.5
	trace    = 0.7
)

// A hit is an observation that was made.
type hit struct {
	args []any // of the sentence
	at   oomlog.Source
}

// A logRule is one observation and what it speaks for and against. id is its
// message.
type logRule struct {
	id    string
	votes []vote
	when  func(*signals) (hit, bool)
}

// logRules is the list of all observations, from what the message is through
// its figures and its traceback to the history and the setting.
func logRules() []logRule {
	return slices.Concat(messageRules(), figureRules(), traceRules(), historyRules(), settingRules())
}

// at makes a hit at the failure.
func (s *signals) at(args ...any) hit {
	h := hit{args: args}
	if s.fail != nil {
		h.at = s.fail.Source
	} else if s.res.Trace != nil {
		h.at = s.res.Trace.Source
	}
	return h
}

// ifClass, ifPattern and the like make the conditions of the tables short.
func ifClass(class oomlog.Class) func(*signals) (hit, bool) {
	return func(s *signals) (hit, bool) { return s.at(), s.fail != nil && s.class == class }
}

func ifPattern(ids ...string) func(*signals) (hit, bool) {
	return func(s *signals) (hit, bool) {
		return s.at(), s.fail != nil && slices.Contains(ids, s.fail.Pattern)
	}
}

func ifSees(words ...string) func(*signals) (hit, bool) {
	return func(s *signals) (hit, bool) {
		if s.fail != nil && !s.memory() {
			return hit{}, false
		}
		for _, f := range s.frames {
			if one := (&signals{trace: lowerFrame(f)}); one.sees(words...) {
				return hit{args: []any{call(f)}, at: f.At}, true
			}
		}
		return s.at(firstSeen(s, words)), s.sees(words...)
	}
}

// ifPhase requires a traceback or a progress bar of a phase.
func ifPhase(phase oomlog.Phase) func(*signals) (hit, bool) {
	return func(s *signals) (hit, bool) { return s.at(), s.phase == phase && s.memory() }
}

// memory reports whether the failure is about an accelerator's memory, or a
// traceback that may be.
func (s *signals) memory() bool { return s.verdict == OutOfMemory || s.verdict == TraceOnly }

// torchFull reports whether the message is of PyTorch's allocator and the card
// is full of this job: nothing else explains it.
func (s *signals) torchFull() bool {
	return s.asyncFull() || s.figuresKnown() && s.hasTried && !s.spilled && s.foreignShare() < 0.18 && s.tried <= s.capacity && !s.plentyFree() && !s.limited()
}

// asyncFull is the same for cudaMallocAsync, whose message does not say what its
// pool holds beyond the tensors.
func (s *signals) asyncFull() bool {
	return s.fail != nil && s.fail.Pattern == "torch.async" && s.hasTried && s.tried <= s.capacity && !s.plentyFree() && !s.limited() && share(s.allocated, s.capacity) > 0.6
}

func (s *signals) outsideShare() float64 { return share(s.outside, s.capacity) }

// foreignShare is the part of the card that may be somebody else's. Where the
// message states what this process holds, its own context and libraries are not
// counted.
func (s *signals) foreignShare() float64 {
	if s.hasThis && s.hasCapacity && s.hasFree {
		return share(max(s.capacity-s.free-s.this, 0), s.capacity)
	}
	return s.outsideShare()
}

// plentyFree reports whether far more is free than was asked for, which is
// never a lack of capacity.
func (s *signals) plentyFree() bool {
	return s.hasCapacity && s.hasFree && s.hasTried && s.free > 2*s.tried && share(s.free, s.capacity) > 0.05 && s.tried <= s.capacity
}

// muchFree reports whether a good part of the card is free, so that one large
// request failed and not many small ones.
func (s *signals) muchFree() bool { return s.hasFree && share(s.free, s.capacity) > 0.4 }

func (s *signals) limited() bool {
	f := s.fail
	return f != nil && (s.class == oomlog.ClassLimit || f.Figures.Allowed.Known && f.Figures.Allowed.Bytes < s.capacity && f.Pattern != "torch.mps")
}

// messageRules: what the message itself says.
func messageRules() []logRule {
	return []logRule{
		{"msg.on_chip", []vote{{remedy.NotOOMTritonSMEM, decisive}}, ifClass(oomlog.ClassOnChip)},
		{"msg.illegal", []vote{{remedy.NotOOMIllegalAccess, strong}, {remedy.MaskedIllegalAccess, trace}}, illegal},
		{"msg.execution_failed", []vote{{remedy.NotOOMIllegalAccess, 2.2}, {remedy.NotOOMDriverMismatch, 2}, {remedy.MaskedLibraryInit, 1.2}}, ifPattern("library.execution")},
		{"msg.oom_before_illegal", []vote{{remedy.MaskedIllegalAccess, decisive}, {remedy.NotOOMIllegalAccess, weak}}, oomBeforeIllegal},
		{"msg.device_assert", []vote{{remedy.NotOOMDeviceAssert, decisive}}, ifClass(oomlog.ClassAssert)},
		{"msg.disk", []vote{{remedy.NotOOMDiskFull, decisive}}, ifClass(oomlog.ClassDisk)},
		{"msg.shm", []vote{{remedy.NotOOMSharedMemory, decisive}}, ifClass(oomlog.ClassSharedMemory)},
		{"msg.host", []vote{{remedy.NotOOMHostMemory, decisive}, {remedy.HostRAMOrCommit, strong}}, ifClass(oomlog.ClassHost)},
		{"msg.killed", []vote{{remedy.NotOOMHostMemory, strong}, {remedy.HostRAMOrCommit, weak}}, ifClass(oomlog.ClassHostKilled)},
		{"msg.driver", []vote{{remedy.NotOOMDriverMismatch, decisive}, {remedy.DriverOrHardware, fair}}, ifClass(oomlog.ClassDriver)},
		{"msg.busy", []vote{{remedy.NotOOMDeviceBusy, strong}, {remedy.NotOOMDriverMismatch, fair}}, ifPattern("busy")},
		{"msg.ordinal", []vote{{remedy.NotOOMDriverMismatch, strong}, {remedy.NotOOMDeviceBusy, fair}}, ifPattern("ordinal")},
		{"msg.numerical", []vote{{remedy.NotOOMNumerical, decisive}}, ifClass(oomlog.ClassNumerical)},
		{"msg.pinned", []vote{{remedy.PinnedHostMemory, decisive}, {remedy.HostRAMOrCommit, fair}}, ifClass(oomlog.ClassPinned)},
		{"msg.nvml_assert", []vote{{remedy.MaskedNVMLAssert, decisive}, {remedy.UnifiedMemoryBoard, fair}}, ifPattern("torch.nvml_assert", "torch.nvml_assert_squeezed")},
		{"msg.cuda_library_alloc", []vote{{remedy.MaskedLibraryInit, strong}, {remedy.NCCLOutsideAllocator, trace}}, ifPattern("library.alloc")},
		{"msg.cuda_library_init", []vote{{remedy.MaskedLibraryInit, strong}, {remedy.NotOOMDriverMismatch, trace}}, ifPattern("library.init", "library.create")},
		{"msg.tf_blas", []vote{{remedy.MaskedLibraryInit, 3}, {remedy.Preallocation, fair}, {remedy.OtherProcess, weak}}, ifPattern("tf.blas", "tf.dst_tensor")},
		{"msg.tf_handle", []vote{{remedy.MaskedLibraryInit, strong}, {remedy.Preallocation, fair}}, ifPattern("tf.handle")},
		{"msg.no_algorithm", []vote{{remedy.MaskedLibraryInit, fair}, {remedy.NotOOMDriverMismatch, weak}, {remedy.InputTooLarge, trace}}, ifPattern("cudnn.no_algorithm")},
		{"msg.nccl", []vote{{remedy.NCCLOutsideAllocator, strong + 1}, {remedy.OtherProcess, weak}}, ifPattern("nccl.calloc", "nccl.calloc_size", "nccl.cuda_failure")},
		{"msg.absurd", []vote{{remedy.CascadeFromOtherError, fair}, {remedy.ShapeOrDataBug, 2}, {remedy.DriverOrHardware, weak}}, ifPattern("torch.1eb")},
		{"msg.after_timeout", []vote{{remedy.CascadeFromOtherError, strong}}, afterTimeout},
		{"msg.preemptive", []vote{{remedy.MemoryCap, decisive}}, ifPattern("torch.fraction_preemptive")},
		{"msg.mps_cap", []vote{{remedy.BatchTooLarge, 2.3}, {remedy.UnifiedMemoryBoard, 1.8}, {remedy.MemoryCap, 1.0}, {remedy.GPUTooSmall, 2}}, ifPattern("torch.mps")},
		{"msg.metal_buffer", []vote{{remedy.InputTooLarge, fair}, {remedy.SequenceTooLong, 2}, {remedy.BatchTooLarge, 2}}, ifPattern("torch.mps_buffer")},
		{"msg.clone_failed", []vote{{remedy.SaveGathersFullState, decisive}}, ifClass(oomlog.ClassHandled)},
		{"msg.tf_session", []vote{{remedy.Preallocation, strong}, {remedy.OtherProcess, weak}}, ifPattern("tf.device_alloc")},
		{"msg.paddle_chunk", []vote{{remedy.Preallocation, fair}, {remedy.BatchTooLarge, 2}, {remedy.OtherProcess, weak}}, ifPattern("paddle.chunk")},
		{"msg.xla_small", []vote{{remedy.Preallocation, fair}, {remedy.BatchTooLarge, weak}, {remedy.OtherProcess, trace}}, xlaSmall},
		{"msg.xla_no_size", []vote{{remedy.BatchTooLarge, 2.2}, {remedy.Preallocation, 1.8}, {remedy.InputTooLarge, weak}, {remedy.OtherProcess, trace}}, xlaNoSize},
		{"msg.xla_large", []vote{{remedy.BatchTooLarge, fair}, {remedy.InputTooLarge, weak}, {remedy.TrainStateTooLarge, weak}, {remedy.Preallocation, trace}}, xlaLarge},
		{"msg.hbm", []vote{{remedy.BatchTooLarge, fair}, {remedy.GPUTooSmall, weak}, {remedy.TrainStateTooLarge, weak}}, ifPattern("xla.hbm", "xla.tpu")},
		{"msg.tf_tensor", []vote{{remedy.BatchTooLarge, fair}, {remedy.InputTooLarge, weak}, {remedy.GPUTooSmall, trace}}, ifPattern("tf.tensor", "tf.bfc")},
		{"msg.tf_small_pool", []vote{{remedy.OtherProcess, strong}, {remedy.Preallocation, fair}, {remedy.MemoryCap, 2}, {remedy.BatchTooLarge, -weak}, {remedy.InputTooLarge, -weak}}, smallPool},
		{"msg.tf_host", []vote{{remedy.NotOOMHostMemory, decisive}}, tensorOnHost},
		{"msg.kv_cache_none", []vote{{remedy.GPUTooSmall, 2.3}, {remedy.ColocatedEngine, 2.1}, {remedy.Preallocation, 1.8}}, ifPattern("vllm.cache_blocks", "sglang.static")},
		{"msg.kv_cache_length", []vote{{remedy.SequenceTooLong, strong}, {remedy.GPUTooSmall, weak}}, ifPattern("vllm.kv_needed", "vllm.max_len", "tgi.prefill", "deepspeed.kv")},
		{"msg.engine_startup", []vote{{remedy.ColocatedEngine, 2.7}, {remedy.OtherProcess, fair}, {remedy.OrphanProcess, weak}}, ifPattern("vllm.startup")},
		{"msg.engine_allocator", []vote{{remedy.ColocatedEngine, strong + 1}}, ifPattern("vllm.cumem")},
		{"msg.engine_warmup", []vote{{remedy.Preallocation, fair}, {remedy.BatchTooLarge, weak}, {remedy.CompileOrCUDAGraph, trace}}, ifPattern("vllm.warmup", "sglang.graph", "sglang.prefill")},
		{"msg.graph_capture", []vote{{remedy.CompileOrCUDAGraph, fair}}, ifPattern("sglang.graph")},
		{"msg.no_batch", []vote{{remedy.GPUTooSmall, fair}, {remedy.TrainStateTooLarge, 2}, {remedy.ExceptionHoldsTensors, weak}, {remedy.OtherProcess, weak}}, ifPattern("accelerate.no_batch")},
		{"msg.shared_board", []vote{{remedy.UnifiedMemoryBoard, decisive}}, ifPattern("jetson.nvmap")},
		{"msg.driver_no_memory", []vote{{remedy.UnifiedMemoryBoard, 2}, {remedy.HostRAMOrCommit, 2}, {remedy.OtherProcess, weak}, {remedy.DriverOrHardware, weak}}, ifPattern("driver.no_memory")},
		{"msg.overflow", []vote{{remedy.ShapeOrDataBug, strong}, {remedy.InputTooLarge, weak}}, ifPattern("torch.overflow")},
		{"msg.vmm", []vote{{remedy.UnifiedMemoryBoard, 2}, {remedy.DriverOrHardware, 2}, {remedy.BatchTooLarge, weak}}, ifPattern("torch.driver_oom")},
		{"msg.llamacpp", []vote{{remedy.GPUTooSmall, fair}, {remedy.SequenceTooLong, weak}, {remedy.OtherProcess, trace}}, ifPattern("ggml.cuda", "ggml.buffer", "ggml.kv")},
		{"msg.bare_runtime", []vote{{remedy.OtherProcess, 2.2}, {remedy.WrongGPU, 1.8}, {remedy.HostRAMOrCommit, 1.6}, {remedy.PinnedHostMemory, weak}, {remedy.BatchTooLarge, weak}, {remedy.DriverOrHardware, 1.0}}, bareRuntime},
		{"msg.bare_runtime_in_step", []vote{{remedy.BatchTooLarge, weak}, {remedy.LeakGraphRetained, 1.8}, {remedy.LongestBatch, 1.8}, {remedy.OtherProcess, -1}, {remedy.WrongGPU, -weak}, {remedy.HostRAMOrCommit, -1}, {remedy.PinnedHostMemory, -1}}, bareRuntimeInStep},
		{"msg.old_runtime", []vote{{remedy.BatchTooLarge, 2.2}, {remedy.OtherProcess, weak}, {remedy.GPUTooSmall, 1.2}, {remedy.WrongGPU, 1.0}, {remedy.LongestBatch, trace}, {remedy.LeakGraphRetained, trace}}, ifPattern("cuda.runtime_2", "framework.alloc")},
		{"msg.triton_driver", []vote{{remedy.NCCLOutsideAllocator, fair}, {remedy.CompileOrCUDAGraph, weak}, {remedy.BatchTooLarge, weak}}, ifPattern("triton.driver_oom")},
		{"msg.bare_torch", []vote{{remedy.BatchTooLarge, 2.0}, {remedy.GPUTooSmall, 1.2}, {remedy.LongestBatch, 1.0}, {remedy.ActivationsNoCheckpointing, 1.0}, {remedy.SequenceTooLong, trace}, {remedy.LeakGraphRetained, trace}}, bareTorch},
		{"msg.other_library", []vote{{remedy.InputTooLarge, 1.8}, {remedy.BatchTooLarge, 1.8}, {remedy.OtherProcess, weak}, {remedy.GPUTooSmall, weak}}, ifPattern("cupy.oom", "rmm.oom", "paddle.oom", "paddle.chinese", "theano.oom", "onnx.arena", "tensorrt.oom", "faiss.oom", "cuda.bad_alloc", "mindspore.oom", "habana.oom", "ascend.oom", "bitsandbytes.error", "deepspeed.buffer")},
	}
}

// oomBeforeIllegal: a kernel that ignored a failed allocation reads through the
// null pointer it got. The bare words "out of memory" before the illegal access
// are the trace that it leaves.
func oomBeforeIllegal(s *signals) (hit, bool) {
	if s.fail == nil || s.class != oomlog.ClassVRAM || s.hasTried {
		return hit{}, false
	}
	for _, f := range s.later {
		if f.Class == oomlog.ClassIllegal {
			return hit{at: f.Source}, true
		}
	}
	return hit{}, false
}

func illegal(s *signals) (hit, bool) {
	return s.at(), s.fail != nil && s.class == oomlog.ClassIllegal && s.fail.Pattern != "library.execution"
}

func afterTimeout(s *signals) (hit, bool) {
	if s.class != oomlog.ClassSize && !(s.hasTried && s.tried > absurd) {
		return hit{}, false
	}
	for _, f := range s.res.Failures {
		if f.Class == oomlog.ClassSecondary || f.Class == oomlog.ClassIllegal || f.Class == oomlog.ClassAssert {
			return hit{args: []any{f.Text}, at: f.Source}, true
		}
	}
	return hit{}, false
}

// xlaLimit divides a small request of XLA from a large one. XLA asks for the
// temporaries of a whole program at once, so a job that is too big asks for
// GiBs; a request of MiBs that fails finds a pool that was made too small.
const xlaLimit = units.GiB

func xlaSmall(s *signals) (hit, bool) {
	return s.at(s.tried), s.fail != nil && slices.Contains([]string{"xla.bytes", "xla.exhausted"}, s.fail.Pattern) && s.hasTried && s.tried < xlaLimit
}

func xlaNoSize(s *signals) (hit, bool) {
	return s.at(), s.fail != nil && slices.Contains([]string{"xla.bytes", "xla.exhausted"}, s.fail.Pattern) && !s.hasTried
}

func xlaLarge(s *signals) (hit, bool) {
	return s.at(s.tried), s.fail != nil && s.fail.Pattern == "xla.bytes" && s.tried >= xlaLimit
}

// smallPool: TensorFlow's allocator takes at the start what the card has left;
// a pool of less than a GiB means that somebody else had taken the rest, or that
// somebody set it so.
func smallPool(s *signals) (hit, bool) {
	f, ok := s.res.Facts.Get(oomlog.FactPool)
	limit := units.Bytes(s.res.Facts.Int(oomlog.FactPool))
	return hit{args: []any{limit}, at: f.Source}, ok && s.fail != nil && strings.HasPrefix(s.fail.Pattern, "tf.") && s.memory() && limit > 0 && limit < units.GiB
}

func tensorOnHost(s *signals) (hit, bool) {
	return s.at(), s.fail != nil && s.fail.Class == oomlog.ClassHost && s.fail.Pattern == "tf.tensor"
}

// bareRuntime: an error of the CUDA runtime without figures is not of PyTorch's
// allocator: a context on a full or wrong card, a library, or host memory.
func bareRuntime(s *signals) (hit, bool) {
	return s.at(), s.fail != nil && slices.Contains([]string{"cuda.error_oom", "hip.error_oom", "xpu.level_zero", "bare.out_of_memory"}, s.fail.Pattern)
}

// bareRuntimeInStep: such an error in the middle of a training step comes after
// the context was made and the model was moved, so the card was free enough for
// those.
func bareRuntimeInStep(s *signals) (hit, bool) {
	h, ok := bareRuntime(s)
	return h, ok && slices.Contains([]oomlog.Phase{oomlog.PhaseForward, oomlog.PhaseLoss, oomlog.PhaseBackward, oomlog.PhaseStep}, s.phase)
}

func bareTorch(s *signals) (hit, bool) {
	if _, larger := largerThanCards(s); larger {
		return hit{}, false
	}
	return s.at(), s.fail != nil && s.memory() && !s.figuresKnown() && !s.asyncFull() && !s.spilled && !(s.hasThis && s.hasCapacity) && slices.Contains([]string{"torch.bare", "torch.cut", "torch.0.4", "torch.1.4", "torch.1.10", "torch.2.1", "torch.2.2", "torch.async", "torch.xpu_short", "xpu.ipex", "squeezed.out_of_memory"}, s.fail.Pattern) && s.tried < absurd
}
