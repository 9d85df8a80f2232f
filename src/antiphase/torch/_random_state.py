"""Seeds the random generators again, so that their state in checkpoints does not reveal the sizes of secret batches.

Dropout and random collators draw numbers for each example. Otherwise, the state of the generators would show how many
examples there were in the steps so far.
"""

from __future__ import annotations

import hashlib
import random

import numpy as np
import torch


def reseed(seed: int, step: int) -> None:
    """Seed the global generators of Python, NumPy and PyTorch from the seed of the training and a step number."""
    code = hashlib.sha256(f"{seed} {step}".encode()).digest()
    random.seed(code)
    np.random.seed(int.from_bytes(code[:4], "big"))  # noqa: NPY002
    torch.manual_seed(int.from_bytes(code[:7], "big"))
