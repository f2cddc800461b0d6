package emit

import (
	"strings"

	"unoom/internal/workload"
)

// writeAccelerate writes the file of `accelerate launch --config_file`.
//
// Sources: accelerate commands/config/config_args.py, ClusterConfig; commands/
// launch.py; utils/launch.py, which turns keys into FSDP_* variables; utils/
// dataclasses.py.
func writeAccelerate(s *sheet) ([]File, error) {
	w := s.w
	p := &w.Parallel
	if err := s.refuse("pp", "ep"); err != nil {
		return nil, err
	}
	if w.Sharding == workload.DataParallel || w.Checkpointing == workload.Selective {
		if w.Sharding == workload.DataParallel {
			return nil, s.cannot("sharding")
		}
		return nil, s.cannot("checkpointing")
	}
	s.say("vpp")
	sequenceNote(s)
	nodes, _, err := s.layout()
	if err != nil {
		return nil, err
	}
	var o object
	var files []File
	o.set("compute_environment", "LOCAL_MACHINE")
	o.set("debug", false)
	inner := p.Tensor > 1 || p.Context > 1
	switch w.Sharding {
	case workload.FSDP, workload.FSDP2:
		if inner && w.Sharding == workload.FSDP {
			return nil, s.refuse("tp", "cp")
		}
		if err := accelerateFSDP(s, &o); err != nil {
			return nil, err
		}
	case workload.ZeRO1, workload.ZeRO2, workload.ZeRO3:
		if err := s.refuse("tp", "cp"); err != nil {
			return nil, err
		}
		config, err := deepSpeedConfig(s, s.target.Name)
		if err != nil {
			return nil, err
		}
		o.set("distributed_type", "DEEPSPEED")
		// With a DeepSpeed file the launcher refuses mixed_precision and the batch
		// here: they are in that file.
		o.set("deepspeed_config", object{
			{"deepspeed_config_file", "ds_config.json"}, {"zero3_init_flag", w.Sharding == workload.ZeRO3},
			{"deepspeed_multinode_launcher", "standard"},
		})
		files = append(files, deepSpeedFile(config, s.origin()))
	default:
		if err := s.refuse("tp", "cp"); err != nil {
			return nil, err
		}
		if w.Offload != workload.NoOffload && w.Offload != "" && w.Offload != workload.OffloadActivations {
			return nil, s.cannot("offload")
		}
		s.omit("offload", "emit_note_offload_activations")
		kind := "NO"
		if world(w) > 1 {
			kind = "MULTI_GPU"
		}
		o.set("distributed_type", kind)
		s.say("sharding")
		s.omit("bucket-view", "emit_note_bucket_view")
	}
	if err := acceleratePrecision(s, &o); err != nil {
		return nil, err
	}
	o.set("num_machines", nodes)
	o.set("num_processes", world(w))
	s.say("gpus")
	o.set("machine_rank", int64(0))
	o.set("main_training_function", "main")
	o.set("rdzv_backend", map[bool]string{true: "static", false: "c10d"}[nodes == 1])
	o.set("same_network", true)
	o.set("use_cpu", false)
	if w.Compile {
		o.set("dynamo_config", object{{"dynamo_backend", "INDUCTOR"}})
		s.say("compile")
	}
	s.omit("micro-batch", "emit_note_micro_batch_script", w.MicroBatch)
	s.omit("accum", "emit_note_accum_script", max(w.Accumulation, 1))
	s.omit("alloc-conf", "emit_note_export", "PYTORCH_CUDA_ALLOC_CONF="+w.AllocConf)
	if w.Checkpointing == workload.FullCheckpoint {
		s.omit("checkpointing", "emit_note_checkpointing_script")
		s.omit("checkpointed-layers", "emit_note_layers")
	}
	head := s.comment("#")
	if nodes > 1 {
		head += strings.TrimRight("# "+s.text("emit_machine_rank"), " ") + "\n"
	}
	return append([]File{{Name: "accelerate.yaml", Data: []byte(head + yamlOf(o, 0))}}, files...), nil
}

// acceleratePrecision sets mixed_precision.
func acceleratePrecision(s *sheet, o *object) error {
	w := s.w
	n, err := hfNumbers(s)
	if err != nil {
		return err
	}
	mixed := "no"
	if n.bf16 {
		mixed = "bf16"
	} else if n.fp16 {
		mixed = "fp16"
	}
	if usesDeepSpeed(w) {
		if w.FP8 != workload.NoFP8 {
			return s.cannot("fp8")
		}
		if w.Precision == workload.FP32 { // else the DeepSpeed file has it
			s.instead("dtype", "emit_note_load_dtype", n.load)
		}
		return nil
	}
	switch w.FP8 {
	case workload.NoFP8:
	case workload.FP8Tensorwise:
		mixed = "fp8"
		o.set("fp8_config", object{{"backend", "AO"}, {"enable_fsdp_float8_all_gather", w.Sharding == workload.FSDP2}})
		s.say("fp8")
	case workload.FP8Delayed:
		mixed = "fp8"
		o.set("fp8_config", object{
			{"backend", "TE"}, {"fp8_format", "HYBRID"}, {"amax_history_length", int64(1024)}, {"amax_compute_algorithm", "max"},
			{"interval", int64(1)}, {"margin", int64(0)}, {"override_linear_precision", raw("[false, false, false]")}, {"use_autocast_during_eval", false},
		})
		s.say("fp8")
	default:
		return s.cannot("fp8")
	}
	// YAML reads a bare no as false; accelerate wants the word.
	o.set("mixed_precision", raw(quote(mixed)))
	s.instead("dtype", "emit_note_load_dtype", n.load)
	return nil
}

// accelerateFSDP writes fsdp_config and, where dimensions are combined,
// parallelism_config.
func accelerateFSDP(s *sheet, o *object) error {
	w := s.w
	p := &w.Parallel
	two := w.Sharding == workload.FSDP2
	reshard := w.ReshardAfterForward != "never"
	offload, err := fsdpOffload(s)
	if err != nil {
		return err
	}
	o.set("distributed_type", "FSDP")
	var c object
	replicas := int64(1)
	if s.has("shard") {
		shard := p.Shard / max(p.Context, 1) // ranks of data parallelism alone
		if shard < 1 || p.Data%shard != 0 {
			return s.cannot("shard")
		}
		replicas = p.Data / shard
	}
	if two {
		c.set("fsdp_version", int64(2))
		c.set("fsdp_reshard_after_forward", reshard)
	} else {
		strategy := map[bool]string{true: "FULL_SHARD", false: "SHARD_GRAD_OP"}[reshard]
		if replicas > 1 {
			if _, per, err := s.layout(); err != nil || per != p.Shard {
				return s.cannot("shard")
			}
			strategy = map[bool]string{true: "HYBRID_SHARD", false: "HYBRID_SHARD_ZERO2"}[reshard]
			s.say("shard")
		}
		c.set("fsdp_version", int64(1))
		c.set("fsdp_reshard_after_forward", strategy)
		c.set("fsdp_use_orig_params", true)
		c.set("fsdp_sync_module_states", true)
		c.set("fsdp_backward_prefetch", "BACKWARD_PRE")
		c.set("fsdp_forward_prefetch", false)
	}
	// Without a class to wrap, accelerate takes the model's own list.
	c.set("fsdp_auto_wrap_policy", "TRANSFORMER_BASED_WRAP")
	c.set("fsdp_offload_params", offload)
	c.set("fsdp_state_dict_type", "SHARDED_STATE_DICT")
	c.set("fsdp_cpu_ram_efficient_loading", loadsOnRankZero(w))
	full := w.Checkpointing == workload.FullCheckpoint
	c.set("fsdp_activation_checkpointing", full)
	if full {
		s.say("checkpointing")
		s.omit("checkpointed-layers", "emit_note_layers")
		s.omit("reentrant", "emit_note_fsdp_reentrant")
	}
	o.set("fsdp_config", c)
	s.say("sharding", "reshard-after-forward")
	if !two || replicas == 1 && p.Tensor <= 1 && p.Context <= 1 {
		return nil
	}
	shard := p.Data / replicas
	if replicas > 1 && shard == 1 && (p.Tensor > 1 || p.Context > 1) {
		return s.cannot("shard") // accelerate wants shards beside replicas then
	}
	o.set("parallelism_config", object{
		{"parallelism_config_dp_replicate_size", replicas}, {"parallelism_config_dp_shard_size", shard},
		{"parallelism_config_tp_size", max(p.Tensor, 1)}, {"parallelism_config_cp_size", max(p.Context, 1)}, {"parallelism_config_cp_comm_strategy", "allgather"},
	})
	s.say("shard", "tp", "cp")
	return nil
}
