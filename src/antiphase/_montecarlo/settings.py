"""Monte Carlo settings: how much work a sampled bound may take."""

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
    hashes of their arguments, so that the same arguments give the same mechanism, and certify the result with fresh
    entropy. With a seed, all of them return the same result every time. Failure probabilities add up: if you try many
    seeds, or many ways to write the same mechanism, and keep the best result, you spend the failure probability many
    times.

    A confidence limit is above the true value by about 1 / sqrt(samples). Enough samples are drawn that the limit loses
    at most a fraction `slack` of delta: 5 % cost about 0.3 % more noise. A quarter of the slack needs sixteen times as
    many samples.

    Args:
        slack: fraction of delta that may be lost to the confidence limit.
        samples: maximum number of samples per direction. If they are not enough, the limit is wider, or a bound without
            samples is returned. None means as many as about half a minute on two cores allows.
        workers: joblib's n_jobs; -1 for all cores. Results depend neither on it nor on joblib's backend.
        seed: makes the result reproducible; use it only in tests. None draws fresh entropy. Different functions never
            share samples, whatever the seed.

    >>> MonteCarlo(slack=0.2).workers
    -1
    """

    slack: float = 0.05
    samples: int | None = None
    workers: int = -1
    seed: int | None = None

    def __post_init__(self) -> None:
        owner, hint = "MonteCarlo", "0.05 loses 5 % of delta, which costs about 0.3 % more noise"
        slack = _check.real(owner, "slack", self.slack, 1e-3, 1.0, hint)
        object.__setattr__(self, "slack", slack)
        if self.samples is not None:
            samples = _check.positive_integer(owner, "samples", self.samples, "use None for about half a minute")
            object.__setattr__(self, "samples", samples)
        if isinstance(self.workers, bool) or not isinstance(self.workers, int) or self.workers == 0:
            raise invalid(owner, "workers", "an integer other than 0", self.workers, "use -1 for all cores")
        if self.seed is not None and (isinstance(self.seed, bool) or not isinstance(self.seed, int) or self.seed < 0):
            raise invalid(owner, "seed", "an integer of at least 0, or None", self.seed, "use None except in tests")


def check_sampling(owner: str, value: Any) -> MonteCarlo:
    """Return `value` if it is a `MonteCarlo`, else raise."""
    if not isinstance(value, MonteCarlo):
        raise invalid(owner, "sampling", "a MonteCarlo object", value, "for example MonteCarlo(slack=0.2)")
    return value
