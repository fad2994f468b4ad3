# Everything runs in .venv, which `make setup` makes; the other targets call it first. The demo has a light one.
# Another Python than python3: make setup PYTHON=python3.12

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
DEMO := .venv-demo
EXTRA_$(VENV) := dev
EXTRA_$(DEMO) := demo

# Two targets at a time share the cores: threads that wait do it asleep.
export OMP_WAIT_POLICY := PASSIVE
MAKEFLAGS += --no-builtin-rules
.PRECIOUS: %/bin/python
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup demo test check site wheel golden faults mutants suites bench matrix matrix-oldest matrix-newest clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-8s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

setup: $(INSTALLED) ## Make .venv and install quantdrift with everything for development
	@:

demo: $(DEMO)/.installed ## Compare a model with its quantized self, in an environment of its own
	@$(DEMO)/bin/quantdrift demo

# A worker for every core, each computing in one thread: more would stand in each other's way.
test: setup ## Run the tests
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses auto --dist loadfile \
		--no-loadscope-reorder

check: setup ## Lint, formatting, types, import boundaries and circles, the budget of lines, the website and its links
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(BIN)/python tests/size/size.py
	$(BIN)/python tests/size/circles.py
	@OMP_NUM_THREADS=2 $(BIN)/python docs/website/build.py

site: setup ## Build the website into build/site
	@OMP_NUM_THREADS=2 $(BIN)/python docs/website/build.py

wheel: ## Build the package, install the wheel into an empty environment and try it there
	@tests/wheel/run $(PYTHON) $(WHEEL)

golden: setup ## Hold what sixty commands and seventy architectures give against tests/golden/expected
	@OMP_NUM_THREADS=2 $(BIN)/python tests/golden/golden.py
	@OMP_NUM_THREADS=2 $(BIN)/python tests/golden/architectures.py

faults: setup ## Kill, starve and damage studies, in many more ways than make test does
	@QUANTDRIFT_FAULTS=full $(BIN)/python -m pytest tests/faults -m "slow or not slow" -p no:cacheprovider

mutants: setup ## Make errors by hand, one after another, and name those that no test notices
	@OMP_NUM_THREADS=1 $(BIN)/python tests/mutants/mutants.py

suites: setup ## Run the paper's suites in their offline variants; those of models that are made first say how
	@for suite in text query granularity activations corpus-sizes classes contrast allocation; do \
		OMP_NUM_THREADS=2 $(BIN)/quantdrift study run --suite $$suite --offline --quiet || exit 1; done

bench: setup ## Measure time and memory against the bare products and mteb's own search
	@$(BIN)/python -m pytest tests/benchmarks -s -p no:cacheprovider

matrix: matrix-oldest matrix-newest ## Run the harnesses' tests with the oldest and the newest versions, in .venv-matrix

matrix-oldest matrix-newest:
	@tests/matrix/run $(@:matrix-%=%) $(PYTHON)

clean: ## Remove caches and build results; .venv stays
	rm -rf build dist .cache .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache .benchmarks
	find quantdrift plugins tasks tests -name __pycache__ -type d -prune -exec rm -rf {} +

# An install copies the start-up files, so a change in them asks for a new one as well. Python compiles what it
# imports; to compile every file of every library takes a minute more.
%/.installed: pyproject.toml constraints.txt $(wildcard plugins/startup/*) | %/bin/python
	@echo "Installing quantdrift[$(EXTRA_$*)] into $* (the first time takes minutes) ..."
	@$*/bin/python -m pip install --quiet --disable-pip-version-check --no-compile \
		--constraint constraints.txt --editable ".[$(EXTRA_$*)]"
	@touch $@

# A half-made environment would look finished the next time, hence the rm.
%/bin/python:
	@command -v $(PYTHON) >/dev/null || { \
		echo "$(PYTHON) was not found: install Python 3.11 or newer," \
			"or name it with make PYTHON=..." >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "quantdrift needs Python 3.11 or newer, and $(PYTHON) is" \
			"$$($(PYTHON) --version 2>&1): name another with make PYTHON=..." >&2; exit 1; }
	@$(PYTHON) -m venv $* || { rm -rf $*; exit 1; }
