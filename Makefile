# make run: set up and run the GPT-3 feed-forward block. make test: set up and run all checks. Both work on a fresh machine.
PYTHON ?= python3
VENV ?= .venv
TORCH ?= torch==2.13.0
BIN = $(VENV)/bin
RUFF = $(BIN)/ruff check --line-length 110 --target-version py310 \
       --select E,F,I,B,UP,SIM,RUF100 --ignore E741,SIM905

.PHONY: run test test-full wheels lint clean

run: $(VENV)/.installed
	$(BIN)/tilegen run examples/gpt3_mlp.py -s M=64

test: $(VENV)/.tested lint
	$(BIN)/python -m pytest -q -n 2 --dist loadfile --no-loadscope-reorder tests

# 5,000 random op pairs, 500 random programs, 100 on every target, all mutants, all sanitizer builds: about 40 minutes
# on two cores
test-full: $(VENV)/.tested lint
	TILEGEN_FULL=1 $(BIN)/python -m pytest -q -n 2 --dist loadfile --no-loadscope-reorder tests
	$(BIN)/python -m tests.full
	$(BIN)/python -m tests.everywhere --count 100 --jobs 2

# The wheel by every Python from 3.10 on found here, in fresh environments; by $(PYTHON) with torch too
wheels: $(VENV)/.tested
	$(BIN)/python -m tests.wheels
	$(BIN)/python -m tests.wheels --torch "$(TORCH)" "$(PYTHON)"

# tests/gpu and benchmarks by their types, too: where there is no GPU nothing else runs them
lint: $(VENV)/.tested
	$(RUFF) tilegen tests examples benchmarks docs setup.py
	$(BIN)/lint-imports --config tests/layers.ini --no-logo --no-cache
	$(BIN)/mypy --strict --no-warn-return-any --allow-subclassing-any --ignore-missing-imports tilegen
	$(BIN)/mypy --check-untyped-defs --explicit-package-bases --ignore-missing-imports tests/gpu benchmarks

$(VENV)/.installed: setup.py
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q "$(TORCH)"
	$(BIN)/python -m pip install -q -e .
	touch $@

$(VENV)/.tested: $(VENV)/.installed
	$(BIN)/python -m pip install -q -e ".[test]"
	touch $@

clean:
	rm -rf $(VENV) build *.egg-info
