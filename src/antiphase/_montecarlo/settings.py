"""Settings for Monte Carlo bounds."""

from __future__ import annotations

from typing import Any, final

from antiphase import _check
from antiphase._check import invalid
from antiphase._record import record


@final
@record(tag="Sampling")
class MonteCarlo:
    """Settings for bounds that are computed from samples.

    `epsilon`, `delta` and `verify` draw fresh entropy on every call. `calibrate` and `plan` search with seeds that are
    hashes of their arguments, so that the same arguments give the same mechanism. Then they certify the result with
    fresh entropy. If you pass a seed, all of these functions return the same result every time.

    Failure probabilities add up. If you try many seeds, or describe the same mechanism in many ways, and keep the best
    result, this result fails with a probability of up to the sum over all tries.

    A confidence limit exceeds the true value by a relative amount proportional to 1 / sqrt(samples). The functions draw
    enough samples that the limit exceeds the estimate of delta by at most the fraction `slack`. A slack of 5 % costs
    about 0.3 % more noise. A quarter of the slack needs sixteen times as many samples.

    Args:
        slack: largest relative excess of the confidence limit over the estimate of delta.
        samples: maximum number of samples for the removal of an example, and again for its addition. If they are not
            enough, the limit is looser, or a bound that needs no samples is returned. None allows as many samples as
            take about half a minute on two cores.
        workers: joblib's n_jobs; -1 for all cores. Results depend neither on the number of workers nor on joblib's
            backend.
        seed: fixed seed that makes results reproducible, for tests only. None draws fresh entropy. Different functions
            never share samples, even with the same seed.

    >>> MonteCarlo(slack=0.2).workers
    -1
    """

    slack: float = 0.05
    samples: int | None = None
    workers: int = -1
    seed: int | None = None

    def __post_init__(self) -> None:
        owner, hint = (
            "MonteCarlo",
            "use 0.05: the limit on delta then exceeds the estimate by at most 5 %, at about 0.3 % more noise",
        )
        slack = _check.real(owner, "slack", self.slack, 1e-3, 1.0, hint)
        object.__setattr__(self, "slack", slack)
        if self.samples is not None:
            samples = _check.positive_integer(owner, "samples", self.samples, "use None to sample for half a minute")
            object.__setattr__(self, "samples", samples)
        if isinstance(self.workers, bool) or not isinstance(self.workers, int) or self.workers == 0:
            raise invalid(owner, "workers", "an integer other than 0", self.workers, "use -1 for all cores")
        if self.seed is not None and (isinstance(self.seed, bool) or not isinstance(self.seed, int) or self.seed < 0):
            raise invalid(owner, "seed", "an integer of at least 0, or None", self.seed, "use None except in tests")


def check_sampling(owner: str, value: Any) -> MonteCarlo:
    """Return `value` if it is a `MonteCarlo`, else raise."""
    if not isinstance(value, MonteCarlo):
        raise invalid(owner, "sampling", "a MonteCarlo object", value, "pass for example MonteCarlo(slack=0.2)")
    return value
