package alloc

import (
	"fmt"
	"syscall"
	"testing"
)

// cpu returns the processor time of this process so far: on a machine that is
// shared, the clock measures the others.
func cpu() float64 {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return float64(u.Utime.Nano()+u.Stime.Nano()) / 1e9
}

// A step is one request or one free of a tensor by number.
type step struct {
	size   int64 // 0: free
	tensor int32
}

// trainingSteps makes the requests of training: weights that stay, and for each
// step activations saved in order, temporaries that die at once, gradients in
// reverse order. Sizes are those of a transformer with a varying sequence.
func trainingSteps(events int) ([]step, int) {
	var steps []step
	tensors := int32(0)
	made := 0
	take := func(size int64) int32 {
		id := tensors
		tensors++
		steps = append(steps, step{size, id})
		made++
		return id
	}
	drop := func(id int32) {
		steps = append(steps, step{0, id})
		made += 2 // requested and completed
	}
	const layers = 24
	hidden := int64(2048)
	for range layers {
		for _, n := range []int64{3, 1, 4, 4} {
			take(n * hidden * hidden * 2)
		}
		take(hidden * 2)
		take(hidden * 2)
	}
	x := uint64(1)
	for made < events {
		x = x*6364136223846793005 + 1442695040888963407
		tokens := int64(1024 + x>>33%16*64)
		saved := make([]int32, 0, layers*8)
		for range layers {
			for _, n := range []int64{1, 3, 1, 1, 4, 4} {
				saved = append(saved, take(tokens*hidden*n*2))
				tmp := take(tokens * hidden * n * 2)
				small := take(tokens * 4)
				drop(tmp)
				saved = append(saved, small)
			}
		}
		for i := len(saved) - 1; i >= 0; i-- {
			grad := take(hidden * hidden * 2)
			drop(saved[i])
			drop(grad)
		}
	}
	return steps, made
}

func BenchmarkMalloc(b *testing.B) {
	for _, n := range []int{1e5, 1e6, 1e7} {
		steps, events := trainingSteps(n)
		var tensors []Block
		for _, expandable := range []bool{false, true} {
			b.Run(fmt.Sprintf("events=%d/expandable=%v", n, expandable), func(b *testing.B) {
				a := New(Config{Settings: Settings{ExpandableSegments: expandable}, Capacity: 80 << 30})
				if len(tensors) < len(steps) {
					tensors = make([]Block, len(steps))
				}
				b.ReportAllocs()
				from := 0.0
				for b.Loop() {
					if from == 0 {
						from = cpu()
					}
					a.Reset()
					for _, s := range steps {
						if s.size > 0 {
							tensors[s.tensor], _ = a.Malloc(s.size, 0)
						} else {
							a.Free(tensors[s.tensor])
						}
					}
				}
				b.ReportMetric(float64(events)*float64(b.N)/(cpu()-from), "events/cpu-s")
			})
		}
	}
}
