"""The privacy budget."""

from __future__ import annotations

from typing import Any, final

from antiphase import _check
from antiphase._check import invalid
from antiphase._record import record

SMALLEST_EPSILON, LARGEST_EPSILON = 1e-100, 1e10  # range in which the accountants are numerically reliable


@final
@record
class Budget:
    """A privacy budget: Pr[E] <= e^epsilon Pr'[E] + delta for every event E.

    Here Pr and Pr' are the output distributions of a mechanism for any two neighbouring data sets.

    Args:
        epsilon: from 1e-100 to 1e10. A smaller epsilon is a stronger guarantee; typical values are between 0.1 and 10.
        delta: between 0 and 1, both excluded; choose a value well below 1 / number of examples.

    Reference: Dwork et al. 2006.

    >>> Budget(epsilon=8.0, delta=1e-6).epsilon
    8.0
    """

    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        hint = "typical values are between 0.1 and 10"
        epsilon = _check.real("Budget", "epsilon", self.epsilon, SMALLEST_EPSILON, LARGEST_EPSILON, hint)
        object.__setattr__(self, "epsilon", epsilon)
        object.__setattr__(self, "delta", check_delta("Budget", self.delta))


def check_epsilon(owner: str, value: Any) -> float:
    """Return `value` as a positive finite float."""
    hint = "pass a positive number; typical values are between 0.1 and 10"
    epsilon = _check.real(owner, "epsilon", value, 0.0, float("inf"), hint)
    if epsilon == 0.0:
        raise invalid(owner, "epsilon", "greater than 0", value, hint)
    return epsilon


def check_delta(owner: str, value: Any) -> float:
    """Return `value` as a float between 0 and 1, both excluded."""
    hint = "pass a small probability such as 1e-6, well below 1 / number of examples"
    delta = _check.real(owner, "delta", value, 0.0, 1.0, hint)
    if not 0.0 < delta < 1.0:
        raise invalid(owner, "delta", "between 0 and 1, both excluded", value, hint)
    return delta
