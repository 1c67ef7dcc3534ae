# Everything runs in .venv, made from the lock files on Linux and from pyproject's ranges elsewhere: requirements-run.lock
# is what a run needs, requirements.lock that and the tools.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
RUNNABLE := $(VENV)/.runnable
PIP := $(BIN)/pip install --quiet --disable-pip-version-check
CHROMIUM := timeout 150 apt-get install --yes --quiet --no-install-recommends chromium
COVERAGE ?= --cov
LOCKED := $(filter Linux,$(shell uname -s))

.PHONY: help setup demo browser test test-lowest lowest-lock test-slow lint format results docs reference surface lock clean
.DEFAULT_GOAL := help

help:  ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(READY)  ## install pencil and its tools into .venv

$(RUNNABLE): pyproject.toml requirements-run.lock
	$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("pencil needs Python 3.11 or newer")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
ifneq ($(LOCKED),)
	$(PIP) -r requirements-run.lock
	$(PIP) --no-deps --no-build-isolation --editable .
else
	$(PIP) --editable .
endif
	touch $@

$(READY): $(RUNNABLE) requirements.lock
ifneq ($(LOCKED),)
	$(PIP) -r requirements.lock
else
	$(PIP) --editable '.[dev]'
endif
	touch $@

demo: $(RUNNABLE)  ## train on digits with half of the labels corrupted (under a minute)
	$(BIN)/pencil demo

browser:  ## chromium for the tests of the review page, where root and apt can install it
	@command -v chromium >/dev/null || command -v chromium-browser >/dev/null || command -v google-chrome >/dev/null || \
	{ test "$$(id -u)" = 0 && command -v apt-get >/dev/null && { $(CHROMIUM) || { timeout 60 apt-get update && $(CHROMIUM); }; }; } || \
	echo '*** NO CHROMIUM: the review page will not be tested in a browser; install one and run this again ***' >&2

test: $(READY) browser  ## all tests except the slow ones, with their coverage (COVERAGE= leaves it out)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m "not slow" --numprocesses=auto $(COVERAGE)  # a process for each core, a thread in each

LOWEST := .venv-lowest
LOWEST_TESTS := tests/test_public.py tests/test_golden.py tests/labels/test_losses.py tests/labels/test_store.py \
  tests/data/test_delimited.py tests/recipe/test_recipe.py tests/runs/test_directory.py tests/runs/test_label_table.py \
  tests/report tests/review/test_decisions.py tests/audit/test_signals.py

# The oldest versions that pyproject.toml allows, except torch and torchvision: the oldest that were at hand as CPU builds.
# On a CPU install PyTorch's CPU builds of those two into .venv-lowest first. Photos are left out: they need a torchvision
# that fits the build of torch. Old libraries on newer ones warn of deprecations, which are not errors here.
test-lowest:  ## a part of the tests with the oldest allowed versions, in .venv-lowest
	test -x $(LOWEST)/bin/python || $(PYTHON) -m venv $(LOWEST)
	$(LOWEST)/bin/pip install --quiet --disable-pip-version-check -r requirements-lowest.lock
	OMP_NUM_THREADS=1 PYTHONPATH=src $(LOWEST)/bin/python -m pytest -m "not slow" -W ignore::DeprecationWarning $(LOWEST_TESTS)

lowest-lock: $(READY)  ## write requirements-lowest.lock from pyproject.toml and the other lock files
	$(BIN)/python .ci/write_lowest_lock.py

test-slow: $(READY)  ## the slow tests: full-size figures
	$(BIN)/python -m pytest -m slow --timeout=3600

lint: $(READY)  ## format check, lint, types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: $(READY)  ## format and fix what can be fixed
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

results: $(READY)  ## measure everything that the pages claim, in six hours; DATA= names a folder of files that pencil lacks
	$(BIN)/python benchmarks/results.py $(if $(DATA),--data $(DATA))

docs: $(READY)  ## the documentation as a site in site/; a broken link is an error
	$(BIN)/python docs/stage.py build/docs
	$(BIN)/zensical build --strict --clean
	@echo 'open site/index.html; for its search: $(BIN)/python -m http.server --directory site'

reference: $(READY)  ## write docs/reference from the docstrings and the command line
	$(BIN)/python docs/write_reference.py docs/reference

surface: $(READY)  ## write tests/surface.txt: the names, options and recipe keys that version 1 promises
	$(BIN)/python tests/surface.py

lock: $(READY)  ## pin what is installed now, all of it and what a run needs
	$(BIN)/pip freeze --all --exclude-editable --exclude pip | LC_ALL=C sort -f > requirements.lock
	$(BIN)/python .ci/write_run_lock.py

clean:  ## remove the environment and caches
	rm -rf $(VENV) $(LOWEST) .mypy_cache .pytest_cache .ruff_cache .hypothesis build dist site .cache src/*.egg-info
