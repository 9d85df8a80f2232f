"""Settings of all tests: `make test` tries the same examples every time, HYPOTHESIS_PROFILE=random tries new ones."""

import os
import random
import secrets
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# Some virtual machines list Intel's matrix instructions (AMX) but do not allow them, and bfloat16 products of large
# matrices then end the process. PyTorch reads this limit when it is first imported.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

# A busy machine must not fail a test: no time limit for an example, and none for making one.
ANY_TIME = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("repeatable", derandomize=True, **ANY_TIME)
settings.register_profile("random", **ANY_TIME)
PROFILE = os.environ.get("HYPOTHESIS_PROFILE", "repeatable")
settings.load_profile(PROFILE)

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
    """Mark the tests in these directories and files. Many of them replace steps; tests/run tests the warning."""
    for item in items:
        if is_integration(item.path):
            item.add_marker(pytest.mark.integration)
            item.add_marker(pytest.mark.filterwarnings("ignore:Step [0-9]+ was committed before:RuntimeWarning"))


class RepeatableEntropy(random.Random):
    """Stands in for the entropy of the operating system. In a forked process it is the system's again, because two
    processes with the same random names would write to the same files."""

    def __init__(self, name):
        super().__init__(name)
        self.process = os.getpid()

    def source(self):
        return self if os.getpid() == self.process else random.SystemRandom()

    def token_bytes(self, nbytes=None):
        return self.source().randbytes(32 if nbytes is None else nbytes)

    def randbits(self, k):
        return self.source().getrandbits(k)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    """Give each test the same secrets, run ids and sampling seeds every time, so that no test of statistics fails by
    chance. HYPOTHESIS_PROFILE=random gives it new ones. Processes that a test starts always have new ones."""
    if PROFILE == "random":
        return (yield)
    entropy = RepeatableEntropy(item.nodeid)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(secrets, "token_bytes", entropy.token_bytes)
        patch.setattr(secrets, "randbits", entropy.randbits)
        patch.setattr(secrets, "SystemRandom", entropy.source)
        return (yield)
