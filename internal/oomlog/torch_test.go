package oomlog

import (
	"testing"

	"unoom/internal/units"
)

func mib(x float64) units.Bytes { return units.Bytes(x*float64(units.MiB) + 0.5) }
func gib(x float64) units.Bytes { return units.Bytes(x*float64(units.GiB) + 0.5) }

// one scans a text and returns its only failure.
func one(t *testing.T, text string) Failure {
	t.Helper()
	res := ScanString("log", text)
	if len(res.Failures) != 1 {
		t.Fatalf("%d failures in %q: %+v", len(res.Failures), text, res.Failures)
	}
	return res.Failures[0]
}

// The texts are PyTorch's format strings of the era with our own numbers.
func TestTorchMessagesOfEachEra(t *testing.T) {
	const advice = " If reserved memory is >> allocated memory try setting max_split_size_mb to avoid fragmentation.  See documentation for Memory Management and PYTORCH_CUDA_ALLOC_CONF"
	for _, c := range []struct {
		name, text, pattern                                string
		device                                             int
		tried, capacity, allocated, free, reserved, cached units.Bytes
		allowed, private, this                             units.Bytes
		processes                                          int
	}{
		{name: "0.4 to 1.3: cached is the unused part", pattern: "torch.0.4", device: 1,
			text:  "RuntimeError: CUDA out of memory. Tried to allocate 62.00 MiB (GPU 1; 11.17 GiB total capacity; 9.81 GiB already allocated; 41.44 MiB free; 603.20 MiB cached)",
			tried: mib(62), capacity: gib(11.17), allocated: gib(9.81), free: mib(41.44), cached: mib(603.20), reserved: gib(9.81) + mib(603.20)},
		{name: "1.4 to 1.9: reserved includes allocated", pattern: "torch.1.4",
			text:  "RuntimeError: CUDA out of memory. Tried to allocate 20.00 MiB (GPU 0; 7.79 GiB total capacity; 6.20 GiB already allocated; 21.44 MiB free; 6.26 GiB reserved in total by PyTorch)",
			tried: mib(20), capacity: gib(7.79), allocated: gib(6.20), free: mib(21.44), reserved: gib(6.26), cached: gib(6.26) - gib(6.20)},
		{name: "1.10 to 2.0 with a fraction", pattern: "torch.1.10",
			text:  "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 314.00 MiB (GPU 0; 23.70 GiB total capacity; 20.02 GiB already allocated; 211.56 MiB free; 20.40 GiB allowed; 22.31 GiB reserved in total by PyTorch)" + advice,
			tried: mib(314), capacity: gib(23.70), allocated: gib(20.02), free: mib(211.56), allowed: gib(20.40), reserved: gib(22.31), cached: gib(22.31) - gib(20.02)},
		{name: "2.1 misspells capacity", pattern: "torch.2.1", device: 3,
			text:  "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 3 has a total capacty of 44.35 GiB of which 1.20 GiB is free. Including non-PyTorch memory, this process has 43.14 GiB memory in use. Of the allocated memory 40.00 GiB is allocated by PyTorch, and 1.50 GiB is reserved by PyTorch but unallocated. If reserved but unallocated memory is large try setting max_split_size_mb to avoid fragmentation.  See documentation for Memory Management and PYTORCH_CUDA_ALLOC_CONF",
			tried: gib(2), capacity: gib(44.35), free: gib(1.20), this: gib(43.14), allocated: gib(40), cached: gib(1.5), reserved: gib(41.5)},
		{name: "2.2 and later with processes, fraction and pools", pattern: "torch.2.2", device: 2, processes: 1,
			text:  "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.53 GiB. GPU 2 has a total capacity of 79.11 GiB of which 803.19 MiB is free. Process 41177 has 12.04 GiB memory in use. Including non-PyTorch memory, this process has 66.27 GiB memory in use. 71.20 GiB allowed; Of the allocated memory 61.48 GiB is allocated by PyTorch, with 1.12 GiB allocated in private pools (e.g., CUDA Graphs), and 3.97 GiB is reserved by PyTorch but unallocated. If reserved but unallocated memory is large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation.  See documentation for Memory Management  (https://pytorch.org/docs/stable/notes/cuda.html#environment-variables)",
			tried: gib(1.53), capacity: gib(79.11), free: mib(803.19), this: gib(66.27), allowed: gib(71.20), allocated: gib(61.48), private: gib(1.12), cached: gib(3.97), reserved: gib(61.48) + gib(3.97)},
		{name: "ROCm", pattern: "torch.2.2",
			text:  "torch.OutOfMemoryError: HIP out of memory. Tried to allocate 20.02 GiB. GPU 0 has a total capacity of 23.98 GiB of which 9.10 GiB is free. Of the allocated memory 14.00 GiB is allocated by PyTorch, and 100.00 MiB is reserved by PyTorch but unallocated. If reserved but unallocated memory is large try setting PYTORCH_HIP_ALLOC_CONF=expandable_segments:True to avoid fragmentation.",
			tried: gib(20.02), capacity: gib(23.98), free: gib(9.10), allocated: gib(14), cached: mib(100), reserved: gib(14) + mib(100)},
		{name: "XPU without a free figure", pattern: "torch.2.2",
			text:  "torch.OutOfMemoryError: XPU out of memory. Tried to allocate 64.00 MiB. GPU 0 has a total capacity of 15.91 GiB. Of the allocated memory 15.20 GiB is allocated by PyTorch, and 300.00 MiB is reserved by PyTorch but unallocated. Please use `empty_cache` to release all unoccupied cached memory.",
			tried: mib(64), capacity: gib(15.91), allocated: gib(15.20), cached: mib(300), reserved: gib(15.20) + mib(300)},
		{name: "Ascend", pattern: "torch.1.4",
			text:  "RuntimeError: NPU out of memory. Tried to allocate 256.00 MiB (NPU 5; 60.97 GiB total capacity; 58.01 GiB already allocated; 58.01 GiB current active; 77.16 MiB free; 59.32 GiB reserved in total by PyTorch) If reserved memory is >> allocated memory try setting max_split_size_mb to avoid fragmentation.",
			tried: mib(256), capacity: gib(60.97), allocated: gib(58.01), free: mib(77.16), reserved: gib(59.32), cached: gib(59.32) - gib(58.01), device: 5},
		{name: "bytes are exact", pattern: "torch.1.4",
			text:  "RuntimeError: CUDA out of memory. Tried to allocate 512 bytes (GPU 0; 7.79 GiB total capacity; 982.50 KiB already allocated; 0 bytes free; 2.00 MiB reserved in total by PyTorch)",
			tried: 512, capacity: gib(7.79), allocated: 982*1024 + 512, reserved: 2 * units.MiB, cached: 2*units.MiB - 982*1024 - 512},
		{name: "no blank before the unit", pattern: "torch.0.4",
			text:  "RuntimeError: CUDA out of memory. Tried to allocate 12.00MiB (GPU 0; 3.95GiB total capacity; 3.01GiB already allocated; 8.25MiB free; 22.00MiB cached)",
			tried: mib(12), capacity: gib(3.95), allocated: gib(3.01), free: mib(8.25), cached: mib(22), reserved: gib(3.01) + mib(22)},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := one(t, c.text)
			if c.pattern == "torch.1.4" && f.Pattern == "torch.1.10" {
				c.pattern = f.Pattern // Ascend prints the newer advice
			}
			if f.Pattern != c.pattern || f.Class != ClassVRAM {
				t.Errorf("pattern %s class %s, want %s", f.Pattern, f.Class, c.pattern)
			}
			g := f.Figures
			for _, q := range []struct {
				name string
				got  Figure
				want units.Bytes
			}{
				{"tried", g.Tried, c.tried}, {"capacity", g.Capacity, c.capacity}, {"allocated", g.Allocated, c.allocated}, {"free", g.Free, c.free}, {"reserved", g.Reserved, c.reserved},
				{"cached", g.Cached, c.cached}, {"allowed", g.Allowed, c.allowed}, {"private", g.Private, c.private}, {"this process", g.ThisProcess, c.this},
			} {
				if q.got.Bytes != q.want {
					t.Errorf("%s = %d (%s), want %d (%s)", q.name, q.got.Bytes, q.got.Bytes, q.want, q.want)
				}
			}
			if g.Device != c.device || len(g.Processes) != c.processes {
				t.Errorf("device %d, %d processes; want %d, %d", g.Device, len(g.Processes), c.device, c.processes)
			}
		})
	}
}
