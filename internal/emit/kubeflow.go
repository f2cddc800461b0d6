package emit

import "fmt"

// writeKubeflow writes a TrainJob of Kubeflow Trainer 2 with the label that
// Kueue queues by. The runtime injects PET_* variables, which torchrun reads
// like its own flags, so the command names no machines.
//
// Source: kubeflow/trainer pkg/apis/trainer/v1alpha1/trainjob_types.go.
func writeKubeflow(s *sheet) ([]File, error) {
	nodes, per, err := launched(s)
	if err != nil {
		return nil, err
	}
	meta := object{{"name", "unoom"}}
	var spec object
	if s.job.Queue != "" {
		meta.set("labels", object{{"kueue.x-k8s.io/queue-name", s.job.Queue}})
		spec.set("suspend", true)
	}
	spec.set("runtimeRef", object{{"name", "torch-distributed"}})
	command := append([]string{"unoom", "run", "--", "torchrun", "--max-restarts=0"}, fields(s.script())...)
	trainer := object{{"numNodes", nodes}, {"numProcPerNode", per}, {"image", "REPLACE/with-your-image"}, {"command", command}}
	if env := kubernetesEnv(s); len(env) > 0 {
		trainer.set("env", env)
	}
	trainer.set("resourcesPerNode", object{{"limits", object{{"nvidia.com/gpu", fmt.Sprint(per)}}}})
	spec.set("trainer", trainer)
	o := object{{"apiVersion", "trainer.kubeflow.org/v1alpha1"}, {"kind", "TrainJob"}, {"metadata", meta}, {"spec", spec}}
	return []File{{Name: "trainjob.yaml", Data: []byte(s.comment("#") + yamlOf(o, 0))}}, nil
}
