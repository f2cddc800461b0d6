package memory

import "unoom/internal/workload"

// Sizes of DistributedDataParallel's buckets.
// Source: torch/nn/parallel/distributed.py, bucket_cap_mb=25;
// torch/csrc/distributed/c10d/reducer.hpp, kDefaultFirstBucketBytes.
const (
	ddpFirstBucket = 1 << 20
	ddpBucket      = 25 << 20
)

// ddpBuckets allocates what DistributedDataParallel holds beside a model: flat
// buckets in which gradients are reduced, as large as all gradients together.
// They live as long as the wrapper. A bucket closes with the parameter that
// takes it over its size.
func (x *machine) ddpBuckets(w *workload.Workload) error {
	if w.BucketView {
		return &NotModelled{"gradient_as_bucket_view"}
	}
	defer x.as(Buffers, "DDP buckets")()
	limit, filled := int64(ddpFirstBucket), int64(0)
	for i := len(x.params) - 1; i >= 0; i-- { // gradients arrive from the end
		p := &x.params[i]
		if p.t.needsGrad() {
			filled += p.gdt.size(p.t.n)
		}
		if filled >= limit || i == 0 {
			x.alloc(filled)
			limit, filled = ddpBucket, 0
		}
	}
	return nil
}
