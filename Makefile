# Needs Python >= 3.11 with pip. Every target sets up what it uses, in .venv.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready

.DEFAULT_GOAL := help
.PHONY: help demo test soak check bench bench-peers clean

help: ## list these targets
	@sed -n 's/^\([a-z-]*\):.*## /  make \1: /p' Makefile

demo: $(READY) ## train a small network on the digits data set
	@$(BIN)/python examples/digits.py

test: $(READY) ## run the tests
	@$(BIN)/pytest

soak: $(READY) ## random runs against lockstep; killed and damaged recordings (about 40 minutes)
	@$(BIN)/pytest --hypothesis-profile=soak -p no:logging tests/semantics/test_c5_invisible.py
	@$(BIN)/pytest --hypothesis-profile=soak tests/semantics/test_c9_recording.py
	@$(BIN)/pytest --hypothesis-profile=soak tests/bus/test_recording.py -k flat

check: $(READY) ## lint, check the format, the types and who imports whom
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/mypy tests
	$(BIN)/lint-imports --no-logo

bench: $(READY) ## measure what a step costs (about 8 minutes)
	@$(BIN)/python benchmarks/bench.py

bench-peers: $(READY) ## measure Keras too, and write benchmarks/RESULTS.md and its plot
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check \
	  --constraint constraints.txt --editable '.[peers,plot]'
	@$(BIN)/python benchmarks/bench.py --peers --write

clean: ## remove everything that these targets made, .venv too
	rm -rf .venv build dist *.egg-info .coverage
	rm -rf .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The stamp is written last, so an install that failed is done again.
$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "railbus needs Python 3.11 or newer; name one: make PYTHON=python3.12" >&2; exit 1; }
	@echo "setting up .venv: railbus and its tools (a minute or two, once)"
	@rm -f $@
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear .venv
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check \
	  --constraint constraints.txt --editable '.[dev,demo]'
	@touch $@
