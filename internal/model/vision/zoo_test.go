package vision

import (
	"fmt"
	"testing"

	"unoom/internal/model/graph"
)

// The table was read from torch 2.13 over timm 1.0.31 and torchvision 0.29: parameters, and the
// storages that autograd keeps of two images.
func TestNetworksOfTimm(t *testing.T) {
	n := 0
	table(t, "timm.txt", func(line string) {
		var name string
		var size, params, saved int64
		if _, err := fmt.Sscan(line, &name, &size, &params, &saved); err != nil {
			t.Fatal(line, err)
		}
		n++
		s := ParseName(name)
		if s == nil {
			t.Errorf("%s: the name is not understood", name)
			return
		}
		g, err := s.Build(Input{2, size, size})
		if err != nil {
			t.Errorf("%s: %v", name, err)
			return
		}
		if got := g.Params(); got != params {
			t.Errorf("%s: %d parameters, want %d (%+d)", name, got, params, got-params)
		}
		if s.Relative { // on a CPU, attention with a trained bias is not one kernel
			return
		}
		// The loss is not in the figures; masks of dropout were floats there.
		got := g.Saved(4, false) - 2*(1000*4+8)
		for i := range g.Nodes {
			if n := &g.Nodes[i]; n.Op == graph.Dropout {
				got += 3 * g.Tensors[n.Out[0]].Elements()
			}
		}
		if d := float64(got)/float64(saved) - 1; d > 0.003 || d < -0.003 {
			t.Errorf("%s: %d bytes are saved, want %d (%+.3f %%)", name, got, saved, 100*d)
		}
	})
	if n < 20 {
		t.Errorf("only %d networks were compared", n)
	}
}
