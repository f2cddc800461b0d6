package remedy

import (
	"strconv"
)

// hostRemedies answer a shortage of the host's memory, of shared memory or of
// disk, which no change on the GPU can cure.
func hostRemedies() []Remedy {
	return []Remedy{{
		Code:     "host.fewer_workers",
		Cures:    []Cause{NotOOMHostMemory},
		Eases:    []Cause{HostRAMOrCommit, NotOOMSharedMemory},
		Exact:    true,
		Slowdown: Range{1.0, 1.5},
		Effort:   Setting,
		judge: func(f *facts) verdict {
			if f.Workers > 0 {
				return because("host.fewer_workers.count", f.Workers, f.Workers/2).
					with("workers", strconv.Itoa(f.Workers/2), "workers_now", f.Workers)
			}
			return because("host.fewer_workers").with("workers", "W/2")
		},
	}, {
		Code:     "host.more_memory",
		Cures:    []Cause{NotOOMHostMemory, HostRAMOrCommit},
		Exact:    true,
		Slowdown: Range{1, 1},
		Effort:   Setting,
		judge:    always("host.more_memory"),
	}, {
		Code:     "host.shm_size",
		Cures:    []Cause{NotOOMSharedMemory},
		Exact:    true,
		Slowdown: Range{1, 1},
		Effort:   Setting,
		judge:    always("host.shm_size"),
	}, {
		Code:     "host.pin_memory_off",
		Cures:    []Cause{PinnedHostMemory},
		Eases:    []Cause{HostRAMOrCommit},
		Exact:    true,
		Slowdown: Range{1.0, 1.2},
		Effort:   Setting,
		judge:    always("host.pin_memory_off"),
	}, {
		Code:     "host.wsl_memory",
		Cures:    []Cause{HostRAMOrCommit},
		Eases:    []Cause{PinnedHostMemory},
		Exact:    true,
		Slowdown: Range{1, 1},
		Effort:   Setting,
		judge: func(f *facts) verdict {
			if f.Platform != "" && f.Platform != "wsl" && f.Platform != "windows" {
				return never()
			}
			v := because("host.wsl_memory")
			if f.Platform == "" {
				return v.scaled(0.5) // nothing says that this is Windows
			}
			return v
		},
	}, {
		Code:     "host.disk_space",
		Cures:    []Cause{NotOOMDiskFull},
		Exact:    true,
		Slowdown: Range{1, 1},
		Effort:   Setting,
		judge:    always("host.disk_space"),
	}}
}
