# Every target makes the environment that it needs (.venv, see .ci/setup.sh) and says so.
.DEFAULT_GOAL := help
.PHONY: help demo demo-queue kills faults fuzz test check lint format types contracts schemas schemas-check readme bench bench-quick \
        build setup setup-demo clean distclean

BIN := .venv/bin
PY := $(BIN)/python
ARGS ?=

export RAY_USAGE_STATS_ENABLED := 0
export TQ_LOGGING_LEVEL ?= ERROR
export PYTHONUNBUFFERED := 1

help:           ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

demo: setup-demo  ## run rollouts with snapshots, kill everything, restore, run to the end
	$(BIN)/snapfmt demo $(ARGS)

demo-queue: setup-demo  ## save a live TransferQueue, kill it, restore it, compare every row
	$(BIN)/snapfmt demo-queue $(ARGS)

kills: setup    ## kill a whole run at every step of a save and a restore (about an hour)
	$(PY) tests/faults/loop_kills.py $(ARGS)

faults: setup   ## crashes, power cuts, mutants, damages, hostile bytes, a soak, crowds (hours); REPORT.md
	$(PY) tests/faults/report.py --run $(ARGS)

fuzz: setup     ## hostile bytes to every parser; guided by coverage where atheris is installed (15 minutes)
	$(PY) tests/faults/fuzz.py $(ARGS)

test: setup     ## run all tests; ARGS="tests/unit -k pack" picks some
ifeq ($(strip $(ARGS)),)
	$(PY) -m pytest -m "not cluster" -n 2 --dist worksteal
	$(PY) -m pytest -m cluster
else
	$(PY) -m pytest $(ARGS)
endif

check:          ## everything that CI runs, in the same order
	@bash .ci/run

lint: setup     ## ruff: rules and formatting
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: setup   ## let ruff format and mend what it can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: setup    ## mypy, strict
	$(BIN)/mypy

contracts: setup  ## who may import whom
	$(BIN)/lint-imports --no-cache

schemas: setup  ## generate the published schemas from the records
	$(PY) -m snapfmt_schemas.export

schemas-check: setup  ## fail when a published schema is stale
	$(PY) -m snapfmt_schemas.export --check

readme: setup   ## run the example of README.md
	$(PY) .ci/readme.py

bench: setup    ## all benchmarks (about three quarters of an hour); believe ratios, not single figures
	$(PY) tests/bench/run.py

bench-quick: setup  ## short ones, without Ray and servers
	$(PY) tests/bench/run.py --quick

build: setup    ## sdist and wheel into dist/
	$(PY) -m build --no-isolation

setup:          ## make .venv for the tests and the checks
	@bash .ci/setup.sh dev

setup-demo:     ## make .venv for the demonstration only
	@bash .ci/setup.sh demo

clean:          ## remove caches and build products
	rm -rf dist build .benchmarks .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find . -path ./.venv -prune -o -path ./.git -prune -o -type d -name __pycache__ -exec rm -rf {} +

distclean: clean  ## remove .venv too
	rm -rf .venv
