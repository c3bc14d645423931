# Two commands matter: `make demo` and `make test`. Both make the virtual environment when it is missing.
VENV   ?= .venv
PYTHON ?= python3
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip --disable-pip-version-check --quiet
# PyTorch's index for another build of torch, such as the one without CUDA.
TORCH_INDEX ?=
# Tests run in this many processes: two more than two cores, because many tests wait for processes of theirs.
JOBS   ?= 4
# Each process that a test starts would compile all of our code again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help demo up test .collected chaos check format openapi clean

help: ## show what there is
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-9s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(VENV)/.worker ## start everything, draw one picture, stop: make demo [PROMPT="a boat with a red sail on the sea"]
	@$(BIN)/renderq demo $(if $(PROMPT),"$(PROMPT)")

up: $(VENV)/.worker ## run the whole system on this machine until Ctrl-C
	@$(BIN)/renderq up

test: $(VENV)/.dev ## every check and every test
	@$(MAKE) --no-print-directory -j 2 check .collected
	@$(BIN)/python -m pytest -q -n $(JOBS) --dist loadgroup

# Prepares all tests for import once, beside the checks, and not in each of the processes at the same time.
.collected: $(VENV)/.dev
	@$(BIN)/python -m pytest -q --collect-only > /dev/null || true

chaos: $(VENV)/.dev ## break a running system at random, on both databases, and check that no job is lost: make chaos [ORDERS=1000] [SEED=1]
	@$(BIN)/python -m benchmarks.chaos --jobs $(or $(ORDERS),1000) --seed $(or $(SEED),1) --database sqlite
	@$(BIN)/python -m benchmarks.chaos --jobs $(or $(ORDERS),1000) --seed $(or $(SEED),1) --database postgresql

check: $(VENV)/.dev ## lint, format, types, import rule
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-cache

format: $(VENV)/.dev ## put the code into shape
	@$(BIN)/ruff check --fix-only .
	@$(BIN)/ruff format .

openapi: $(VENV)/.dev ## write docs/openapi.json anew
	@$(BIN)/python -m api.openapi > docs/openapi.json

clean: ## remove the virtual environment and caches
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

$(BIN)/python:
	@echo "making $(VENV)"
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "renderq needs Python 3.11 or newer: make PYTHON=python3.11 ...")'
	@$(PYTHON) -m venv $(VENV)

$(VENV)/.worker: pyproject.toml constraints.txt | $(BIN)/python
	@echo "installing: 1.7 GB of packages, one to five minutes by network and disk; nothing is shown meanwhile"
	@$(if $(TORCH_INDEX),$(PIP) install --index-url $(TORCH_INDEX) $(shell grep '^torch==' constraints.txt))
	@$(PIP) install --constraint constraints.txt --editable '.[worker,flower]'
	@touch $@

$(VENV)/.dev: $(VENV)/.worker
	@echo "installing what the tests need"
	@$(PIP) install --constraint constraints.txt --editable '.[worker,quantize,flower,dev]'
	@touch $@
