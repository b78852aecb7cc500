# Two commands do everything on a fresh clone: `make run` and `make test`. All others are for people who change ups.
# What they install goes into .venv, pinned by constraints.txt; another interpreter: `make run PYTHON=python3.12`.

PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/.installed

# Settings of the user's own environment that would send packages into it, or its packages into ours.
unexport PYTHONPATH PYTHONHOME PIP_USER PIP_TARGET PIP_PREFIX

.PHONY: run test slow extras oldest faults soak fuzz lint docs wheel clean

run: $(INSTALLED)
	$(BIN)/ups run quickstart

# Two OpenMP threads that spin while other processes want their core are a hundred times slower than one.
test slow extras oldest faults soak fuzz: export OMP_WAIT_POLICY := PASSIVE

# By two processes, a file at a time each.
test: $(INSTALLED)
	$(BIN)/python -m pytest -n 2 --dist loadfile

slow: $(INSTALLED)
	$(BIN)/python -m pytest -m slow

# What needs optional packages or a browser: formats, exports, Hugging Face, the playground, all code of the documentation.
EXTRAS := arrays,arrow,docs,export,hub,lightning,remote,tensorboard
extras: $(INSTALLED)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt \
	  --editable '.[dev,$(EXTRAS)]' schemathesis
	UPS_SCHEMATHESIS=$(BIN)/schemathesis $(BIN)/python -m pytest -m 'slow or not slow' tests/test_docs.py tests/web \
	  tests/data/test_arrays.py tests/data/test_cached.py tests/data/test_remote.py tests/models/test_hub.py \
	  tests/models/test_programs.py tests/report/test_report_gallery.py tests/rollout/test_result.py tests/test_trackers.py \
	  tests/training/test_lightning.py

# The tests, and those that compile, with the oldest torch that pyproject.toml allows, in an environment of its own of 5 GB.
oldest: $(INSTALLED)
	$(PYTHON) -m venv .venv/oldest
	.venv/oldest/bin/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]' \
	  "torch==$$(sed -n 's/.*"torch>=\([0-9.]*\),.*/\1/p' pyproject.toml).*"
	.venv/oldest/bin/python -m pytest
	.venv/oldest/bin/python -m pytest -m slow -k compiled

# Every row of the fault matrix; what was seen goes into the table in docs/faults.md.
faults: $(INSTALLED)
	$(BIN)/python -m pytest -m 'faults or parity' --write-matrix=docs/faults.md

# Trainings under random faults, compared with undisturbed ones; again: goes on and counts on. SOAK_FLAGS=--calm: only what
# must restart nothing, on busy cores.
SOAK_MINUTES ?= 30
SOAK_SEED ?= 0
soak: $(INSTALLED)
	$(BIN)/python tests/faults/soak.py --minutes $(SOAK_MINUTES) --seed $(SOAK_SEED) $(SOAK_FLAGS)

# Damaged and hostile files, thousands of each kind, other ones each time; some minutes.
FUZZ_EXAMPLES ?= 1000
fuzz: $(INSTALLED)
	FUZZ_EXAMPLES=$(FUZZ_EXAMPLES) $(BIN)/python -m pytest -k fuzz tests/data/test_fuzzed_files.py tests/test_fuzzed_inputs.py

lint: $(INSTALLED)
	$(BIN)/ruff check src tests benchmarks examples scripts
	$(BIN)/ruff format --check src tests benchmarks examples scripts
	$(BIN)/pyright

# The documentation as a site, site/index.html; a dead link fails it (not with --quiet, which hides it).
docs: $(INSTALLED)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[docs]'
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "open site/index.html"

# build/ is removed first: setuptools would pack files from it that the sources no longer have.
wheel: $(INSTALLED)
	rm -rf build
	$(BIN)/python -m build --wheel --no-isolation

clean:
	rm -rf .venv build dist site src/*.egg-info .pytest_cache .hypothesis .ruff_cache
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +

$(INSTALLED): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null || \
	  { echo "error: ups needs Python 3.11, 3.12 or 3.13, but '$(PYTHON)' is $$($(PYTHON) --version 2>/dev/null || echo not there);" \
	         "name another one with 'make PYTHON=python3.12 ...'" >&2; exit 2; }
	@echo "installing into .venv: once, about a minute"
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	@touch $@
