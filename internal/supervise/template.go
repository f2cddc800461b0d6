package supervise

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"unoom/internal/ledger"
)

// placeholder is {name} or {name?text}: the text stands only if the value is
// not empty, with %s for the value.
var placeholder = regexp.MustCompile(`\{(micro_batch|accum|world|global_batch|checkpointing|resume|attempt|alloc_conf)(?:\?([^{}]*))?\}`)

// A Template is a command with placeholders for what may change.
type Template struct {
	argv []string
	uses map[string]bool
}

// ParseTemplate reads the placeholders of a command.
func ParseTemplate(argv []string) Template {
	t := Template{argv: argv, uses: map[string]bool{}}
	for _, a := range argv {
		for _, m := range placeholder.FindAllStringSubmatch(a, -1) {
			t.uses[m[1]] = true
		}
	}
	return t
}

// Uses reports whether a placeholder occurs.
func (t Template) Uses(name string) bool { return t.uses[name] }

// Batch reports whether the command leaves the micro-batch to us.
func (t Template) Batch() bool { return t.uses["micro_batch"] }

// Fill returns the command with values. An argument that is one placeholder
// with a text is split at blanks, and left out if the value is empty.
func (t Template) Fill(s ledger.Settings, globalBatch, attempt int) []string {
	values := map[string]string{
		"micro_batch":   number(s.MicroBatch),
		"accum":         number(s.Accumulation),
		"world":         number(max(1, s.World)),
		"global_batch":  number(globalBatch),
		"checkpointing": s.Checkpointing,
		"resume":        s.Resume,
		"attempt":       number(attempt),
		"alloc_conf":    s.AllocConf,
	}
	if s.Checkpointing == "none" {
		values["checkpointing"] = ""
	}
	var out []string
	for _, a := range t.argv {
		if m := placeholder.FindStringSubmatchIndex(a); m != nil && m[0] == 0 && m[1] == len(a) {
			name := a[m[2]:m[3]]
			v := values[name]
			switch {
			case m[4] < 0 && name == "checkpointing" && v == "":
				out = append(out, "none")
			case m[4] < 0:
				out = append(out, v)
			case v != "":
				for _, f := range strings.Fields(a[m[4]:m[5]]) {
					out = append(out, strings.ReplaceAll(f, "%s", v))
				}
			}
			continue
		}
		out = append(out, placeholder.ReplaceAllStringFunc(a, func(p string) string {
			m := placeholder.FindStringSubmatch(p)
			v := values[m[1]]
			switch {
			case !strings.Contains(p, "?"):
				return v
			case v == "":
				return ""
			}
			return strings.ReplaceAll(m[2], "%s", v)
		}))
	}
	return out
}

func number(n int) string {
	if n == 0 {
		return ""
	}
	return strconv.Itoa(n)
}

// A MicroBatchError says that a micro-batch does not divide the rows of a step.
type MicroBatchError struct{ Micro, Rows int }

func (e *MicroBatchError) Error() string {
	return fmt.Sprintf("--micro-batch %d: does not divide the %d samples of each process", e.Micro, e.Rows)
}

// Start returns the settings of a template's first attempt: the micro-batch
// asked for, else the largest, so that the effective batch is exact.
func (t Template) Start(globalBatch, micro, world int) (ledger.Settings, error) {
	s := ledger.Settings{World: world}
	if !t.Batch() {
		return s, nil
	}
	if globalBatch <= 0 {
		return s, fmt.Errorf("{micro_batch} in the command needs --global-batch")
	}
	if world <= 0 {
		world, s.World = 1, 1
	}
	if globalBatch%world != 0 {
		return s, fmt.Errorf("--global-batch %d: %d processes cannot share it equally", globalBatch, world)
	}
	share := globalBatch / world
	if micro == 0 {
		micro = share
		if !t.uses["accum"] {
			return s, fmt.Errorf("{micro_batch} in the command needs {accum} beside it, or the effective batch would change")
		}
	}
	if share%micro != 0 {
		return s, &MicroBatchError{micro, share}
	}
	s.MicroBatch, s.Accumulation = micro, share/micro
	return s, nil
}

// WorldOf guesses the number of processes from a launcher's own flags: torchrun,
// accelerate launch, deepspeed, srun, mpirun. 1 where there is none.
func WorldOf(argv []string) int {
	per, nodes := 1, 1
	set := func(into *int, text string) {
		if n, err := strconv.Atoi(strings.Split(text, ":")[0]); err == nil && n > 0 {
			*into = n
		}
	}
	flags := map[string]*int{
		"--nproc-per-node": &per, "--nproc_per_node": &per, "--num_processes": &per, "--num-processes": &per,
		"--num_gpus": &per, "-np": &per, "--ntasks": &per, "-n": nil,
		"--nnodes": &nodes, "--num_nodes": &nodes,
	}
	launcherFlags(argv, func(name, value string) {
		if into := flags[name]; into != nil {
			set(into, value)
		}
	})
	return per * nodes
}

// launcherFlags calls use for each flag of a launcher, up to the script.
func launcherFlags(argv []string, use func(name, value string)) {
	for i, a := range argv {
		if a == "--" || strings.HasSuffix(a, ".py") {
			return
		}
		name, value, inline := strings.Cut(a, "=")
		if !inline && i+1 < len(argv) {
			value = argv[i+1]
		}
		if strings.HasPrefix(name, "-") {
			use(name, value)
		}
	}
}
