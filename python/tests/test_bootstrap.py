"""The bootstrap in real interpreters, with a small fake in torch's place."""

import json
import os

import pytest

from attempt import HERE, ROOT, Attempt

FAKE = os.path.join(HERE, "fake")


@pytest.fixture
def attempt(tmp_path):
    return Attempt(tmp_path)


def python(attempt, code, *flags, path=(), **env):
    return attempt.python(*flags, "-c", code, path=[*path, FAKE], **env)


def test_hello_is_the_first_line_and_exit_the_last(attempt, tmp_path):
    done = python(attempt, "import torch", RANK="3", LOCAL_RANK="1", WORLD_SIZE="8")
    assert done.returncode == 0 and done.stderr == ""
    (log,) = attempt.events()
    assert log[0]["kind"] == "hello" and log[0]["proto"] == 1 and log[0]["torch"] == "2.9.1+fake"
    assert (log[0]["rank"], log[0]["local_rank"], log[0]["world"]) == (3, 1, 8)
    assert log[-1]["kind"] == "exit"


def test_without_torch_nothing_happens(attempt, tmp_path):
    assert python(attempt, "print(1)").stdout == "1\n"
    assert attempt.events() == []


def test_off_switch(attempt, tmp_path):
    assert python(attempt, "import torch", UNOOM_DISABLE="1").returncode == 0
    assert attempt.events() == []


def test_the_next_sitecustomize_is_loaded_too(attempt, tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    (other / "sitecustomize.py").write_text("import sys; sys.users_own = 1\nsys.path.append('/added/by/it')\n")
    done = python(attempt, "import sys; print(sys.users_own, '/added/by/it' in sys.path, sys.modules['sitecustomize'].__file__)", path=[str(other)])
    assert done.stdout.split()[:2] == ["1", "True"]
    assert "other" in done.stdout


def test_an_error_in_the_next_sitecustomize_shows_as_without_us(attempt, tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    (other / "sitecustomize.py").write_text("raise ImportError('missing', name='their_dependency')\n")
    with_us = python(attempt, "print(1)", path=[str(other)])
    alone = python(attempt, "print(1)", PYTHONPATH=str(other))
    assert with_us.stdout == alone.stdout and ("missing" in with_us.stderr) == ("missing" in alone.stderr)


def test_a_broken_run_folder_does_not_break_the_program(attempt, tmp_path):
    (tmp_path / "site" / "unoom.json").write_text("{")
    assert python(attempt, "import torch; print(torch.__version__)").stdout == "2.9.1+fake\n"
    (tmp_path / "site" / "unoom.json").unlink()
    assert python(attempt, "import torch; print(torch.__version__)").stdout == "2.9.1+fake\n"


def test_a_folder_that_cannot_be_written(attempt, tmp_path):
    attempt.configure(events="/proc/nowhere")
    assert python(attempt, "import torch; print(2)").stdout == "2\n"


def test_children_and_isolated_interpreters(attempt, tmp_path):
    assert python(attempt, "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import torch'])").returncode == 0
    assert len(attempt.events()) == 1, "PYTHONPATH reaches children"
    assert python(attempt, "print(3)", "-I").stdout == "3\n"


def test_uncaught_errors_are_reported_and_shown_as_always(attempt, tmp_path):
    bug = python(attempt, "import torch\nx = [1]\nx[5]")
    alone = python(attempt, "import torch\nx = [1]\nx[5]", PYTHONPATH=FAKE)
    assert bug.returncode == 1 and bug.stderr == alone.stderr
    oom = python(attempt, "import torch\nraise torch.OutOfMemoryError('CUDA out of memory. Tried to allocate 2.00 MiB.')")
    assert oom.returncode == 1
    kinds = [[e["kind"] for e in log] for log in attempt.events()]
    assert any("exception" in k for k in kinds) and any("oom_raised" in k for k in kinds)


def test_torchelastic_learns_the_root_cause(attempt, tmp_path):
    path = tmp_path / "elastic" / "error.json"
    python(attempt, "import torch\nraise ValueError('the cause')", RANK="0", TORCHELASTIC_ERROR_FILE=str(path))
    doc = json.loads(path.read_text())
    assert "the cause" in doc["message"]["message"] and int(doc["message"]["extraInfo"]["timestamp"]) > 0


def test_forked_children_have_their_own_file(attempt, tmp_path):
    code = "import torch, os\nimport unoom\nif os.fork() == 0:\n    unoom.record(a=1)\n    os._exit(0)\nos.wait()\nunoom.record(b=2)"
    assert python(attempt, code).returncode == 0
    logs = attempt.events()
    assert len(logs) == 2 and all(log[0]["kind"] == "hello" for log in logs)


def test_long_events_are_cut_to_one_write(attempt, tmp_path):
    python(attempt, "import torch\nraise ValueError('x' * 100000)")
    name = [n for n in os.listdir(tmp_path) if n.startswith("events.")][0]
    with open(tmp_path / name, "rb") as f:
        assert max(len(line) for line in f) <= 4096


def test_our_own_version_comes_before_an_installed_one(attempt, tmp_path):
    other = tmp_path / "installed"
    (other / "unoom").mkdir(parents=True)
    (other / "unoom" / "__init__.py").write_text("raise ImportError('another version')\n")
    done = python(attempt, "import torch, unoom; print(unoom.__file__)", path=[str(other)])
    assert done.stdout.strip() == os.path.join(ROOT, "unoom", "__init__.py"), done.stderr
    (log,) = attempt.events()
    assert log[0]["kind"] == "hello"
