package emit

import (
	"fmt"
	"strings"

	"unoom/internal/workload"
)

// torchOptimizer returns the expression that makes the optimizer over
// parameters and lr.
func torchOptimizer(s *sheet) (string, error) {
	w := s.w
	name, err := hfOptimizer(s)
	if err != nil {
		return "", err
	}
	decay := ""
	if w.Optimizer.NoDecay {
		decay = ", weight_decay=0.0"
		s.say("no-decay")
	}
	if w.Sharding == workload.ZeRO1 {
		class := map[string]string{"adamw_torch": "AdamW", "adamw_torch_fused": "AdamW", "sgd": "SGD"}[name]
		if class == "" {
			return "", s.cannot("optimizer")
		}
		fused := ""
		if name == "adamw_torch_fused" {
			fused = ", fused=True"
		}
		return "ZeroRedundancyOptimizer(parameters, optimizer_class=torch.optim." + class + ", lr=lr" + fused + decay + ")", nil
	}
	bnb := func(class string) string { return "bitsandbytes.optim." + class + "(parameters, lr=lr" + decay + ")" }
	switch name {
	case "adamw_torch":
		if w.Optimizer.Impl == "loop" {
			s.unsay("optimizer-impl")
			s.say("optimizer-impl")
			return "torch.optim.AdamW(parameters, lr=lr, foreach=False" + decay + ")", nil
		}
		return "torch.optim.AdamW(parameters, lr=lr" + decay + ")", nil
	case "adamw_torch_fused":
		return "torch.optim.AdamW(parameters, lr=lr, fused=True" + decay + ")", nil
	case "sgd":
		return "torch.optim.SGD(parameters, lr=lr, momentum=0.9" + decay + ")", nil
	case "adagrad":
		return "torch.optim.Adagrad(parameters, lr=lr" + decay + ")", nil
	case "rmsprop":
		return "torch.optim.RMSprop(parameters, lr=lr" + decay + ")", nil
	case "adafactor":
		return "torch.optim.Adafactor(parameters, lr=lr" + decay + ")", nil
	case "adamw_bnb_8bit":
		return bnb("AdamW8bit"), nil
	case "paged_adamw_32bit":
		return bnb("PagedAdamW32bit"), nil
	case "paged_adamw_8bit":
		return bnb("PagedAdamW8bit"), nil
	case "lion_8bit":
		return bnb("Lion8bit"), nil
	case "lion_32bit":
		return bnb("Lion32bit"), nil
	case "paged_lion_32bit":
		return bnb("PagedLion32bit"), nil
	case "paged_lion_8bit":
		return bnb("PagedLion8bit"), nil
	}
	return "", s.cannot("optimizer")
}

// writePyTorch writes a training step in plain PyTorch: wrapping, optimizer, and
// accumulation whose gradients are those of the unsplit batch.
func writePyTorch(s *sheet) ([]File, error) {
	w := s.w
	if err := s.refuse("tp", "pp", "cp", "ep", "fp8", "optimizer-in-backward"); err != nil {
		return nil, err
	}
	s.say("vpp", "sequence-parallel")
	switch w.Sharding {
	case workload.ZeRO2, workload.ZeRO3, workload.DataParallel:
		return nil, s.cannot("sharding")
	}
	fsdp := usesFSDP(w)
	if w.Offload != workload.NoOffload && w.Offload != "" && w.Offload != workload.OffloadActivations && !(fsdp && w.Offload == workload.OffloadParams) {
		return nil, s.cannot("offload")
	}
	if w.Precision == workload.FP16 && !w.Method.Adapted() {
		return nil, s.cannot("dtype")
	}
	optimizer, err := torchOptimizer(s)
	if err != nil {
		return nil, err
	}
	n := torchNumbers(w)
	s.say("dtype", "micro-batch", "accum", "sharding")
	sections := []string{torchWrap(s, fsdp, n), torchStep(s, fsdp, n)}
	var b strings.Builder
	b.WriteString(transformersImports(s))
	if strings.Contains(sections[1], "contextlib") {
		b.WriteString("import contextlib\n\n")
	}
	b.WriteString("import torch\nimport torch.distributed as dist\nfrom torch import nn\n")
	if strings.HasPrefix(optimizer, "bitsandbytes") {
		b.WriteString("import bitsandbytes\n")
	}
	if w.Sharding == workload.ZeRO1 {
		b.WriteString("from torch.distributed.optim import ZeroRedundancyOptimizer\n")
	}
	fmt.Fprintf(&b, "\nMICRO_BATCH = %d  # samples of one forward pass\nACCUMULATION = %d  # forward passes of one step\n", w.MicroBatch, max(w.Accumulation, 1))
	b.WriteString("\n" + transformersModel(s, numbers{load: n.load}))
	b.WriteString(sections[0])
	fmt.Fprintf(&b, "\n\ndef make_optimizer(model, lr):\n    parameters = [p for p in model.parameters() if p.requires_grad]\n    return %s\n", optimizer)
	b.WriteString(sections[1])
	if w.Loss == workload.LossPlain {
		s.say("loss")
	}
	lossNotes(s)
	s.omit("gpus", "emit_note_gpus_launcher", launchHint(s))
	return []File{{Name: "train_pytorch.py", Data: []byte(s.comment("#") + b.String())}}, nil
}

// torchPrecision is how a precision is reached without a framework.
type torchPrecision struct {
	load string // dtype of the weights
	cast string // dtype that autocast or FSDP computes in, "" for that of the weights
}

func torchNumbers(w *workload.Workload) torchPrecision {
	switch w.Precision {
	case workload.AMPBF16:
		return torchPrecision{"float32", "bfloat16"}
	case workload.AMPFP16:
		return torchPrecision{"float32", "float16"}
	case workload.BF16:
		if w.Options["upcast"] == "fp32" {
			return torchPrecision{"float32", "bfloat16"}
		}
		return torchPrecision{"bfloat16", ""}
	case workload.FP16:
		return torchPrecision{"float16", ""}
	}
	return torchPrecision{"float32", ""}
}

const torchBlocks = `

def blocks(model):
    """The layers: the longest list of modules."""
    lists = [m for m in model.modules() if isinstance(m, nn.ModuleList)]
    return max(lists, key=len)


def wrap(model, device):
    """Returns the model as the plan runs it. Call it before make_optimizer."""
`

// torchWrap writes wrap(): recomputation, compilation and sharding, in the order
// that they need.
func torchWrap(s *sheet, fsdp bool, n torchPrecision) string {
	w := s.w
	var b strings.Builder
	b.WriteString(torchBlocks)
	if w.Checkpointing != workload.NoCheckpointing && w.Checkpointing != "" {
		torchCheckpointing(s, &b)
	}
	if w.Compile {
		b.WriteString("    for layer in blocks(model):\n        layer.compile()\n")
		s.say("compile")
	}
	if b.Len() > len(torchBlocks) {
		b.WriteString("\n")
	}
	switch {
	case fsdp:
		torchShard(s, &b, n)
	case w.Sharding == workload.DDP || w.Sharding == workload.ZeRO1 || world(w) > 1:
		b.WriteString("    model.to(device)\n    devices = [device.index] if device.type == \"cuda\" else None\n")
		fmt.Fprintf(&b, "    return nn.parallel.DistributedDataParallel(model, device_ids=devices, gradient_as_bucket_view=%s)\n", scalar(w.BucketView, "True", "False", ""))
		s.say("bucket-view")
	default:
		b.WriteString("    return model.to(device)\n")
	}
	return b.String()
}

func torchCheckpointing(s *sheet, b *strings.Builder) {
	w := s.w
	reentrant := w.Reentrant != nil && *w.Reentrant
	b.WriteString("    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import CheckpointImpl, checkpoint_wrapper\n")
	impl, extra := "NO_REENTRANT", ""
	if reentrant && w.Checkpointing == workload.FullCheckpoint {
		impl = "REENTRANT"
	}
	if w.Checkpointing == workload.Selective {
		b.WriteString(`    from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

    # Matrix products and attention are kept, the rest is computed again.
    kept = {
        torch.ops.aten.mm.default,
        torch.ops.aten.addmm.default,
        torch.ops.aten._scaled_dot_product_flash_attention.default,
        torch.ops.aten._scaled_dot_product_efficient_attention.default,
        torch.ops.aten._scaled_dot_product_cudnn_attention.default,
    }
`)
		if w.Attention == workload.Flash {
			b.WriteString(`    kept.add(torch.ops.flash_attn._flash_attn_forward.default)  # flash-attn 2.7 and later
`)
		}
		b.WriteString(`
    def policy(ctx, op, *args, **kwargs):
        return CheckpointPolicy.MUST_SAVE if op in kept else CheckpointPolicy.PREFER_RECOMPUTE

    def contexts():
        return create_selective_checkpoint_contexts(policy)
`)
		extra = ", context_fn=contexts"
		s.omit("reentrant", "emit_note_selective_reentrant")
	}
	b.WriteString("\n    layers = blocks(model)\n")
	count := "len(layers)"
	if some := s.value("checkpointed-layers"); some != "" && w.Checkpointing == workload.FullCheckpoint {
		count = some
	}
	fmt.Fprintf(b, "    for i in range(%s):\n        layers[i] = checkpoint_wrapper(layers[i], CheckpointImpl.%s%s)\n", count, impl, extra)
	s.say("checkpointing", "checkpointed-layers", "reentrant")
}

func torchShard(s *sheet, b *strings.Builder, n torchPrecision) {
	w := s.w
	p := &w.Parallel
	b.WriteString("    from torch.distributed.device_mesh import init_device_mesh\n    from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy, fully_shard\n\n")
	if s.has("shard") && p.Data%p.Shard == 0 {
		fmt.Fprintf(b, "    # Shards within %d ranks, replicas between the groups.\n    mesh = init_device_mesh(device.type, (dist.get_world_size() // %d, %d), mesh_dim_names=(\"replicate\", \"shard\"))\n", p.Shard, p.Shard, p.Shard)
		s.say("shard")
	} else {
		b.WriteString("    mesh = init_device_mesh(device.type, (dist.get_world_size(),), mesh_dim_names=(\"shard\",))\n")
	}
	policy := "MixedPrecisionPolicy()"
	if n.cast != "" {
		policy = fmt.Sprintf("MixedPrecisionPolicy(param_dtype=torch.%s, reduce_dtype=torch.float32)", n.cast)
	}
	offload := "OffloadPolicy()"
	if w.Offload == workload.OffloadParams {
		offload = `CPUOffloadPolicy() if device.type == "cuda" else OffloadPolicy()`
		s.say("offload")
	}
	fmt.Fprintf(b, "    how = dict(\n        mesh=mesh,\n        reshard_after_forward=%s,\n        mp_policy=%s,\n        offload_policy=%s,\n    )\n", scalar(w.ReshardAfterForward != "never", "True", "False", ""), policy, offload)
	s.say("reshard-after-forward")
	b.WriteString("    for layer in blocks(model):\n        fully_shard(layer, **how)\n    return fully_shard(model, **how)\n")
	if w.Sharding == workload.FSDP {
		s.instead("sharding", "emit_note_fully_shard")
	}
}

// torchStep writes train_step().
func torchStep(s *sheet, fsdp bool, n torchPrecision) string {
	w := s.w
	var forward []string
	if n.cast != "" && !fsdp {
		forward = append(forward, fmt.Sprintf("torch.autocast(device.type, torch.%s)", n.cast))
	}
	if w.Offload == workload.OffloadActivations {
		forward = append(forward, `torch.autograd.graph.save_on_cpu(pin_memory=device.type == "cuda")`)
		s.say("offload")
	}
	switch w.Attention {
	case workload.MemEfficient, workload.MathSDPA:
		forward = append(forward, "torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend."+sdpBackend(w.Attention)+")")
	}
	scaler := n.cast == "float16" || n.load == "float16"
	shift := autoClass(w) == "AutoModelForCausalLM"
	next := map[bool]string{true: "[:, 1:]"}[shift] // position i is to predict token i+1
	var b strings.Builder
	b.WriteString(`

def loss_sum(model, batch):
    """The sum, not the mean, of the loss over the targets that count."""
    inputs = {k: v for k, v in batch.items() if k != "labels"}
    out = model(**inputs)
    logits = getattr(out, "logits", out)
    labels = batch["labels"]
`)
	if shift {
		b.WriteString("    logits, labels = logits[:, :-1], labels[:, 1:]\n")
	}
	b.WriteString(`    return nn.functional.cross_entropy(logits.flatten(0, -2).float(), labels.flatten(), ignore_index=-100, reduction="sum")


def count(batch):
    return (batch["labels"]` + next + ` != -100).sum()


def train_step(model, optimizer, micro_batches, device, max_norm=1.0`)
	if scaler {
		b.WriteString(", scaler=None")
	}
	b.WriteString(`):
    """One step over ACCUMULATION micro-batches of this rank. Its gradients are
    those of the whole batch at once: each micro-batch weighs as many targets as it
    has, over all ranks, and the division by the world is taken back.
    """
    assert len(micro_batches) == ACCUMULATION
    tokens = torch.stack([count(b) for b in micro_batches]).sum().to(device)
    world = 1
    if dist.is_initialized():
        world = dist.get_world_size()
        dist.all_reduce(tokens)
    total = torch.zeros((), device=device)
`)
	indent := "        "
	line := func(text string) { b.WriteString(indent + text + "\n") }
	replicated := !fsdp && (world(w) > 1 || w.Sharding == workload.DDP)
	if replicated {
		b.WriteString("    for i, batch in enumerate(micro_batches):\n")
	} else {
		b.WriteString("    for batch in micro_batches:\n")
	}
	line("batch = {k: v.to(device, non_blocking=True) for k, v in batch.items()}")
	if replicated {
		line("last = i + 1 == len(micro_batches)")
		line("with contextlib.nullcontext() if last else model.no_sync():")
		indent += "    "
	}
	loss := "loss = loss_sum(model, batch) * (world / tokens)"
	if len(forward) > 0 {
		line("with " + strings.Join(forward, ", ") + ":")
		loss = "    " + loss
	}
	line(loss)
	if fsdp {
		line("# Each backward reduces the gradients: kept unreduced, they would be whole.")
	}
	if scaler {
		line("(scaler.scale(loss) if scaler else loss).backward()")
	} else {
		line("loss.backward()")
	}
	b.WriteString("        total += loss.detach() / world\n")
	if scaler {
		b.WriteString("    if scaler:\n        scaler.unscale_(optimizer)\n")
	}
	b.WriteString("    if max_norm:\n        nn.utils.clip_grad_norm_(model.parameters(), max_norm)\n")
	if scaler {
		b.WriteString("    if scaler:\n        scaler.step(optimizer)\n        scaler.update()\n    else:\n        optimizer.step()\n")
	} else {
		b.WriteString("    optimizer.step()\n")
	}
	b.WriteString("    optimizer.zero_grad(set_to_none=True)\n    if dist.is_initialized():\n        dist.all_reduce(total)\n    return total\n")
	return b.String()
}
