package emit

import (
	"errors"
	"io/fs"
	"slices"
	"strings"
	"testing"

	"unoom/internal/gpu"
	"unoom/internal/workload"
)

// unread are settings that a file holds and the readers do not take from it; no
// reader takes weight decay.
var unread = map[string][]string{
	"axolotl":      {"padded", "eval", "base", "method"}, // sample_packing, val_set_size, bnb_config_kwargs, quantised DoRA
	"llamafactory": {"eval", "method", "checkpointing"},  // val_size, quantised DoRA, FSDP's own checkpointing
	"accelerate":   {"fp8"},                              // the backend in fp8_config
	"deepspeed":    {"optimizer-impl"},
	"torchtitan":   {"sequence-parallel", "reentrant", "fp8", "vpp", "optimizer-impl", "dtype", "micro-batch", "accum"}, // converters, schedule, implementation, training.dtype, pipelines' micro-batches
}

// alike reports whether two spellings mean one value of a setting.
func alike(name, a, b string) bool {
	switch name {
	case "optimizer":
		return spelled(a) == spelled(b)
	case "loss", "reshard-after-forward": // the default, stated
		return a == b || b == "" && (a == "plain" || a == "always")
	}
	return a == b
}

// spelled is an optimizer as TrainingArguments names it.
func spelled(name string) string {
	out, err := hfOptimizer(newSheet(&Job{Workload: &workload.Workload{Optimizer: workload.Optimizer{Name: name}}}, Target{}))
	if err != nil {
		return name
	}
	return strings.TrimSuffix(out, "_fused")
}

// What a file holds is read back as the same setting by the readers of the users'
// own configurations.
func TestFilesAreReadBackAsTheSameSettings(t *testing.T) {
	models := someModels(t)
	for _, name := range []string{"axolotl", "llamafactory", "accelerate", "deepspeed", "torchtitan"} {
		t.Run(name, func(t *testing.T) {
			target, err := Find(name)
			if err != nil {
				t.Fatal(err)
			}
			compared := map[string]int{}
			for n := range 600 {
				job := someJob(t, models, n)
				if job.Workload.Seq > job.Workload.Model.MaxSeq {
					continue // refused when read
				}
				job.Workload.Versions = map[string]string{"torchtitan": "0.2.2", "transformers": "4.57.6"} // the TOML
				s := newSheet(job, target)
				files, err := target.write(s)
				if err != nil {
					continue
				}
				back := readBack(t, job, files)
				if back == nil {
					continue
				}
				if back.Options["upcast"] == "fp32" { // FSDP shards float32 weights then
					back.Precision = "amp-" + back.Precision
				}
				again := settings(back)
				for _, x := range s.all {
					noted := slices.ContainsFunc(s.notes, func(n note) bool { return n.name == x.name })
					frozen := x.name == "dtype" && job.Workload.Base != workload.NotQuantised // of packed weights
					patched := x.name == "loss" && job.Workload.Kernels.FusedNorm != ""       // the reader takes the plugin for its loss
					if !s.said[x.name] || noted || frozen || patched || x.name == "no-decay" || slices.Contains(unread[name], x.name) {
						continue
					}
					compared[x.name]++
					i := slices.IndexFunc(again, func(y setting) bool { return y.name == x.name })
					got := ""
					if i >= 0 {
						got = again[i].value
					}
					if !alike(x.name, x.value, got) {
						t.Errorf("job %d: --%s %s is read back as %q in\n%s", n, x.name, x.value, got, files[0].Data)
					}
				}
			}
			t.Logf("compared %v", compared)
			if compared["sharding"] < 5 {
				t.Errorf("only %d files were compared", compared["sharding"])
			}
		})
	}
}

// readBack makes a workload of files, nil where they leave something to a script.
func readBack(t *testing.T, job *Job, files []File) *workload.Workload {
	t.Helper()
	open := func(name string) ([]byte, error) {
		for _, f := range files {
			if f.Name == name {
				return f.Data, nil
			}
		}
		return nil, fs.ErrNotExist
	}
	reading, err := workload.ReadFile(files[0].Name, open)
	if err != nil {
		t.Fatalf("%v in\n%s", err, files[0].Data)
	}
	w := job.Workload
	back, err := workload.Combine(nil, nil, []*workload.Reading{reading}).Build(w.Model, gpu.Request{Count: int(world(w)), Card: gpu.Card{Name: w.GPU.Name}})
	if _, ok := errors.AsType[*workload.SettingError](err); ok {
		t.Errorf("%v in\n%s", err, files[0].Data)
		return nil
	}
	if err != nil {
		t.Fatalf("%v in\n%s", err, files[0].Data)
	}
	return back
}
