# `make sweep` and `make test` build .venv when it is missing or when the project's metadata changed.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin

.PHONY: sweep test lint gpu-check clean
sweep: $(VENV)/.installed
	$(BIN)/kvbench sweep smoke

test: $(VENV)/.installed
	$(BIN)/python -m pytest -n 2 --dist worksteal

lint: $(VENV)/.installed
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# Runs from the checkout with whatever python there is: nothing is installed. Without a CUDA device it takes the CPU form.
GPU_CHECK_PYTHON ?= $(if $(wildcard $(BIN)/python),$(BIN)/python,$(PYTHON))
GPU_CHECK_OUT    ?= gpu-check
gpu-check:
	PYTHONPATH=$(CURDIR):$(CURDIR)/kernels:$(PYTHONPATH) $(GPU_CHECK_PYTHON) benchmarks/gpu_check.py --out $(GPU_CHECK_OUT)

# The constraints file names the small CPU build of torch; leave it out on a machine with a GPU:
#   make sweep CONSTRAINTS=
CONSTRAINTS ?= -c constraints-cpu.txt
$(VENV)/.installed: pyproject.toml constraints-cpu.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check $(CONSTRAINTS) -e '.[dev]'
	touch $@

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache build dist
