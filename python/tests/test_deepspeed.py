"""The batch in DeepSpeed's configuration, wherever it stands."""

import json

import pytest

from attempt import of
from test_bootstrap import attempt, python  # noqa: F401


CALLS = {
    "a dict": "deepspeed.initialize(config=json.load(open(F)))",
    "a file": "deepspeed.initialize(config=F)",
    "the old name": "deepspeed.initialize(config_params=json.load(open(F)))",
    "an argument": "deepspeed.initialize(args=types.SimpleNamespace(deepspeed_config=F))",
    "an argument by position": "deepspeed.initialize(types.SimpleNamespace(deepspeed_config=F))",
}
BATCHES = {
    "all three": {"train_batch_size": 64, "train_micro_batch_size_per_gpu": 16, "gradient_accumulation_steps": 2},
    "micro-batch and accumulation": {"train_micro_batch_size_per_gpu": 16, "gradient_accumulation_steps": 2},
    "no accumulation": {"train_batch_size": 64, "train_micro_batch_size_per_gpu": 16},
    "no micro-batch": {"train_batch_size": 64, "gradient_accumulation_steps": 2},
}


def call(attempt, tmp_path, code, config):  # noqa: F811
    path = tmp_path / "ds.json"
    path.write_text(json.dumps(config))
    done = python(attempt, "import json, torch, types, deepspeed\nF = %r\n%s" % (str(path), code), WORLD_SIZE="2")
    assert done.returncode == 0, done.stderr
    assert json.loads(path.read_text()) == config, "the user's file was changed"
    (log,) = attempt.events()
    return json.loads(done.stdout), log


def settings(attempt, micro, accum):  # noqa: F811
    attempt.configure(settings={"micro_batch": micro, "accumulation": accum})


@pytest.mark.parametrize("how", CALLS)
@pytest.mark.parametrize("batch", BATCHES)
def test_the_batch_is_cut(attempt, tmp_path, how, batch):  # noqa: F811
    settings(attempt, 8, 4)
    config = dict(BATCHES[batch], zero_optimization={"stage": 2})
    got, log = call(attempt, tmp_path, CALLS[how], config)
    assert (got["train_micro_batch_size_per_gpu"], got["gradient_accumulation_steps"]) == (8, 4)
    assert got.get("train_batch_size") == config.get("train_batch_size") and got["zero_optimization"] == {"stage": 2}
    (framework,) = of(log, "framework")
    assert framework["name"] == "deepspeed" and (framework["asked_micro_batch"], framework["asked_accumulation"]) == (16, 2)


def test_a_batch_that_somebody_else_sets_is_left_alone(attempt, tmp_path):  # noqa: F811
    settings(attempt, 8, 4)
    config = {"train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": "auto"}
    got, log = call(attempt, tmp_path, CALLS["a file"], config)
    assert got == config and not of(log, "framework")


def test_as_written_where_nothing_is_to_be_changed(attempt, tmp_path):  # noqa: F811
    config = BATCHES["all three"]
    got, log = call(attempt, tmp_path, CALLS["an argument"], config)
    assert got == config
    (framework,) = of(log, "framework")
    assert (framework["micro_batch"], framework["accumulation"]) == (16, 2)
