package text

import (
	"strings"
	"testing"

	"github.com/charmbracelet/x/ansi"
)

func TestCodeThatDoesNotFit(t *testing.T) {
	for _, c := range []struct {
		name, language, line string
		want                 []string
	}{
		{"fits", "python", "x = f(a, b)", []string{"x = f(a, b)"}},
		{"a comment at its end goes above", "python", "value = compute_all()  # once, before the loop", []string{"# once, before the loop", "value = compute_all()"}},
		{"a comment is prose", "python", "  # as in plain code, before anything else is called", []string{"  # as in plain code, before", "  # anything else is called"}},
		{"arguments", "python", "model = make_model(path, depth=12, width=768)", []string{"model = make_model(path,", "    depth=12, width=768)"}},
		{"no comma in reach", "python", "a = outer_function(inner_value_long_name=1)", []string{"a = outer_function(", "    inner_value_long_name=1)"}},
		{"statements", "python", "first_thing(); second_thing(); third()", []string{"first_thing(); second_thing()", "third()"}},
		{"a comma in a string", "python", "say('one, two, three, four, five, six')", []string{"say(", "    'one, two, three, four, five, six')"}},
		{"no bracket", "python", "from package.module import first, second", []string{"from package.module import first, second"}},
		{"a command", "sh", "tool --first-flag 1 --second-flag 'a b c'", []string{"tool --first-flag 1 \\", "    --second-flag 'a b c'"}},
		{"a word that is too long", "sh", "cat /a/very/long/path/that/goes/on/and/on", []string{"cat \\", "    /a/very/long/path/that/goes/on/and/on"}},
		{"JSON", "json", `"zero": {"stage": 2, "offload": {"device": "cpu"}}`, []string{`"zero": {"stage": 2,`, `    "offload": {`, `    "device": "cpu"}}`}},
	} {
		got := fit(c.line, c.language, 30)
		if strings.Join(got, "\n") != strings.Join(c.want, "\n") {
			t.Errorf("%s:\n%s\nwant\n%s", c.name, strings.Join(got, "\n"), strings.Join(c.want, "\n"))
		}
	}
}

// Whatever the width, nothing of a line is lost, and a shell reads what it read.
func TestContinuedCodeIsTheSame(t *testing.T) {
	bare := func(s string) string { return strings.NewReplacer(" ", "", "\n", "", "\\", "", ";", "").Replace(s) }
	for _, c := range []struct{ language, line string }{
		{"python", "loss = sum(checkpoint(f, h, y, use_reentrant=False) for h, y in zip(a.chunk(8), b.chunk(8))) / n"},
		{"python", "optimizer.zero_grad(set_to_none=True); gc.collect(); torch.cuda.empty_cache()"},
		{"sh", "docker run --shm-size=16g -e A='x y' image python train.py --batch-size 4"},
		{"yaml", "deepspeed_config: {zero_stage: 3, offload_param_device: cpu}"},
	} {
		for width := 12; width < 100; width++ {
			parts := fit(c.line, c.language, width)
			if got := strings.Join(parts, "\n"); bare(got) != bare(c.line) {
				t.Fatalf("at %d:\n%s\nof\n%s", width, got, c.line)
			}
			for i, part := range parts {
				if c.language == "sh" && i < len(parts)-1 && !strings.HasSuffix(part, " \\") {
					t.Errorf("at %d: %q is not continued", width, part)
				}
				if ansi.StringWidth(part) > width && len(strings.Fields(part)) > 1 && c.language == "sh" && !strings.Contains(part, "'") {
					t.Errorf("at %d: %q is too wide", width, part)
				}
			}
		}
	}
}
