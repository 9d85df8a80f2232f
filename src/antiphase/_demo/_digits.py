"""The 1,797 handwritten digits that scikit-learn ships, as numbers between 0 and 1."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from antiphase._check import Array
from antiphase._errors import Refused

HELD_OUT = 5  # every fifth example is kept for the test


@dataclass(frozen=True)
class Digits:
    """Images as rows of 64 pixels, with their labels 0 to 9."""

    images: Array
    labels: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.labels)


def load_digits() -> tuple[Digits, Digits]:
    """1,437 examples to train on and 360 to test with; nothing is downloaded."""
    try:
        from sklearn.datasets import load_digits as load
    except ImportError as error:
        raise Refused(
            "The demo trains on the digits of scikit-learn, which is not installed.",
            hint="pip install 'antiphase[demo]', or pip install scikit-learn",
        ) from error
    data: Any = load()
    images, labels = data.data / 16.0, data.target.astype(np.int64)
    test = np.arange(len(labels)) % HELD_OUT == 0
    return Digits(images[~test], labels[~test]), Digits(images[test], labels[test])
