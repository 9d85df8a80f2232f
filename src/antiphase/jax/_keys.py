"""The keys of the integration, derived from the secret of a run."""

from __future__ import annotations

from typing import Any

import numpy as np

from antiphase._run import Run, dtype_of, secret_of

SOURCE = "Threefry of JAX on the device with a 64-bit key"  # as the ledger and the report name it


def device_key(run: Run) -> np.ndarray[Any, np.dtype[np.uint32]]:
    """The key of noise made on a device: 64 bits, all that the generator takes, unrelated to the keys on the host."""
    root = run.plan.root or run.plan.fingerprint
    data = secret_of(run).derive("device noise", "jax", run.run_id, root, dtype_of(run), length=8)
    return np.frombuffer(data, dtype="<u4").astype(np.uint32)


def seal_key(run: Run) -> bytes:
    """The key that seals files of the run's training state."""
    return secret_of(run).derive("jax state", run.run_id)
