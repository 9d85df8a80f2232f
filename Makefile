# Every target sets up what it needs; the only requirements are Python 3.11 or later and make.
# CONTRIBUTING.md says what each one is for.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
JOBS ?= 2
# What `make test` installs on top of the package. The integrations (torch, jax, flower) join here: types, docs and
# doctests read their modules too.
EXTRAS := dev,demo,torch,jax,flower
NAME ?= $(patsubst benchmarks/%.py,%,$(wildcard benchmarks/[a-z]*.py))
BIN := .venv/bin
QUIET := --disable-pip-version-check --quiet
PIP := -m pip $(QUIET) install --constraint
PYTEST := $(BIN)/python -m pytest -n $(JOBS)
CHECKS := lint types layers docs doctest

.PHONY: test test-integrations test-all lint types layers docs doctest unit browser demo bench format constraints clean
.DELETE_ON_ERROR:

# The checks use one core each, so they run side by side.
test: .venv/tested
	$(MAKE) --no-print-directory --jobs=$(JOBS) $(CHECKS) unit

# Torch, JAX, Flower, and all else that tests/conftest.py marks as an integration; the slow ones are in test-all.
test-integrations: .venv/tested
	$(PYTEST) -m "integration and not slow and not browser"

test-all: .venv/tested
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

doctest: .venv/tested
	$(PYTEST) --doctest-modules src

unit: .venv/tested
	$(PYTEST) -m "not slow and not browser and not integration"

# The report in Chromium; SCREENSHOTS=docs/images renews those of the documentation.
browser: .venv/browser
	$(BIN)/python -m pytest -m browser tests/browser

demo: .venv/demo
	$(BIN)/python -m antiphase demo --output build/demo

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

# With what the demo needs: scikit-learn, for its data.
.venv/demo: .venv/installed
	$(BIN)/python $(PIP) constraints.txt --no-build-isolation --editable ".[demo]"
	touch $@

# The package with its extras and the tools that check it. constraints.txt lists every package, so there is nothing to
# resolve, and pip's own check confirms that nothing is missing.
.venv/tested: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip $(QUIET) install --no-compile --no-deps --requirement constraints.txt
	$(BIN)/python -m pip $(QUIET) install --no-build-isolation --no-deps --editable .
	$(BIN)/python -m pip $(QUIET) check
	touch .venv/installed .venv/demo $@

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

# The newest versions that work together, written to constraints.txt. Run the tests before committing it. PyTorch stays
# as it is pinned there, since other versions may come with gigabytes of GPU packages: raise its pin by hand.
constraints:
	$(PYTHON) -m venv --clear .venv-new
	grep '^torch==' constraints.txt > .venv-new/torch.txt
	.venv-new/bin/python -m pip --quiet install --upgrade setuptools
	.venv-new/bin/python $(PIP) .venv-new/torch.txt --no-build-isolation --editable ".[$(EXTRAS)]" axe-core-python
	.venv-new/bin/python -m pip freeze --all --exclude-editable --exclude pip | sed 's/+cpu$$//' > constraints.txt
	rm -r .venv-new

clean:
	rm -rf .venv .venv-new .venv-peer site build src/*.egg-info .*_cache .hypothesis
	find . -name __pycache__ -prune -exec rm -r {} +
