# Every target sets up what it needs; the only requirements are Python 3.11 or later and make.
# CONTRIBUTING.md says what each one is for.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
JOBS ?= 2
# What `make test` installs on top of the package. The integrations (torch, jax, flower) join here: types, docs and
# doctests read their modules too.
EXTRAS := dev,demo,torch,jax,flower
# Extras and frameworks that only the integration tests need, on top of these.
INTEGRATIONS := huggingface,lightning,keras
FRAMEWORKS := flax equinox orbax-checkpoint keras dm-haiku
NAME ?= $(patsubst benchmarks/%.py,%,$(wildcard benchmarks/[a-z]*.py))
BIN := .venv/bin
QUIET := --disable-pip-version-check --quiet
PIP := -m pip $(QUIET) install --constraint
PIN := -m pip --disable-pip-version-check -qq install --no-compile --no-deps
PYTEST := $(BIN)/python -m pytest -n $(JOBS)
CONTRACT := $(addprefix tests/,strategies sensitivity noise/test_streams.py noise/test_state.py noise/test_scale.py \
	accounting/test_early_stopping.py montecarlo/test_modes.py test_curvatures.py test_error.py test_record.py \
	jax/test_correlator.py jax/test_interpreter.py jax/test_scale.py torch/test_interpreter.py torch/test_scale.py)
CHECKS := lint types layers docs doctest

# Without cached bytecode, every process of the tests would compile the packages it imports again.
export PYTHONDONTWRITEBYTECODE :=
# Material for MkDocs reminds of its end of life (May 2027) in every build; CONTRIBUTING.md says what comes after.
export NO_MKDOCS_2_WARNING := 1

.PHONY: test test-integrations test-all lint types layers docs doctest unit contract browser demo dist bench format constraints clean
.DELETE_ON_ERROR:

# The checks use one core each, so they run side by side.
test: .venv/tested
	$(MAKE) --no-print-directory --jobs=$(JOBS) $(CHECKS) unit

# Torch, JAX, Flower, and all else that tests/conftest.py marks as an integration; the slow ones are in test-all.
test-integrations: .venv/integrations
	$(PYTEST) -m "integration and not slow and not browser"

test-all: .venv/integrations
	$(MAKE) --no-print-directory --jobs=$(JOBS) $(CHECKS)
	$(PYTEST) -m "not browser"

lint: .venv/tested
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: .venv/tested
	$(BIN)/mypy

layers: .venv/tested
	$(BIN)/lint-imports --no-logo

docs: .venv/tested
	$(BIN)/mkdocs build --strict --quiet

# In one process: importing the frameworks twice takes longer than the examples.
doctest: .venv/tested
	$(BIN)/python -m pytest --doctest-modules src $(addprefix --ignore=src/antiphase/,torch/huggingface.py torch/lightning.py jax/keras.py)

# The tests of a file stay together: they share what they compute, and the kernels they compile.
unit: .venv/tested
	$(PYTEST) --dist loadfile --no-loadscope-reorder -m "not slow and not browser and not integration"

# What every strategy must pass; STRATEGY is the name of one in tests/catalog.py. Some tests go through all of them.
contract: .venv/tested
	$(if $(STRATEGY),@$(BIN)/python -m tests.catalog "$(STRATEGY)")
	$(PYTEST) -m "not slow" $(CONTRACT) $(if $(STRATEGY),-k "$(STRATEGY) or every or memory or curvatures or test_table")

# The pages of the library and the site in Chromium; SCREENSHOTS=docs/images renews those of the documentation.
browser: .venv/browser docs
	$(BIN)/python -m pytest -m browser tests/browser

demo: .venv/demo
	@$(BIN)/python -m antiphase demo --output build/demo

# The wheel and the source distribution, in dist/.
dist: .venv/installed
	rm -rf dist && mkdir -p build
	$(BIN)/python -m pip $(QUIET) wheel --no-build-isolation --no-deps --wheel-dir dist .
	$(BIN)/python -c "from setuptools.build_meta import build_sdist; build_sdist('dist')" > build/sdist.log 2>&1

bench: .venv/tested .venv-peer/installed
	@set -e; for name in $(NAME); do PEER=.venv-peer/bin/python $(BIN)/python -m benchmarks.$$name; done

format: .venv/tested
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# The package alone.
.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python $(PIP) constraints.txt setuptools
	$(BIN)/python $(PIP) constraints.txt --no-build-isolation --editable .
	touch $@

# With what the demo needs: scikit-learn, for its data. About 30 packages, behind a progress bar. Compiling all of their
# modules would take a minute; those that are used are compiled when they are first imported.
.venv/demo: pyproject.toml constraints.txt .ci/install.py
	@echo "The demo: a new environment in .venv, then private training on handwritten digits."
	@$(PYTHON) -m venv .venv
	@$(BIN)/python $(PIP) constraints.txt -qq setuptools
	@$(BIN)/python .ci/install.py 30 --no-compile --constraint constraints.txt --no-build-isolation --editable ".[demo]"
	@touch .venv/installed $@

# The package with its extras and the tools that check it. constraints.txt lists every package, so there is nothing to
# resolve: each half of the list is installed on a core of its own, and pip's own check confirms that nothing is missing.
.venv/tested: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	xargs -P $(JOBS) -n 75 $(BIN)/python $(PIN) < constraints.txt || $(BIN)/python $(PIN) --requirement constraints.txt
	$(BIN)/python -m pip $(QUIET) install --no-build-isolation --no-deps --editable .
	$(BIN)/python -m pip $(QUIET) check
	touch .venv/installed .venv/demo $@

# With INTEGRATIONS and FRAMEWORKS as well.
.venv/integrations: .venv/tested constraints-integrations.txt
	$(BIN)/python $(PIN) --requirement constraints-integrations.txt
	$(BIN)/python -m pip $(QUIET) check
	touch $@

# Debian's browser and its driver, and the accessibility checker.
.venv/browser: .venv/tested
	command -v chromium && command -v chromedriver || { apt-get update -qq && apt-get install -y -qq chromium chromium-driver; }
	$(BIN)/python $(PIP) constraints.txt axe-core-python
	touch $@

# jax_privacy, which benchmarks compare with; its own environment keeps the main one light.
.venv-peer/installed: constraints-peer.txt
	$(PYTHON) -m venv .venv-peer
	.venv-peer/bin/python $(PIP) constraints-peer.txt jax_privacy
	touch $@

# The newest versions that work together, written to constraints.txt and constraints-integrations.txt. Run the tests
# before committing them. PyTorch stays as it is pinned there, since other versions may come with gigabytes of GPU
# packages: raise its pin by hand.
constraints:
	$(PYTHON) -m venv --clear .venv-new
	grep '^torch==' constraints.txt > .venv-new/torch.txt
	.venv-new/bin/python -m pip --quiet install --upgrade setuptools
	.venv-new/bin/python $(PIP) .venv-new/torch.txt --no-build-isolation --editable ".[$(EXTRAS)]" axe-core-python
	.venv-new/bin/python -m pip freeze --all --exclude-editable --exclude pip | sed 's/+cpu$$//' > constraints.txt
	.venv-new/bin/python $(PIP) constraints.txt --no-build-isolation --editable ".[$(INTEGRATIONS)]" $(FRAMEWORKS)
	.venv-new/bin/python -m pip freeze --all --exclude-editable --exclude pip | sed 's/+cpu$$//' \
		| grep --invert-match --line-regexp --file=constraints.txt > constraints-integrations.txt
	rm -r .venv-new

clean:
	rm -rf .venv .venv-new .venv-peer site build dist src/*.egg-info .*_cache .hypothesis
	find . -name __pycache__ -prune -exec rm -r {} +
