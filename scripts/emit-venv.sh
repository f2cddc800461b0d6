#!/bin/sh
# Adds the libraries whose own checks read emitted files to the Python of the
# tests: python/requirements-emit.txt into .venv/emit/site, and the versions before
# them of what has changed its names into .venv/emit/older. About 120 MB to fetch,
# without what training needs.
# Where they cannot be had it says so and succeeds: the tests skip, and say so too.
set -eu
cd "$(dirname "$0")/.."
venv=${UNOOM_TEST_VENV:-$PWD/.venv}
[ -f "$venv/stamp" ] || exit 0 # test-venv.sh has said why
want=$(cat python/requirements-emit.txt scripts/emit-venv.sh "$venv/stamp" | cksum)
if [ -f "$venv/emit/stamp" ] && [ "$(cat "$venv/emit/stamp")" = "$want" ]; then
	exit 0
fi
skip() {
	echo "emit-venv: $1; emitted files will NOT be read by their own libraries" >&2
	exit 0
}
rm -rf "$venv/emit"
mkdir -p "$venv/emit"
pip() {
	"$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps --no-compile --no-build-isolation "$@"
}
echo "emit-venv: installing the libraries that read emitted files into $venv/emit" >&2
DS_BUILD_OPS=0 pip --target "$venv/emit/site" -r python/requirements-emit.txt || skip "the packages cannot be installed"
pip --target "$venv/emit/older" transformers==4.57.6 huggingface_hub==0.36.2 tokenizers==0.22.2 torchtitan==0.2.2 || skip "older versions cannot be installed"
echo "$want" >"$venv/emit/stamp"
