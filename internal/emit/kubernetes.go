package emit

import (
	"fmt"
	"strings"
)

// mebibytes is the label of the GPU feature discovery for a card's memory.
// Source: NVIDIA k8s-device-plugin, GPU feature discovery: nvidia.com/gpu.memory,
// in MiB.
const memoryLabel = "nvidia.com/gpu.memory"

// affinity asks for nodes whose cards have at least the memory of the plan's.
func affinity(s *sheet) (object, bool) {
	mib := int64(s.w.GPU.Capacity) >> 20
	if mib == 0 {
		return nil, false
	}
	// A card of the same kind reports a little less or more by driver: 2% of slack.
	least := fmt.Sprint(mib * 98 / 100)
	term := object{{"matchExpressions", []object{{{"key", memoryLabel}, {"operator", "Gt"}, {"values", []string{least}}}}}}
	return object{{"nodeAffinity", object{{"requiredDuringSchedulingIgnoredDuringExecution", object{{"nodeSelectorTerms", []object{term}}}}}}}, true
}

func container(s *sheet, per int64, command []string) object {
	var c object
	c.set("name", "node") // the name that Kubeflow's runtimes use as well
	c.set("image", "REPLACE/with-your-image")
	c.set("command", command)
	if env := kubernetesEnv(s); len(env) > 0 {
		c.set("env", env)
	}
	gpus := fmt.Sprint(per)
	c.set("resources", object{{"limits", object{{"nvidia.com/gpu", gpus}}}})
	c.set("volumeMounts", []object{{{"name", "shm"}, {"mountPath", "/dev/shm"}}})
	return c
}

func kubernetesEnv(s *sheet) []object {
	var out []object
	for _, v := range environment(s) {
		out = append(out, object{{"name", v.key}, {"value", v.value}})
	}
	return out
}

// writeKubernetes writes a Job, with a headless Service where there are several
// machines. A run that unoom ended with 78 does not fit here: the job fails at
// once. 75 asks to be run again and does not count.
//
// Source: Kubernetes batch/v1: podFailurePolicy needs restartPolicy Never; an
// Indexed Job's pods have the hostname NAME-INDEX under the Service.
func writeKubernetes(s *sheet) ([]File, error) {
	nodes, per, err := launched(s)
	if err != nil {
		return nil, err
	}
	words := append([]string{"unoom", "run", "--"}, split(torchrun(s, nodes, per, "unoom-0.unoom:29500"))...)
	var spec object
	c := container(s, per, words)
	if a, ok := affinity(s); ok {
		spec.set("affinity", a)
	}
	spec.put(nodes > 1, "subdomain", "unoom")
	spec.set("restartPolicy", "Never")
	spec.set("containers", []object{c})
	// torch's loader and NCCL use shared memory; the default is 64 MiB.
	spec.set("volumes", []object{{{"name", "shm"}, {"emptyDir", object{{"medium", "Memory"}}}}})
	meta := object{{"name", "unoom"}}
	var job object
	if s.job.Queue != "" { // Kueue admits a job that is made suspended
		meta.set("labels", object{{"kueue.x-k8s.io/queue-name", s.job.Queue}})
		job.set("suspend", true)
	}
	job.set("completions", nodes)
	job.set("parallelism", nodes)
	job.set("completionMode", "Indexed")
	job.set("backoffLimit", int64(3))
	job.set("podFailurePolicy", object{{"rules", []object{
		{{"action", "FailJob"}, {"onExitCodes", object{{"containerName", "node"}, {"operator", "In"}, {"values", raw("[78]")}}}},
		{{"action", "Ignore"}, {"onExitCodes", object{{"containerName", "node"}, {"operator", "In"}, {"values", raw("[75]")}}}},
		{{"action", "Ignore"}, {"onPodConditions", []object{{{"type", "DisruptionTarget"}, {"status", raw(`"True"`)}}}}},
	}}})
	job.set("template", object{{"metadata", object{{"labels", object{{"app", "unoom"}}}}}, {"spec", spec}})
	o := object{{"apiVersion", "batch/v1"}, {"kind", "Job"}, {"metadata", meta}, {"spec", job}}
	text := s.comment("#") + yamlOf(o, 0)
	if nodes > 1 {
		service := object{{"apiVersion", "v1"}, {"kind", "Service"}, {"metadata", object{{"name", "unoom"}}}, {"spec", object{
			{"clusterIP", raw("None")}, {"selector", object{{"app", "unoom"}}},
			{"ports", []object{{{"name", "rendezvous"}, {"port", int64(29500)}}}},
			// the pods look each other up before they are ready
			{"publishNotReadyAddresses", true},
		}}}
		text += "---\n" + yamlOf(service, 0)
	}
	return []File{{Name: "job.yaml", Data: []byte(text)}}, nil
}

// split parts the words of a command that has a script with arguments.
func split(words []string) []string {
	var out []string
	for i, w := range words {
		if i+1 == len(words) { // the script
			out = append(out, fields(w)...)
			continue
		}
		out = append(out, w)
	}
	return out
}

// fields parts a command at spaces outside of quotes.
func fields(text string) []string {
	var out []string
	var word strings.Builder
	var quoted rune
	open := false
	for _, r := range text {
		switch {
		case quoted != 0 && r == quoted:
			quoted = 0
		case quoted != 0:
			word.WriteRune(r)
		case r == '\'' || r == '"':
			quoted, open = r, true
		case r == ' ':
			if open || word.Len() > 0 {
				out = append(out, word.String())
			}
			word.Reset()
			open = false
		default:
			word.WriteRune(r)
		}
	}
	if open || word.Len() > 0 {
		out = append(out, word.String())
	}
	return out
}
