package plan

import (
	"slices"

	"unoom/internal/speed"
)

// A Target is a training stack whose abilities limit a plan.
type Target string

// The targets.
const (
	AnyTarget  Target = "any"
	HF         Target = "hf"         // transformers' Trainer and what is built on it, with accelerate
	Torchtitan Target = "torchtitan" // and plain PyTorch with its parallelisms
	Megatron   Target = "megatron"   // Megatron-LM, NeMo
	DeepSpeed  Target = "deepspeed"  // also under the Trainer
)

// Targets lists the stacks, without AnyTarget.
func Targets() []Target { return []Target{HF, Torchtitan, Megatron, DeepSpeed} }

// An ability is what one stack can do. A nil list allows nothing.
type ability struct {
	sharding  []speed.Sharding
	tensor    bool
	pipeline  bool
	context   bool
	expert    bool
	selective bool
	partial   bool // full recomputation of some of the layers
	hybrid    bool // shards within a group, replicas between groups
	adapters  bool

	offloadOptimizer, offloadWeights []speed.Sharding // with which shardings
	offloadActivations               bool

	optimizers []Optimizer
	losses     []Loss
}

// abilities says what a stack can do.
//
// Sources: transformers' TrainingArguments and accelerate's FSDP plugin
// (docs/fsdp.md, fsdp1_vs_fsdp2.md); torchtitan job_config.py and
// parallel_dims.py; Megatron-LM training/arguments.py, transformer_config.py;
// DeepSpeed docs/config-json.md.
func (t Target) abilities() ability {
	every := []Optimizer{AdamW, AdamWFused, AdamW8bit, PagedAdamW, Adafactor, SGD, Momentum, Lion}
	switch t {
	case HF:
		return ability{
			sharding: []speed.Sharding{speed.NoSharding, speed.DDP, speed.FSDP},
			hybrid:   true, adapters: true,
			offloadWeights:     []speed.Sharding{speed.FSDP},
			offloadActivations: true, // TRL's activation_offloading
			optimizers:         every,
			losses:             []Loss{PlainLoss, ChunkedLoss, FusedLoss},
		}
	case DeepSpeed:
		return ability{
			sharding: []speed.Sharding{speed.NoSharding, speed.ZeRO1, speed.ZeRO2, speed.ZeRO3},
			adapters: true,
			// stage 1 offloads as well, but nothing is gained over stage 2
			offloadOptimizer: []speed.Sharding{speed.ZeRO2, speed.ZeRO3},
			offloadWeights:   []speed.Sharding{speed.ZeRO3},
			optimizers:       every,
			losses:           []Loss{PlainLoss, ChunkedLoss, FusedLoss},
		}
	case Torchtitan:
		return ability{
			sharding: []speed.Sharding{speed.NoSharding, speed.DDP, speed.FSDP},
			tensor:   true, pipeline: true, context: true, expert: true,
			selective: true, hybrid: true,
			offloadWeights: []speed.Sharding{speed.FSDP},
			optimizers:     []Optimizer{AdamW, AdamWFused},
			losses:         []Loss{PlainLoss, ChunkedLoss},
		}
	case Megatron:
		return ability{
			sharding: []speed.Sharding{speed.NoSharding, speed.DDP, speed.ZeRO1},
			tensor:   true, pipeline: true, context: true, expert: true,
			selective: true, partial: true,
			offloadOptimizer: []speed.Sharding{speed.ZeRO1},
			optimizers:       []Optimizer{AdamWFused, SGD, Momentum},
			losses:           []Loss{PlainLoss, FusedLoss},
		}
	}
	return ability{}
}

// ofImages are the targets that train image networks.
func ofImages(targets []Target) []Target {
	var out []Target
	for _, t := range targets {
		if t == HF || t == DeepSpeed {
			out = append(out, t)
		}
	}
	return out
}

// A stack is a target with what it can do.
type stack struct {
	target Target
	ability
}

func stacksOf(targets []Target) []stack {
	var out []stack
	for _, t := range targets {
		out = append(out, stack{t, t.abilities()})
	}
	return out
}

// can reports whether a stack can train a choice of a network with so many
// layers on a rank.
func (a *ability) can(c *Choice, layersOfRank int) bool {
	switch {
	case !slices.Contains(a.sharding, c.Sharding),
		c.Tensor > 1 && !a.tensor, c.Pipeline > 1 && !a.pipeline, c.Context > 1 && !a.context, c.Expert > 1 && !a.expert,
		c.Recompute == RecomputeSelective && !a.selective,
		c.Recompute == RecomputeFull && c.Layers < layersOfRank && !a.partial,
		c.Sharding == speed.FSDP && c.Shard < c.Data && !a.hybrid,
		c.Method != FullTune && !a.adapters,
		c.OffloadOptimizer && !c.OffloadWeights && !slices.Contains(a.offloadOptimizer, c.Sharding),
		c.OffloadWeights && !slices.Contains(a.offloadWeights, c.Sharding),
		c.OffloadActivations && !a.offloadActivations,
		// FSDP over one rank shards nothing and refuses to offload (FSDP1 turns to
		// NO_SHARD), and torchtitan does not wrap the model then.
		c.Sharding == speed.FSDP && c.Data*c.Context == 1:
		return false
	}
	return true
}

// able reports whether one of the stacks that have the variant being searched
// can train a choice of it.
func (s *space) able(c *Choice, layersOfRank int) bool {
	for _, i := range s.active {
		if s.stacks[i].can(c, layersOfRank) {
			return true
		}
	}
	return false
}

// who lists the stacks that can train a choice.
func (s *space) who(c *Choice) []Target {
	var out []Target
	per := s.layersOfRank(c)
	for i := range s.stacks {
		if st := &s.stacks[i]; st.can(c, per) && st.has(c, &s.base) {
			out = append(out, st.target)
		}
	}
	return out
}

// has reports whether a stack has the optimizer, the loss and the method of a
// choice; what the base has is there, since it trains so already.
func (a *ability) has(c, base *Choice) bool {
	return (slices.Contains(a.optimizers, c.Optimizer) || c.Optimizer == base.Optimizer) &&
		(slices.Contains(a.losses, c.Loss) || c.Loss == base.Loss) && (c.Method == FullTune || a.adapters)
}
