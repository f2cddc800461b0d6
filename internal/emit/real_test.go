package emit

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"unoom/internal/workload"
)

// venv returns the Python of the tests, and the folders of the libraries that
// scripts/emit-venv.sh installed beside it.
func venv(t *testing.T) (python, site, older string) {
	t.Helper()
	dir := os.Getenv("UNOOM_TEST_VENV")
	if dir == "" {
		dir = "../../.venv"
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		t.Fatal(err)
	}
	libraries := os.Getenv("UNOOM_EMIT_LIBRARIES")
	if libraries == "" {
		libraries = filepath.Join(dir, "emit")
	}
	python = filepath.Join(dir, "bin", "python")
	for _, name := range []string{python, filepath.Join(libraries, "stamp")} {
		if _, err := os.Stat(name); err != nil {
			t.Skipf("SKIPPED, files are not read by their own libraries: no %s (make venv)", name)
		}
	}
	return python, filepath.Join(libraries, "site"), filepath.Join(libraries, "older")
}

// slow skips what takes minutes, and says so.
func slow(t *testing.T) {
	t.Helper()
	if os.Getenv("UNOOM_EMIT_CHECK") == "" {
		t.Skip("SKIPPED: files are read by their own libraries with `make emit-check`, which takes minutes")
	}
	t.Parallel()
}

// verdict is a line of emit_check.py.
type verdict struct {
	Job   string
	OK    bool
	Error string
	Skip  string
	Why   string
	Done  int
}

// runCheck runs emit_check.py over a folder and reports each refusal.
func runCheck(t *testing.T, python, path, folder string, targets ...string) map[string]int {
	t.Helper()
	cmd := exec.Command(python, append([]string{"../../python/tests/emit_check.py", folder}, targets...)...)
	cmd.Env = append(os.Environ(), "PYTHONPATH="+path, "PYTHONDONTWRITEBYTECODE=1", "HF_HUB_OFFLINE=1")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	accepted := map[string]int{}
	ended := false
	lines := bufio.NewScanner(bytes.NewReader(out))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var v verdict
		if json.Unmarshal(lines.Bytes(), &v) != nil {
			continue
		}
		_, target, _ := strings.Cut(v.Job, "-")
		switch {
		case v.Skip != "":
			t.Logf("SKIPPED: %s is not read by its own library: %s", v.Skip, v.Why)
			accepted[v.Skip] = -1
		case v.Job == "":
			ended = true
		case v.OK:
			accepted[target]++
		default:
			text, _ := filepath.Glob(filepath.Join(folder, v.Job, "[!j]*"))
			t.Errorf("%s: %s\n%s", v.Job, v.Error, contents(text))
		}
	}
	if err != nil || !ended {
		t.Fatalf("emit_check.py: %v\n%s", err, tail(stderr.String()))
	}
	return accepted
}

func tail(text string) string { return text[max(0, len(text)-3000):] }

func contents(names []string) string {
	var b strings.Builder
	for _, n := range names {
		data, _ := os.ReadFile(n)
		fmt.Fprintf(&b, "-- %s --\n%s", filepath.Base(n), data)
	}
	if b.Len() > 3000 {
		return b.String()[:3000]
	}
	return b.String()
}

// facts is what a file has to bring back when its library has read it: the
// workload, and the dimensions of its network.
type facts struct {
	*workload.Workload
	World     int64       `json:"world"`
	PerNode   int64       `json:"per_node"`
	ModelType string      `json:"model_type"`
	Layers    int64       `json:"layers"`
	Hidden    int64       `json:"hidden"`
	Vocab     int64       `json:"vocab"`
	Heads     int64       `json:"heads"`
	KVHeads   int64       `json:"kv_heads"`
	FFN       int64       `json:"ffn"`
	Experts   int64       `json:"experts"`
	MaxSeq    int64       `json:"max_seq"`
	Settings  [][2]string `json:"settings"`
}

func factsOf(j *Job) facts {
	w := j.Workload
	f := facts{Workload: w, World: world(w), PerNode: j.PerNode}
	for _, s := range settings(w) {
		f.Settings = append(f.Settings, [2]string{s.name, s.value})
	}
	m := w.Model
	if m == nil {
		return f
	}
	f.ModelType, f.Layers, f.Hidden, f.Vocab, f.MaxSeq = m.Type, int64(m.Layers()), m.Hidden, m.Vocab, m.MaxSeq
	for _, s := range m.Stacks {
		for _, l := range s.Layers {
			if l.Attention != nil {
				f.Heads, f.KVHeads = l.Attention.Heads, l.Attention.KVHeads
			}
			if l.MLP != nil {
				f.FFN = l.MLP.FFN
			}
			if l.MoE != nil {
				f.FFN, f.Experts = l.MoE.FFN, l.MoE.Experts
			}
		}
	}
	return f
}

// lay writes the files of many jobs for some targets, a folder for each, with
// the job itself in job.json.
func lay(t *testing.T, jobs int, change func(*Job), targets ...string) string {
	t.Helper()
	models := someModels(t)
	root := t.TempDir()
	for _, name := range targets {
		target, err := Find(name)
		if err != nil {
			t.Fatal(err)
		}
		written := 0
		for n := 0; written < jobs && n < 20*jobs; n++ {
			job := someJob(t, models, n)
			if change != nil {
				change(job)
			}
			files, err := Write(job, target)
			if err != nil {
				continue
			}
			written++
			dir := filepath.Join(root, fmt.Sprintf("%d-%s", n, name))
			if err := os.MkdirAll(dir, 0o755); err != nil {
				t.Fatal(err)
			}
			about, err := json.Marshal(factsOf(job))
			if err != nil {
				t.Fatal(err)
			}
			for _, f := range append(files, File{Name: "job.json", Data: about}) {
				if err := os.WriteFile(filepath.Join(dir, f.Name), f.Data, 0o644); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	return root
}

// Fifty jobs of each target are read by the library that the files are for.
func TestLibrariesAcceptTheirFiles(t *testing.T) {
	slow(t)
	python, site, _ := venv(t)
	targets := asked("pytorch", "hf", "accelerate", "deepspeed", "torchtitan", "megatron", "axolotl", "skypilot", "ray")
	got := runCheck(t, python, site, lay(t, 50, nil, targets...), targets...)
	t.Logf("accepted by the installed libraries: %v", got)
}

// The names of older versions are read by those versions.
func TestOlderLibrariesAcceptTheirFiles(t *testing.T) {
	slow(t)
	python, site, older := venv(t)
	targets := asked("hf", "llamafactory", "torchtitan")
	folder := lay(t, 50, func(j *Job) { j.Workload.Versions = map[string]string{"transformers": "4.57.6", "torchtitan": "0.2.2"} }, targets...)
	got := runCheck(t, python, older+string(os.PathListSeparator)+site, folder, targets...)
	t.Logf("accepted with transformers 4.57 and torchtitan 0.2: %v", got)
}

// asked are those of the targets that UNOOM_EMIT_ONLY names; unset, all.
func asked(targets ...string) []string {
	only := os.Getenv("UNOOM_EMIT_ONLY")
	if only == "" {
		return targets
	}
	names := strings.Split(only, ",")
	return slices.DeleteFunc(targets, func(name string) bool { return !slices.Contains(names, name) })
}

// The emitted step of two processes makes the gradients of the unsplit batch.
func TestEmittedStepKeepsTheGradients(t *testing.T) {
	slow(t)
	python, _, _ := venv(t)
	models := someModels(t)
	target, err := Find("pytorch")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	args := []string{"../../python/tests/emit_gradients.py"}
	for _, sharding := range []workload.Sharding{workload.DDP, workload.ZeRO1, workload.FSDP2} {
		for _, checkpointing := range []workload.Checkpointing{workload.NoCheckpointing, workload.Selective, workload.FullCheckpoint} {
			w := &workload.Workload{
				Model: models[0], Name: models[0].Name, Method: workload.Full, Precision: workload.FP32, MicroBatch: 2, Accumulation: 3, Seq: 12,
				Checkpointing: checkpointing, Optimizer: workload.Optimizer{Name: "adamw"}, Sharding: sharding,
				Parallel: workload.Parallel{World: 2, Data: 2, Tensor: 1, Pipeline: 1, Context: 1, Expert: 1, Virtual: 1},
			}
			files, err := Write(&Job{Workload: w}, target)
			if err != nil {
				t.Fatal(err)
			}
			name := filepath.Join(dir, fmt.Sprintf("%s_%s.py", sharding, checkpointing))
			if err := os.WriteFile(name, files[0].Data, 0o644); err != nil {
				t.Fatal(err)
			}
			args = append(args, name)
		}
	}
	out, err := exec.Command(python, args...).Output()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	seen := 0
	for line := range strings.Lines(string(out)) {
		var got struct {
			File, Error, Optimizer string
			Worst, Loss            float64
		}
		if json.Unmarshal([]byte(line), &got) != nil || got.File == "" {
			continue
		}
		seen++
		t.Logf("%s: gradients differ by %.1e, loss by %.1e, %s", filepath.Base(got.File), got.Worst, got.Loss, got.Optimizer)
		if got.Error != "" || got.Worst > 1e-5 {
			t.Errorf("%s: worst %g %s", got.File, got.Worst, got.Error)
		}
	}
	if seen != len(args)-1 {
		t.Errorf("%d of %d files ran", seen, len(args)-1)
	}
}

// Kubernetes' and Kubeflow's own types decode the manifests, strictly.
func TestKubernetesTypesDecodeTheManifests(t *testing.T) {
	slow(t)
	folder := lay(t, 50, nil, "kubernetes", "kubeflow")
	files, _ := filepath.Glob(filepath.Join(folder, "*", "*.yaml"))
	cmd := exec.Command("go", append([]string{"run", "."}, files...)...)
	cmd.Dir = "../../tools/kubecheck"
	out, err := cmd.CombinedOutput()
	if err != nil {
		if strings.Contains(string(out), "decoded") {
			t.Fatalf("%v\n%s", err, out)
		}
		t.Skipf("SKIPPED: Kubernetes' types cannot be had: %s", out)
	}
	t.Logf("%s", out)
}

// A Slurm takes the batch scripts: those of one machine on the node that is
// there, those of several on nodes that it could power up.
func TestSlurmAcceptsTheScripts(t *testing.T) {
	slow(t)
	several := 0
	folder := lay(t, 50, func(j *Job) {
		switch {
		case world(j.Workload) > 8:
			j.Queue = "many"
			several++
		case j.Queue != "":
			j.Queue = "gpu"
		}
	}, "slurm")
	files, _ := filepath.Glob(filepath.Join(folder, "*", "*.sbatch"))
	if several < 5 {
		t.Errorf("only %d jobs have several machines", several)
	}
	script := `for f in "$@"; do sbatch --test-only "$f" || exit 1; done; echo accepted $#`
	out, err := exec.Command("../../scripts/with-slurm", append([]string{"sh", "-c", script, "sh"}, files...)...).CombinedOutput()
	if exit, ok := err.(*exec.ExitError); ok && exit.ExitCode() == 77 {
		t.Skipf("SKIPPED: no Slurm: %s", tail(string(out)))
	}
	if err != nil {
		t.Fatalf("%v\n%s", err, tail(string(out)))
	}
	t.Logf("%s", tail(string(out)[strings.LastIndex(string(out), "accepted"):]))
}

// The emitted launch.sh starts as many processes as the plan has, with the
// script's own arguments and those that are added.
func TestLaunchScriptStartsTheProcesses(t *testing.T) {
	slow(t)
	python, _, _ := venv(t)
	target, _ := Find("torchrun")
	dir := t.TempDir()
	// One write a rank: the two share a pipe, and print may write in pieces.
	text := `import os, sys, torch.distributed as dist
dist.init_process_group("gloo")
line = f"rank {dist.get_rank()} of {dist.get_world_size()} {os.environ['PYTORCH_CUDA_ALLOC_CONF']} {sys.argv[1:]}\n"
os.write(1, line.encode())
dist.destroy_process_group()
`
	job := someJob(t, someModels(t), 0)
	job.Script = "'show rank.py' --lr 1e-5"
	w := job.Workload
	w.AllocConf = "expandable_segments:True"
	w.Sharding, w.Parallel = workload.DDP, workload.Parallel{World: 2, Data: 2, Tensor: 1, Pipeline: 1, Context: 1, Expert: 1, Virtual: 1}
	files, err := Write(job, target)
	if err != nil {
		t.Fatal(err)
	}
	for name, data := range map[string][]byte{"launch.sh": files[0].Data, "show rank.py": []byte(text)} {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command("./launch.sh", "--more", "2")
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "PATH="+filepath.Dir(python)+":"+os.Getenv("PATH"), "CUDA_VISIBLE_DEVICES=", "OMP_NUM_THREADS=1")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, tail(string(out)))
	}
	for _, want := range []string{"rank 0 of 2", "rank 1 of 2"} {
		if !strings.Contains(string(out), want+" expandable_segments:True ['--lr', '1e-5', '--more', '2']") {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
}
