package remedy

import (
	"slices"
	"strings"
	"testing"

	"unoom/internal/i18n"
)

func TestEveryStackIsOfKnownRemediesAndPlaceholders(t *testing.T) {
	for _, f := range Stacks() {
		s := stacks()[f]
		if s.base != OtherStack && !slices.Contains(Frameworks(), s.base) {
			t.Errorf("%s: base %q", f, s.base)
		}
		for code, text := range s.apply {
			if _, ok := Find(code); !ok {
				t.Errorf("%s: no remedy %s", f, code)
			}
			if len(Changes(text)) == 0 || strings.Count(text, "```") != 2 {
				t.Errorf("%s, %s: not one block of code: %q", f, code, text)
			}
			for _, m := range placeholder.FindAllStringSubmatch(text, -1) {
				if !placeholders[m[1]] && !strings.Contains(text, "deepspeed") {
					t.Errorf("%s, %s: placeholder %s", f, code, m[0])
				}
			}
		}
	}
}

// A stack's own keys, else those of what it is built on.
func TestAStackSpeaksItsOwnWords(t *testing.T) {
	fill := map[string]string{"micro_batch": "2", "accumulation": "8"}
	for _, c := range []struct {
		stack Framework
		code  Code
		want  string
	}{
		{"llamafactory", "accumulate.split", "per_device_train_batch_size: 2"},
		{"axolotl", "accumulate.split", "micro_batch_size: 2"},
		{"unsloth", "accumulate.split", "per_device_train_batch_size=2,"}, // the Trainer's
		{"ultralytics", "accumulate.split", "yolo train batch=2"},
		{"comfyui", "offload.parameters", "--lowvram"},
		{"comfyui", "optimizer.8bit", ""},
	} {
		page, err := ReadPage(c.code, i18n.English)
		if err != nil {
			t.Fatal(err)
		}
		if how := page.How(c.stack, fill); !strings.Contains(how, c.want) || c.want == "" && how != "" {
			t.Errorf("%s, %s: %q, want %q", c.stack, c.code, how, c.want)
		}
	}
}

// A program that only runs models has no optimizer, no accumulation and no
// activations that a backward pass needs.
func TestNoTrainingAdviceWhereNothingIsTrained(t *testing.T) {
	s := caused(card(8, 0, 7, 0.2, 0.1, 0.5), GPUTooSmall, 0.6, BatchTooLarge, 0.3)
	s.Framework = "comfyui"
	got := codes(Advise(s))
	for _, family := range []string{"optimizer", "accumulate", "recompute", "peft", "loss"} {
		for _, code := range got {
			if code.Family() == family {
				t.Errorf("%s is offered", code)
			}
		}
	}
	for _, want := range []Code{"batch.reduce", "offload.parameters", "hardware.bigger_gpu"} {
		if !slices.Contains(got, want) {
			t.Errorf("%s is not offered; offered: %v", want, got)
		}
	}
}

func TestStacksThatAreNotUnderstood(t *testing.T) {
	for _, text := range []string{"", "# A\n", "# A\nbase: pytorch\n", "# A\nbase: pytorch\nwhat is this\n\n## batch.reduce\nx\n"} {
		if s, err := parseStack(text); err == nil {
			t.Errorf("%q was read as %+v", text, s)
		}
	}
}
