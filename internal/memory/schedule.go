package memory

// slot is one turn of a pipeline rank: forward or backward of a micro-batch
// through one of its model chunks.
type slot struct {
	forward bool
	chunk   int
	micro   int
}

// pipeline returns the turns of one rank. With one chunk it is 1F1B, with more
// the interleaved schedule; group is how many micro-batches go through a chunk
// before the next chunk begins.
// Source: Megatron-LM core/pipeline_parallel/schedules.py,
// get_pp_rank_microbatches and get_schedule_table.
func pipeline(stages, chunks, rank, micros, group int) []slot {
	var order []slot // of forwards
	for from := 0; from < micros; from += group {
		for c := range chunks {
			for i := from; i < min(from+group, micros); i++ {
				order = append(order, slot{true, c, i})
			}
		}
	}
	warm := stages - rank - 1
	if chunks > 1 {
		warm = 2*(stages-rank-1) + (chunks-1)*group
	}
	warm = min(warm, len(order))
	out := append([]slot(nil), order[:warm]...)
	next := 0
	back := func() {
		f := order[next]
		// Backward goes through the chunks the other way round.
		out = append(out, slot{false, chunks - 1 - f.chunk, f.micro})
		next++
	}
	for _, f := range order[warm:] {
		out = append(out, f)
		back()
	}
	for next < len(order) {
		back()
	}
	return out
}
