package workload

import "strings"

// Optimizers lists the names of optimizers that are known, as the field writes
// them: those of torch.optim, of TrainingArguments' optim, and of the other
// stacks. Spelling follows OptimizerName.
func Optimizers() []string {
	return []string{
		// torch.optim
		"adamw", "adam", "sgd", "adagrad", "adadelta", "adamax", "nadam", "radam", "asgd", "rprop", "rmsprop", "adafactor", "muon",
		// transformers training_args.py, OptimizerNames
		"adamw_torch", "adamw_torch_fused", "adamw_apex_fused", "adamw_anyprecision", "adamw_torch_4bit", "adamw_torch_8bit", "adamw_hf",
		"adamw_bnb_8bit", "adamw_8bit", "ademamix", "ademamix_8bit", "lion_8bit", "lion_32bit",
		"paged_adamw_32bit", "paged_adamw_8bit", "paged_ademamix_32bit", "paged_ademamix_8bit", "paged_lion_32bit", "paged_lion_8bit",
		"rmsprop_bnb", "rmsprop_bnb_8bit", "rmsprop_bnb_32bit",
		"galore_adamw", "galore_adamw_8bit", "galore_adafactor", "galore_adamw_layerwise", "galore_adamw_8bit_layerwise", "galore_adafactor_layerwise",
		"apollo_adamw", "apollo_adamw_layerwise", "lomo", "adalomo", "grokadamw",
		"schedule_free_radam", "schedule_free_adamw", "schedule_free_sgd", "stable_adamw",
		// other stacks and papers
		"sgd_momentum", "momentum", "nesterov", "decoupled_adamw", "paged_adamw", "adam_8bit", "adam8bit", "adamw8bit", "adamw_4bit", "adamw_fp8",
		"ao_adamw_4bit", "ao_adamw_8bit", "ao_adamw_fp8", "optimi_adamw", "lion", "signum", "adam_mini", "soap", "shampoo", "prodigy", "sophia",
		"schedule_free", "lamb", "fusedlamb", "lars",
	}
}

// OptimizerName is a name in the spelling of Optimizers.
func OptimizerName(text string) string {
	return strings.ToLower(strings.NewReplacer("-", "_", " ", "_").Replace(strings.TrimSpace(text)))
}
