package oomlog

import (
	"strings"
	"testing"
)

// frame reads "file func code".
func frame(s string) Frame {
	p := strings.SplitN(s, " ", 3)
	f := Frame{File: p[0]}
	if len(p) > 1 {
		f.Func = p[1]
	}
	if len(p) > 2 {
		f.Code = p[2]
	}
	return f
}

func TestPhaseOfATraceback(t *testing.T) {
	const lib = "/env/lib/python3.11/site-packages/"
	for _, c := range []struct {
		name  string
		want  Phase
		stack []string
	}{
		{"forward", PhaseForward, []string{"train.py main loss = model(**batch).loss", lib + "torch/nn/modules/module.py _call_impl", lib + "transformers/models/llama/modeling_llama.py forward"}},
		{"loss in a trainer", PhaseLoss, []string{lib + "transformers/trainer.py training_step", lib + "transformers/trainer.py compute_loss outputs = model(**inputs)", lib + "transformers/loss/loss_utils.py ForCausalLMLoss"}},
		{"backward", PhaseBackward, []string{"train.py main loss.backward()", lib + "torch/_tensor.py backward", lib + "torch/autograd/__init__.py backward"}},
		{"recomputation is backward", PhaseBackward, []string{"train.py main loss.backward()", lib + "torch/autograd/function.py apply", lib + "torch/utils/checkpoint.py backward", lib + "transformers/models/llama/modeling_llama.py forward"}},
		{"step", PhaseStep, []string{"train.py main optimizer.step()", lib + "torch/optim/adamw.py step", lib + "torch/optim/adamw.py _init_group"}},
		{"a closure in a step is forward", PhaseForward, []string{lib + "pytorch_lightning/core/module.py optimizer_step optimizer.step(closure=optimizer_closure)", lib + "torch/optim/adamw.py step loss = closure()", "model.py training_step out = self(x)", "model.py forward"}},
		{"gradient clipping", PhaseStep, []string{"train.py main", lib + "torch/nn/utils/clip_grad.py clip_grad_norm_"}},
		{"evaluation decides over forward", PhaseEvaluation, []string{lib + "transformers/trainer.py evaluate", lib + "transformers/trainer.py evaluation_loop", "model.py forward"}},
		{"one's own validation", PhaseEvaluation, []string{"main.py val_one_epoch", "model.py forward"}},
		{"camel case", PhaseEvaluation, []string{"main.py epochVal varOutput = model(x)"}},
		{"save decides over evaluation", PhaseSave, []string{"main.py evaluate", lib + "transformers/trainer.py _save_checkpoint", lib + "torch/nn/modules/module.py state_dict"}},
		{"a script that may resume does not yet", PhaseUnknown, []string{"train.py main trainer.train(resume_from_checkpoint=args.resume_from_checkpoint)"}},
		{"a program that loads as much as fits", PhaseLoad, []string{"sampler.py sample", "memory.py model_load self.load(device)", "patcher.py partially_load", "patcher.py patch_weight_to_device w = w.to(device)"}},
		{"one's own load_model", PhaseLoad, []string{"train.py main model = load_model(tokenizer, args)"}},
		{"building a network is no forward pass", PhaseUnknown, []string{"train.py main segmenter = wrap_net(args)"}},
		{"resume", PhaseResume, []string{"main.py main load_checkpoint(path)", lib + "torch/serialization.py load", lib + "torch/serialization.py restore_location"}},
		{"a model's own files are no checkpoint", PhaseLoad, []string{"main.py main", lib + "transformers/modeling_utils.py from_pretrained", lib + "transformers/modeling_utils.py load_state_dict"}},
		{"load", PhaseLoad, []string{"main.py main model.to(device)", lib + "torch/nn/modules/module.py to", lib + "torch/nn/modules/module.py _apply"}},
		{"engine", PhaseEngine, []string{lib + "trl/trainer/grpo_trainer.py __init__ self.llm = LLM(", lib + "vllm/engine/llm_engine.py _initialize_kv_caches"}},
		{"collective", PhaseCommunication, []string{"train.py main dist.barrier()", lib + "torch/distributed/distributed_c10d.py barrier"}},
		{"pinning", PhaseData, []string{lib + "torch/utils/data/dataloader.py __next__", lib + "torch/utils/data/_utils/pin_memory.py pin_memory"}},
		{"a test function is no evaluation", PhaseForward, []string{"/repo/tests/test_model.py test_forward out = model(x)", "model.py forward"}},
		{"saved tensors are no save", PhaseForward, []string{"ops.py forward ctx.save_for_backward(x)"}},
		{"retrieval is no eval", PhaseUnknown, []string{"rag.py retrieval index.search(q)"}},
		{"nothing", PhaseUnknown, nil},
	} {
		var frames []Frame
		for _, s := range c.stack {
			frames = append(frames, frame(s))
		}
		if got := phaseOf(frames, nil); got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}

func TestTracebackForms(t *testing.T) {
	for _, c := range []struct{ name, text, file, fn string }{
		{"python", "Traceback (most recent call last):\n  File \"/home/me/train.py\", line 7, in step\n    loss.backward()\n", "/home/me/train.py", "step"},
		{"python with ranks", "[rank1]: Traceback (most recent call last):\n[rank1]:   File \"/home/me/train.py\", line 7, in step\n[rank1]:     loss.backward()\n[rank1]:     ^^^^^^^^^^^^^^^\n", "/home/me/train.py", "step"},
		{"rich", "╭──── Traceback (most recent call last) ────╮\n│ /home/me/train.py:7 in step               │\n│                                           │\n│ ❱ 7 │   loss.backward()                   │\n╰───────────────────────────────────────────╯\n", "/home/me/train.py", "step"},
		{"notebook", "OutOfMemoryError                          Traceback (most recent call last)\nCell In[4], line 2, in step(x)\n      1 y = f(x)\n----> 2 loss.backward()\n", "Cell In[4]", "step"},
		{"old notebook", "RuntimeError                              Traceback (most recent call last)\n~/code/train.py in step(x)\n----> 7 loss.backward()\n", "~/code/train.py", "step"},
		{"Windows", "Traceback (most recent call last):\n  File \"C:\\Users\\me\\train.py\", line 7, in step\n    loss.backward()\n", "C:\\Users\\me\\train.py", "step"},
	} {
		t.Run(c.name, func(t *testing.T) {
			prefix := ""
			if strings.HasPrefix(c.text, "[rank1]") {
				prefix = "[rank1]: "
			}
			f := one(t, c.text+prefix+message113+"\n")
			if len(f.Frames) == 0 || f.Where == nil || f.Where.File != c.file || f.Where.Func != c.fn {
				t.Fatalf("frames %+v, where %+v", f.Frames, f.Where)
			}
		})
	}
}

func TestAMessageBeforeItsTraceback(t *testing.T) {
	f := one(t, "2026-05-01T12:00:00 ERROR: "+message113+"\nTraceback (most recent call last):\n  File \"/home/me/train.py\", line 7, in load_checkpoint\n    optimizer.load_state_dict(ckpt)\n")
	if len(f.Frames) != 1 || f.Phase != PhaseResume {
		t.Errorf("%d frames, phase %q", len(f.Frames), f.Phase)
	}
}

func TestTheUsersOwnLine(t *testing.T) {
	f := one(t, "Traceback (most recent call last):\n  File \"/home/me/train.py\", line 7, in main\n    trainer.train()\n  File \"/home/me/env/lib/python3.11/site-packages/transformers/trainer.py\", line 2052, in train\n    return inner()\n  File \"<frozen runpy>\", line 88, in _run\n"+message113)
	if f.Where == nil || f.Where.File != "/home/me/train.py" || f.Where.Line != 7 || f.Where.Code != "trainer.train()" {
		t.Errorf("%+v", f.Where)
	}
}
