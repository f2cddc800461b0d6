package emit

import (
	"fmt"
	"strings"
)

// writeRay writes a TorchTrainer. Ray restarts a failed worker with the same
// settings, so a plan that does not fit fails as often as it is allowed to:
// max_failures stays 0 and the plan is read anew by whoever starts it again.
//
// Source: ray python/ray/train/v2/api/config.py, air/config.py.
func writeRay(s *sheet) ([]File, error) {
	nodes, per, err := launched(s)
	if err != nil {
		return nil, err
	}
	env := environment(s)
	var vars strings.Builder
	for _, v := range env {
		fmt.Fprintf(&vars, "    %s: %s,\n", quote(v.key), quote(v.value.(string)))
	}
	strategy := "PACK"
	if nodes > 1 {
		strategy = "SPREAD"
	}
	scaling := object{{"num_workers", nodes * per}, {"use_gpu", true}, {"resources_per_worker", raw(`{"GPU": 1}`)}, {"placement_strategy", strategy}}
	words := fields(s.script())
	for i, w := range words {
		words[i] = quote(w)
	}
	text := s.comment("#") + fmt.Sprintf(`import runpy
import sys

SCRIPT = [%s]

ENVIRONMENT = {
%s}

SCALING = %s

FAILURE = dict(max_failures=0)


def train_loop(config):
    """Runs the training program in each worker. Ray has set RANK and the rest and
    has called init_process_group: the program must not call it again.
    """
    sys.argv = list(SCRIPT)
    runpy.run_path(SCRIPT[0], run_name="__main__")


def trainer():
    from ray.train import FailureConfig, RunConfig, ScalingConfig
    from ray.train.torch import TorchTrainer

    return TorchTrainer(
        train_loop,
        scaling_config=ScalingConfig(**SCALING),
        run_config=RunConfig(name="unoom", failure_config=FailureConfig(**FAILURE)),
    )


if __name__ == "__main__":
    import ray

    ray.init(runtime_env={"env_vars": ENVIRONMENT})
    trainer().fit()
`, strings.Join(words, ", "), vars.String(), pythonOf(scaling, 0))
	return []File{{Name: "ray_train.py", Data: []byte(text)}}, nil
}
