"""Four devices on one processor, so that JAX can shard; must be said before JAX starts. One run id for all runs."""

import os
import warnings

import pytest

os.environ.setdefault("JAX_PLATFORMS", "cpu")
if "device_count" not in os.environ.get("XLA_FLAGS", ""):
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=4"

with warnings.catch_warnings():  # Flower loads typer, which asks the newest click for names that click means to drop
    warnings.filterwarnings("ignore", "'click.utils", DeprecationWarning)
    import typer  # noqa: F401


@pytest.fixture(autouse=True)
def same_run_id(monkeypatch):
    """Noise follows from secret and run id. A new id each time would flag a right engine in up to 6 % of all runs."""
    monkeypatch.setattr("antiphase._run.opening.fresh_run_id", lambda: "0" * 32)
