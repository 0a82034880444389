# Every target sets up what it needs in .venv/; PYTHON may name any Python from 3.11 on.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: help setup demo test lint types format bench clean

help:  ## list the targets
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/  -/'

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade 'pip>=25.1'
	$(BIN)/python -m pip install --quiet --constraint constraints.txt torch
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[demo,mdns]' --group dev
	touch $@

setup: $(STAMP)  ## make the virtual environment

demo: $(STAMP)  ## three daemons on this machine train a model on real data
	$(BIN)/p2ptrain demo

lint: $(STAMP)  ## format, lint, spelling and import contracts
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/codespell
	$(BIN)/lint-imports

types: $(STAMP)  ## both type checkers
	$(BIN)/mypy
	$(BIN)/pyright

test: $(STAMP)  ## all tests
	$(BIN)/python -m pytest

format: $(STAMP)  ## rewrite the code in the house style
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(STAMP)  ## every benchmark, each against a peer in the same run
	for file in benchmarks/*.py; do $(BIN)/python $$file || exit 1; done

clean:  ## remove what the targets made
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
