"""Reads the allocator's counters, of CUDA or of a rehearsal on the CPU, and knows its
errors.
"""

import sys

# Texts of RuntimeErrors that are an out-of-memory; the full table is Go's.
_TEXTS = (
    "CUDA out of memory",
    "HIP out of memory",
    "XPU out of memory",
    "NPU out of memory",
    "MPS backend out of memory",
    "CUDA error: out of memory",
    "CUDA driver error: out of memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
)

_rehearsal = None


class _None:
    """No accelerator was used: nothing is known, and nothing is claimed."""

    name = "cpu"
    known = False

    def allocated(self):
        return 0

    reserved = peak = peak_reserved = retries = ooms = total = free = allocated

    def empty_cache(self):
        pass

    reset_peak = record_history = snapshot = empty_cache


class _Cuda:
    name = "cuda"
    known = True

    def __init__(self, torch):
        self.cuda = torch.cuda

    def allocated(self):
        return self.cuda.memory_allocated()

    def reserved(self):
        return self.cuda.memory_reserved()

    def peak(self):
        return self.cuda.max_memory_allocated()

    def peak_reserved(self):
        return self.cuda.max_memory_reserved()

    def retries(self):
        return self.cuda.memory_stats().get("num_alloc_retries", 0)

    def ooms(self):
        return self.cuda.memory_stats().get("num_ooms", 0)

    def total(self):
        return self.cuda.mem_get_info()[1]

    def free(self):
        return self.cuda.mem_get_info()[0]

    def empty_cache(self):
        self.cuda.empty_cache()

    def reset_peak(self):
        self.cuda.reset_peak_memory_stats()

    def snapshot(self):
        return self.cuda.memory._snapshot()


def current():
    if _rehearsal is not None:
        return _rehearsal
    torch = sys.modules.get("torch")
    try:
        if torch is not None and torch.cuda.is_initialized():
            return _Cuda(torch)
    except Exception:
        pass
    return _None()


class untracked:
    """While it is entered, a rehearsal does not count new tensors: they stand
    for what would lie in the host's memory."""

    def __enter__(self):
        self.before = getattr(_rehearsal, "off", False)
        if _rehearsal is not None:
            _rehearsal.off = True

    def __exit__(self, *exc):
        if _rehearsal is not None:
            _rehearsal.off = self.before
        return False


def rehearse(provider):
    global _rehearsal
    _rehearsal = provider


def is_oom(error):
    torch = sys.modules.get("torch")
    kind = getattr(torch, "OutOfMemoryError", None) or getattr(getattr(torch, "cuda", None), "OutOfMemoryError", None)
    if kind is not None and isinstance(error, kind):
        return True
    return isinstance(error, RuntimeError) and any(text in str(error) for text in _TEXTS)
