"""What the integration reads of a run beyond its public face; all of it in this file."""

from __future__ import annotations

from typing import Any

import numpy as np

from antiphase._noise import Leaf
from antiphase._run import Run


def leaves_of(run: Run) -> dict[str, Leaf]:
    """The arrays that the run makes noise for."""
    return run._leaves


def dtype_of(run: Run) -> str:
    """Of the run's noise."""
    return run._header.dtype


def device_key(run: Run) -> np.ndarray[Any, np.dtype[np.uint32]]:
    """The key of noise made on a device: 64 bits, all that the generator takes, unrelated to the keys on the host."""
    data = run._secret.derive("device noise", "jax", run.run_id, run._header.root, dtype_of(run), length=8)
    return np.frombuffer(data, dtype="<u4").astype(np.uint32)


def made_elsewhere(run: Run, step: int) -> None:
    """Tell the run that the noise of a step was made from `device_key`, so that it can be committed."""
    run._tape.read_steps.add(run._checked(step))


def seal_key(run: Run) -> bytes:
    """The key that seals files of the run's training state."""
    return run._secret.derive("jax state", run.run_id)


def examples_of(run: Run) -> int | None:
    """How many examples the run was opened with."""
    return run._header.examples
