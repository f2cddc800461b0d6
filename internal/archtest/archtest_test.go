// Package archtest proves the dependency rules of docs/architecture.md from
// what `go list` says of the tree.
package archtest

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// layers lists the packages from the bottom up. A package imports only from
// layers below its own. Each package of the module has a place here.
var layers = [][]string{
	{"internal/units", "internal/i18n", "catalog", "python", "internal/model/graph"},
	{"internal/account", "internal/model/vision", "internal/pickle", "internal/oomlog", "internal/alloc", "internal/gpu", "internal/cloud"},
	{"internal/snapshot", "internal/model"},
	{"internal/workload", "internal/lives", "internal/replay", "internal/snapshot/snapshottest"},
	{"internal/memory", "internal/speed"},
	{"internal/accuracy", "internal/remedy"},
	{"internal/diagnose", "internal/plan"},
	{"internal/emit", "internal/lint", "internal/report/text"},
	{"internal/report", "internal/report/export", "internal/report/html"},
	{"internal/gpu/nvml", "internal/gpu/smi", "internal/gpu/gputest", "internal/ledger"},
	{"internal/supervise"},
	{"internal/tui", "internal/web"},
	{"internal/cli"},
	{"cmd/unoom"},
}

// impure packages touch the world: files, processes, the clock, the network.
// All others take readers and values.
var impure = []string{
	"internal/gpu/nvml", "internal/gpu/smi", "internal/gpu/gputest", "internal/ledger",
	"internal/supervise", "internal/tui", "internal/web", "internal/cli", "cmd/unoom",
}

// worldly packages of the standard library are closed to the pure packages.
var worldly = []string{"os", "os/exec", "os/signal", "net", "net/http", "log", "log/slog", "syscall"}

// homes says which packages may import a third-party module, and why the
// module is used at all is in docs/dependencies.md.
var homes = map[string][]string{
	"charm.land/lipgloss/v2":                       {"internal/report/text", "internal/tui"},
	"github.com/charmbracelet/colorprofile":        {"internal/report/text", "internal/cli"},
	"github.com/charmbracelet/x/ansi":              {"internal/report/text"},
	"github.com/creack/pty":                        {"internal/supervise"},
	"github.com/goccy/go-yaml":                     {"internal/workload", "internal/emit", "internal/gpu"},
	"github.com/goccy/go-yaml/ast":                 {"internal/workload"},
	"github.com/goccy/go-yaml/parser":              {"internal/workload"},
	"github.com/gofrs/flock":                       {"internal/supervise"},
	"github.com/google/pprof/profile":              {"internal/report/export"},
	"github.com/pelletier/go-toml/v2":              {"internal/workload"},
	"github.com/pelletier/go-toml/v2/unstable":     {"internal/workload"},
	"github.com/spf13/cobra":                       {"internal/cli"},
	"github.com/spf13/pflag":                       {"internal/cli"}, // cobra's flags
	"golang.org/x/sys/unix":                        {"internal/supervise", "internal/ledger"},
	"golang.org/x/term":                            {"internal/cli"},
	"golang.org/x/text/encoding/simplifiedchinese": {"internal/oomlog"},
	"modernc.org/sqlite":                           {"internal/ledger"},
}

type pkg struct {
	ImportPath string
	Imports    []string
	Name       string
}

func load(t *testing.T) []pkg {
	t.Helper()
	cmd := exec.Command("go", "list", "-json=ImportPath,Imports,Name", "./...")
	cmd.Dir = "../.."
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v\n%s", err, &stderr)
	}
	var pkgs []pkg
	dec := json.NewDecoder(bytes.NewReader(out))
	for {
		var p pkg
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			return pkgs
		} else if err != nil {
			t.Fatal(err)
		}
		p.ImportPath = strings.TrimPrefix(p.ImportPath, "unoom/")
		pkgs = append(pkgs, p)
	}
}

func layerOf(path string) int {
	return slices.IndexFunc(layers, func(l []string) bool { return slices.Contains(l, path) })
}

// tooling packages are not part of the program: nothing imports them.
func tooling(path string) bool {
	return path == "internal/archtest" || strings.HasPrefix(path, "tools/")
}

func TestImportsPointOneWay(t *testing.T) {
	for _, p := range load(t) {
		if tooling(p.ImportPath) {
			continue
		}
		own := layerOf(p.ImportPath)
		if own < 0 {
			t.Errorf("%s has no layer: give it one in archtest and in docs/architecture.md", p.ImportPath)
			continue
		}
		for _, imp := range p.Imports {
			rel, ours := strings.CutPrefix(imp, "unoom/")
			if !ours {
				continue
			}
			if l := layerOf(rel); l < 0 || l >= own {
				t.Errorf("%s imports %s, which is not below it", p.ImportPath, rel)
			}
		}
	}
}

func TestTheMiddleIsPure(t *testing.T) {
	for _, p := range load(t) {
		if tooling(p.ImportPath) || slices.Contains(impure, p.ImportPath) {
			continue
		}
		for _, imp := range p.Imports {
			if slices.Contains(worldly, imp) {
				t.Errorf("%s imports %s: pure packages take readers and values", p.ImportPath, imp)
			}
		}
	}
}

func TestThirdPartiesHaveOneHome(t *testing.T) {
	for _, p := range load(t) {
		if tooling(p.ImportPath) {
			continue
		}
		for _, imp := range p.Imports {
			first, _, _ := strings.Cut(imp, "/")
			if !strings.Contains(first, ".") {
				continue // the standard library and our own module
			}
			home, known := homes[imp]
			if !known || !slices.Contains(home, p.ImportPath) {
				t.Errorf("%s imports %s, whose homes are %v", p.ImportPath, imp, home)
			}
		}
	}
}
