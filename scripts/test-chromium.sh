#!/bin/sh
# Installs Chromium for the tests of the HTML report, where that can be done
# without asking: on Debian and Ubuntu as root. Elsewhere it says what is missing
# and succeeds: those tests skip, and say so too.
set -eu
for name in chromium chromium-browser google-chrome; do
	if command -v "$name" >/dev/null; then
		exit 0
	fi
done
skip() {
	echo "test-chromium: $1; the tests of the HTML report in a browser will be SKIPPED" >&2
	exit 0
}
[ "$(id -u)" = 0 ] || skip "no Chromium, and not root to install it"
command -v apt-get >/dev/null || skip "no Chromium, and no apt-get to install it"
echo "test-chromium: installing the package chromium (about 100 MB to fetch)" >&2
apt-get install -y -qq --no-install-recommends chromium >/dev/null 2>&1 ||
	{ apt-get update -qq >/dev/null 2>&1 && apt-get install -y -qq --no-install-recommends chromium >/dev/null 2>&1; } ||
	skip "chromium cannot be installed"
