#!/usr/bin/env bash
# Resolves the lock files again: images/trainer/cpu.lock and gpu.lock, and images/operator/operator.lock.
# Versions that are already locked stay unless --upgrade or --upgrade-package NAME is given.
set -euo pipefail
cd "$(dirname "$0")/.."
uv=.venv/bin/uv
[ -x "$uv" ] || uv=uv

platform=(pyproject.toml --python-version 3.11 --python-platform x86_64-unknown-linux-gnu --no-annotate --no-header --quiet)
common=("${platform[@]}" --extra operator --extra trainer --extra examples --extra dev --extra e2e)

# The CPU lock holds all but torch and its CUDA libraries: which build of torch there is depends on the index (see scripts/setup.sh).
resolved=$(mktemp)
trap 'rm -f "$resolved"' EXIT
cp images/trainer/cpu.lock "$resolved"
"$uv" pip compile "${common[@]}" --extra cpu --override images/trainer/overrides.txt "$@" -o "$resolved" >/dev/null
grep -v -E '^(torch|nvidia-[a-z0-9-]+|cuda-[a-z]+)==' "$resolved" > images/trainer/cpu.lock

"$uv" pip compile "${common[@]}" --extra gpu "$@" -o images/trainer/gpu.lock >/dev/null

# A part of the CPU lock: the operator's image runs what the tests ran with.
"$uv" pip compile "${platform[@]}" --extra operator --constraint images/trainer/cpu.lock -o images/operator/operator.lock >/dev/null
wc -l images/*/*.lock
