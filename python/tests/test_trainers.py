"""The settings of an attempt inside the real trainers."""

import os

import pytest

from attempt import SCRIPTS, Attempt, of

torch = pytest.importorskip("torch")


def attempt(tmp_path, name, settings, script, *args, **config):
    """Runs a script as an attempt with the given settings; returns its events.

    At a larger rate the order of sums alone moves weights by 1e-5 (docs/run.md).
    """
    it = Attempt(tmp_path / name, settings, **config)
    done = it.python(os.path.join(SCRIPTS, script), *args, SAVE_STEPS="2", LR="5e-5")
    assert done.returncode == 0, done.stderr
    return [e for log in it.events() for e in log]


def weights(path):
    return torch.load(path, weights_only=True)


def test_trainer_resumes_with_another_micro_batch_and_the_same_result(tmp_path):
    """Three steps at once, and the third again from the checkpoint after two,
    with half the micro-batch: the old per-device batch in trainer_state.json must not
    come back, and no sample may be lost or seen twice."""
    one, two = tmp_path / "one", tmp_path / "two"
    attempt(tmp_path, "whole", {}, "gpt2_trainer.py", str(one), "16", "3")
    settings = {"micro_batch": 8, "accumulation": 2, "resume": str(one / "checkpoint-2")}
    events = attempt(tmp_path, "second", settings, "gpt2_trainer.py", str(two), "16", "3")
    (framework,) = of(events, "framework")
    assert (framework["micro_batch"], framework["accumulation"]) == (8, 2)
    assert (framework["asked_micro_batch"], framework["asked_accumulation"]) == (16, 1)
    (resume,) = of(events, "resume")
    assert resume["step"] == 2 and resume["samples"] == 32
    a, b = weights(one / "final.pt"), weights(two / "final.pt")
    assert a["step"] == b["step"] == 3
    for k in a["weights"]:
        assert (a["weights"][k] - b["weights"][k]).abs().max() <= 1e-5, k


def test_unequal_micro_batches_give_the_same_weights(tmp_path):
    """16 rows of uneven token counts as 7, 7 and 2, over more than one epoch, and
    resumed in the middle of one."""
    one, two, three = tmp_path / "one", tmp_path / "two", tmp_path / "three"
    attempt(tmp_path, "whole", {}, "gpt2_trainer.py", str(one), "16", "8")
    settings = {"micro_batch": 7, "accumulation": 3, "samples": 16}
    events = attempt(tmp_path, "cut", settings, "gpt2_trainer.py", str(two), "16", "8")
    (framework,) = of(events, "framework")
    assert (framework["micro_batch"], framework["accumulation"], framework["samples"]) == (7, 3, 16)
    assert not of(events, "not_applied")
    events = attempt(tmp_path, "resumed", dict(settings, resume=str(one / "checkpoint-4")), "gpt2_trainer.py", str(three), "16", "8")
    (resume,) = of(events, "resume")
    assert resume["step"] == 4 and resume["samples"] == 64
    a = weights(one / "final.pt")
    for other in (two, three):
        b = weights(other / "final.pt")
        assert a["step"] == b["step"] == 8
        for k in a["weights"]:
            assert (a["weights"][k] - b["weights"][k]).abs().max() <= 1e-5, k


def test_a_batch_that_is_not_the_scripts_is_not_applied(tmp_path):
    events = attempt(tmp_path, "a", {"micro_batch": 8, "accumulation": 3}, "gpt2_trainer.py", str(tmp_path / "out"), "16", "1")
    assert of(events, "framework")[0]["micro_batch"] == 16
    assert "not the batch" in of(events, "not_applied")[0]["why"]
