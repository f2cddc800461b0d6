package memory

// Constants of libraries, with where they come from. None is fitted to a
// measured run; those are in catalog/variants with their evidence.
const (
	// embeddingSortFrom: above this many indices, embedding's backward sorts.
	// Source: aten/src/ATen/native/cuda/Embedding.cu, embedding_dense_backward_cuda.
	embeddingSortFrom = 3072

	// multiprocessors of an A100; kernels that keep a partial sum for each use
	// 108 to 148 rows, a few hundred KiB.
	// Source: NVIDIA A100 whitepaper.
	multiprocessors = 108
)
