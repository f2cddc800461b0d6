package lives

import (
	"path"
	"strings"

	"unoom/internal/snapshot"
)

// A trait is something that a call stack tells.
type trait uint32

const (
	hasPython    trait = 1 << iota // there is a Python frame
	hasNative                      // there is a C++ frame
	inOptimizer                    // an optimizer's code
	inStep                         // its step, or the making of its state
	inZeroGrad                     // gradients are dropped
	inBackward                     // Python's backward call
	inEngine                       // autograd's engine, in C++
	inAccumulate                   // a gradient is stored into .grad
	inLoading                      // tensors are made, read or moved
	inModuleMove                   // a module's weights are, for certain
	inForward                      // a module's forward
	inLoss                         // the loss and its softmax
	inCheckpoint                   // activation checkpointing
	inRecompute                    // forward again, for the backward
	inCompiled                     // code of Inductor
	inEvaluation                   // evaluation or generation
	inData                         // the input is made or moved
)

// readStacks finds the traits of all stacks.
func (h *History) readStacks() {
	s := h.Snapshot
	frames := make([]trait, s.Frames())
	for i := range frames {
		frames[i] = frameTraits(s.Frame(uint32(i)))
	}
	h.traits = make([]trait, s.Stacks())
	for id := range h.traits {
		var all trait
		for _, f := range s.FrameIDs(uint32(id)) {
			all |= frames[f]
		}
		h.traits[id] = all
	}
	for i := range h.Tensors {
		t := h.traitsOf(&h.Tensors[i])
		h.Checkpointing = h.Checkpointing || t&(inCheckpoint|inRecompute) != 0
		h.Compiled = h.Compiled || t&inCompiled != 0 || s.Meta(h.Tensors[i].Meta).Compile != ""
	}
}

func (h *History) traitsOf(t *Tensor) trait { return h.traitsOfStack(t.Stack) }

func (h *History) traitsOfStack(id uint32) trait {
	if int(id) >= len(h.traits) {
		return 0
	}
	return h.traits[id]
}

// isPython reports whether a file is Python's: C++ frames have "??", nothing, or
// a .cpp, .c or .h file.
func isPython(file string) bool {
	return strings.HasSuffix(file, ".py") || strings.HasPrefix(file, "<") || strings.HasSuffix(file, ".ipynb") ||
		strings.Contains(file, "ipykernel")
}

// slashed makes one form of Windows and Unix paths.
func slashed(file string) string { return strings.ReplaceAll(file, `\`, "/") }

// frameTraits tells what a frame of a stack says of the call. Names are those of
// torch and of habits that libraries share; none is of one model or script.
func frameTraits(f snapshot.Frame) trait {
	if f.File == "" && f.Line == 0 && !strings.Contains(f.Name, "::") && !strings.Contains(f.Name, "(") {
		// A line of text, as forward stacks and old versions have, or nothing.
		if strings.Contains(f.Name, ".py") {
			return hasPython
		}
	}
	if !isPython(f.File) {
		return nativeTraits(f.Name)
	}
	t := hasPython
	file := slashed(f.File)
	base := strings.TrimSuffix(path.Base(file), ".py")
	dir := path.Dir(file)
	library := strings.Contains(file, "/torch/")
	switch f.Name {
	case "backward", "_engine_run_backward", "run_backward":
		if library || base == "engine" || base == "accelerator" || base == "trainer" {
			t |= inBackward
		}
	case "zero_grad":
		t |= inZeroGrad
	case "forward", "_call_impl", "_wrapped_call_impl", "__call__":
		t |= inForward
	case "_apply", "load_state_dict", "_load_from_state_dict", "from_pretrained", "reset_parameters",
		"_load_state_dict_into_model", "_load_pretrained_model", "set_module_tensor_to_device", "to_empty",
		"_load_parameter_into_model":
		t |= inLoading | inModuleMove
	case "to", "cuda", "init_weights", "_init_weights", "load_model", "load_checkpoint", "register_buffer", "init_weight":
		t |= inLoading
	case "cross_entropy", "nll_loss", "log_softmax", "binary_cross_entropy", "binary_cross_entropy_with_logits", "mse_loss", "kl_div":
		t |= inLoss
	case "generate", "evaluate", "evaluation_loop", "validation_step", "_sample", "predict":
		t |= inEvaluation
	case "__next__", "_prepare_input", "_prepare_inputs", "send_to_device", "pin_memory", "collate", "get_batch":
		t |= inData
	}
	if strings.HasPrefix(base, "optim") || strings.HasPrefix(path.Base(dir), "optim") || strings.Contains(dir, "/optim/") {
		t |= inOptimizer
		if f.Name == "step" || strings.HasPrefix(f.Name, "_init") || strings.Contains(f.Name, "_tensor_") || strings.HasPrefix(f.Name, "_fused") ||
			strings.HasPrefix(f.Name, "_foreach") || strings.HasPrefix(f.Name, "update") {
			t |= inStep
		}
	}
	if base == "checkpoint" && strings.Contains(dir, "/torch/utils") {
		t |= inCheckpoint
		switch f.Name {
		case "unpack_hook", "recompute_fn", "recompute", "backward":
			t |= inRecompute
		}
	}
	if strings.Contains(file, "/torch/_inductor/") || strings.Contains(file, "torchinductor_") {
		t |= inCompiled
	}
	return t
}

// nativeTraits tells what a C++ frame says.
func nativeTraits(name string) trait {
	t := trait(0)
	if name != "" {
		t = hasNative
	}
	switch {
	case strings.Contains(name, "AccumulateGrad"):
		t |= inAccumulate | inEngine
	case strings.Contains(name, "autograd::Engine::"), strings.Contains(name, "autograd::Node::operator()"),
		strings.Contains(name, "autograd::generated::") && strings.Contains(name, "Backward") && strings.Contains(name, "::apply"),
		strings.Contains(name, "autograd::PyNode::apply"):
		t |= inEngine
	case strings.Contains(name, "cross_entropy"), strings.Contains(name, "::nll_loss"), strings.Contains(name, "log_softmax"):
		t |= inLoss
	}
	return t
}
