package supervise

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"unoom/internal/ledger"
)

// bootstrap is the folder of the embedded files that goes on PYTHONPATH; the
// package unoom lies beside it.
const bootstrap = "bootstrap"

// prepare makes the folder of an attempt and returns it with the environment
// of the command. Where that fails the command runs without the shim.
func (s *session) prepare(n int, settings ledger.Settings) (dir string, env environ) {
	env = environ(s.Env).set(runMark, s.id).withAllocConf(settings.AllocConf)
	if s.card != "" { // by UUID: an index can mean another card elsewhere
		env = env.set("CUDA_VISIBLE_DEVICES", s.card).set("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
	}
	if settings.Devices != "" {
		env = env.set("CUDA_VISIBLE_DEVICES", settings.Devices)
	}
	if s.dir == "" {
		return "", env
	}
	dir = s.attemptDir(n)
	site := filepath.Join(dir, "site-"+strconv.Itoa(s.Node.Rank)) // nodes share the folder
	if err := s.install(dir, site, n, settings); err != nil {
		s.Warn("shim", err)
		return dir, env
	}
	if env.get("TORCHELASTIC_ERROR_FILE") == "" {
		s.errorFile = filepath.Join(dir, "error-"+strconv.Itoa(s.Node.Rank)+".json")
		env = env.set("TORCHELASTIC_ERROR_FILE", s.errorFile)
	}
	return dir, env.withPythonPath(site)
}

// install writes the shim: the package once for a run, and for each attempt a
// sitecustomize with its settings beside it. The settings lie in a file, since
// launchers do not hand all variables on.
func (s *session) install(dir, site string, n int, settings ledger.Settings) error {
	if err := os.MkdirAll(site, 0o755); err != nil {
		return err
	}
	if s.Shim == nil {
		return nil
	}
	code := filepath.Join(s.dir, "shim-"+strconv.Itoa(s.Node.Rank))
	if _, err := os.Stat(filepath.Join(code, "unoom", "__init__.py")); err != nil {
		if err := copyTree(s.Shim, "unoom", filepath.Join(code, "unoom")); err != nil {
			return err
		}
	}
	if err := copyTree(s.Shim, bootstrap, site); err != nil {
		return err
	}
	return writeJSON(filepath.Join(site, "unoom.json"), map[string]any{
		"proto": EventProto, "run": s.id, "attempt": n, "events": dir, "code": code,
		"settings": settings, "template": s.template.Batch(), "checkpointing_by_template": s.template.Uses("checkpointing"),
		"rehearse_bytes": s.Rehearse, "calibrate_seconds": int(s.PeerGrace.Seconds()),
		"snapshot": s.Snapshot,
	})
}

// copyTree copies a folder of the embedded files.
func copyTree(from fs.FS, root, to string) error {
	return fs.WalkDir(from, root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		target := filepath.Join(to, strings.TrimPrefix(strings.TrimPrefix(path, root), "/"))
		if d.IsDir() {
			return os.MkdirAll(target, 0o755)
		}
		data, err := fs.ReadFile(from, path)
		if err != nil {
			return err
		}
		tmp := target + "." + strconv.Itoa(os.Getpid()) + ".part"
		if err := os.WriteFile(tmp, data, 0o644); err != nil {
			return err
		}
		return os.Rename(tmp, target)
	})
}

// kernelKills returns how often the kernel's OOM killer struck in our control
// group (cgroup v2: memory.events, field oom_kill). 0 where that is not known.
func kernelKills() int {
	data, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return 0
	}
	for line := range bytes.Lines(data) {
		if path, ok := bytes.CutPrefix(bytes.TrimSpace(line), []byte("0::")); ok {
			text, err := os.ReadFile(filepath.Join("/sys/fs/cgroup", string(path), "memory.events"))
			if err != nil {
				return 0
			}
			for ev := range bytes.Lines(text) {
				if v, ok := bytes.CutPrefix(ev, []byte("oom_kill ")); ok {
					n, _ := strconv.Atoi(string(bytes.TrimSpace(v)))
					return n
				}
			}
		}
	}
	return 0
}

// A knownPlan is what an earlier run of the same command ended up with.
type knownPlan struct {
	Settings ledger.Settings `json:"settings"`
	Run      string          `json:"run"`
}

// planFile is where the plan for this command on this machine is kept.
func (s *session) planFile() string {
	host, _ := os.Hostname()
	dir, _ := os.Getwd()
	key, _ := json.Marshal([]any{s.Command, host, dir, s.GlobalBatch, s.Rehearse, environ(s.Env).get("CUDA_VISIBLE_DEVICES")})
	sum := sha256.Sum256(key)
	return filepath.Join(s.Root.Dir, "plans", hex.EncodeToString(sum[:8])+".json")
}

// remember keeps the settings that worked, or that come next after a run that
// was stopped (75), for the next run of this command.
func (s *session) remember(settings ledger.Settings) {
	path := s.planFile()
	if os.MkdirAll(filepath.Dir(path), 0o755) == nil {
		_ = writeJSON(path, knownPlan{settings, s.id})
	}
}

// startFrom returns the settings of the first attempt: as written, or as an
// earlier run of the very same command found out that it needs.
func (s *session) startFrom(settings ledger.Settings) (ledger.Settings, []string, *ledger.Predicted) {
	if s.Fresh || s.MicroBatch != 0 {
		return settings, nil, nil
	}
	data, err := os.ReadFile(s.planFile())
	if err != nil {
		return settings, nil, nil
	}
	var known knownPlan
	if json.Unmarshal(data, &known) != nil {
		return settings, nil, nil
	}
	if _, err := os.Stat(known.Settings.Resume); err != nil {
		known.Settings.Resume = ""
	}
	s.Say("run_known", known.Run)
	return known.Settings, nil, nil
}
