"""Four devices on one processor, so that JAX can shard; must be said before JAX starts."""

import os
import warnings

os.environ.setdefault("JAX_PLATFORMS", "cpu")
if "device_count" not in os.environ.get("XLA_FLAGS", ""):
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=4"

with warnings.catch_warnings():  # Flower loads typer, which asks the newest click for names that click means to drop
    warnings.filterwarnings("ignore", "'click.utils", DeprecationWarning)
    import typer  # noqa: F401
