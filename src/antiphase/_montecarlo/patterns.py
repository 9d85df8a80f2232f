"""Distributions of the patterns of `PoissonMinSeparation`, tilted by one exponent per step.

In this sampling, an eligible example joins a step with probability `rate`, and is eligible again b = `separation` steps
later. A pattern is the set of steps that one example joins. The tilted distribution gives pattern p the probability
pi(p) exp(sum of the exponents at the steps of p) / A, where pi is the untilted distribution, and A is the mean of these
exponentials under pi. Like pi, the tilted distribution is a renewal process, but an eligible example joins different
steps with different probabilities.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from antiphase._check import Array
from antiphase._participation import PoissonMinSeparation

SURE = 50.0  # cap on -log(1 - joining probability); -log of a 53-bit uniform number never exceeds this cap
MAX_OPERATIONS = 2e8  # limit for `count_probabilities`, which merges large counts to stay below it


@dataclass(frozen=True)
class Law:
    """A tilted distribution of patterns over n steps.

    Args:
        sampling: the sampling that defines the untilted distribution, pi.
        exponents: one exponent per step; zeros give pi itself.
    """

    sampling: PoissonMinSeparation
    exponents: Array

    @cached_property
    def _logs(self) -> Array:
        """log f_t for t < n + separation.

        Here f_t is the mean of exp(sum of the exponents at the steps of the pattern) if the example is first eligible
        in step t.
        """
        from antiphase._kernels import backward_log_means

        logs = np.empty(len(self.exponents) + self.sampling.separation)
        backward_log_means(self.exponents, self.sampling.separation, self.sampling.rate, logs)
        return logs

    @cached_property
    def log_mean(self) -> float:
        """The logarithm of the normalizing constant A."""
        from antiphase._kernels import start_log_mean

        given = self.sampling
        return float(start_log_mean(self._logs, given.separation, given.rate, given.warm_start))

    @cached_property
    def _joining(self) -> Array:
        """For each step, the probability that an eligible example joins it."""
        n = len(self.exponents)
        later = self._logs[self.sampling.separation :]
        return np.minimum(np.exp(math.log(self.sampling.rate) + self.exponents + later - self._logs[:n]), 1.0)

    @cached_property
    def _starting(self) -> Array:
        """Probabilities of the first eligible step, which is 0 for a cold start and 0, ..., b - 1 for a warm start."""
        given = self.sampling
        if not given.warm_start:
            return np.ones(1)
        logs = self._logs[: given.separation].copy()
        logs[1:] += math.log(given.rate)
        weights = np.exp(logs - logs.max())
        return weights / weights.sum()

    @cached_property
    def reach(self) -> Array:
        """Cumulative hazard.

        An example that is eligible in step t joins none of the steps t, ..., u - 1 with probability
        exp(reach[t] - reach[u]).
        """
        with np.errstate(divide="ignore"):
            return np.append(0.0, np.cumsum(np.minimum(-np.log1p(-self._joining), SURE)))

    @cached_property
    def joins(self) -> Array:
        """For each step, the probability that a pattern contains it."""
        from antiphase._kernels import participation_probabilities

        out = np.empty(len(self.exponents))
        participation_probabilities(self._starting, self._joining, self.sampling.separation, out)
        return out

    def add(self, columns: Array, noise: Array, rng: np.random.Generator) -> None:
        """Draw a pattern for each row of `noise`, and add the columns at the steps of the pattern to the row.

        columns[t, r] is added to entry t + r, for every step t of the pattern.
        """
        from antiphase._kernels import add_patterns

        count, n = noise.shape
        starts = np.searchsorted(np.cumsum(self._starting)[:-1], rng.random(len(noise)), side="right")
        uniforms = rng.random((count, -(-n // self.sampling.separation) + 1))
        add_patterns(columns, self.sampling.separation, self.reach, starts.astype(np.float64), uniforms, noise)


def count_probabilities(sampling: PoissonMinSeparation, steps: int) -> Array:
    """Return the probabilities that a pattern has k = 0, 1, ... steps. The last entry also counts all larger k.

    >>> count_probabilities(PoissonMinSeparation(2, 0.5), 3).tolist()
    [0.125, 0.625, 0.25]
    """
    b, rate = sampling.separation, sampling.rate
    largest = min(-(-steps // b), max(1, int(MAX_OPERATIONS // steps)))
    later = deque([np.eye(1, largest + 1)[0]] * b, maxlen=b)  # for an example first eligible in step t, ..., t + b - 1
    for _ in range(steps):
        more = np.append(0.0, later[-1][:-1])
        more[-1] += later[-1][-1]
        later.appendleft((1.0 - rate) * later[0] + rate * more)
    if not sampling.warm_start:
        return later[0]
    first, *others = later
    return np.asarray((first + rate * sum(others)) / (1.0 + (b - 1) * rate))
