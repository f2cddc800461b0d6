package memory

import "unoom/internal/workload"

// suppositions are the workloads that differ from w in one thing that nobody
// stated: an estimate's interval spans them.
func suppositions(w *workload.Workload) []*workload.Workload {
	var out []*workload.Workload
	for _, a := range w.Assumptions {
		for _, value := range a.Others {
			if o, err := w.With(a.Field, value); err == nil {
				out = append(out, o)
			}
		}
	}
	if small := smallBatch(w); small != nil {
		out = append(out, small)
	}
	return out
}
