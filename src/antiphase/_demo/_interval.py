"""Means with 95 % confidence intervals, by Student's t."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from antiphase._check import positive_integer

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Interval:
    """value +- margin."""

    value: float
    margin: float

    def __str__(self) -> str:
        return f"{100.0 * self.value:.1f} % +- {100.0 * self.margin:.1f}"


def mean(values: Sequence[float]) -> Interval:
    """The mean of independent values.

    >>> print(mean([0.5, 0.6, 0.7]))
    60.0 % +- 24.8
    """
    return _interval(float(np.mean(values)), _square(values), _count(values) - 1.0)


def difference(first: Sequence[float], second: Sequence[float]) -> Interval:
    """Mean of the first less mean of the second, which may vary by different amounts.

    Reference: Welch 1947.
    """
    a, b = _square(first), _square(second)
    freedom = (a + b) ** 2 / max(1e-300, a**2 / (_count(first) - 1) + b**2 / (_count(second) - 1))
    return _interval(float(np.mean(first) - np.mean(second)), a + b, max(1.0, freedom))


def _interval(value: float, square: float, freedom: float) -> Interval:
    from scipy.stats import t

    return Interval(value, float(t.ppf((1.0 + CONFIDENCE) / 2.0, freedom)) * math.sqrt(square))


def _square(values: Sequence[float]) -> float:
    """The squared standard error of the mean."""
    return float(np.var(values, ddof=1)) / _count(values)


def _count(values: Sequence[float]) -> int:
    return 1 + positive_integer("mean", "values", len(values) - 1, "an interval needs at least two runs")
