#!/bin/sh
# Makes the Python environment of the tests: .venv with the packages of
# python/requirements-test.txt. Doing it again takes no time until that list or
# these scripts change. Where the packages cannot be had it says so and
# succeeds: the tests that need them skip, and say so too.
#
# usage: scripts/test-venv.sh        UNOOM_TEST_VENV=DIR to put it elsewhere
#                                    PYTHON=... to choose the interpreter (3.11+)
set -eu
cd "$(dirname "$0")/.."
venv=${UNOOM_TEST_VENV:-$PWD/.venv}
python=${PYTHON:-python3}
want=$(cat python/requirements-test.txt scripts/stub_cuda_libs.py scripts/test-venv.sh | cksum)
if [ -f "$venv/stamp" ] && [ "$(cat "$venv/stamp")" = "$want" ]; then
	exit 0
fi

skip() {
	echo "test-venv: $1; the tests on real PyTorch will be SKIPPED" >&2
	exit 0
}

command -v "$python" >/dev/null || skip "no $python"
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || skip "$python is older than 3.11"
echo "test-venv: installing PyTorch and friends into $venv (about 0.6 GB to fetch, 1.5 GB on disk)" >&2
rm -rf "$venv"
"$python" -m venv "$venv" || skip "$python -m venv does not work"
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps --no-compile \
	-r python/requirements-test.txt || skip "the packages cannot be installed"
lib=$("$venv/bin/python" -c 'import importlib.util as u; print(u.find_spec("torch").submodule_search_locations[0])')/lib
"$venv/bin/python" scripts/stub_cuda_libs.py "$lib" || skip "the stubs of CUDA's libraries cannot be built"
# The first import writes the .pyc files; a failure here is a real one.
"$venv/bin/python" -c 'import torch, transformers, accelerate, lightning, torch.distributed.run' 2>/dev/null ||
	{ "$venv/bin/python" -c 'import torch'; exit 1; }
echo "$want" >"$venv/stamp"
