"""What unoom costs a training that it does not have to help. `make overhead` prints it.

Times are those of the processor, not of the clock: a busy machine stretches the
latter.
"""

import json
import os
import subprocess
import sys
import time

import pytest

from attempt import ROOT, Attempt

torch = pytest.importorskip("torch")


def cpu_ms(code, folder, path):
    """Processor time of an interpreter that runs code."""
    env = dict(os.environ, PYTHONPATH=path, OMP_NUM_THREADS="1")
    pid = subprocess.Popen([sys.executable, "-c", code], env=env, cwd=folder)
    _, status, usage = os.wait4(pid.pid, 0)
    pid.returncode = status
    assert status == 0
    return (usage.ru_utime + usage.ru_stime) * 1e3


def added_ms(code, folder, site, times):
    """What the bootstrap adds: the least of several, taken in turn."""
    empty = folder / "empty"
    empty.mkdir(exist_ok=True)
    cpu_ms(code, folder, str(site))  # writes the .pyc
    pairs = [(cpu_ms(code, folder, str(site)), cpu_ms(code, folder, str(empty))) for _ in range(times)]
    return min(a for a, _ in pairs) - min(b for _, b in pairs)


@pytest.fixture
def site(tmp_path):
    return Attempt(tmp_path, calibrate_seconds=60).site


def test_start_costs_less_than_5_ms(site, tmp_path):
    added = added_ms("pass", tmp_path, site, 25)
    print("\nan interpreter starts %.2f ms later" % added)
    assert added < 5


LOAD = """
import sys, time
import torch
sys.path.insert(0, %r)
began = time.process_time()
from unoom import _hook
_hook.loaded("torch", torch, %r)
print(1e3 * (time.process_time() - began))
"""


def inside(code, **env):
    done = subprocess.run([sys.executable, "-c", code], env=dict(os.environ, OMP_NUM_THREADS="1", **env), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_our_part_of_the_import_of_torch(site):
    ms = min(inside(LOAD % (ROOT, str(site))) for _ in range(3))
    print("\nafter torch is imported, ours takes %.2f ms" % ms)
    assert ms < 50


STEPS = """
import json, sys, time
import torch
torch.set_num_threads(1)
torch.manual_seed(0)
net = torch.nn.Sequential(*[m for _ in range(4) for m in (torch.nn.Linear(256, 256), torch.nn.Tanh())])
optimizer = torch.optim.AdamW(net.parameters())
x = torch.randn(128, 256)
def steps(n):
    began = time.process_time()
    for _ in range(n):
        net(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return (time.process_time() - began) / n
steps(20)
hooks = sys.modules["torch.optim.optimizer"]._global_optimizer_post_hooks
with_us, without = [], []
kept = dict(hooks)
assert kept, "the shim counts no steps"
for _ in range(30):
    with_us.append(steps(10))
    hooks.clear()
    without.append(steps(10))
    hooks.update(kept)
print(json.dumps([min(with_us), min(without)]))
"""


def test_a_step_costs_less_than_1_percent(site, tmp_path):
    """A step of some milliseconds, as small as one may be, with and without the
    hook in turn; and the hook alone, which a busy machine cannot blur."""
    with_us, without = inside(STEPS, PYTHONPATH=str(site))
    hook = hook_us(tmp_path)
    print("\na step takes %.3f ms with, %.3f ms without; the hook %.2f us, %.3f %% of it" % (with_us * 1e3, without * 1e3, hook, hook / without / 1e4))
    assert hook / 1e6 < without / 100


def hook_us(tmp_path):
    """The hook of a step, with the note that it writes once a second."""
    from unoom import _events, _hook

    _events.configure({"events": str(tmp_path), "run": "r", "attempt": 1})
    try:
        steps = _hook.Steps({})
        optimizer = object()
        n = 3000
        began = time.process_time()
        for _ in range(n):
            steps.after(optimizer, (), {})
        each = (time.process_time() - began) / n
        began = time.process_time()
        for i in range(100):
            steps.note(i, time.monotonic())
        note = (time.process_time() - began) / 100
        print("\na note takes %.1f us, and there is one a second" % (note * 1e6))
        return each * 1e6
    finally:
        _events.after_fork()
        _events.configure(None)
        _events._state["step"] = 0
