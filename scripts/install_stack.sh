#!/usr/bin/env bash
# Installs the packages of images/trainer/STACK.lock into an environment that exists: the steps shared by .venv and the trainer image.
#   install_stack.sh cpu|gpu PYTHON   PYTHON: the environment's own
#   UV=...                            the uv to use; default: uv
set -euo pipefail
stack=$1 python=$2
cd "$(dirname "$0")/.."
lock=images/trainer/$stack.lock
pip=("${UV:-uv}" pip install --quiet --python "$python")

DS_BUILD_OPS=0 "${pip[@]}" --no-deps -r "$lock"
if [ "$stack" = cpu ]; then
    # Not locked: the CPU build and the CUDA build of one version both work, and an index may serve either.
    "${pip[@]}" --constraint "$lock" --override images/trainer/overrides.txt torch==2.13.0
fi
