package plan

import (
	"fmt"
	"strconv"
	"strings"

	"unoom/internal/speed"
)

func itoa(n int) string { return strconv.Itoa(n) }

// BatchName is "4 × 8": the micro-batch of a rank and the accumulation.
func (c *Choice) BatchName() string { return fmt.Sprintf("%d × %d", c.Micro, c.Accumulation) }

// RecomputeName is "none", "selective", "full" or "full 12/40": layers of a rank
// that has so many.
func (c *Choice) RecomputeName(per int) string {
	if c.Recompute == RecomputeFull && c.Layers < per {
		return fmt.Sprintf("full %d/%d", c.Layers, per)
	}
	return string(c.Recompute)
}

// LayoutName is "fsdp 8" or "zero1 4 × tp 2 × pp 4": the degrees that are not 1.
func (c *Choice) LayoutName() string {
	var parts []string
	switch {
	case c.Sharding == speed.NoSharding || c.Data == 1:
	case c.Sharding == speed.FSDP && c.Shard < c.Data:
		parts = append(parts, fmt.Sprintf("fsdp %d × %d", c.Shard, c.Data/c.Shard))
	default:
		parts = append(parts, fmt.Sprintf("%s %d", c.Sharding, c.Data))
	}
	for _, d := range []struct {
		name string
		n    int
	}{{"tp", c.Tensor}, {"pp", c.Pipeline}, {"vp", c.Chunks}, {"cp", c.Context}, {"ep", c.Expert}} {
		if d.n > 1 {
			parts = append(parts, fmt.Sprintf("%s %d", d.name, d.n))
		}
	}
	switch {
	case len(parts) > 0:
	case c.Sharding != speed.NoSharding: // for offloading
		return fmt.Sprintf("1 GPU, %s", c.Sharding)
	default:
		return "1 GPU"
	}
	return strings.Join(parts, " × ")
}

func (c *Choice) OffloadName() string {
	switch {
	case c.OffloadWeights:
		return "params"
	case c.OffloadOptimizer && c.OffloadActivations:
		return "optimizer+activations"
	case c.OffloadOptimizer:
		return "optimizer"
	case c.OffloadActivations:
		return "activations"
	}
	return "none"
}
