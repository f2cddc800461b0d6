package memory

import (
	"unoom/internal/units"
	"unoom/internal/workload"
)

// Outside is memory of the process that torch's allocator does not know of.
type Outside struct {
	Name   string
	Bytes  units.Estimate
	Source string
}

// outside adds what nvidia-smi shows on top of what the allocator reserved.
func (est *Estimate) outside(w *workload.Workload) {
	est.Device = est.Reserved
}
