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
INTEGRATIONS = {"flower", "jax", "torch", "test_benchmarks.py", "test_integrations.py", "test_training_benchmarks.py"}


@pytest.hookimpl(tryfirst=True)  # before pytest selects by marks
def pytest_collection_modifyitems(items):
    """Mark the tests in these directories and files."""
    here = Path(__file__).parent
    for item in items:
        if item.path.is_relative_to(here) and item.path.relative_to(here).parts[0] in INTEGRATIONS:
            item.add_marker(pytest.mark.integration)
