# The whole vocabulary of the README. Every target is one command on a fresh Debian machine with python3 >= 3.11.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
SHELL  := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

REQUIREMENTS := requirements/uv.txt requirements/dev.txt requirements/builtin-model.txt requirements/build.txt pyproject.toml
KERNELS      := kernels/tidegate_kernels/cpu
LIBRARY      := hatch_build.py $(KERNELS)/CMakeLists.txt $(wildcard $(KERNELS)/*.[ch])
INSTALLED    := $(VENV)/.installed

.PHONY: help install serve demo demo-clean check format test test-fast test-kernels test-model test-cluster test-nightly bench requirements generate clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s  %s\n", $$1, $$2}' $(MAKEFILE_LIST)

install: $(INSTALLED) ## Make .venv from the pinned, hashed requirement files (about a minute), and the CPU kernels

$(INSTALLED): $(REQUIREMENTS) $(LIBRARY)
	bash tools/make_venv.sh $(PYTHON) $(VENV)
	touch $@

serve: install ## One pod's server on this CPU with the embedded model, no cluster
	$(BIN)/python tools/serve_locally.py

demo: install ## Chart, resource and a streamed chat on a real Kubernetes (DEMO_CONTEXT=name picks yours)
	$(BIN)/python -m tools.demo up

demo-clean: install ## Remove what `make demo` made
	$(BIN)/python -m tools.demo clean

check: install ## Format, lint, types, import directions
	$(BIN)/ruff format --check --quiet .
	$(BIN)/ruff check --quiet .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

format: install ## Rewrite the code in our format
	$(BIN)/ruff check --fix --quiet .
	$(BIN)/ruff format --quiet .

test: test-fast test-kernels test-model test-cluster ## Everything: the quick part, then what compiles, the real model, a real cluster

test-fast: install ## Everything that needs no Kubernetes, no real model and no compiler: about five minutes
	$(BIN)/pytest -q -n auto --maxprocesses 4 --dist loadfile --no-loadscope-reorder -m "not compiles and not real_model and not control_plane and not e2e"

test-kernels: install ## The CPU kernels under sanitizers, Triton's compiled for GPUs that need not be there
	$(BIN)/pytest -q -m compiles

test-model: install ## The embedded model: exact against transformers, and served by a whole process
	$(BIN)/pytest -q -m real_model

test-cluster: install ## The API server's part, then end to end on a real cluster (KUBECONFIG picks yours)
	$(BIN)/pytest -q -m "control_plane or e2e"

test-nightly: install ## The scheduler's machine, ten times as long as in `make test-fast`
	TIDEGATE_NIGHTLY=1 $(BIN)/pytest -q tests/server/engine/test_scheduler_machine.py

bench: install ## Our server and a peer, one after the other, on this machine
	$(BIN)/python -m tidegate_bench compare $(BENCH_ARGS)

generate: install ## Regenerate what is made from code: the CRD in the chart, manifests/install.yaml
	$(BIN)/python -m tools.generate

COMPILE := $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-annotate \
	--no-emit-index-url --no-emit-find-links --custom-compile-command "make requirements"
requirements: $(INSTALLED) ## Pin the requirement files again (UPGRADE=1 takes newer versions)
	$(COMPILE) $(if $(UPGRADE),--upgrade) requirements/uv.in -o requirements/uv.txt
	$(COMPILE) $(if $(UPGRADE),--upgrade) requirements/build.in -o requirements/build.txt
	$(COMPILE) $(if $(UPGRADE),--upgrade) --no-deps requirements/builtin-model.in -o requirements/builtin-model.txt
	$(COMPILE) $(if $(UPGRADE),--upgrade) --extra server --extra operator --extra gpu --extra bench --extra dev pyproject.toml -o requirements/dev.txt
	$(COMPILE) --extra server --extra gpu -c requirements/dev.txt pyproject.toml -o requirements/server.txt
	$(COMPILE) --extra operator -c requirements/dev.txt pyproject.toml -o requirements/operator.txt

clean: ## Remove the virtual environment, the built CPU kernels and the caches in this folder
	rm -rf $(VENV) build $(KERNELS)/*.so .mypy_cache .ruff_cache .pytest_cache .hypothesis
