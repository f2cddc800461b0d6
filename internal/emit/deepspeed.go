package emit

import (
	"unoom/internal/workload"
)

// writeDeepSpeed writes DeepSpeed's configuration for a script that calls
// deepspeed.initialize.
func writeDeepSpeed(s *sheet) ([]File, error) {
	if s.w.Checkpointing == workload.Selective {
		return nil, s.cannot("checkpointing")
	}
	config, err := deepSpeedConfig(s, s.target.Name)
	if err != nil {
		return nil, err
	}
	return []File{deepSpeedFile(config, s.header())}, nil
}

// deepSpeedFile is the file of a configuration. JSON has no comments; DeepSpeed
// reads only the sections it knows.
func deepSpeedFile(config object, about []string) File {
	config = append(object{{"_unoom", about}}, config...)
	return File{Name: "ds_config.json", Data: []byte(jsonOf(config, 0) + "\n")}
}

// deepSpeedConfig returns the sections. Who makes the optimizer depends on who
// reads the file: DeepSpeed itself, the Trainer, or a script of accelerate.
//
// Sources: DeepSpeed runtime/config.py, runtime/zero/config.py,
// runtime/zero/offload_config.py.
func deepSpeedConfig(s *sheet, reader string) (object, error) {
	w := s.w
	if err := s.refuse("pp", "cp", "ep", "fp8", "shard"); err != nil {
		return nil, err
	}
	alone := reader == "deepspeed"
	if !alone {
		if err := s.refuse("tp"); err != nil {
			return nil, err
		}
	}
	s.say("vpp")
	sequenceNote(s)
	stage := 0
	switch w.Sharding {
	case workload.ZeRO1:
		stage = 1
	case workload.ZeRO2:
		stage = 2
	case workload.ZeRO3:
		stage = 3
	case workload.NoSharding, workload.DDP, "":
	default:
		return nil, s.cannot("sharding")
	}
	s.say("sharding")
	var o object
	o.set("train_batch_size", w.GlobalBatch())
	o.set("train_micro_batch_size_per_gpu", w.MicroBatch)
	o.set("gradient_accumulation_steps", max(w.Accumulation, 1))
	s.say("micro-batch", "accum")
	switch w.Precision {
	case workload.BF16, workload.AMPBF16:
		o.set("bf16", object{{"enabled", true}})
	case workload.FP16, workload.AMPFP16:
		// 0 is dynamic loss scaling
		o.set("fp16", object{{"enabled", true}, {"loss_scale", 0}, {"initial_scale_power", 16}})
	default:
		if alone {
			s.omit("dtype", "emit_note_load_dtype", "float32")
		}
	}
	// Where autocast would keep float32 weights, DeepSpeed keeps 16-bit ones and
	// their float32 copy in the optimizer, which it shards.
	if autocast(w) {
		s.instead("dtype", "emit_note_deepspeed_copy")
	}
	s.say("dtype")
	var z object
	z.set("stage", stage)
	if stage > 0 {
		z.set("overlap_comm", true)
		z.set("contiguous_gradients", true)
	}
	switch w.Offload {
	case workload.NoOffload, "":
	case workload.OffloadOptimizer, workload.OffloadOptimizerAct, workload.OffloadParams:
		if stage == 0 || w.Offload == workload.OffloadParams && stage != 3 {
			return nil, s.cannot("offload")
		}
		z.set("offload_optimizer", object{{"device", "cpu"}, {"pin_memory", true}})
		z.put(w.Offload == workload.OffloadParams, "offload_param", object{{"device", "cpu"}, {"pin_memory", true}})
		if w.Offload == workload.OffloadOptimizerAct {
			s.omit("offload", "emit_note_offload_partly")
		}
		s.say("offload")
	default:
		s.omit("offload", "emit_note_offload_activations")
	}
	// DeepSpeed clips, not the loop around it, and by default it does not.
	if reader == "hf" {
		o.set("gradient_clipping", "auto") // max_grad_norm of the Trainer
	} else {
		o.set("gradient_clipping", 1.0)
	}
	z.put(stage == 3, "stage3_gather_16bit_weights_on_model_save", true)
	o.set("zero_optimization", z)
	if w.Parallel.Tensor > 1 {
		o.set("tensor_parallel", object{{"autotp_size", w.Parallel.Tensor}})
		s.say("tp")
	}
	if cpu := s.said["offload"] && w.Offload != workload.OffloadActivations; cpu && !alone {
		// The update runs on the CPU: by DeepSpeed's own AdamW where the Trainer lets
		// it make the optimizer, else by the optimizer that the script brings.
		if name, err := hfOptimizer(s); err == nil && reader == "hf" && (name == "adamw_torch" || name == "adamw_torch_fused") {
			o.set("optimizer", object{{"type", "AdamW"}, {"params", object{{"lr", "auto"}, {"betas", "auto"}, {"eps", "auto"}, {"weight_decay", "auto"}}}})
		} else {
			o.set("zero_force_ds_cpu_optimizer", false)
		}
		if reader != "hf" {
			s.unsay("optimizer") // the script brings it
		}
	}
	if alone {
		if err := deepSpeedOptimizer(s, &o); err != nil {
			return nil, err
		}
		// deepspeed.initialize counts the processes of the launcher
		s.omit("gpus", "emit_note_gpus_launcher", launchHint(s))
		if w.Checkpointing == workload.FullCheckpoint {
			s.omit("checkpointing", "emit_note_checkpointing_script")
			s.omit("checkpointed-layers", "emit_note_checkpointing_script")
		}
	}
	s.say("distributed-optimizer")
	return o, nil
}

// deepSpeedOptimizer names DeepSpeed's own optimizer, or leaves it to the script.
//
// Source: DeepSpeed runtime/config.py, DEEPSPEED_OPTIMIZERS: adam, adamw, lamb,
// onebit…, lion; another name is looked up in torch.optim.
func deepSpeedOptimizer(s *sheet, o *object) error {
	w := s.w
	kind := ""
	switch name, err := hfOptimizer(s); {
	case err != nil:
		return err
	case name == "adamw_torch" || name == "adamw_torch_fused":
		kind = "AdamW"
	case name == "lion_32bit":
		kind = "Lion"
	case name == "sgd":
		kind = "SGD"
	case name == "adafactor":
		kind = "Adafactor"
	case name == "adagrad":
		kind = "Adagrad"
	default:
		s.instead("optimizer", "emit_note_client_optimizer")
		s.instead("paged", "emit_note_client_optimizer")
		o.set("zero_allow_untested_optimizer", true)
		return nil
	}
	params := object{{"lr", learningRate}}
	if kind == "AdamW" || kind == "Lion" {
		params.set("weight_decay", map[bool]float64{true: 0, false: 0.01}[w.Optimizer.NoDecay])
		s.say("no-decay")
	}
	o.set("optimizer", object{{"type", kind}, {"params", params}})
	o.put(kind != "AdamW", "zero_allow_untested_optimizer", true)
	return nil
}
