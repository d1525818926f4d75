# Commands for development. They need Python 3.11 or newer (with pip and venv) and make; the rest is installed into .venv.
# ARGS is passed to the target's command: make run ARGS="--pods 200", make test ARGS="tests/unit -k queue".
# WORKERS is the number of test processes, each of which runs one file at a time; 0 runs all files in one process. Slow
# tests have three on two cores, since they wait for much of their time.
# DIST is the folder of what a release has, REPOSITORY the image's name in its chart and manifests.

PYTHON ?= python3
ARGS ?=
WORKERS ?= 2
DIST ?= dist
REPOSITORY ?= berth

BIN := .venv/bin
# Where PYTHONDONTWRITEBYTECODE is set, as in containers, each worker would compile all tests again for ten seconds.
PYTEST = PYTHONDONTWRITEBYTECODE= $(BIN)/pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder
PIP_AUDIT_VERSION := 2.9.0
VERSION := $(shell sed -n 's/^__version__ = "\(.*\)"/\1/p' shared/core/src/berth/__init__.py)
BUILD_ARGS = --build-arg VERSION=$(VERSION) --build-arg REVISION=$(shell git rev-parse HEAD 2>/dev/null || echo unknown) $(ARGS)
STAMP := .venv/.berth-installed
MEMBERS := $(patsubst %/pyproject.toml,%,$(wildcard shared/*/pyproject.toml services/*/pyproject.toml))
PROJECTS := pyproject.toml $(addsuffix /pyproject.toml,$(MEMBERS))

# uv does not read pip's settings, so a mirror or certificate that is configured for pip is passed on to uv.
ifdef PIP_INDEX_URL
export UV_DEFAULT_INDEX ?= $(PIP_INDEX_URL)
endif
ifdef PIP_CERT
export SSL_CERT_FILE ?= $(PIP_CERT)
endif

.DEFAULT_GOAL := help
.PHONY: help setup run up test bench bench-drain bench-latency bench-cycle bench-requests bench-requeue bench-placement bench-herd bench-tenant bench-failover bench-recovery simulate-faults faults soak fuzz krew audit check lint format types layers spelling lock-current lock clean

# A target is listed with the others of its kind; what no pattern matches is for a release.
help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { \
	    kind = $$1 ~ /^(help|setup|run|up)$$/ ? "Start" : $$1 ~ /^(test|check|docs|clean|lock)/ ? "Change" : \
	      $$1 ~ /^(bench|trace)/ ? "Measure" : $$1 ~ /(faults|soak|fuzz)/ ? "Break" : "Release"; \
	    listed[kind] = listed[kind] sprintf("  make %-16s %s\n", $$1, $$2) } \
	  END { count = split("Start Change Release Break Measure", kinds, " "); \
	    for (i = 1; i <= count; i++) printf("%s%s\n%s", (i > 1 ? "\n" : ""), kinds[i], listed[kinds[i]]) }' Makefile

setup: $(STAMP)  ## create .venv with the locked dependencies and the berth command; does nothing when it is up to date

# The version check must be valid syntax for old interpreters too. A broken or incomplete .venv is created again.
$(STAMP): requirements.lock $(PROJECTS)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "berth needs Python 3.11 or newer, $(PYTHON) is %d.%d: name another with make $(or $(MAKECMDGOALS),setup) PYTHON=python3.11" % sys.version_info[:2])'
	@$(BIN)/python -c 'import sys, pip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || $(PYTHON) -m venv --clear .venv
	@test -x $(BIN)/uv || { sed -n '/^uv==/,/^ *# via/p' requirements.lock >.venv/uv-pin.txt && \
	  $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r .venv/uv-pin.txt; }
	$(BIN)/uv pip install --quiet --compile-bytecode --python $(BIN)/python --require-hashes -r requirements.lock
	$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation $(addprefix -e ,$(MEMBERS))
	@touch $@

run: setup  ## schedule 1,000 pods onto the 100 nodes of a simulated cluster, and print a summary
	$(BIN)/berth run $(ARGS)

up: setup  ## run the whole pipeline in the foreground; ARGS="--kubeconfig FILE" for a real cluster
	$(BIN)/berth up $(ARGS)

test: setup  ## run the fast tests: no process, no socket, no waiting; two minutes
	$(PYTEST) -m "not slow" $(ARGS)

.PHONY: test-all test-slow test-long
test-all test-slow: WORKERS = 3
test-all: setup  ## run every test that this machine can run, and list what is left out with the reason; 20 minutes
	$(PYTEST) $(ARGS)

test-slow: setup  ## run what make test leaves out
	$(PYTEST) -m slow $(ARGS)

test-long: setup  ## try 20 times as many seeds and random examples, and every mutation; hours; ARGS="tests/unit/binder"
	BERTH_TEST_LONG=1 $(PYTEST) -m long --timeout 36000 $(ARGS)

bench: setup  ## compare with kube-scheduler in one run: throughput, CPU a pod, start, latency, repeats; half an hour
	PYTHONPATH=tests $(BIN)/python -m bench.comparison $(ARGS)

bench-drain: setup  ## measure throughput on a real API server, and kube-scheduler's when its binary is there
	PYTHONPATH=tests $(BIN)/python -m bench.run $(ARGS)

bench-latency: setup  ## measure how long a pod waits for its node at a steady rate, and with kube-scheduler
	PYTHONPATH=tests $(BIN)/python -m bench.latency $(ARGS)

bench-cycle: setup  ## measure the CPU time of a scheduling cycle by kind of pod and number of nodes, and a scorer's memory
	PYTHONPATH=tests $(BIN)/python -m bench.cycle $(ARGS)

.PHONY: bench-groups
bench-groups: setup  ## measure the CPU time of planning a group of 4, 100 and 1,000 members on 5,000 nodes in 50 racks, by kind of members
	PYTHONPATH=tests $(BIN)/python -m bench.groups $(ARGS)

.PHONY: bench-devices
bench-devices: setup  ## measure the CPU time of a cycle for a pod with a claim among 40,000 devices, by what is known of its expression
	PYTHONPATH=tests $(BIN)/python -m bench.devices $(ARGS)

.PHONY: bench-device-memory
bench-device-memory: setup  ## measure the memory of each service for a device and once, on a real API server
	PYTHONPATH=tests $(BIN)/python -m bench.device_memory $(ARGS)

bench-requests: setup  ## measure the CPU time of a POST to a real API server, beside aiohttp and beside the least possible
	PYTHONPATH=tests $(BIN)/python -m bench.requests $(ARGS)

.PHONY: bench-wire
bench-wire: setup  ## measure what a message on the bus costs a client, with nats-py as it is and through berth.bus
	PYTHONPATH=tests $(BIN)/python -m bench.wire $(ARGS)

bench-requeue: setup  ## measure what an event costs the watcher while thousands of pods wait, and its queue with 200,000
	PYTHONPATH=tests $(BIN)/python -m bench.requeue $(ARGS)

.PHONY: bench-collector
bench-collector: setup  ## measure the CPU time of the metrics collector for an interval, in a cluster of 5,000 nodes
	PYTHONPATH=tests $(BIN)/python -m bench.collector $(ARGS)

bench-tenant: setup  ## measure how long one tenant's pod waits while another creates as much as the API server lets him
	PYTHONPATH=tests $(BIN)/python -m bench.tenant $(ARGS)

bench-failover: setup  ## measure how long no pod is bound when services and NATS stop, die or are replaced
	PYTHONPATH=tests $(BIN)/python -m bench.failover $(ARGS)

bench-recovery: setup  ## measure the time to the first Binding in a large cluster, for a new berth and after the loss of NATS's store
	PYTHONPATH=tests $(BIN)/python -m bench.recovery $(ARGS)

.PHONY: bench-floods
bench-floods: setup  ## flood NATS as each of its users; measure the next pod, leaders, logs and memory; ARGS="people --takeover"
	PYTHONPATH=tests $(BIN)/python -m bench.floods $(ARGS)

.PHONY: bench-scale
bench-scale: setup  ## measure how cost grows with nodes, waiting and bound pods, classes, scorers; ten minutes; ARGS="nodes classes"
	PYTHONPATH=tests $(BIN)/python -m bench.scale $(ARGS)

.PHONY: trace-pod
trace-pod: setup  ## show one pod's way through the code: calls, functions, modules and module changes by service; half a minute
	PYTHONPATH=tests $(BIN)/python -m bench.trace_pod $(ARGS)

faults: setup  ## break real servers and processes at random instants; ARGS="--seed 7 --faults 100" repeats a run
	PYTHONPATH=tests $(BIN)/python -m faults.run $(ARGS)

soak: setup  ## let pods come and go among faults for half an hour, and look whether memory grows
	PYTHONPATH=tests $(BIN)/python -m faults.soak $(ARGS)

bench-placement: setup  ## compare the placement by one and by many scorers on the real pipeline, and count repeated rankings
	PYTHONPATH=tests $(BIN)/python -m bench.placement $(ARGS)

bench-herd: setup  ## compare where a burst of pods goes by measured load: berth, Trimaran's and Koordinator's rules, an oracle
	PYTHONPATH=tests $(BIN)/python -m bench.herd $(ARGS)

simulate-faults: setup  ## run the services under simulated time with faults by seed; ARGS="--seeds 1000 --jobs 2", "--seed N -v"
	PYTHONPATH=tests $(BIN)/python -m simulation $(ARGS)

check: lint format types layers spelling lock-current  ## run all static checks (make -k check continues after a failure)

.PHONY: docs
docs: setup .venv-docs/.installed  ## build the site of docs/ into dist/site; a warning, such as a broken link, is an error
	NO_MKDOCS_2_WARNING=1 .venv-docs/bin/mkdocs build --strict
	@echo dist/site/index.html

.venv-docs/.installed: docs/requirements.lock | $(STAMP)
	$(BIN)/uv venv --quiet --clear --python $(BIN)/python .venv-docs
	$(BIN)/uv pip install --quiet --python .venv-docs/bin/python --require-hashes -r docs/requirements.lock
	@touch $@

.PHONY: release image
# Built with PLATFORMS by buildx, which needs a builder that can export OCI archives; else for this machine by its engine.
release: setup  ## put what a release has into dist; IMAGE=NAME:TAG takes one that is built; PLATFORMS=linux/amd64,linux/arm64
	@command -v helm >/dev/null || { echo "make release: helm packs the chart, and there is no helm on the PATH: https://helm.sh/docs/intro/install"; exit 2; }
ifdef PLATFORMS
	docker buildx build --file deploy/Dockerfile --platform $(PLATFORMS) --output type=oci,dest=$(DIST).oci.tar,name=$(REPOSITORY):$(VERSION) $(BUILD_ARGS) .
	$(BIN)/python deploy/release.py --out $(DIST) --repository $(REPOSITORY) --archive $(DIST).oci.tar
	rm $(DIST).oci.tar
else
	$(if $(IMAGE),,$(MAKE) --no-print-directory image)
	$(BIN)/python deploy/release.py --out $(DIST) --repository $(REPOSITORY) --image $(or $(IMAGE),berth:$(VERSION))
endif

image: setup  ## build the image berth:VERSION; ARGS="--build-arg BUILD_PYTHON=IMAGE" behind a mirror
	@command -v docker >/dev/null || { echo "make image: Docker builds it, and there is no docker on the PATH"; exit 2; }
	docker build --quiet --file deploy/Dockerfile --tag berth:$(VERSION) $(BUILD_ARGS) . && echo berth:$(VERSION)

krew: setup  ## build kubectl berth for krew in dist/krew; URL=... is where the archives will be
	@test -n "$(URL)" || { echo "make krew: name the address of the archives: make krew URL=https://..."; exit 2; }
	$(BIN)/python deploy/krew/build.py --url "$(URL)" $(ARGS)

audit: setup  ## look the image's packages up in the list of known vulnerabilities (needs the network)
	$(BIN)/uv tool run --from pip-audit==$(PIP_AUDIT_VERSION) pip-audit --disable-pip --require-hashes --requirement deploy/requirements.lock

fuzz: setup  ## try all that is read from outside with a million mutated inputs; ARGS="--inputs N --seed N"
	PYTHONPATH=tests $(BIN)/python -m fuzz.run $(ARGS)

lint: setup
	$(BIN)/ruff check .

format: setup
	$(BIN)/ruff format --check .

types: setup
	$(BIN)/mypy

layers: setup
	$(BIN)/lint-imports

# The second run reads names too: words that have one of Kubernetes or NATS in their place.
spelling: setup
	$(BIN)/codespell . .ci
	$(BIN)/codespell --dictionary .codespell-words --regex '[A-Za-z]+' shared services

lock-current: setup
	.ci/lock compare

lock: setup  ## write the lock files from their inputs; existing pins stay (ARGS=--upgrade raises them)
	.ci/lock write $(ARGS)

clean:  ## remove .venv, caches and build output
	rm -rf .venv .venv-docs .mypy_cache .ruff_cache .import_linter_cache .hypothesis .coverage .coverage.* dist
	find shared services tests -name __pycache__ -type d -prune -exec rm -rf {} +
