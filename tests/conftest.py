"""Settings of all tests: `make test` tries the same examples every time, HYPOTHESIS_PROFILE=random tries new ones."""

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# A busy machine must not fail a test: no time limit for an example, and none for making one.
ANY_TIME = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("repeatable", derandomize=True, **ANY_TIME)
settings.register_profile("random", **ANY_TIME)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))

# What needs a framework (torch, jax, flwr) or takes as long: `make test-integrations` runs it. Names in tests/.
INTEGRATIONS = {
    "audit",
    "demo",
    "explore",
    "flower",
    "jax",
    "reproduce",
    "torch",
    "test_benchmarks.py",
    "test_install.py",
    "test_integrations.py",
    "test_notebooks.py",
    "test_training_benchmarks.py",
}


def is_integration(path):
    """Whether a file or directory is one of these, or is inside one."""
    here = Path(__file__).parent
    return path != here and path.is_relative_to(here) and path.relative_to(here).parts[0] in INTEGRATIONS


def pytest_ignore_collect(collection_path, config):
    """Do not import what is not run: the frameworks take longer to import than most tests take to run."""
    return True if "not integration" in config.option.markexpr and is_integration(collection_path) else None


@pytest.hookimpl(tryfirst=True)  # before pytest selects by marks
def pytest_collection_modifyitems(items):
    """Mark the tests in these directories and files."""
    for item in items:
        if is_integration(item.path):
            item.add_marker(pytest.mark.integration)
