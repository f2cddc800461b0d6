package memory

import (
	"bytes"
	"encoding/json"
	"maps"
	"os/exec"
	"slices"
	"testing"

	"unoom/internal/workload"
)

// Every name that a setting may have is an optimizer of the engine, and the other
// way round.
func TestEveryOptimizerIsPlayed(t *testing.T) {
	names := slices.Sorted(slices.Values(workload.Optimizers()))
	if rules := slices.Sorted(maps.Keys(optimizerRules)); !slices.Equal(names, rules) {
		t.Errorf("names:\n%v\nrules:\n%v", names, rules)
	}
}

func TestOptimizersKeepWhatTorchKeeps(t *testing.T) {
	python := torchPython(t)
	type optimizerClass struct {
		Name      string         `json:"name"`
		Arguments map[string]any `json:"arguments"`
		ours      string
	}
	none := map[string]any{}
	classes := []optimizerClass{
		{"Adam", none, "adam"}, {"AdamW", none, "adamw"}, {"NAdam", none, "nadam"}, {"RAdam", none, "radam"}, {"Adamax", none, "adamax"},
		{"Adadelta", none, "adadelta"}, {"Adagrad", none, "adagrad"}, {"RMSprop", none, "rmsprop"}, {"Rprop", none, "rprop"}, {"ASGD", none, "asgd"},
		{"SGD", none, "sgd"}, {"SGD", map[string]any{"momentum": 0.9}, "sgd_momentum"}, {"Muon", none, "muon"},
	}
	const rows, cols = 96, 160
	in, err := json.Marshal(map[string]any{"rows": rows, "cols": cols, "optimizers": classes})
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(python, "testdata/optimizer_states.py")
	cmd.Stdin = bytes.NewReader(in)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	raw, err := cmd.Output()
	if err != nil {
		t.Fatalf("optimizer_states.py: %v\n%s", err, &stderr)
	}
	var torch []map[string]int64
	if err := json.Unmarshal(raw, &torch); err != nil || len(torch) != len(classes) {
		t.Fatalf("optimizer_states.py printed %q: %v", raw, err)
	}
	for i, c := range classes {
		o, err := optimizerOf(&workload.Workload{Optimizer: workload.Optimizer{Name: c.ours}}, implForeach)
		if err != nil {
			t.Fatal(err)
		}
		for name, dt := range map[string]dtype{"float32": f32, "bfloat16": bf16} {
			var sum int64
			for _, b := range o.states(rows*cols, rows, cols, dt) {
				sum += b
			}
			if want := torch[i][name]; sum != want {
				t.Errorf("%s in %s keeps %d bytes, torch keeps %d", c.ours, name, sum, want)
			}
		}
	}
}
