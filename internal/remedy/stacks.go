package remedy

import (
	"fmt"
	"path"
	"slices"
	"strings"
	"sync"

	"unoom/catalog"
)

// A stack is a trainer or a program with names of its own for what pages say in
// the words of a framework: catalog/stacks/STACK.md. Its keys are the same in
// every language.
type stack struct {
	name  string
	base  Framework // whose words hold where the stack has none of its own
	runs  bool      // it runs models and does not train them
	apply map[Code]string
}

// stacks reads the files once: a report asks for each of its remedies.
var stacks = sync.OnceValue(func() map[Framework]stack {
	all := map[Framework]stack{}
	files, err := catalog.Stacks.ReadDir("stacks")
	if err != nil {
		panic(err) // embedded
	}
	for _, f := range files {
		text, err := catalog.Stacks.ReadFile("stacks/" + f.Name())
		if err != nil {
			panic(err)
		}
		s, err := parseStack(string(text))
		if err != nil {
			panic(fmt.Errorf("stacks/%s: %w", f.Name(), err))
		}
		all[Framework(strings.TrimSuffix(f.Name(), path.Ext(f.Name())))] = s
	}
	return all
})

// parseStack reads "# Name", "base: framework", "trains: no", and under "## code"
// what to write.
func parseStack(text string) (stack, error) {
	s := stack{apply: map[Code]string{}}
	var code Code
	fenced := false
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\n")
		if strings.HasPrefix(line, "```") {
			fenced = !fenced
		}
		key, value, _ := strings.Cut(line, ": ")
		title, section := strings.CutPrefix(line, "## ")
		switch {
		case section && !fenced:
			code = Code(title)
		case code != "":
			s.apply[code] += line + "\n"
		case strings.HasPrefix(line, "# "):
			s.name = line[2:]
		case key == "base":
			s.base = Framework(value)
		case key == "trains":
			s.runs = value == "no"
		case key != "source" && line != "":
			return s, fmt.Errorf("%q is not understood", line)
		}
	}
	if s.name == "" || s.base == "" || len(s.apply) == 0 {
		return s, fmt.Errorf("the name, the base or the ways to apply are missing")
	}
	return s, nil
}

// Stacks returns the stacks that have words of their own, by name.
func Stacks() []Framework {
	var list []Framework
	for f := range stacks() {
		list = append(list, f)
	}
	slices.Sort(list)
	return list
}

// Base returns the framework that a stack is built on, and itself for a framework.
func (f Framework) Base() Framework {
	if s, ok := stacks()[f]; ok {
		return s.base
	}
	return f
}

// Trains reports whether models are trained with it, not only run.
func (f Framework) Trains() bool { return !stacks()[f].runs }

// ofTraining are the families that change how a model is trained.
var ofTraining = []string{"accumulate", "batch", "loss", "offload", "optimizer", "parallel", "peft", "precision", "recompute", "sequence"}

// suits reports whether a remedy makes sense in a framework: where models are
// only run, of what changes a training only that for which there is a switch.
func (f Framework) suits(code Code) bool {
	if f.Trains() || code == "parallel.choose_gpu" {
		return true
	}
	_, own := stacks()[f].apply[code]
	return own || !slices.Contains(ofTraining, code.Family()) && code != "hardware.more_gpus"
}
