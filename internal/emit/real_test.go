package emit

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// venv returns the Python of the tests, and the folders of the libraries that
// scripts/emit-venv.sh installed beside it.
func venv(t *testing.T) (python string, site, old string) {
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
	return python, filepath.Join(libraries, "site"), filepath.Join(libraries, "transformers4")
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
			text, _ := filepath.Glob(filepath.Join(folder, v.Job, "*"))
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

// lay writes the files of many jobs for some targets, a folder for each.
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
			for _, f := range files {
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
	if testing.Short() {
		t.Skip("takes a minute")
	}
	python, site, old := venv(t)
	targets := []string{"pytorch", "hf", "accelerate", "deepspeed", "torchtitan", "axolotl", "skypilot", "ray"}
	folder := lay(t, 50, nil, targets...)
	got := runCheck(t, python, site, folder, targets...)
	t.Logf("accepted by the installed libraries: %v", got)
	four := lay(t, 50, func(j *Job) { j.Workload.Versions = map[string]string{"transformers": "4.57.6"} }, "hf", "llamafactory")
	got = runCheck(t, python, old+string(os.PathListSeparator)+site, four, "hf", "llamafactory")
	t.Logf("accepted with transformers 4: %v", got)
}
