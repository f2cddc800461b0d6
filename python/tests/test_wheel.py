"""The installable package: built and installed without a network."""

import os
import shutil
import subprocess
import sys

import pytest

pytest.importorskip("setuptools", minversion="70.1")

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(HERE)


def test_it_is_built_installed_and_used(tmp_path):
    source = tmp_path / "source"
    shutil.copytree(ROOT, source, ignore=shutil.ignore_patterns("tests", "__pycache__", "bootstrap"))
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    offline = ["--no-index", "--no-deps", "--no-build-isolation"]
    subprocess.run([*pip, "wheel", *offline, "-q", "-w", str(tmp_path), str(source)], check=True, capture_output=True)
    (wheel,) = tmp_path.glob("unoom-*-py3-none-any.whl")
    target = tmp_path / "site-packages"
    subprocess.run([*pip, "install", *offline, "-q", "--target", str(target), str(wheel)], check=True, capture_output=True)
    files = lambda folder: {n for n in os.listdir(folder) if n.endswith(".py")}  # noqa: E731
    assert files(target / "unoom") == files(os.path.join(ROOT, "unoom"))
    # Without `unoom run` nothing is reported, and everything works.
    code = """
import unoom, os
assert unoom.__file__.startswith(%r), unoom.__file__
with unoom.phase("evaluation"):
    unoom.record(loss=1.0)
unoom.release()
print(unoom.__version__)
""" % str(target)
    env = dict(os.environ, PYTHONPATH=str(target))
    done = subprocess.run([sys.executable, "-c", code], env=env, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() in wheel.name
