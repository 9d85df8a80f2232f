"""What the tests of noise streams share: small mechanisms, and whole streams as matrices."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from antiphase._noise import NoiseStream
from antiphase._record import fingerprint
from antiphase._secret import Secret
from antiphase.strategies import Strategy

SECRET = Secret.insecure(2025)
TOLERANCE = {np.float32: 1e-5, np.float64: 1e-12}


@dataclass(frozen=True)
class Noisy:
    """A mechanism as far as a stream looks at it."""

    strategy: Strategy
    noise_std: float = 1.0

    @property
    def fingerprint(self) -> str:
        return fingerprint([self.strategy, self.noise_std])


def flat(arrays: list[np.ndarray]) -> np.ndarray:
    return np.concatenate([array.reshape(-1) for array in arrays]) if arrays else np.empty(0)


def take(stream: NoiseStream, steps: int | None = None) -> np.ndarray:
    """The next steps, all that are left by default: one row a step."""
    count = stream.steps - stream.step if steps is None else steps
    return np.stack([flat(stream.next()) for _ in range(count)])


def white(stream: NoiseStream, rows: int) -> np.ndarray:
    """z in float64, one row for each row of C."""
    return np.stack([flat(stream.white(row)) for row in range(rows)]).astype(np.float64)


def stream(
    strategy: Strategy, leaves: Any = ((5, 7), (), (130,)), noise_std: float = 1.0, **options: Any
) -> NoiseStream:
    return NoiseStream(Noisy(strategy, noise_std), leaves, options.pop("secret", SECRET), **options)
