# What a person types. Needs Python 3.11 or newer (with pip and venv) and make; everything else is installed into .venv.
# ARGS goes to the command of the target: make run ARGS="--pods 200", make test ARGS="tests/unit -k queue".
# WORKERS is how many files of tests run at once; 0 runs them one after the other in one process.

PYTHON ?= python3
ARGS ?=
WORKERS ?= 2

BIN := .venv/bin
STAMP := .venv/.berth-installed
MEMBERS := shared $(wildcard services/*)
PROJECTS := pyproject.toml $(addsuffix /pyproject.toml,$(MEMBERS))

# uv does not read pip's settings: whoever has told pip of a mirror or a certificate has told uv too.
ifdef PIP_INDEX_URL
export UV_DEFAULT_INDEX ?= $(PIP_INDEX_URL)
endif
ifdef PIP_CERT
export SSL_CERT_FILE ?= $(PIP_CERT)
endif

.DEFAULT_GOAL := help
.PHONY: help setup run up test bench bench-cycle check lint format types layers spelling lock-current lock clean

help:  ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' Makefile

setup: $(STAMP)  ## .venv with the locked dependencies and the berth command; does nothing when it is up to date

# Old interpreters must be able to read the question too. A .venv whose interpreter is gone, or that was left half made, is made anew.
$(STAMP): requirements.lock $(PROJECTS)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "berth needs Python 3.11 or newer, $(PYTHON) is %d.%d: name another with make $(or $(MAKECMDGOALS),setup) PYTHON=python3.11" % sys.version_info[:2])'
	@$(BIN)/python -c 'import sys, pip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || $(PYTHON) -m venv --clear .venv
	@test -x $(BIN)/uv || { sed -n '/^uv==/,/^ *# via/p' requirements.lock >.venv/uv-pin.txt && \
	  $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r .venv/uv-pin.txt; }
	$(BIN)/uv pip install --quiet --compile-bytecode --python $(BIN)/python --require-hashes -r requirements.lock
	$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation $(addprefix -e ,$(MEMBERS))
	@touch $@

run: setup  ## the main job on a simulated cluster: 1,000 pods onto 100 nodes, with a summary at the end
	$(BIN)/berth run $(ARGS)

up: setup  ## the whole pipeline in the foreground, on a real cluster with ARGS="--kubeconfig FILE"
	$(BIN)/berth up $(ARGS)

test: setup  ## every test that this machine can run; names each suite that is left out, and what it lacks
	$(BIN)/pytest -n $(WORKERS) --dist loadfile $(ARGS)

bench: setup  ## throughput on a real API server; against kube-scheduler when its binary is there
	PYTHONPATH=tests $(BIN)/python -m bench.run $(ARGS)

bench-cycle: setup  ## CPU time of one scheduling cycle by pod and number of nodes, and a scorer's memory
	PYTHONPATH=tests $(BIN)/python -m bench.cycle $(ARGS)

check: lint format types layers spelling lock-current  ## all static checks (make -k check: go on after a failure)

lint: setup
	$(BIN)/ruff check .

format: setup
	$(BIN)/ruff format --check .

types: setup
	$(BIN)/mypy

layers: setup
	$(BIN)/lint-imports

spelling: setup
	$(BIN)/codespell . .ci

lock-current: setup
	.ci/lock compare

lock: setup  ## write the lock files from their inputs; present pins stay (ARGS=--upgrade raises them)
	.ci/lock write $(ARGS)

clean:  ## remove .venv and everything that tools have left
	rm -rf .venv .mypy_cache .ruff_cache .import_linter_cache .hypothesis .coverage .coverage.* dist
	find shared services tests -name __pycache__ -type d -prune -exec rm -rf {} +
