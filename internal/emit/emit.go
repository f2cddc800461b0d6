// Package emit writes a plan as the files of the user's own stack: training
// arguments, launcher commands, cluster jobs. It answers "what do I put where"
// for a workload that is already decided.
//
// Invariants: a file trains the batch, the precision and the sharding of its
// workload or it is not written: what a stack cannot do is an *Unsupported
// error, and what does not belong into a file is named in a comment of it, so
// that no setting is dropped without a word (sheet.go keeps the count). The same
// job makes the same bytes. The package chooses nothing and knows nothing of
// memory: that is package plan.
package emit

import (
	"fmt"
	"slices"
	"strings"

	"unoom/internal/units"
	"unoom/internal/workload"
)

// A Step is one change that the plan made to the user's setting.
type Step struct {
	Code     string // of the remedy
	From, To string
	Saves    units.Bytes
}

// A Job is what to write files for.
type Job struct {
	Workload *workload.Workload
	// Command is what made the plan, as it was typed, "" if unknown.
	Command string
	// Steps are the changes that led to the workload.
	Steps []Step
	// Peak is what the plan takes of each card and Capacity what there is; zero:
	// not known, and not written.
	Peak, Capacity units.Bytes
	// Repository is the model's name on the hub or a folder, "" for the
	// workload's name.
	Repository string
	// PerNode is how many GPUs one machine has, 0: all of up to eight.
	PerNode int64
	// Script is the training program with its arguments, "" for train.py.
	Script string
	// Accelerators are the names of GPUs that would do, for clouds that choose
	// among several; none: that of the workload.
	Accelerators []string
	// Queue is the queue or partition of the cluster, "" for none.
	Queue string
	// Text translates the comments of files.
	Text func(id string, args ...any) string
}

// A File is one file to write. Name has no folder.
type File struct {
	Name       string
	Data       []byte
	Executable bool
}

// Kind tells what a target's files decide.
type Kind int

// The kinds of targets.
const (
	Training  Kind = iota // what is computed, and how
	Launching             // how many processes, and where
)

// A Target is one stack that files are written for.
type Target struct {
	Name string
	Kind Kind
	// About names the stack, untranslated: a product's name and a version.
	About string
	write func(s *sheet) ([]File, error)
}

// Targets lists the targets in the order of the documentation.
func Targets() []Target {
	return []Target{
		{"pytorch", Training, "PyTorch 2.6+", writePyTorch},
		{"hf", Training, "transformers 4.46 – 5", writeTransformers},
		{"accelerate", Training, "accelerate 1.x", writeAccelerate},
		{"deepspeed", Training, "DeepSpeed 0.15+", writeDeepSpeed},
		{"torchtitan", Training, "torchtitan 0.2 and 0.3", writeTorchtitan},
		{"megatron", Training, "Megatron-LM", writeMegatron},
		{"axolotl", Training, "Axolotl", writeAxolotl},
		{"llamafactory", Training, "LLaMA-Factory", writeLLaMAFactory},
		{"torchrun", Launching, "torchrun", writeTorchrun},
		{"slurm", Launching, "Slurm", writeSlurm},
		{"kubernetes", Launching, "Kubernetes Job", writeKubernetes},
		{"kubeflow", Launching, "Kubeflow Trainer 2, Kueue", writeKubeflow},
		{"skypilot", Launching, "SkyPilot", writeSkyPilot},
		{"ray", Launching, "Ray Train 2.x", writeRay},
	}
}

// Find returns the target of a name; aliases are the names that people use.
func Find(name string) (Target, error) {
	plain := strings.ToLower(strings.TrimSpace(name))
	if full, ok := aliases()[plain]; ok {
		plain = full
	}
	var names []string
	for _, t := range Targets() {
		if t.Name == plain {
			return t, nil
		}
		names = append(names, t.Name)
	}
	return Target{}, &UnknownTargetError{Name: name, Known: names}
}

func aliases() map[string]string {
	return map[string]string{
		"torch": "pytorch", "transformers": "hf", "huggingface": "hf", "trainer": "hf", "trl": "hf", "titan": "torchtitan", "megatron-lm": "megatron",
		"llama-factory": "llamafactory", "sbatch": "slurm", "k8s": "kubernetes", "job": "kubernetes", "trainjob": "kubeflow", "kueue": "kubeflow", "sky": "skypilot",
	}
}

// An UnknownTargetError says that no stack has a name.
type UnknownTargetError struct {
	Name  string
	Known []string
}

func (e *UnknownTargetError) Error() string { return fmt.Sprintf("--emit %q: no such target", e.Name) }

// Unsupported says that a target cannot express a setting which decides what is
// trained or whether it fits.
type Unsupported struct {
	Target  string
	Setting string // in the words of the workload's flags
	// Instead names targets that can.
	Instead []string
}

func (e *Unsupported) Error() string {
	return fmt.Sprintf("%s cannot express %s", e.Target, e.Setting)
}

// Write returns the files of a job for a target.
func Write(job *Job, t Target) ([]File, error) {
	w := job.Workload
	if w.Method == workload.Inference {
		return nil, &Unsupported{Target: t.Name, Setting: "--method inference"}
	}
	if err := readable(job); err != nil {
		return nil, err
	}
	files, err := t.write(newSheet(job, t))
	if u, ok := err.(*Unsupported); ok && u.Instead == nil {
		u.Instead = able(job, t)
	}
	return files, err
}

// readable refuses what no file can carry in a comment or a string.
func readable(job *Job) error {
	texts := []string{job.Command, job.Script, job.Repository, job.Queue, job.Workload.Name, job.Workload.AllocConf}
	texts = append(texts, job.Accelerators...)
	for _, text := range texts {
		if strings.ContainsFunc(text, func(r rune) bool { return r < ' ' || r == 0x7f }) {
			return fmt.Errorf("%q: a name or a command with control characters cannot be written into a file", text)
		}
	}
	return nil
}

// able lists the other training targets that can write a job.
func able(job *Job, but Target) []string {
	var out []string
	for _, t := range Targets() {
		if t.Name == but.Name || t.Kind != Training {
			continue
		}
		if _, err := t.write(newSheet(job, t)); err == nil {
			out = append(out, t.Name)
		}
	}
	slices.Sort(out)
	return out
}
