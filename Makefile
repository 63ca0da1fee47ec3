# `make demo` and `make test` do everything from a fresh clone: Python 3.11 or newer, git and make are all they need.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/installed

.PHONY: demo test lint setup clean
.DELETE_ON_ERROR:

demo: $(STAMP)
	$(BIN)/ratchet run

test: lint
	$(BIN)/python -m pytest --numprocesses 2

lint: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

setup: $(STAMP)

# torch comes first and alone: another package's wide requirement would otherwise take a newer build.
$(STAMP): pyproject.toml requirements.lock
	$(PYTHON) -c 'import sys; sys.exit("Ratchet needs Python 3.11 or newer, and $(PYTHON) is " + sys.version) if sys.version_info < (3, 11) else 0'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint requirements.lock torch
	$(BIN)/python -m pip install --quiet --constraint requirements.lock --editable '.[dev]'
	touch $(STAMP)

# Everything that runs have made. The data's sources and the installed packages stay.
clean:
	rm -rf .ratchet
