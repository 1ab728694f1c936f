#!/usr/bin/env bash
# Makes .venv from a lock file in images/trainer and installs this project into it, editable.
#
# Needs Python 3.11, a C compiler and make. Does nothing when .venv already matches the lock file, pyproject.toml and this script.
#   RLHF_STACK=cpu|gpu   which lock; default: gpu where nvidia-smi lists a device, else cpu
#   PYTHON=...           the Python 3.11 to use; default: python3.11, then python3
# Index, proxy and cache are uv's own settings (UV_INDEX_URL, UV_TORCH_BACKEND, UV_CACHE_DIR, ...).
set -euo pipefail
cd "$(dirname "$0")/.."

started=$SECONDS
say() { printf '[%3d s] %s\n' "$((SECONDS - started))" "$*"; }
die() { printf 'setup: %s\n' "$*" >&2; exit 1; }

stack=${RLHF_STACK:-}
if [ -z "$stack" ]; then
    stack=cpu
    if command -v nvidia-smi >/dev/null && nvidia-smi -L 2>/dev/null | grep -q '^GPU'; then stack=gpu; fi
fi
lock=images/trainer/$stack.lock
[ -f "$lock" ] || die "RLHF_STACK=$stack: no such lock; cpu and gpu exist."

# Two stamps: a change of pyproject.toml alone costs a second, a change of the lock the whole installation.
digest() { cat "$@" | sha256sum | cut -d' ' -f1; }
packages="$stack $(digest "$lock" images/trainer/overrides.txt scripts/setup.sh scripts/install_stack.sh scripts/warm_imports.py)"
project="$(pwd -P) $(digest pyproject.toml)"
stamped() { [ "$(cat ".venv/.rlhf-$1" 2>/dev/null)" = "$2" ]; }
if stamped packages "$packages" && stamped project "$project"; then exit 0; fi

is_311() { "$1" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' 2>/dev/null; }

python=
for candidate in ${PYTHON:-python3.11 python3 python}; do
    if command -v "$candidate" >/dev/null && is_311 "$candidate"; then python=$(command -v "$candidate"); break; fi
done
[ -n "$python" ] || die "Python 3.11 is needed (the lock was resolved for it) and is not on PATH. Name it with PYTHON=/path/to/python3.11."

install_debian() {  # PACKAGE WHY
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        say "Installing $1 ($2)"
        { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq "$1"; } >/dev/null || die "apt-get could not install $1 ($2)."
    else
        die "$1 is missing ($2). Install it, for example: sudo apt-get install $1"
    fi
}

if [ "$stack" = cpu ] && ! "$python" -c 'import ctypes; ctypes.CDLL("libnuma.so.1")' 2>/dev/null; then
    install_debian libnuma1 "vLLM on CPUs loads libnuma.so.1"
fi

if uv --version >/dev/null 2>&1; then
    uv=uv
else
    uv=.cache/uv/bin/uv
    if [ ! -x "$uv" ]; then
        # Debian splits the venv module's pip into a package of its own.
        "$python" -c 'import ensurepip' 2>/dev/null || install_debian python3.11-venv "python -m venv needs it, once, to fetch uv"
        say "Fetching uv"
        rm -rf .cache/uv
        "$python" -m venv .cache/uv
        .cache/uv/bin/python -m pip install --quiet --disable-pip-version-check "$(grep '^uv==' "$lock")"
    fi
fi

# uv writes no .pyc files, and some machines forbid Python to: every import of vLLM then costs half a minute.
unset PYTHONDONTWRITEBYTECODE
unset VIRTUAL_ENV

if ! stamped packages "$packages"; then
    say "Making .venv: $("$python" --version), $("$uv" --version | cut -d' ' -f1,2), $(wc -l < "$lock") packages of $lock"
    if [ ! -x .venv/bin/python ] || ! is_311 .venv/bin/python; then "$uv" venv --quiet --clear --python "$python" .venv; fi
    rm -f .venv/.rlhf-packages .venv/.rlhf-project
    UV=$uv scripts/install_stack.sh "$stack" .venv/bin/python
    say "Compiling to bytecode, once"
    .venv/bin/python scripts/warm_imports.py > .venv/warm-imports.log 2>&1 || { tail -n 20 .venv/warm-imports.log >&2; die "the installed packages cannot be imported (above)."; }
    echo "$packages" > .venv/.rlhf-packages
fi

say "Installing this project, editable"
"$uv" pip install --quiet --python .venv/bin/python --no-deps --no-build-isolation --editable .
echo "$project" > .venv/.rlhf-project
say "Set-up done, $(du -sh .venv | cut -f1) in .venv"
