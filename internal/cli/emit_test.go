package cli

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"unoom/internal/i18n"
	"unoom/internal/plan"
	"unoom/internal/workload"
)

// Where a stack cannot run the recommended plan, its files are those of the next
// that it can, and the command says so.
func TestTheFirstPlanThatTheTargetsCanDoIsWritten(t *testing.T) {
	of := func(sharding workload.Sharding, micro int64) plan.Plan {
		return plan.Plan{Workload: &workload.Workload{
			Name: "llama-3.1-8b", Method: workload.Full, Precision: workload.BF16, MicroBatch: micro, Accumulation: 8 / micro, Seq: 4096,
			Optimizer: workload.Optimizer{Name: "adamw"}, Sharding: sharding,
			Parallel: workload.Parallel{World: 8, Data: 8, Tensor: 1, Pipeline: 1, Context: 1, Expert: 1, Virtual: 1},
		}}
	}
	r := &plan.Result{Plans: []plan.Plan{of(workload.ZeRO3, 1), of(workload.ZeRO2, 2), of(workload.FSDP2, 4)}}
	var out, errs bytes.Buffer
	a := &app{Streams: Streams{Out: &out, Err: &errs, Getenv: func(string) string { return "" }}, msgs: i18n.Load(i18n.English)}
	e := &emitFlags{folder: filepath.Join(t.TempDir(), "run")}
	if err := a.emitPlan(e, "pytorch,slurm", r, "llama-3.1-8b"); err != nil {
		t.Fatal(err)
	}
	if want := "plan 3 of the list is the fastest that pytorch,slurm can do (pytorch cannot express --sharding zero3)"; !strings.Contains(errs.String(), want) {
		t.Errorf("no %q in %q", want, errs.String())
	}
	data, err := os.ReadFile(filepath.Join(e.folder, "train_pytorch.py"))
	if err != nil || !strings.Contains(string(data), "MICRO_BATCH = 4") {
		t.Errorf("%v\n%s", err, data)
	}

	none := &plan.Result{Plans: r.Plans[:2]}
	e.folder = filepath.Join(t.TempDir(), "none")
	if err := a.emitPlan(e, "pytorch", none, "llama-3.1-8b"); err == nil || err.Error() != "pytorch cannot express --sharding zero3" {
		t.Errorf("%v", err)
	}
	if _, err := os.Stat(e.folder); err == nil {
		t.Error("a folder was made for nothing")
	}
}
