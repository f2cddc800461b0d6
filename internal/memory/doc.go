// Package memory says what a training run needs before it starts: it plays the
// run's tensor operations as PyTorch's eager mode would, with autograd's
// liveness and the simulated caching allocator, and reports the peak of every
// phase with its parts and its uncertainty.
//
// The package has four layers. machine.go holds storages and their reference
// counts, and passes every allocation and release on to the allocator.
// autograd.go records what an operation saves for backward and runs the nodes
// in the order of PyTorch's engine. The op*.go files are the operations, each
// with what its forward saves and what its backward allocates. The play*.go
// files write training steps in those operations, as the library that the
// workload names would run them. What differs between libraries and their
// versions is data in catalog/variants.
//
// Invariants: a storage dies when its last reference goes, and never earlier;
// every byte of a peak belongs to exactly one item, so the items sum to the
// peak; the same workload gives the same numbers.
//
// The package does not measure, and it fits nothing: constants that cannot be
// derived are named in constants.go with their source.
package memory
