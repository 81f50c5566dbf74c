# Needs GNU make 3.81 or newer and Python 3.11 or newer. Variables, each as `make TARGET NAME=value`:
#   PYTHON       the interpreter that the environment is made with
#   VENV         the environment, .venv
#   TORCH        what pip is asked for; TORCH=torch takes the newest
#   TORCH_INDEX  a package index to take torch from, such as PyTorch's own of CPU builds (its address is in README.md)

TORCH  := torch==2.13.0
VENV   ?= .venv
BIN     = $(VENV)/bin
PYTHON ?= $(shell for p in python3.11 python3.12 python3.13 python3; do \
  $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 && echo $$p && break; done)

# three workers, as many tests wait, a file each; those that tests/conftest.py knows to take long begin first
WORKERS = -n 3 --dist loadfile --no-loadscope-reorder

# Compiled code is kept, even where the environment says otherwise: each process that a test starts would compile the
# library anew, for half a second.
export PYTHONDONTWRITEBYTECODE =

.PHONY: help setup quickstart test lint docs pythons baselines peers

help:
	@echo "make setup       make .venv and install shuhari and its tools into it"
	@echo "make quickstart  train a small language model by RL and plot it (about three minutes on two cores)"
	@echo "make test        ruff, mypy and the tests"
	@echo "make lint        ruff and mypy alone"
	@echo "make docs        the site, in build/site, in an environment of its own"
	@echo "make pythons     the tests under Python 3.12 and 3.13, in an environment each, where they are installed"
	@echo "make baselines   train every recipe on three seeds, and write benchmarks/README.md (hours)"
	@echo "make peers       measure beside TRL, Stable-Baselines3 and d3rlpy, in an environment of their own"

setup: $(VENV)/.stamp

quickstart: $(VENV)/.stamp
	$(BIN)/shuhari train baselines/quickstart --run runs/quickstart

test: lint
	$(BIN)/python -m pytest $(WORKERS)

pythons:
	@for v in 3.12 3.13; do \
	  if command -v python$$v >/dev/null; then \
	    $(MAKE) setup VENV=.venv-$$v PYTHON=python$$v && .venv-$$v/bin/python -m pytest $(WORKERS) -q || exit 1; \
	  else echo "python$$v is not installed: not tested"; fi; done

baselines: $(VENV)/.stamp
	$(BIN)/python benchmarks/baselines.py

peers:
	$(PYTHON) benchmarks/peers/run.py --setup
	$(PYTHON) benchmarks/peers/run.py

lint: $(VENV)/.stamp
	$(BIN)/ruff check
	$(BIN)/mypy

docs: .venv-docs/.stamp
	.venv-docs/bin/python docs/stage.py build/pages
	.venv-docs/bin/zensical build --strict --clean -f build/mkdocs.yml

# The site reads the source and imports none of it, so its environment has no torch. `--group` came with pip 25.1.
.venv-docs/.stamp: pyproject.toml
	@test -n "$(PYTHON)" || { echo "the site needs Python 3.11 or newer, and none is on PATH: make docs PYTHON=/path/to/python3" >&2; exit 2; }
	test -x .venv-docs/bin/python || $(PYTHON) -m venv .venv-docs
	.venv-docs/bin/python -m pip install "pip>=25.1"
	.venv-docs/bin/python -m pip install --group docs
	@touch $@

# torch comes first and its pin is repeated in the second command, so that no dependency can swap the build for another.
$(VENV)/.stamp: pyproject.toml
	@test -n "$(PYTHON)" || { echo "shuhari needs Python 3.11 or newer, and none is on PATH: make $(MAKECMDGOALS) PYTHON=/path/to/python3" >&2; exit 2; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@if [ "$$(uname)" = Linux ] && [ -z "$(TORCH_INDEX)" ] && ! command -v nvidia-smi >/dev/null; then \
	  echo "No GPU found. If pip now fetches a CUDA build of torch, stop it and see 'CPU build of torch' in README.md."; fi
	$(BIN)/python -m pip install $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) "$(TORCH)"
	$(BIN)/python -m pip install "$(TORCH)" -e ".[dev]"
	@touch $@
