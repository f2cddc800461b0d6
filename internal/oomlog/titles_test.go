package oomlog

import "testing"

// A message that stands above the log it is about, as in the title of a report,
// has the log's end as its traceback and progress.
func TestATitleAboveItsLog(t *testing.T) {
	f := one(t, "torch.OutOfMemoryError: CUDA out of memory.\nTrain:   2%|2 | 40/2000 [10:00<8:10:00]\nVal:  10%|# | 5/50 [00:03<00:30]\nTraceback (most recent call last):\n  File \"/home/me/tune.py\", line 9, in <module>\n")
	if f.Phase != PhaseEvaluation || f.At == nil || f.At.Step != 5 || len(f.Frames) != 1 {
		t.Errorf("phase %q, progress %+v, %d calls; want an evaluation at 5, one call", f.Phase, f.At, len(f.Frames))
	}
}

// What comes after a failure in a log is not about it.
func TestALogThatGoesOnIsNoTitle(t *testing.T) {
	f := one(t, "starting\nusing cuda\nnothing yet\nRuntimeError: CUDA out of memory.\nVal:  10%|# | 5/50 [00:03<00:30]\n")
	if f.Phase != PhaseUnknown || f.At != nil {
		t.Errorf("phase %q, progress %+v", f.Phase, f.At)
	}
}

// Notebooks print in HTML; its elements are no part of the text, while names in
// angle brackets are.
func TestTheElementsOfANotebook(t *testing.T) {
	f := one(t, `<pre style="a"><span style="color: red">OutOfMemoryError</span><span>: CUDA out of memory. Tried to allocate 3.00 GiB. GPU 0 has a total capacity of 22.17 GiB of which 1.50 GiB is free.</span></pre>`+"\n")
	if f.Figures.Tried.Bytes != gib(3) || f.Text[:16] != "OutOfMemoryError" {
		t.Errorf("%s in %q", f.Figures.Tried.Bytes, f.Text)
	}
	for text, want := range map[string]string{
		"a <b>c</b> d": "a c d", "<module> <ipython-input-3>": "<module> <ipython-input-3>", "x < 3 > y <": "x < 3 > y <", "<br/>end": "end", "<span": "<span",
	} {
		if got := dropTags(text); got != want {
			t.Errorf("%q became %q, want %q", text, got, want)
		}
	}
}

// Colab's calls are Markdown when they are copied.
func TestColabsCalls(t *testing.T) {
	f := one(t, "13 frames\n[/usr/lib/python3.12/dist-packages/accelerate/utils/operations.py](https://localhost:8080/#) in _convert_to_fp32(tensor)\n    780 \n--> 781         return tensor.float()\n\nOutOfMemoryError: CUDA out of memory. Tried to allocate 3.00 GiB.\n")
	if len(f.Frames) != 1 || f.Frames[0].Func != "_convert_to_fp32" || f.Frames[0].Code != "return tensor.float()" {
		t.Errorf("%+v", f.Frames)
	}
}
