# Two commands do all the set-up: `make serve` and `make test`.
# The environment is made once, from pinned and hashed constraints, and made again when they change.
PYTHON ?= python3
PORT ?= 8000
ARGS ?=
TIMES ?= build/test-times.xml
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# cpu: torch without CUDA, on Linux. The environment keeps the choice.
TORCH ?= $(shell cat $(STAMP) 2>/dev/null)
$(if $(filter-out cpu,$(TORCH)),$(error TORCH=$(TORCH) is not supported; use TORCH=cpu, or leave it out for the default build))
UV_VERSION := 0.13.9

# images: `docker`, `podman` or `buildah` build them the same way
BUILDER ?= docker build
BASE ?= python:3.12-slim
IMAGES ?= operator runtime
BUILD_ARGS ?=
REGISTRY ?=
SBOMS ?= build
VERSION := $(shell sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)

# Bytecode is cached: otherwise each process compiles the modules again, and pytest rewrites all assertions.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup serve chat test test-rest test-all test-slow test-times test-load programs e2e e2e-smoke browser-test screenshots clients lint format typecheck prose crds docs operator-bench siege release-check gpu-test gpu-test-2 gpu-bench wheel images lock clean

help:  ## show this list
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | expand -t 16

# shows progress on a terminal
QUIET := $(shell test -t 2 || echo --quiet)

setup: $(STAMP)  ## create or refresh .venv
	@test "$$(cat $(STAMP))" = "$(TORCH)" || { echo "$(VENV) has another build of torch than TORCH=$(TORCH); run make clean first"; exit 1; }

$(STAMP): constraints/lock.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' \
	  || { echo "unmask needs Python 3.11 to 3.13 (PYTHON=/path/to/python3 make ...); found: $$($(PYTHON) --version)"; exit 1; }
	@echo "making $(VENV) of constraints/lock.txt: about a minute, and the downloads, which are large with torch, the first time"
	@$(UV)
	$(INSTALL_$(TORCH))
	$(BIN)/uv pip install $(QUIET) --no-deps --no-build-isolation --python $(BIN)/python -e .
	@echo "$(TORCH)" > $@

LOCKED := $(BIN)/uv pip install $(QUIET) --compile-bytecode --require-hashes --python $(BIN)/python -r
INSTALL_ = $(LOCKED) constraints/lock.txt
# The index of torch, which uv knows, has the builds for CPUs. constraints/lock.txt does not have their hashes.
define INSTALL_cpu
@mkdir -p build
$(PYTHON) -m tools.cpu_lock constraints/lock.txt > build/lock-cpu.txt
$(LOCKED) build/lock-cpu.txt
$(BIN)/uv pip install $(QUIET) --compile-bytecode --no-deps --torch-backend cpu --python $(BIN)/python $(shell grep -o '^torch==[0-9.]*' constraints/lock.txt) \
  || { echo "TORCH=cpu needs the index of torch, see above. Without TORCH, make setup installs the default build of constraints/lock.txt"; exit 1; }
endef

# uv alone is what images need of the environment
UV := test -x $(BIN)/python || $(PYTHON) -m venv $(VENV); $(BIN)/uv --version 2>/dev/null | grep -qF '$(UV_VERSION)' \
  || $(BIN)/python -m pip install --quiet uv==$(UV_VERSION)

serve: setup  ## serve the demo model on PORT (8000); ARGS="--flag value" pass through
	$(BIN)/python -m runtime.server --port $(PORT) $(ARGS)

chat: setup  ## talk to the server on PORT in the terminal and watch blocks being denoised
	$(BIN)/python -m runtime.chat --url http://127.0.0.1:$(PORT) $(ARGS)

# Three workers of pytest on two cores: many tests wait for other processes. More OpenMP threads would only spin. Each
# worker begins with a third of the tests, so that what the tests of a file share is started once; an idle worker takes
# tests from the end of another's list.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 3 --dist worksteal
# Deselects tests that have a target of their own.
ON_CPU := not gpu and not gpu2 and not node and not browser and not clients

test: setup lint typecheck  ## lint, type-check and run the quick CPU tests; they have to pass
	$(PYTEST) $(ARGS)

test-rest: setup programs  ## the CPU tests that `make test` leaves out: API server, compiled programs, long matrices
	$(PYTEST) -m "(cluster or programs or matrix) and not slow and $(ON_CPU)" $(ARGS)

test-all: setup  ## test, then test-rest
	$(MAKE) test
	$(MAKE) test-rest

test-slow: setup programs  ## soak tests, long property runs and the largest matrices, an hour
	$(PYTEST) -m "slow and $(ON_CPU)" --timeout=3600 $(ARGS)

test-times: setup programs  ## run the tests of test-all; print the slowest 50 and the time per directory
	$(PYTEST) -m "not slow and $(ON_CPU)" --junitxml=$(TIMES) $(ARGS); status=$$?; $(BIN)/python -m tests.times $(TIMES); exit $$status

test-load: setup programs  ## the tests of test-all beside four busy loops; ARGS="--passes 3 tests/server"
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.under_load $(ARGS)

programs: setup  ## compile what test-rest runs, once: an API server, etcd, helm
	@$(BIN)/python -m e2e.cluster build

NODE := node
e2e: setup  ## start a cluster with a node (needs root), test the chart and the operator on it, end it
	@set -e; before=; if test -e "$$UNMASK_E2E_KUBECONFIG"; then before="$$UNMASK_E2E_CLUSTER"; fi; \
	  variables="$$($(BIN)/python -m e2e.cluster up $(UP))"; eval "$$variables"; \
	  if test "$$UNMASK_E2E_CLUSTER" != "$$before"; then \
	    trap 'exit 130' INT TERM; trap '$(BIN)/python -m e2e.cluster down' EXIT; fi; \
	  $(BIN)/python -m pytest e2e -m "$(NODE)" $(ARGS)

e2e-smoke: NODE := smoke
e2e-smoke: e2e  ## the tests of e2e that CI runs

browser-test: setup  ## drive the playground in headless Chromium, which it installs (then it needs root)
	$(BIN)/python -m e2e.browser
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/playground -m browser $(ARGS)

screenshots: setup  ## record the playground's answer, and make its screenshots and the animation in docs/images
	$(BIN)/python -m e2e.browser
	PYTHONPATH=operator:. $(BIN)/python -m tools.playground record
	PYTHONPATH=operator:. $(BIN)/python -m tools.playground screenshots

clients: setup  ## run third parties' clients against the demo, each in an environment of its own; ARGS="-k openai" one
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/clients -m clients $(ARGS)

lint: setup  ## run ruff
	$(BIN)/ruff check .
	$(BIN)/ruff check --select C901 --config lint.mccabe.max-complexity=15 runtime/server
	$(BIN)/ruff format --check .

format: setup  ## rewrite files in the house style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

typecheck: setup  ## run mypy
	$(BIN)/mypy

prose: setup  ## print the length of sentences, files and functions; a report without limits
	$(BIN)/python -m tools.prose $(ARGS)

crds: setup  ## write crds/, its chart's copy and docs/reference/fields.md from the operator's models
	@mkdir -p crds charts/unmask-crds/files/crds
	PYTHONPATH=operator:. $(BIN)/python -m tools.strategies names > operator/unmask_operator/api/strategies.py.new
	mv operator/unmask_operator/api/strategies.py.new operator/unmask_operator/api/strategies.py
	PYTHONPATH=operator:. $(BIN)/python -m tools.strategies rules > tools/strategy_rules.py.new
	mv tools/strategy_rules.py.new tools/strategy_rules.py
	PYTHONPATH=operator:. $(BIN)/python -m tools.crd > crds/diffusionlmservices.serving.unmask.dev.yaml
	cp crds/*.yaml charts/unmask-crds/files/crds/
	PYTHONPATH=operator:. $(BIN)/python -m tools.reference > docs/reference/fields.md

# The generator of the site has an environment of its own, because nothing else needs it.
DOCS_VENV := build/docs-venv
DOCS_STAMP := $(DOCS_VENV)/.installed

docs: $(DOCS_STAMP)  ## build the site of docs/ in build/site; every link and anchor has to lead somewhere
	NO_MKDOCS_2_WARNING=1 $(DOCS_VENV)/bin/python -m mkdocs build --strict --quiet --site-dir build/site
	$(DOCS_VENV)/bin/python -m tools.docs.site build/site

$(DOCS_STAMP): constraints/docs.txt
	@$(UV)
	test -x $(DOCS_VENV)/bin/python || $(PYTHON) -m venv $(DOCS_VENV)
	$(BIN)/uv pip install $(QUIET) --require-hashes --python $(DOCS_VENV)/bin/python -r constraints/docs.txt
	@touch $@

operator-bench: setup programs  ## 200 services on pretend nodes: time to Ready, requests, memory, rest, failover
	@$(BIN)/python -m e2e.cluster build kube-scheduler kwok
	PYTHONPATH=operator:. $(BIN)/python -m tools.bench.operator $(ARGS)

siege: setup  ## attack a server of its own, each attack alone, the operator's scrapes, faults of the machine, and measure; ARGS="--all" all at once, ten minutes
	PYTHONPATH=operator:. $(BIN)/python -m tests.siege $(ARGS)
	PYTHONPATH=operator:. $(BIN)/python -m tests.siege.scraping
	PYTHONPATH=operator:. $(BIN)/python -m tests.siege.faults

release-check: setup  ## refuse a release with unfilled places or different versions
	$(BIN)/python -m tools.release

gpu-test:  ## the -m gpu suite, with whatever python3 has torch and a GPU
	PYTHONPATH=. $(PYTHON) -m pytest -m gpu -p no:cacheprovider $$(grep -rl --include='test_*.py' 'mark.gpu' tests) $(ARGS)

gpu-test-2:  ## the -m gpu2 suite, on a machine with two GPUs or more
	PYTHONPATH=. $(PYTHON) -m pytest -m gpu2 -p no:cacheprovider $$(grep -rl --include='test_*.py' 'mark.gpu2' tests) $(ARGS)

gpu-bench:  ## step times of LLaDA2.0-mini's shape with random weights, in 16 bits and in 8
	for format in "" "--quantization fp8"; do \
	  PYTHONPATH=. $(PYTHON) -m runtime.bench steps --live --arch llada2-mini --random-weights $$format --context 512 \
	    --prompt 512 --batch 1 8 32 64 --cases plain commit mixed prefill $(ARGS) || exit 1; \
	done

wheel:  ## build the wheel in dist/
	@$(UV)
	rm -rf build/lib  # of an earlier build, whose files the wheel would contain
	$(BIN)/uv build --quiet --wheel --build-constraints constraints/lock.txt --require-hashes --out-dir dist

images:  ## build the images, and write their SBOMs: IMAGES=operator BUILDER="buildah bud" BASE=image REGISTRY=host/path/ BUILD_ARGS="..."
	@$(UV)
	for target in $(IMAGES); do \
	  $(BUILDER) --build-arg BASE=$(BASE) --build-arg VERSION=$(VERSION) --build-arg REVISION=$$(git rev-parse --short HEAD) \
	    $(BUILD_ARGS) --target $$target -t $(REGISTRY)unmask-$$target:$(VERSION) . || exit 1; \
	  $(BIN)/python -m tools.sbom $(BIN)/uv $$target $(VERSION) $(SBOMS)/unmask-$$target-$(VERSION).cdx.json || exit 1; \
	done

LOCK := $(BIN)/uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-header --no-emit-index-url

lock: setup  ## resolve the constraints again (names, versions and hashes only)
	$(LOCK) --extra dev -c constraints/pins.txt pyproject.toml -o constraints/lock.txt
	$(LOCK) --extra client --extra otel --extra stores -c constraints/lock.txt pyproject.toml -o constraints/runtime.txt
	for extra in operator docs; do \
	  $(BIN)/python -c 'import sys, tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"][sys.argv[1]], sep="\n")' $$extra \
	    | $(LOCK) -c constraints/lock.txt - -o constraints/$$extra.txt || exit 1; \
	done

clean:  ## remove the environment and caches
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis
