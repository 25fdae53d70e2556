# Needs Python 3.11 or newer, git, make and a C compiler; everything else goes into .venv.
# Two stamps: .venv/.base is what a user installs, .venv/.dev adds what a contributor needs.

PYTHON ?= python3
# Each test worker owns a PostgreSQL. Tests mostly wait for other processes: one worker more than two cores.
TEST_WORKERS ?= 3

BIN := .venv/bin
# Quiet twice: print errors only.
PIP := $(BIN)/python -m pip install --quiet --quiet --disable-pip-version-check
PYTEST := $(BIN)/python -m pytest
RIGHT_PYTHON = $(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "andon needs Python 3.11 or newer, this is " + sys.version.split()[0] + ". Try: make PYTHON=python3.11")'

.DEFAULT_GOAL := help
.PHONY: help venv demo test core lint format bench stops chaos matrix verify soak clean

help: ## print this help
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/  make \1|\2/p' $(MAKEFILE_LIST) | tr '|' '\t' | expand -t 16

venv: .venv/.dev ## create .venv with everything for development

demo: .venv/.base ## run the demonstration (needs only what users install)
	@$(BIN)/python examples/demo/demo.py

# Types and the core take one processor each, so they run in parallel. The other tests then use all processors.
test: .venv/.dev ## lint, then every test but the long chaos series; the core must be covered entirely
	@$(MAKE) --no-print-directory --jobs=2 --output-sync=target lint core
	$(PYTEST) --ignore=tests/core --numprocesses=$(TEST_WORKERS) --maxprocesses=4 --dist=worksteal

core: .venv/.dev
	$(BIN)/coverage run -m pytest tests/core
	$(BIN)/coverage report

lint: .venv/.dev ## check style, types and the direction of imports
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: .venv/.dev ## rewrite the code in the house style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: .venv/.dev ## measure andon and its peers
	$(BIN)/python bench/bench.py

stops: .venv/.dev ## measure how soon a stop ends the step in flight, in andon and its peers
	$(BIN)/python bench/stops.py

chaos: .venv/.dev ## run the long series of kills
	$(PYTEST) tests/chaos tests/adapters tests/hostile -m chaos

matrix: .venv/.dev ## kill agents at every moment, with andon and without; writes docs/kill-matrix.md
	$(BIN)/python verify/matrix.py

verify: .venv/.dev ## inject faults into every layer, try every canary; writes docs/verification.md
	$(BIN)/python verify/verify.py

soak: .venv/.dev ## the same for hours
	$(BIN)/python verify/verify.py --effort soak

clean: ## remove everything that make created
	rm -rf .venv .venv-peers bench/results .coverage .coverage.* .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache build dist
	find . -name __pycache__ -not -path './.git/*' -prune -exec rm -rf {} +

# .venv is rebuilt when pyproject.toml changes. Installing .dev does not install .base first.
.venv/.base: pyproject.toml
	@$(RIGHT_PYTHON)
	@echo "installing andon into .venv"
	@$(PYTHON) -m venv .venv
	@$(PIP) --editable .
	@$(BIN)/python -m compileall -q src/andon
	@touch $@

.venv/.dev: pyproject.toml
	@$(RIGHT_PYTHON)
	@echo "installing andon and the development tools into .venv"
	@$(PYTHON) -m venv .venv
	@$(PIP) --editable '.[dev]'
	@$(BIN)/python -m compileall -q src/andon
	@touch .venv/.base $@
