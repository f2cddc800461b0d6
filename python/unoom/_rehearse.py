"""Counts the tensors of a training on the CPU as the CUDA caching allocator
would, and runs out of memory where a card of a given capacity would.

The rules are those of PyTorch's allocator (2.x, default settings): requests are
rounded to 512 bytes; up to 1 MiB come from 2 MiB segments, up to 10 MiB from
20 MiB segments, larger ones have their own; best fit, split, merge; a failed
segment gives all unused segments back and tries once more.

All tensors of the process count, also batches and data sets that a real script
would leave on the CPU. Temporaries inside a kernel do not. With
expandable_segments:True pages are joined freely, so only their sum counts.
"""

import bisect
import os
import sys
import time
import weakref

import torch
from torch.utils._python_dispatch import TorchDispatchMode

# pytorch c10/cuda/CUDACachingAllocator.h
MIN_BLOCK = 512
SMALL = 1 << 20
SMALL_BUFFER = 2 << 20
LARGE_BUFFER = 20 << 20
MIN_LARGE = 10 << 20
ROUND_LARGE = 2 << 20


class Block:
    __slots__ = ("addr", "size", "prev", "next", "free", "pool", "requested", "frames")

    def __init__(self, addr, size, pool):
        self.addr, self.size, self.pool = addr, size, pool
        self.prev = self.next = None
        self.free = False
        self.requested = 0
        self.frames = ()


class OutOfRoom(Exception):
    def __init__(self, tried, size):
        self.tried, self.size = tried, size


class Allocator:
    """The caching allocator's bookkeeping, without memory behind it."""

    def __init__(self, capacity, expandable=False):
        self.capacity, self.expandable = capacity, expandable
        self.pools = ([], [])  # small, large: sorted (size, addr, block)
        self.allocated = self.reserved = self.peak = self.peak_reserved = 0
        self.retries = self.ooms = 0
        self.top = 1 << 40
        self.segments = {}  # address -> size
        self.history = None  # the trace, where one is kept

    def malloc(self, requested):
        size = max(MIN_BLOCK, -(-requested // MIN_BLOCK) * MIN_BLOCK)
        small = size <= SMALL
        if self.expandable:
            return self._malloc_expandable(size, requested)
        pool = self.pools[0 if small else 1]
        at = bisect.bisect_left(pool, (size,))
        if at < len(pool):
            block = pool.pop(at)[2]
        else:
            segment = SMALL_BUFFER if small else LARGE_BUFFER if size < MIN_LARGE else -(-size // ROUND_LARGE) * ROUND_LARGE
            if self.reserved + segment > self.capacity:
                self.retries += 1
                self.flush()
                if self.reserved + segment > self.capacity:
                    self.ooms += 1
                    self.trace("oom", self.capacity - self.reserved, segment)
                    raise OutOfRoom(segment, size)
            self.reserved += segment
            self.peak_reserved = max(self.peak_reserved, self.reserved)
            block = Block(self.top, segment, 0 if small else 1)
            self.segments[self.top] = segment
            self.trace("segment_alloc", self.top, segment)
            self.top += segment + (2 << 20)
        rest = block.size - size
        if rest >= MIN_BLOCK if small else rest > SMALL:
            tail = Block(block.addr + size, rest, block.pool)
            tail.prev, tail.next = block, block.next
            if block.next is not None:
                block.next.prev = tail
            block.next = tail
            block.size = size
            self._insert(tail)
        block.free = False
        self._grown(block.size)
        block.requested = requested
        block.frames = self.trace("alloc", block.addr, requested)
        return block

    def _malloc_expandable(self, size, requested):
        pages = -(-(self.allocated + size) // SMALL_BUFFER) * SMALL_BUFFER
        if pages > self.capacity:
            self.retries += 1
            self.ooms += 1
            raise OutOfRoom(-(-size // SMALL_BUFFER) * SMALL_BUFFER, size)
        self.reserved = max(self.reserved, pages)
        self.peak_reserved = max(self.peak_reserved, self.reserved)
        block = Block(0, size, 0)
        block.requested = requested
        self._grown(size)
        return block

    def _grown(self, size):
        self.allocated += size
        if self.allocated > self.peak:
            self.peak = self.allocated

    def _insert(self, block):
        block.free = True
        bisect.insort(self.pools[block.pool], (block.size, block.addr, block))

    def _remove(self, block):
        pool = self.pools[block.pool]
        del pool[bisect.bisect_left(pool, (block.size, block.addr))]

    def release(self, block):
        self.allocated -= block.size
        if self.expandable:
            return
        self.trace("free_requested", block.addr, block.requested)
        self.trace("free_completed", block.addr, block.requested)
        before, after = block.prev, block.next
        if before is not None and before.free:
            self._remove(before)
            block.addr, block.size, block.prev = before.addr, before.size + block.size, before.prev
            if before.prev is not None:
                before.prev.next = block
        if after is not None and after.free:
            self._remove(after)
            block.size, block.next = block.size + after.size, after.next
            if after.next is not None:
                after.next.prev = block
        self._insert(block)

    def trace(self, action, addr, size):
        """Adds an entry as torch's recorder does; returns its stack."""
        if self.history is None:
            return ()
        frames = _stack() if action in ("alloc", "free_requested", "oom") else []
        entry = {"action": action, "size": size, "stream": 0, "time_us": int(time.time() * 1e6), "frames": frames}
        entry["device_free" if action == "oom" else "addr"] = addr
        self.history.append(entry)
        return frames

    def snapshot(self, live):
        """What torch.cuda.memory._snapshot() returns; live are the blocks in use."""
        out, heads = [], sorted(self.segments)
        for addr in heads:
            out.append(
                {
                    "device": 0, "address": addr, "total_size": self.segments[addr], "allocated_size": 0, "active_size": 0,
                    "requested_size": 0, "stream": 0, "segment_type": "large", "segment_pool_id": (0, 0),
                    "is_expandable": False, "frames": [], "blocks": [],
                }
            )  # fmt: skip
        blocks = list(live) + [entry[2] for pool in self.pools for entry in pool]
        for b in sorted(blocks, key=lambda b: b.addr):
            segment = out[bisect.bisect_right(heads, b.addr) - 1]
            segment["segment_type"] = "large" if b.pool else "small"
            if not b.free:
                segment["allocated_size"] += b.size
                segment["active_size"] += b.size
                segment["requested_size"] += b.requested
            state = "inactive" if b.free else "active_allocated"
            requested = 0 if b.free else b.requested
            segment["blocks"].append({"address": b.addr, "size": b.size, "requested_size": requested, "state": state, "frames": list(b.frames)})
        return {
            "segments": out,
            "device_traces": [self.history or []],
            "allocator_settings": {"PYTORCH_CUDA_ALLOC_CONF": "", "expandable_segments": False, "max_split_size": -1,
                                   "garbage_collection_threshold": 0.0, "roundup_power2_divisions": {}},
        }  # fmt: skip

    def flush(self):
        """Gives all unused segments back, as empty_cache does."""
        if self.expandable:
            self.reserved = -(-self.allocated // SMALL_BUFFER) * SMALL_BUFFER
            return
        for i, pool in enumerate(self.pools):
            keep = []
            for entry in pool:
                if entry[2].prev is None and entry[2].next is None:
                    self.reserved -= entry[0]
                    del self.segments[entry[1]]
                    self.trace("segment_free", entry[1], entry[0])
                else:
                    keep.append(entry)
            pool[:] = keep


_frames = {}


def _stack():
    """The Python stack, the innermost first, as torch records it."""
    out, f = [], sys._getframe(2)
    while f is not None and len(out) < 60:
        code = f.f_code
        if not code.co_filename.endswith("/unoom/_rehearse.py"):
            key = code, f.f_lineno
            if key not in _frames:
                _frames[key] = {"name": code.co_name, "filename": code.co_filename, "line": f.f_lineno}
            out.append(_frames[key])
        f = f.f_back
    return out


def format_size(n):
    # pytorch c10/cuda/CUDACachingAllocator.cpp, format_size
    if n <= 1024:
        return "%d bytes" % n
    for unit, scale in (("KiB", 1 << 10), ("MiB", 1 << 20)):
        if n <= scale << 10:
            return "%.2f %s" % (n / scale, unit)
    return "%.2f GiB" % (n / (1 << 30))


class _Ref(weakref.ref):
    __slots__ = ("key",)


class Rehearsal(TorchDispatchMode):
    """Sees every operation and accounts for the storages that it makes."""

    name = "rehearsal"
    known = True

    def __init__(self, capacity, observer=None):
        super().__init__()
        conf = ",".join(os.environ.get(n, "") for n in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"))
        self.allocator = Allocator(capacity, "expandable_segments:True" in conf)
        self.live = {}  # address of the storage -> (reference, block)
        self.observer = observer
        self.off = False

    def record_history(self):
        self.allocator.history = []

    def snapshot(self):
        if self.allocator.expandable:
            return None  # pages have no addresses here
        return self.allocator.snapshot([block for _, block in self.live.values()])

    # What _memory asks for.
    def allocated(self):
        return self.allocator.allocated

    def reserved(self):
        return self.allocator.reserved

    def peak(self):
        return self.allocator.peak

    def peak_reserved(self):
        return self.allocator.peak_reserved

    def retries(self):
        return self.allocator.retries

    def ooms(self):
        return self.allocator.ooms

    def total(self):
        return self.allocator.capacity

    def free(self):
        return self.allocator.capacity - self.allocator.reserved

    def empty_cache(self):
        self.allocator.flush()

    def reset_peak(self):
        self.allocator.peak = self.allocator.allocated
        self.allocator.peak_reserved = self.allocator.reserved

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        if not self.off:
            if isinstance(out, torch.Tensor):
                self._account(out)
            elif isinstance(out, (tuple, list)):
                for x in out:
                    if isinstance(x, torch.Tensor):
                        self._account(x)
        return out

    def _account(self, tensor):
        tensor = getattr(tensor, "_local_tensor", tensor)  # of a DTensor: this rank's shard
        if tensor.device.type != "cpu" or type(tensor) not in (torch.Tensor, torch.nn.Parameter):
            return
        storage = tensor.untyped_storage()
        key = storage._cdata
        size = storage.nbytes()
        known = self.live.get(key)
        if known is not None:
            if known[1].requested == size:
                return
            del self.live[key]  # resized
            self.allocator.release(known[1])
        if size == 0:
            return
        try:
            block = self.allocator.malloc(size)
        except OutOfRoom as e:
            failure = e.tried, e.size
        else:
            ref = _Ref(storage, self._dead)
            ref.key = key
            self.live[key] = ref, block
            return
        del tensor, storage
        self._fail(*failure)

    def _dead(self, ref):
        known = self.live.get(ref.key)
        if known is not None and known[0] is ref:
            del self.live[ref.key]
            self.allocator.release(known[1])

    def _fail(self, tried, size):
        a = self.allocator
        if self.observer is not None:
            self.observer(0, size, a.capacity, a.capacity - a.reserved)
        raise torch.OutOfMemoryError(
            "CUDA out of memory. Tried to allocate %s. GPU 0 has a total capacity of %s of which %s is free. "
            "Including non-PyTorch memory, this process has %s memory in use. Of the allocated memory %s is "
            "allocated by PyTorch, and %s is reserved by PyTorch but unallocated. If reserved but unallocated "
            "memory is large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation.  "
            "See documentation for Memory Management  "
            "(https://pytorch.org/docs/stable/notes/cuda.html#environment-variables)"
            % tuple(
                format_size(n)
                for n in (tried, a.capacity, a.capacity - a.reserved, a.reserved, a.allocated, a.reserved - a.allocated)
            )
        )


def start(capacity, observer=None):
    """Begins to count in this thread, for the rest of the process."""
    mode = Rehearsal(capacity, observer)
    mode.__enter__()
    return mode
