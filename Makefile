# `make help` lists the targets. Everything runs in .venv, which `make setup` makes
# with a Python 3.11; name one with `make PYTHON=/path/to/python3.11 ...`.

SHELL := /bin/bash
.DEFAULT_GOAL := help
.PHONY: help setup demo experiment test test-long lint check format benchmark benchmark-scaling \
	benchmark-load benchmark-mime benchmark-data benchmark-states requirements build-files clean

export TF_CPP_MIN_LOG_LEVEL ?= 1

PY := .venv/bin/python
PYTEST := $(PY) -m pytest
IS_311 := import sys; sys.exit(sys.version_info[:2] != (3, 11))
FIND_PYTHON = for python in $(or $(PYTHON),python3.11 python3 python $(PY)); do \
	"$$python" -c '$(IS_311)' 2>/dev/null && break; python=; done </dev/null

define NO_PYTHON
Python 3.11 is needed and was not found as $(or $(PYTHON),python3.11 or python3 or python).
Get one by any of:
  Debian, Ubuntu  sudo apt install python3.11 python3.11-venv
  pyenv           pyenv install 3.11, then make setup PYTHON="$$(pyenv prefix 3.11)/bin/python"
  uv              uv python install 3.11, then make setup PYTHON="$$(uv python find 3.11)"
  conda           conda create -n py311 python=3.11, then conda activate py311
  anywhere        https://www.python.org/downloads/
and run the command again; PYTHON=/path/to/python3.11 names one that is not on the PATH.
endef
export NO_PYTHON

help:  ## Show this list.
	@sed -nE 's/^([a-z-]+):.*## (.*)/  make \1\t\2/p' Makefile | expand -t 22

setup:  ## Make or mend .venv from requirements.txt (2-3 minutes, once).
	@$(FIND_PYTHON); [ "$$python" ] || { echo "$$NO_PYTHON" >&2; exit 1; }; \
	"$$python" tools/setup_environment.py

demo: setup  ## Run the demonstration.
	$(PY) -m experiments.demo

experiment: setup  ## Run an experiment again (NAME=server_optimizers).
	@[ -f "experiments/$(NAME).py" ] || { echo "NAME must be one of:" >&2; \
	grep -lE '(experiment\.main|command_line\.run)\(' experiments/*.py | sed 's:.*/:  :; s:\.py$$::' \
	| grep -vx '  experiment' >&2; exit 2; }
	$(PY) -m experiments.$(NAME) $(ARGS)

# TensorFlow and TFF keep some megabytes of each of the thousands of graphs that are traced:
# all tests in the same processes take more than 24 GB, in three parts 15.
test: setup  ## Run all tests but the long ones.
	@status=0; for part in 1 2 3; do \
	echo $(PYTEST) -m '"not long"' -n 2 --dist loadfile --part=$$part/3 $(ARGS); \
	$(PYTEST) -m "not long" -n 2 --dist loadfile --part=$$part/3 $(ARGS) || [ $$? -eq 5 ] \
	|| status=1; done; exit $$status  # 5: there are none.

test-long: setup  ## Run the long tests.
	$(PYTEST) -m long $(ARGS) || [ $$? -eq 5 ]  # 5: there are none.

lint: setup  ## Check style and types.
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy

check: lint  ## Check style and types, and run the fast tests.
	$(PYTEST) -m "not slow and not long" -n 2 --dist loadfile $(ARGS)

format: setup  ## Format the sources and mend what ruff can mend.
	$(PY) -m ruff check --fix .
	$(PY) -m ruff format .

benchmark: setup  ## Measure the speed beside other federated simulators.
	$(PY) -m benchmarks.speed $(ARGS)

benchmark-scaling: setup  ## Measure rounds of many clients, and many rounds.
	$(PY) -m benchmarks.scaling $(ARGS)

benchmark-load: setup  ## Put each runtime under load: 1,000 rounds of 100 clients, one of 10,000.
	$(PY) -m benchmarks.scaling --runtime=in_process --runtime=local --runtime=remote \
	--long_run_clients=100 --clients=10000 --num_clients=10000 --rounds=1 $(ARGS)

benchmark-mime: setup  ## Measure a round of Mime, or an elastic one, beside one of FedAvg.
	$(PY) -m benchmarks.mime_speed $(ARGS)

benchmark-data: setup  ## Measure the data's share of a round (ARGS=--data_dir=DIR).
	$(PY) -m benchmarks.data_share $(ARGS)

benchmark-states: setup  ## Measure what clients' states cost a round of SCAFFOLD (18 GB of disk).
	$(PY) -m benchmarks.client_states $(ARGS)

build-files: setup  ## Write the Bazel BUILD files from the sources' imports.
	$(PY) tools/build_files.py

requirements:  ## Pin requirements.in anew (ARGS=--upgrade for newer versions).
	@$(FIND_PYTHON); [ "$$python" ] || { echo "$$NO_PYTHON" >&2; exit 1; }; \
	uv=$$(command -v uv) || { scratch=$$(mktemp -d); trap 'rm -rf "$$scratch"' EXIT; \
	"$$python" -m venv "$$scratch" && "$$scratch/bin/pip" install --quiet uv \
	&& uv=$$scratch/bin/uv; } || exit 1; \
	"$$uv" pip compile --generate-hashes --python-version 3.11 \
	--python-platform x86_64-manylinux_2_31 --override overrides.txt \
	--no-annotate --no-emit-index-url --custom-compile-command "make requirements" \
	--quiet --output-file requirements.txt $(ARGS) requirements.in

clean:  ## Remove .venv and all caches; results under runs/ stay.
	rm -rf .venv build *.egg-info .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
