"""95 % confidence intervals for means and differences of means, from Student's t-distribution."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from antiphase._check import invalid

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Interval:
    """A 95 % confidence interval, value +- margin."""

    value: float
    margin: float

    def __str__(self) -> str:
        return f"{100.0 * self.value:.1f} % +- {100.0 * self.margin:.1f}"


def mean(values: Sequence[float]) -> Interval:
    """Return the mean of independent values, with its confidence interval.

    >>> print(mean([0.5, 0.6, 0.7]))
    60.0 % +- 24.8
    """
    return _interval(float(np.mean(values)), _squared_error(values), _count(values) - 1.0)


def difference(first: Sequence[float], second: Sequence[float]) -> Interval:
    """Return the difference of two means, first minus second, with its confidence interval.

    The two samples may have different variances.

    Reference: Welch 1947.
    """
    a, b = _squared_error(first), _squared_error(second)
    degrees_of_freedom = (a + b) ** 2 / max(1e-300, a**2 / (_count(first) - 1) + b**2 / (_count(second) - 1))
    return _interval(float(np.mean(first) - np.mean(second)), a + b, max(1.0, degrees_of_freedom))


def _interval(value: float, squared_error: float, degrees_of_freedom: float) -> Interval:
    from scipy.stats import t

    return Interval(value, float(t.ppf((1.0 + CONFIDENCE) / 2.0, degrees_of_freedom)) * math.sqrt(squared_error))


def _squared_error(values: Sequence[float]) -> float:
    """Return the squared standard error of the mean."""
    count = _count(values)
    return float(np.var(values, ddof=1)) / count


def _count(values: Sequence[float]) -> int:
    if len(values) < 2:
        raise invalid("mean", "values", "at least two numbers", list(values), "an interval needs at least two runs")
    return len(values)
