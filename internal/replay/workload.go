package replay

import "unoom/internal/alloc"

// Training runs the requests of a transformer in training on a, for benchmarks
// and demonstrations, as long as more says so: weights that stay and, for each
// step, activations that are kept in order, temporaries that die at once, and
// gradients in reverse order. The sequence length varies from step to step, so
// that blocks are cut and merged in ever new ways.
func Training(a *alloc.Allocator, more func() bool) {
	const layers, hidden = 24, int64(2048)
	take := func(size int64) alloc.Block {
		b, _ := a.Malloc(size, 0)
		return b
	}
	for range layers {
		for _, n := range []int64{3, 1, 4, 4} {
			take(n * hidden * hidden * 2)
		}
		take(hidden * 2)
		take(hidden * 2)
	}
	saved := make([]alloc.Block, 0, layers*12)
	for x := uint64(1); more(); {
		x = x*6364136223846793005 + 1442695040888963407 // Knuth's MMIX generator
		tokens := int64(1024 + x>>33%16*64)
		saved = saved[:0]
		for range layers {
			for _, n := range []int64{1, 3, 1, 1, 4, 4} {
				saved = append(saved, take(tokens*hidden*n*2))
				temporary := take(tokens * hidden * n * 2)
				saved = append(saved, take(tokens*4))
				a.Free(temporary)
			}
		}
		for i := len(saved) - 1; i >= 0; i-- {
			gradient := take(hidden * hidden * 2)
			a.Free(saved[i])
			a.Free(gradient)
		}
	}
}
