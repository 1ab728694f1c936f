SHELL := /bin/bash
PYTHON_RUN := .venv/bin/python
SHAPE := full
NAME := main

.PHONY: help setup demo test test-slow integration e2e e2e-full lint bench bench-operator gpu-check lock tools cluster-up cluster-down cluster-status

help:  ## list the targets
	@grep -E '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z0-9-]+):.*## /  \1\t/' | expand -t 18

setup:  ## make .venv from the lock file; nothing to do on the second call
	@scripts/setup.sh

demo: setup  ## train SmolLM2-135M with GRPO on arithmetic, about ten minutes (ARGS='--fresh' starts over)
	@$(PYTHON_RUN) examples/quickstart/demo.py $(ARGS)

test: setup  ## the fast tests, at most five minutes
	$(PYTHON_RUN) -m pytest -m "not slow" --ignore=tests/integration $(ARGS)

test-slow: setup  ## learning, kill-and-resume, real models
	$(PYTHON_RUN) -m pytest -m slow --ignore=tests/integration $(ARGS)

integration: setup  ## operator and KubeRay against a real control plane; pods are marked, not run (ARGS='-k NAME')
	$(PYTHON_RUN) -m pytest tests/integration $(ARGS)

e2e: setup  ## whole jobs on a cluster of this machine, with real pods
	$(PYTHON_RUN) -m pytest e2e -s $(ARGS)

e2e-full: setup  ## the same, and every kind of failure that a job must survive
	$(PYTHON_RUN) -m pytest e2e -s --level 1 $(ARGS)

lint: setup  ## ruff, mypy, import rules
	.venv/bin/ruff check .
	.venv/bin/mypy
	.venv/bin/lint-imports

bench: setup  ## step time by phase, share of the floor, sync speed, memory, TRL beside it
	@$(PYTHON_RUN) bench/run.py $(ARGS)

bench-operator: setup  ## the operator with 500 jobs: reconcile time, memory, writes; 50 dead dashboards (ARGS='--jobs 100')
	@$(PYTHON_RUN) -m bench.operator_scale $(ARGS)

gpu-check: setup  ## NCCL and IPC sync, sleep and wake, bf16 gap, three GRPO steps on the GPUs of this machine
	@$(PYTHON_RUN) scripts/gpu_check.py $(ARGS)

lock: setup  ## resolve images/trainer/*.lock again
	scripts/lock.sh $(ARGS)

tools: setup  ## build and fetch what clusters are made of: 8 minutes and 6 GB the first time, then nothing
	@$(PYTHON_RUN) -m e2e.tools $(ARGS)

cluster-up: setup  ## start a Kubernetes with KubeRay on this machine (SHAPE=full|control NAME=main)
	@$(PYTHON_RUN) -m e2e.cluster up --name $(NAME) --shape $(SHAPE) $(ARGS)

cluster-down: setup  ## stop it and remove what it left (NAME=main)
	@$(PYTHON_RUN) -m e2e.cluster down --name $(NAME) $(ARGS)

cluster-status: setup  ## what runs, where its logs and its kubeconfig are (NAME=main)
	@$(PYTHON_RUN) -m e2e.cluster status --name $(NAME) $(ARGS)
