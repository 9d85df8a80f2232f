"""Results of audits. These are measurements of a program, and are kept apart from the proved bounds of `_bound.py`.

An audit adds artificial examples, called canaries, to the data. It measures how well an attack on the released values
can tell which canaries took part in the training.
"""

from __future__ import annotations

import math
from decimal import ROUND_FLOOR, Context, Decimal
from typing import Any, Literal, NoReturn, final

from antiphase import _check
from antiphase._bound import Bound
from antiphase._record import optional, record

Assumption = Literal["none", "independent canaries", "Gaussian trade-off", "Gaussian noise"]


@final
@record
class MeasuredLowerBound:
    """A lower bound on epsilon from an attack: with the stated confidence, the program leaks at least this much.

    It is not a privacy guarantee: a program can leak more than any audit finds. For this reason it is not a `Bound`,
    has no arithmetic, cannot be ordered, and does not convert to a number. To compare it with a claim, call `exceeds`.

    **Guarantee**: if the program is (epsilon, delta)-differentially private, then `measured_epsilon_at_least` is above
    epsilon with probability at most 1 - `measurement_confidence`, under the stated assumption.

    Args:
        measured_epsilon_at_least: the lower bound on epsilon; 0 if the attack found nothing.
        measured_at_delta: delta at which the lower bound holds.
        measurement_confidence: probability with which the bound holds, such as 0.95.
        measurement_method: how the bound was computed.
        measurement_assumes: assumption about the program: "none", "independent canaries", "Gaussian trade-off" or
            "Gaussian noise".
        measured_scores: number of canaries that the attack scored. A score is high if a canary seems to have taken
            part.

    >>> found = MeasuredLowerBound(1.5, 1e-6, 0.95, "threshold", "none", 1000)
    >>> found.exceeds(Bound(1.0, "exact", "closed-form", ""))
    True
    """

    measured_epsilon_at_least: float
    measured_at_delta: float
    measurement_confidence: float
    measurement_method: str
    measurement_assumes: Assumption
    measured_scores: int

    def __post_init__(self) -> None:
        owner = "MeasuredLowerBound"
        value = _check.real(
            owner,
            "measured_epsilon_at_least",
            self.measured_epsilon_at_least,
            0.0,
            1e308,
            "an attack that finds nothing measures 0",
        )
        object.__setattr__(self, "measured_epsilon_at_least", value)
        _check.real(owner, "measured_at_delta", self.measured_at_delta, 0.0, 1.0, "pass a small probability")
        _check.real(owner, "measurement_confidence", self.measurement_confidence, 0.0, 1.0, "use for example 0.95")

    def exceeds(self, claim: Bound) -> bool:
        """Return whether the measurement contradicts a claimed epsilon at the same delta.

        For a correct program, the result is true with probability at most 1 - confidence.
        """
        if not isinstance(claim, Bound):
            raise _check.invalid("MeasuredLowerBound.exceeds", "claim", "a Bound", claim, "pass epsilon(...)")
        return self.measured_epsilon_at_least > claim.value

    def _refuse(self, other: object) -> NoReturn:
        raise TypeError(
            "A measured lower bound cannot be compared or combined with other numbers; call exceeds(claim), or read "
            "measured_epsilon_at_least."
        )

    __lt__ = __le__ = __gt__ = __ge__ = __add__ = __radd__ = __sub__ = __rsub__ = _refuse
    __mul__ = __rmul__ = __truediv__ = __rtruediv__ = _refuse


@final
@record
class StatisticalTest:
    """A statistical test of released values.

    It tests the noise, the size of the contributions, or the steps in which canaries took part.

    **Guarantee**: if the released values are as claimed, `departs` is true with probability at most `level`. If
    `departs` is false, the test found nothing. The smallest departures that it can detect are in docs/audit.md.

    Args:
        what: what was tested.
        p_values: pairs of name and p-value, one for each part of the test.
        level: largest probability of a false alarm over all parts together.
        values_tested: number of values that the test used.
        measured_scale: for the noise test, the measured standard deviation of the noise divided by the claimed one;
            otherwise None.

    >>> StatisticalTest("noise", (("scale", 0.2), ("lag 1", 0.01)), 0.01, 1000).departs
    False
    """

    what: str
    p_values: tuple[tuple[str, float], ...]
    level: float
    values_tested: int
    measured_scale: float | None = optional(None)

    def __post_init__(self) -> None:
        pairs = tuple((str(name), float(p)) for name, p in self.p_values)
        for name, p in pairs:
            _check.real("StatisticalTest", f"p-value of {name}", p, 0.0, 1.0, "a p-value is a probability")
        object.__setattr__(self, "p_values", pairs)

    @property
    def departs(self) -> bool:
        """True if any part departs from the claim. Bonferroni's correction accounts for the number of parts."""
        return bool(self.departures)

    @property
    def departures(self) -> tuple[str, ...]:
        """Names of the parts that depart from the claim."""
        return tuple(name for name, p in self.p_values if p * len(self.p_values) <= self.level)


@final
@record
class Audit:
    """Everything that one audit measured, together with the claim that it tested.

    Args:
        subject: what was audited, such as "antiphase.torch, hooks".
        claim: the claimed epsilon, which is proved for the claimed mechanism.
        claimed_delta: delta of the claim.
        measured: lower bounds on epsilon, each with its own assumption. The first is from `counting_bound`, which
            counts scores above a threshold.
        tests: tests of noise, contributions and participation.
        roc: ROC curve of the attack, as pairs of false and true positive rates.
        claimed_roc: ROC curve of the same attack on simulated values of the claimed mechanism, as pairs like `roc`.
        level: largest probability with which a correct program is flagged.
        seconds: time that the audit took, in seconds.
        remarks: what the audit did not test.
        plan_fingerprint: fingerprint of the audited plan; empty if only a mechanism was given.
    """

    subject: str
    claim: Bound
    claimed_delta: float
    measured: tuple[MeasuredLowerBound, ...]
    tests: tuple[StatisticalTest, ...]
    roc: tuple[tuple[float, float], ...]
    claimed_roc: tuple[tuple[float, float], ...]
    level: float
    seconds: float
    remarks: tuple[str, ...] = ()
    plan_fingerprint: str = optional("")

    def __post_init__(self) -> None:
        for name in ("measured", "tests", "remarks"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        for name in ("roc", "claimed_roc"):
            object.__setattr__(self, name, tuple((float(x), float(y)) for x, y in getattr(self, name)))

    @property
    def findings(self) -> tuple[str, ...]:
        """One sentence for each result that contradicts the claim. An empty tuple does not prove privacy."""
        found = [
            f"Measured epsilon of at least {rounded_down(bound.measured_epsilon_at_least)}, but "
            f"{rounded_down(self.claim.value)} is claimed ({bound.measurement_method})."
            for bound in self.measured
            if bound.exceeds(self.claim)
        ]
        for test in self.tests:
            found += [f"{test.what}: {name} departs from the claim." for name in test.departures]
        return tuple(found)

    @property
    def flagged(self) -> bool:
        """True if any result contradicts the claim."""
        return bool(self.findings)


def best_of(measured: tuple[MeasuredLowerBound, ...]) -> MeasuredLowerBound | None:
    """Return the largest lower bound, for display; None if there is none."""
    return max(measured, key=lambda bound: bound.measured_epsilon_at_least, default=None)


def rounded_down(value: float, decimals: int = 4) -> str:
    """Return `value` as text, rounded down so that a lower bound is never overstated.

    >>> rounded_down(1.99999), rounded_down(math.inf)
    ('1.9999', 'infinity')
    """
    if not math.isfinite(value):
        return "infinity"
    exact: Any = Context(prec=400, rounding=ROUND_FLOOR)
    return str(Decimal(value).quantize(Decimal(1).scaleb(-decimals), context=exact))
