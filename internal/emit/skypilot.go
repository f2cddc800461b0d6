package emit

import (
	"fmt"
	"slices"
	"strings"
)

// writeSkyPilot writes a managed job. Sky starts the same hardware again after a
// preemption; it never takes bigger cards for an out-of-memory, so 78 ends the
// job and a new plan is the way up.
//
// Source: skypilot sky/utils/schemas.py; docs/source/examples/managed-jobs.rst:
// recover_on_exit_codes do not count as restarts.
func writeSkyPilot(s *sheet) ([]File, error) {
	nodes, per, err := launched(s)
	if err != nil {
		return nil, err
	}
	cards := s.job.Accelerators
	if len(cards) == 0 && s.w.GPU.Name != "" {
		cards = []string{s.w.GPU.Name}
	}
	var names []string // two of our cards may have one name there
	for _, card := range cards {
		if n := skyName(card); !slices.Contains(names, n) {
			names = append(names, n)
		}
	}
	var o, resources object
	o.set("name", "unoom")
	o.set("num_nodes", nodes)
	switch len(names) {
	case 0:
		return nil, fmt.Errorf("skypilot needs the name of a GPU: set --gpu")
	case 1:
		resources.set("accelerators", raw(quote(fmt.Sprintf("%s:%d", names[0], per))))
	default:
		var any []object
		for _, n := range names {
			any = append(any, object{{"accelerators", raw(quote(fmt.Sprintf("%s:%d", n, per)))}})
		}
		resources.set("any_of", any)
	}
	resources.set("job_recovery", object{{"max_restarts_on_errors", int64(0)}, {"recover_on_exit_codes", raw("[75]")}})
	o.set("resources", resources)
	o.set("workdir", raw(`"."`))
	if env := environment(s); len(env) > 0 {
		var envs object
		for _, v := range env {
			envs.set(v.key, raw(quote(v.value.(string))))
		}
		o.set("envs", envs)
	}
	run := strings.Join(torchrun(s, nodes, per, `"$MASTER_ADDR:29500"`), " ")
	lines := []string{}
	if nodes > 1 {
		lines = append(lines, `export MASTER_ADDR=$(echo "$SKYPILOT_NODE_IPS" | head -n 1)`)
	}
	lines = append(lines, "exec unoom run -- "+run)
	o.set("run", block(strings.Join(lines, "\n")+"\n"))
	return []File{{Name: "sky.yaml", Data: []byte(s.comment("#") + yamlOf(o, 0))}}, nil
}

// skyName writes a card of our catalogue as SkyPilot's catalogue does: the model
// without its vendor, and the memory only where there are several ("A100-80GB").
//
// Source: skypilot-catalog's accelerator names, such as A100, A100-80GB, H100,
// H200, L4, L40S, V100-32GB, RTX4090, RTXA6000.
func skyName(name string) string {
	text := strings.ToUpper(strings.NewReplacer("NVIDIA ", "", "GeForce ", "", "_", "-").Replace(name))
	parts := strings.FieldsFunc(text, func(r rune) bool { return r == '-' || r == ' ' })
	if len(parts) == 0 {
		return name
	}
	base, memory := parts[0], ""
	rest := parts[1:]
	if base == "RTX" && len(rest) > 0 { // RTX 4090, RTX A6000, RTX 6000 Ada
		base += rest[0]
		if len(rest) > 1 && rest[1] == "ADA" {
			base += "-Ada"
		}
		return base
	}
	for _, p := range rest {
		if strings.HasSuffix(p, "GB") {
			memory = p
		}
	}
	if base == "A100" && memory == "80GB" || base == "V100" && memory == "32GB" || base == "A10G" && memory == "48GB" {
		return base + "-" + memory
	}
	return base
}
