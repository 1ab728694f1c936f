#!/usr/bin/env bash
# Resolves the lock files again: images/trainer/cpu.lock and images/trainer/gpu.lock.
# Versions that are already locked stay unless --upgrade or --upgrade-package NAME is given.
set -euo pipefail
cd "$(dirname "$0")/.."
uv=.venv/bin/uv
[ -x "$uv" ] || uv=uv

common=(pyproject.toml --python-version 3.11 --python-platform x86_64-unknown-linux-gnu --no-annotate --no-header --quiet
        --extra operator --extra trainer --extra examples --extra dev)

# The CPU lock holds all but torch and its CUDA libraries: which build of torch there is depends on the index (see scripts/setup.sh).
resolved=$(mktemp)
trap 'rm -f "$resolved"' EXIT
cp images/trainer/cpu.lock "$resolved"
"$uv" pip compile "${common[@]}" --extra cpu --override images/trainer/overrides.txt "$@" -o "$resolved" >/dev/null
grep -v -E '^(torch|nvidia-[a-z0-9-]+|cuda-[a-z]+)==' "$resolved" > images/trainer/cpu.lock

"$uv" pip compile "${common[@]}" --extra gpu "$@" -o images/trainer/gpu.lock >/dev/null
wc -l images/trainer/*.lock
