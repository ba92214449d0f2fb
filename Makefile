# Every target works on a clean clone: it creates .venv if it is missing, installs what it needs,
# and installs again when pyproject.toml or CONSTRAINTS changes.
#   PYTHON=python3.12              Python that creates .venv (3.11 or newer)
#   PYTEST_ARGS='-k aaren'         arguments added to pytest's command line
#   CONSTRAINTS=.ci/constraints.txt  install these versions instead of the newest
#   MINUTES=10                     minutes per call of the accelerator command, repeated until done
#   FLAX_LINATTN_PROGRAMS=folder   folder of compiled programs (flax_linattn/compilation.py)
#   FLAX_LINATTN_COMPILE=full      compile tests with all optimizations; takes three times as long

PYTHON ?= python3
VENV   ?= .venv
RUN    ?= runs/demo
PYTEST_ARGS ?=
CONSTRAINTS ?=
MINUTES ?= 10

BIN    := $(VENV)/bin
INSTALL := $(BIN)/python -m pip install --quiet $(CONSTRAINTS:%=--constraint %) --editable
COMMAND := $(BIN)/flax-linattn
# One process per core, at most four: each has its own copy of JAX's compiler.
PYTEST := $(BIN)/python -m pytest -n logical --maxprocesses 4 --dist worksteal
SPHINX := $(BIN)/sphinx-build -W --keep-going -d docs/_build/doctrees

.DEFAULT_GOAL := help
.PHONY: help demo accelerator test test-all test-times lint format types docs readme wheel constraints sbom clean

help:  ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /|/' \
		| awk -F'|' '{ printf "make %-11s %s\n", $$1, $$2 }'

# Training prints the tables of the evaluation, too.
demo: $(VENV)/.base  ## train a classifier with Aaren on Japanese Vowels, stream one sequence, and evaluate
	test -e $(RUN)/test.json || $(COMMAND) train classify --mechanism aaren --epochs 30 \
		--run $(RUN) $(if $(wildcard $(RUN)/checkpoints),--resume) >/dev/null
	$(COMMAND) stream $(RUN) --sequence 157 --figure $(RUN)/stream.png
	$(COMMAND) evaluate $(RUN)
	@echo "Next: activate the environment by '. $(BIN)/activate', and classify your own series by"
	@echo "  flax-linattn train classify --train-file My_TRAIN.ts --test-file My_TEST.ts"
	@echo "or read docs/quickstart.md."

accelerator:  ## run all checks and measurements on a GPU or TPU; continues after an interruption
	@extra=$$($(PYTHON) experiments/accelerator/machine.py) \
		&& $(MAKE) $(VENV)/.$$extra \
		&& { status=75; while [ $$status -eq 75 ]; do \
			status=0; $(BIN)/python -m experiments.accelerator --minutes $(MINUTES) || status=$$?; \
		done; exit $$status; }

test: $(VENV)/.test  ## run the fast tests
	$(PYTEST) $(PYTEST_ARGS)

test-all: $(VENV)/.test  ## run all tests, including the slow ones
	$(PYTEST) -m "slow or not slow" $(PYTEST_ARGS)

test-times: $(VENV)/.test  ## recompile everything, and report the seconds of the fast tests by folder
	rm -rf .pytest_cache/programs
	env -u JAX_COMPILATION_CACHE_DIR FLAX_LINATTN_PROGRAMS=.pytest_cache/programs \
		$(PYTEST) --junitxml=.pytest_cache/times.xml $(PYTEST_ARGS)
	$(BIN)/python -m tests.times .pytest_cache/times.xml

lint: $(VENV)/.dev  ## check with ruff
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: $(VENV)/.dev  ## format with ruff, and fix what ruff can fix
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: $(VENV)/.dev  ## check types with mypy in strict mode
	$(BIN)/mypy

docs: $(VENV)/.dev  ## build the documentation in docs/_build/html; fails on warnings and undocumented names
	rm -rf docs/_build
	$(SPHINX) -b html docs docs/_build/html
	$(SPHINX) -b doctest docs docs/_build/doctest
	$(BIN)/python docs/check_coverage.py docs/_build/html/objects.inv

readme: $(VENV)/.dev  ## write the table of mechanisms in README.md from the registry
	$(BIN)/python docs/readme_table.py

wheel: $(VENV)/.dev  ## build the wheel and the source archive in dist/
	rm -rf dist
	$(BIN)/python -m build --outdir dist

# Without certifi, whose newest certificates are the right ones.
constraints: $(VENV)/.dev  ## write the versions of the environment to .ci/constraints.txt
	$(BIN)/python -c 'import platform as p; print("# Python", p.python_version(), "on", p.system())' \
		> .ci/constraints.txt
	$(BIN)/python -m pip freeze --exclude flax-linattn --exclude certifi >> .ci/constraints.txt

# CycloneDX has an environment of its own, so that the list does not hold the tool.
sbom: $(VENV)/.dev  ## write a CycloneDX list of the packages to dist/sbom.json
	$(PYTHON) -m venv $(VENV)/sbom
	$(VENV)/sbom/bin/python -m pip install --quiet 'cyclonedx-bom>=7'
	mkdir -p dist
	$(VENV)/sbom/bin/cyclonedx-py environment --pyproject pyproject.toml --mc-type library \
		--output-reproducible --output-file dist/sbom.json $(BIN)/python

clean:  ## remove the environment and build outputs; keeps runs/ and compiled programs
	rm -rf $(VENV) build dist docs/_build .mypy_cache .pytest_cache .ruff_cache .hypothesis

# The environment. Each stamp stands for one installed set of extras.
$(BIN)/python:
	@command -v $(PYTHON) >/dev/null 2>&1 || { \
		echo "'$(PYTHON)' is not a command here. Name a Python of 3.11 or newer: make PYTHON=..." >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "flax-linattn needs Python 3.11 or newer, and '$(PYTHON)' is $$($(PYTHON) --version 2>&1). Name a newer one: make PYTHON=python3.12" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); exit 1; }

$(VENV)/.base: pyproject.toml $(CONSTRAINTS) | $(BIN)/python
	$(INSTALL) '.[plots]'
	@touch $@

$(VENV)/.test: pyproject.toml $(CONSTRAINTS) | $(BIN)/python
	$(INSTALL) '.[test]'
	@touch $@

$(VENV)/.dev: pyproject.toml $(CONSTRAINTS) | $(BIN)/python
	$(INSTALL) '.[dev]'
	@touch $@

# Without the kernels their comparisons say what to install, and all others run.
$(VENV)/.cuda12 $(VENV)/.cuda13 $(VENV)/.tpu: $(VENV)/.%: pyproject.toml | $(BIN)/python
	$(INSTALL) '.[accelerator,$*]'
	test $* = tpu || $(INSTALL) '.[accelerator,$*,kernels]' \
		|| echo "no kernels to compare with: pip could not install the extra 'kernels'" >&2
	@touch $@
