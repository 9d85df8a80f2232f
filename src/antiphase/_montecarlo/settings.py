"""How much work a sampled bound may take."""

from __future__ import annotations

from typing import Any, final

from antiphase import _check
from antiphase._check import invalid
from antiphase._record import record


@final
@record(tag="Sampling")
class MonteCarlo:
    """How a bound is sampled, where nothing but samples gives a small one.

    `epsilon`, `delta` and `verify` draw fresh entropy on every call. `calibrate` and plans search with seeds that are a
    hash of the question, so that the same question gives the same mechanism, and certify what they find with fresh
    entropy. With a seed, all of them give the same answer every time. Failure probabilities add up: trying many seeds,
    or many ways to write one mechanism, and keeping the best answer spends them many times.

    A confidence limit lies above what it bounds, by about 1 / sqrt(samples). So many samples are drawn that `slack` of
    delta is lost to it: 5 % cost some 0.3 % of noise. A quarter of the slack takes sixteen times the samples.

    Args:
        slack: share of delta that may be lost to the confidence limit.
        samples: most samples in one direction; where they do not suffice the limit is wider, or a bound without
            samples is given. None: what about half a minute on two cores allows.
        workers: joblib's n_jobs; -1 for all cores. Results do not depend on it, nor on joblib's backend.
        seed: makes the answer a function of the question and of this number; None, which is right outside tests, takes
            fresh entropy. No two of these functions share samples, whatever the seed.

    >>> MonteCarlo(slack=0.2).workers
    -1
    """

    slack: float = 0.05
    samples: int | None = None
    workers: int = -1
    seed: int | None = None

    def __post_init__(self) -> None:
        owner, hint = "MonteCarlo", "0.05 loses 5 % of delta, 0.3 % of noise"
        slack = _check.real(owner, "slack", self.slack, 1e-3, 1.0, hint)
        object.__setattr__(self, "slack", slack)
        if self.samples is not None:
            samples = _check.positive_integer(owner, "samples", self.samples, "None for what half a minute allows")
            object.__setattr__(self, "samples", samples)
        if isinstance(self.workers, bool) or not isinstance(self.workers, int) or self.workers == 0:
            raise invalid(owner, "workers", "an integer other than 0", self.workers, "-1 for all cores")
        if self.seed is not None and (isinstance(self.seed, bool) or not isinstance(self.seed, int) or self.seed < 0):
            raise invalid(owner, "seed", "an integer of at least 0, or None", self.seed, "None is right outside tests")


def check_sampling(owner: str, value: Any) -> MonteCarlo:
    """`value` if it is a `MonteCarlo`."""
    if not isinstance(value, MonteCarlo):
        raise invalid(owner, "sampling", "a MonteCarlo object", value, "for example MonteCarlo(slack=0.2)")
    return value
