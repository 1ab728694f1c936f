SHELL := /bin/bash
PYTHON_RUN := .venv/bin/python

.PHONY: help setup demo test test-slow lint bench gpu-check lock

help:  ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  \1\t/' | expand -t 14

setup:  ## make .venv from the lock file; nothing to do on the second call
	@scripts/setup.sh

demo: setup  ## train SmolLM2-135M with GRPO on arithmetic, about ten minutes (ARGS='--fresh' starts over)
	@$(PYTHON_RUN) examples/quickstart/demo.py $(ARGS)

test: setup  ## the fast tests, at most five minutes
	$(PYTHON_RUN) -m pytest -m "not slow" $(ARGS)

test-slow: setup  ## learning, kill-and-resume, real models
	$(PYTHON_RUN) -m pytest -m slow $(ARGS)

lint: setup  ## ruff, mypy, import rules
	.venv/bin/ruff check .
	.venv/bin/mypy
	.venv/bin/lint-imports

bench: setup  ## step time by phase, share of the floor, sync speed, memory, TRL beside it
	@$(PYTHON_RUN) bench/run.py $(ARGS)

gpu-check: setup  ## NCCL and IPC sync, sleep and wake, bf16 gap, three GRPO steps on the GPUs of this machine
	@$(PYTHON_RUN) scripts/gpu_check.py $(ARGS)

lock: setup  ## resolve images/trainer/*.lock again
	scripts/lock.sh $(ARGS)
