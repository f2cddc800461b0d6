package supervise

import (
	"archive/zip"
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// A Checkpoint is one that a training can go on from.
type Checkpoint struct {
	Format string // hf, lightning, deepspeed, megatron, dcp, torchtune, accelerate, file
	Path   string // what the framework wants to be given
	Step   int64  // -1 where the name does not say
	Time   time.Time
}

// NewestCheckpoint finds the newest complete checkpoint in a folder, written
// since a time. An out-of-memory can strike while one is written, so the newest
// file is not good enough: each format has its own proof of being complete.
// Checkpoints of earlier runs are left alone, since this run did not want them.
func NewestCheckpoint(dir string, since time.Time) (Checkpoint, bool) {
	return newest(dir, since, nil)
}

func newest(dir string, since time.Time, more []Checkpoint) (Checkpoint, bool) {
	all := more
	for _, find := range []func(string) []Checkpoint{
		pointedTo, numbered, lightningFiles, plainFiles,
	} {
		all = append(all, find(dir)...)
	}
	all = slices.DeleteFunc(all, func(c Checkpoint) bool { return c.Time.Before(since) })
	if len(all) == 0 {
		return Checkpoint{}, false
	}
	return slices.MaxFunc(all, func(a, b Checkpoint) int {
		if a.Step != b.Step && a.Step >= 0 && b.Step >= 0 {
			return int(a.Step - b.Step)
		}
		return a.Time.Compare(b.Time)
	}), true
}

// numberedName matches the folders that frameworks write one of for each save.
var numberedName = regexp.MustCompile(`^(checkpoint|step|epoch|checkpoint_)[-_]?(\d+)$`)

// numbered finds checkpoint-N (Trainer), step-N (DCP: torchtitan, FSDP2),
// epoch_N and step_N (torchtune), checkpoint_N (accelerate).
func numbered(dir string) []Checkpoint {
	var out []Checkpoint
	for _, d := range []string{dir, filepath.Join(dir, "checkpoints"), filepath.Join(dir, "checkpoint")} {
		entries, _ := os.ReadDir(d)
		for _, e := range entries {
			m := numberedName.FindStringSubmatch(e.Name())
			if m == nil || !e.IsDir() {
				continue
			}
			path := filepath.Join(d, e.Name())
			step, _ := strconv.ParseInt(m[2], 10, 64)
			format := ""
			switch {
			case completeHF(path):
				format = "hf"
			case exists(path, ".metadata"):
				format = "dcp"
			case exists(path, "recipe_state.pt") || exists(filepath.Join(d, "recipe_state"), "recipe_state.pt"):
				format = "torchtune"
			case m[1] == "checkpoint" && strings.Contains(e.Name(), "_") && hasAny(path, "*.safetensors", "pytorch_model*.bin") && hasAny(path, "random_states_*.pkl"):
				format = "accelerate"
			}
			if format != "" {
				out = append(out, Checkpoint{format, path, step, modified(path)})
			}
		}
	}
	return out
}

// completeHF checks what Trainer writes last and what its index promises.
// transformers trainer.py, _save_checkpoint: model, then optimizer and
// scheduler, then trainer_state.json.
func completeHF(path string) bool {
	if !exists(path, "trainer_state.json") {
		return false
	}
	var state map[string]any
	data, err := os.ReadFile(filepath.Join(path, "trainer_state.json"))
	if err != nil || json.Unmarshal(data, &state) != nil {
		return false
	}
	if !weights(path) {
		return false
	}
	return exists(path, "scheduler.pt") && (exists(path, "optimizer.pt") || exists(path, "optimizer.bin") ||
		hasAny(path, "optimizer_*/.metadata", "global_step*"))
}

// weights checks that the weights are there, with all shards of an index.
func weights(path string) bool {
	for _, index := range []string{"model.safetensors.index.json", "pytorch_model.bin.index.json"} {
		data, err := os.ReadFile(filepath.Join(path, index))
		if err != nil {
			continue
		}
		var doc struct {
			Map map[string]string `json:"weight_map"`
		}
		if json.Unmarshal(data, &doc) != nil || len(doc.Map) == 0 {
			return false
		}
		for _, shard := range doc.Map {
			if !exists(path, shard) {
				return false
			}
		}
		return true
	}
	return hasAny(path, "model.safetensors", "pytorch_model.bin", "adapter_model.safetensors", "adapter_model.bin",
		"pytorch_model_fsdp*/.metadata", "pytorch_model_fsdp.bin", "global_step*")
}

// pointedTo finds what a file names as the newest: `latest` (DeepSpeed),
// latest_checkpointed_iteration.txt (Megatron), latest.txt (nanotron).
func pointedTo(dir string) []Checkpoint {
	var out []Checkpoint
	add := func(format, path, name string) {
		step := int64(-1)
		if m := regexp.MustCompile(`(\d+)$`).FindString(name); m != "" {
			step, _ = strconv.ParseInt(m, 10, 64)
		}
		out = append(out, Checkpoint{format, dir, step, modified(path)})
	}
	if name := firstLine(dir, "latest"); name != "" {
		if path := filepath.Join(dir, name); hasAny(path, "*_model_states.pt") {
			add("deepspeed", path, name)
		}
	}
	if name := firstLine(dir, "latest_checkpointed_iteration.txt"); name != "" {
		folder := name
		if n, err := strconv.Atoi(name); err == nil {
			folder = "iter_" + pad7(n)
		}
		if path := filepath.Join(dir, folder); exists(path, ".metadata") || hasAny(path, "mp_rank_*/*.pt") {
			add("megatron", path, name)
		}
	}
	if name := firstLine(dir, "latest.txt"); name != "" {
		if path := filepath.Join(dir, name); exists(path, "checkpoint_metadata.json") {
			add("nanotron", path, name)
		}
	}
	return out
}

func pad7(n int) string {
	s := strconv.Itoa(n)
	return strings.Repeat("0", max(0, 7-len(s))) + s
}

// lightningFiles finds *.ckpt files whose zip directory, written last, can be
// read.
func lightningFiles(dir string) []Checkpoint {
	var out []Checkpoint
	for _, pattern := range []string{"*.ckpt", "checkpoints/*.ckpt", "lightning_logs/version_*/checkpoints/*.ckpt", "*/version_*/checkpoints/*.ckpt"} {
		names, _ := filepath.Glob(filepath.Join(dir, pattern))
		for _, name := range names {
			step := int64(-1)
			if m := regexp.MustCompile(`step=(\d+)`).FindStringSubmatch(name); m != nil {
				step, _ = strconv.ParseInt(m[1], 10, 64)
			}
			if readableZip(name) {
				out = append(out, Checkpoint{"lightning", name, step, modified(name)})
			}
		}
	}
	return out
}

// plainFiles finds torch.save files, for {resume} in a script of the user's own.
func plainFiles(dir string) []Checkpoint {
	var out []Checkpoint
	for _, pattern := range []string{"*.pt", "*.pth"} {
		names, _ := filepath.Glob(filepath.Join(dir, pattern))
		for _, name := range names {
			if readableZip(name) {
				out = append(out, Checkpoint{"file", name, -1, modified(name)})
			}
		}
	}
	return out
}

// namedFile matches checkpoints of a program's own, in whatever format.
var namedFile = regexp.MustCompile(`^(?:.*[-_.])?(?:step|iter|epoch|ckpt|checkpoint)[-_=]?(\d+)\.(\w+)$`)

// namedFiles finds step-12.json, ckpt_300.npz and the like. Nothing in them
// proves that they are complete, so only a folder that the user named is
// searched, and files that look unfinished are left out.
func namedFiles(dir string) []Checkpoint {
	var out []Checkpoint
	entries, _ := os.ReadDir(dir)
	for _, e := range entries {
		m := namedFile.FindStringSubmatch(e.Name())
		if m == nil || e.IsDir() || m[2] == "part" || m[2] == "tmp" || m[2] == "log" || !exists(dir, e.Name()) {
			continue
		}
		path := filepath.Join(dir, e.Name())
		if zipped := strings.HasPrefix(m[2], "pt") || m[2] == "ckpt"; zipped && !readableZip(path) {
			continue
		}
		step, _ := strconv.ParseInt(m[1], 10, 64)
		out = append(out, Checkpoint{"file", path, step, modified(path)})
	}
	return out
}

func readableZip(name string) bool {
	r, err := zip.OpenReader(name)
	if err != nil {
		return false
	}
	defer r.Close()
	return len(r.File) > 0
}

func exists(dir, name string) bool {
	info, err := os.Stat(filepath.Join(dir, name))
	return err == nil && (info.IsDir() || info.Size() > 0)
}

func hasAny(dir string, patterns ...string) bool {
	for _, p := range patterns {
		if names, _ := filepath.Glob(filepath.Join(dir, p)); len(names) > 0 {
			return true
		}
	}
	return false
}

func firstLine(dir, name string) string {
	data, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil {
		return ""
	}
	line, _, _ := strings.Cut(string(data), "\n")
	line = strings.TrimSpace(line)
	if line == "" || line == "." || strings.Contains(line, "..") || filepath.IsAbs(line) {
		return ""
	}
	return line
}

// modified is when the newest file of a folder was written.
func modified(path string) time.Time {
	var newest time.Time
	_ = filepath.WalkDir(path, func(_ string, d os.DirEntry, err error) error {
		if err != nil {
			return nil
		}
		if info, err := d.Info(); err == nil && info.ModTime().After(newest) {
			newest = info.ModTime()
		}
		return nil
	})
	return newest
}

// newestCheckpoint looks where the command's framework said that it saves, and
// where the user said so.
func (s *session) newestCheckpoint() Checkpoint {
	var best Checkpoint
	for _, dir := range append([]string{s.ResumeDir}, s.outputDirs...) {
		if dir == "" {
			continue
		}
		var named []Checkpoint
		if dir == s.ResumeDir {
			named = namedFiles(dir)
		}
		if c, ok := newest(dir, s.started, named); ok && (best.Path == "" || c.Time.After(best.Time)) {
			best = c
		}
	}
	return best
}
