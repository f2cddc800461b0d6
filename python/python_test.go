package python

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// The tests of the Python side run under pytest, on the real PyTorch of the test
// environment.
func TestPython(t *testing.T) {
	venv := os.Getenv("UNOOM_TEST_VENV")
	if venv == "" {
		venv = filepath.Join("..", ".venv")
	}
	if _, err := os.Stat(filepath.Join(venv, "stamp")); err != nil {
		t.Skip("SKIPPED: no PyTorch to test on; `make venv` installs it")
	}
	python, err := filepath.Abs(filepath.Join(venv, "bin", "python"))
	if err != nil {
		t.Fatal(err)
	}
	what := []string{"tests/test_bootstrap.py", "tests/test_deepspeed.py"}
	if os.Getenv("UNOOM_TORCH") != "" {
		what = []string{"tests"}
	} else {
		t.Log("only what needs no PyTorch; `make test-torch` runs all")
	}
	cmd := exec.Command(python, append([]string{"-m", "pytest", "-q", "-p", "no:cacheprovider"}, what...)...)
	cmd.Env = append(os.Environ(), "OMP_NUM_THREADS=1", "PYTHONDONTWRITEBYTECODE=1")
	out, err := cmd.CombinedOutput()
	t.Logf("%s", out)
	if err != nil {
		t.Fatal(err)
	}
}
