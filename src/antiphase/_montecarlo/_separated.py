"""Random min-separation with a banded C: the pair of its patterns.

Two participations are at least `separation` steps apart. With at most that many bands the columns of a pattern have no
row in common, so the likelihood ratio of a pattern is a product over its steps and the mean over all patterns is a
recursion over the steps (`_kernels.separation`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from antiphase._check import Array
from antiphase._errors import NotProved
from antiphase._montecarlo._estimator import Draws, Estimator
from antiphase._montecarlo._gaussian import log_divergence
from antiphase._montecarlo._pair import Pair, Upper
from antiphase._montecarlo._pilot import Effort, Pilot, run_pilot
from antiphase._participation import PoissonMinSeparation
from antiphase.strategies import Banded, Dense, Identity, Strategy, Toeplitz


@dataclass(frozen=True)
class SeparatedPair(Pair):
    """The mixture of N(C p, noise_std^2 I) over random patterns p, and N(0, noise_std^2 I).

    Args:
        columns: |C|, columns[t, r] = |C[t + r, t]|.
        participation: separation, rate and start.
        noise_std: the noise.
        sensitivity: of C without amplification.
    """

    columns: Array
    participation: PoissonMinSeparation
    noise_std: float
    sensitivity: float

    tight = False
    pilot = 1 << 15
    reference = "Choquette-Choo et al. 2025 (near-exact amplification), Lemma C.1"

    @property
    def samples(self) -> int:  # type: ignore[override]
        """Time is in proportion to the steps."""
        return max(1 << 16, round((1 << 22) * min(1.0, 200.0 / len(self.columns))))

    def at(self, noise_std: float) -> SeparatedPair:
        """With other noise."""
        return replace(self, noise_std=noise_std)

    def upper(self, epsilon: float, *, fine: bool = True) -> Upper:
        """The Gaussian mechanism of the worst pattern."""
        value = float(np.exp(log_divergence(epsilon, (self.sensitivity / self.noise_std) ** 2)))
        return Upper(value * (1.0 + 1e-9), "without amplification", "Balle and Wang 2018, Thm. 8")

    def reaches(self, delta: float, samples: int, log_inverse: float) -> bool:
        """Weights go up to 1, so that even without a hit the limit is log(1 / beta) / samples."""
        return log_inverse < delta * samples

    def plain(self) -> tuple[Estimator, Estimator]:
        """Samples of both distributions."""
        return Patterns(self, taking_part=True), Patterns(self, taking_part=False)

    def estimators(self, epsilon: float) -> tuple[Estimator, Estimator]:
        """The plain ones."""
        return self.plain()

    def pilots(self, epsilon: float, effort: Effort) -> tuple[Pilot, Pilot]:
        """The plain ones."""
        removal, addition = (run_pilot(e, epsilon, self.pilot, effort) for e in self.plain())
        return removal, addition


@dataclass(frozen=True)
class Patterns(Estimator):
    """Samples with (P against Q) or without (Q against P) the example: weights (1 - e^(epsilon - loss))_+, at most 1.

    Args:
        pair: the mechanism.
        taking_part: whether the example takes part.
    """

    pair: SeparatedPair
    taking_part: bool

    rho = slope = log_factor = 0.0

    @property
    def width(self) -> int:
        """n."""
        return len(self.pair.columns)

    def draw(self, rng: np.random.Generator, count: int) -> Draws:
        """Noise, with a pattern or without, and its privacy loss."""
        from antiphase._kernels.separation import add_patterns, log_ratios

        given, n = self.pair.participation, self.width
        columns, b = self.pair.columns / self.pair.noise_std, given.separation
        noise = rng.standard_normal((count, n))
        if self.taking_part:
            uniforms = rng.random((count, -(-n // b) + 1))
            add_patterns(columns, b, given.rate, _starts(given, rng, count), uniforms, noise)
        losses = np.empty(count)
        log_ratios(columns, b, given.rate, given.warm_start, noise, losses)
        return Draws(np.zeros(count), -losses if self.taking_part else losses)


def separated_columns(strategy: Strategy, separation: int) -> Array:
    """|C| in the layout of `Banded`, for a lower-triangular C with at most `separation` bands."""
    match strategy:
        case Identity():
            columns = np.ones((strategy.steps, 1))
        case Toeplitz():
            columns = strategy.columns()
        case Banded():
            columns = strategy.columns
        case Dense() if strategy.is_lower_triangular:
            columns = _dense_columns(strategy.matrix)
        case _:
            raise _too_wide(strategy, separation)
    used = int(np.flatnonzero(columns.any(axis=0))[-1]) + 1
    if used > separation:
        raise _too_wide(strategy, separation)
    return np.ascontiguousarray(np.abs(columns[:, :used]))


def is_separated(strategy: Strategy, separation: int) -> bool:
    """Whether `separated_columns` takes it."""
    try:
        separated_columns(strategy, separation)
    except NotProved:
        return False
    return True


def _dense_columns(matrix: Array) -> Array:
    n = len(matrix)
    out = np.zeros((n, n))
    for r in range(n):
        out[: n - r, r] = np.diagonal(matrix, -r)
    return out


def _too_wide(strategy: Strategy, separation: int) -> NotProved:
    return NotProved(
        f"Amplification by random min-separation needs a lower-triangular C with at most {separation} bands; "
        f"this {type(strategy).__name__} is not known to have so few.",
        hint="use Banded or Toeplitz with at most `separation` bands; BallsInBins amplifies any lower-triangular C",
    )


def _starts(given: PoissonMinSeparation, rng: np.random.Generator, count: int) -> Array:
    """The first eligible step: 0, or in the stationary state also 1, ..., b - 1, each with the same probability."""
    if not given.warm_start:
        return np.zeros(count)
    b, rate = given.separation, given.rate
    waiting = rng.random(count) < (b - 1) * rate / (1.0 + (b - 1) * rate)
    return np.where(waiting, rng.integers(1, max(b, 2), size=count), 0).astype(np.float64)
