// Command kubecheck decodes Kubernetes manifests into the API's own types and
// refuses what they do not have. It is a module of its own, so that the program
// does not carry those types.
//
// usage: kubecheck FILE...
package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"

	trainer "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	batch "k8s.io/api/batch/v1"
	core "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/yaml"
)

func main() {
	bad := 0
	for _, name := range os.Args[1:] {
		data, err := os.ReadFile(name)
		if err == nil {
			err = check(data)
		}
		if err != nil {
			fmt.Printf("%s: %v\n", name, err)
			bad++
		}
	}
	fmt.Printf("decoded %d files, refused %d\n", len(os.Args)-1, bad)
	if bad > 0 {
		os.Exit(1)
	}
}

// check decodes each document of a file strictly.
func check(data []byte) error {
	docs := bytes.Split(data, []byte("\n---\n"))
	if len(bytes.TrimSpace(data)) == 0 {
		return io.ErrUnexpectedEOF
	}
	for _, doc := range docs {
		var head struct{ APIVersion, Kind string }
		if err := yaml.Unmarshal(doc, &head); err != nil {
			return err
		}
		var err error
		switch head.APIVersion + "/" + head.Kind {
		case "batch/v1/Job":
			var j batch.Job
			if err = yaml.UnmarshalStrict(doc, &j); err == nil {
				err = job(&j)
			}
		case "v1/Service":
			var s core.Service
			err = yaml.UnmarshalStrict(doc, &s)
		case "trainer.kubeflow.org/v1alpha1/TrainJob":
			var t trainer.TrainJob
			if err = yaml.UnmarshalStrict(doc, &t); err == nil {
				err = trainJob(&t)
			}
		default:
			err = fmt.Errorf("%s %s is not known here", head.APIVersion, head.Kind)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// job checks what the API server does beyond decoding.
func job(j *batch.Job) error {
	pod := j.Spec.Template.Spec
	var errs []error
	if j.Spec.PodFailurePolicy != nil && pod.RestartPolicy != core.RestartPolicyNever {
		errs = append(errs, errors.New("podFailurePolicy needs restartPolicy Never"))
	}
	if j.Spec.Completions == nil || j.Spec.Parallelism == nil || *j.Spec.Completions != *j.Spec.Parallelism {
		errs = append(errs, errors.New("each index has to run at once"))
	}
	for _, c := range pod.Containers {
		gpus := c.Resources.Limits["nvidia.com/gpu"]
		if gpus.Cmp(resource.MustParse("1")) < 0 {
			errs = append(errs, errors.New("no GPU is asked for"))
		}
		mounted := map[string]bool{}
		for _, v := range pod.Volumes {
			mounted[v.Name] = true
		}
		for _, m := range c.VolumeMounts {
			if !mounted[m.Name] {
				errs = append(errs, fmt.Errorf("volume %s is not there", m.Name))
			}
		}
		for _, e := range c.Env {
			if p := validation.IsEnvVarName(e.Name); len(p) > 0 {
				errs = append(errs, errors.New(p[0]))
			}
		}
	}
	for key, value := range j.Labels {
		for _, p := range append(validation.IsQualifiedName(key), validation.IsValidLabelValue(value)...) {
			errs = append(errs, errors.New(p))
		}
	}
	return errors.Join(errs...)
}

func trainJob(t *trainer.TrainJob) error {
	if t.Spec.RuntimeRef.Name == "" || t.Spec.Trainer == nil || len(t.Spec.Trainer.Command) == 0 {
		return errors.New("runtimeRef and trainer.command are needed")
	}
	if t.Spec.Trainer.NumNodes == nil || *t.Spec.Trainer.NumNodes < 1 {
		return errors.New("numNodes is at least 1")
	}
	return nil
}
