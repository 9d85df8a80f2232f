"""Mechanism: a strategy with its participation and noise level."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import Any, final

from antiphase import _check
from antiphase._accounting.reduction import Reduction, check_setting, reduce
from antiphase._accounting.theorems import Adjacency, Setting
from antiphase._check import invalid
from antiphase._errors import InvalidArgument
from antiphase._participation import Participation
from antiphase._record import record
from antiphase.strategies import Dense, Strategy

LARGEST_DENSE_STEPS = 2048  # largest run for which `first` keeps only the first columns of a C with negative entries


@final
@record
class Mechanism:
    """C x + z with z i.i.d. N(0, noise_std^2); the run releases x + N z step by step.

    The adjacency defines which data sets are neighbours: "zero-out" (the contributions of an example become zero),
    "add-or-remove" (one example more or less), or "replace" (the contents of an example change). docs/accounting.md
    lists the combinations that are proved; accounting for any other raises `NotProved`.

    **Guarantee**: none by itself; use `epsilon`, `delta`, `zcdp`, `gdp` or `compose`.

    Args:
        strategy: strategy matrix, C.
        participation: steps in which one example participates.
        noise_std: standard deviation of z, for contributions of norm at most 1.
        adjacency: "zero-out", "add-or-remove" or "replace".
        examples: number of examples. Required by `FixedSize`, and by `Poisson` and `CyclicPoisson` with `max_batch`.
            `BallsInBins` and `PoissonMinSeparation` with `max_batch` need it for amplification. For `max_batch` an
            upper bound is enough. Nothing else depends on it.

    >>> from antiphase import FixedEpochs, strategies
    >>> Mechanism(strategies.Identity(8), FixedEpochs(4, 2), noise_std=3.0).effective_noise_multiplier
    1.5
    """

    strategy: Strategy
    participation: Participation
    noise_std: float
    adjacency: Adjacency = "zero-out"
    examples: int | None = None

    def __post_init__(self) -> None:
        *_, examples = check_setting("Mechanism", self.strategy, self.participation, self.adjacency, self.examples)
        object.__setattr__(self, "examples", examples)
        hint = "pass a positive standard deviation; without noise there is no privacy"
        noise = _check.real("Mechanism", "noise_std", self.noise_std, 0.0, float("inf"), hint)
        if noise == 0.0:
            raise invalid("Mechanism", "noise_std", "greater than 0", self.noise_std, hint)
        object.__setattr__(self, "noise_std", noise)

    @property
    def effective_noise_multiplier(self) -> float:
        """noise_std divided by the sensitivity, which other libraries call the noise multiplier.

        The sensitivity is for one contribution: the largest column norm of C for `Poisson`, `CyclicPoisson` and
        `FixedSize`, and sens(C) under the participation's worst case otherwise. If the sensitivity is an upper bound,
        this is a lower bound. The factor 2 of replace adjacency, which changes a contribution by up to twice its norm,
        is not included.
        """
        return self.noise_std / self.reduction.sensitivity.value

    def first(self, steps: int) -> Mechanism:
        """Return the mechanism of the first `steps` steps, to account for a run that stops early.

        The first t outputs x_s + (N z)_s use the rows of z that the first t steps complete. They can thus be computed
        from these rows of C x + z, that is, from the mechanism whose strategy is the leading part of C.

        | strategy | accounted for as |
        |---|---|
        | Identity, Toeplitz, BLT, BandedInverse, Banded, lower-triangular Dense | the leading t x t block |
        | column-normalised Toeplitz | the same block, as Banded: its columns keep the scale of the full run |
        | online Tree | a tree over t steps: all nodes completed so far, and those a run of t steps would complete |
        | Stamped | whole blocks, including the current one |
        | other Dense, full Tree, Fourier | the full run: each output uses all of z |
        | C with negative entries, not amplified | the first t columns with all rows; above 2048 steps the full run |

        **Guarantee**: the mechanism covers the first t outputs if t is fixed beforehand or chosen without looking at
        the outputs. If the outputs decide when to stop, the guarantee of the full run applies. The sensitivity is never
        larger than that of the full run. If epsilon is estimated from samples, sampling error can make it larger. Run
        reports state the smaller of the two; neither necessarily increases from t to t + 1.

        Args:
            steps: number of steps released, from 1 to the number of steps planned.

        >>> from antiphase import EveryStep, strategies
        >>> Mechanism(strategies.Identity(8), EveryStep(), noise_std=2.0).first(4).effective_noise_multiplier
        1.0

        Reference: Denisov et al. 2022, Thm 2.1.
        """
        n, owner = self.strategy.steps, "Mechanism.first"
        t = _check.positive_integer(owner, "steps", steps, "a run that releases nothing needs no accounting")
        if t > n:
            must = f"at most {n}, the number of steps of the strategy"
            raise invalid(owner, "steps", must, steps, "use Plan.extend for a longer run")
        if t == n:
            return self
        full = self.reduction
        # Amplification theorems need lower-triangular blocks.
        triangular = full.theorem.sensitivity == "column" or full.theorem.amplified
        part = replace(self, strategy=_first_steps(self.strategy, t, triangular))
        # A different strategy class may have a looser bound on its sensitivity.
        return part if part.reduction.sensitivity.value <= full.sensitivity.value else self

    def dp_event(self) -> Any:
        """Return the mechanism as a dp_accounting event, for use with other accountants.

        For zero-out use `NeighboringRelation.REPLACE_SPECIAL`, for add-or-remove `ADD_OR_REMOVE_ONE`. For replace, the
        noise multiplier of the event already includes the factor 2: use `REPLACE_ONE` with the RDP accountant of
        dp_accounting, and `REPLACE_SPECIAL` with its PLD accountant, which would apply the factor a second time under
        `REPLACE_ONE`.
        """
        return self.reduction.release(self.noise_std).dp_event()

    @cached_property
    def reduction(self) -> Reduction:
        """The theorem that accounts for the mechanism and the sensitivity it uses."""
        return reduce(Setting(self.strategy, self.participation, self.adjacency, self.examples))


def _first_steps(strategy: Strategy, steps: int, triangular: bool) -> Strategy:
    """Return the strategy that accounts for the first `steps` steps of a run; see `Mechanism.first`.

    Args:
        strategy: C of the full run.
        steps: number of steps released, fewer than the strategy has.
        triangular: whether the accounting needs a lower-triangular block even if C has negative entries.
    """
    if triangular or strategy.first_is_monotone:
        return strategy.first(steps)
    return _first_columns(strategy, steps)


def _first_columns(strategy: Strategy, t: int) -> Strategy:
    """Return the first t columns of C with all rows if they are few and have full column rank, else all of C.

    For a matrix with mixed signs, the Gram matrices of leading blocks have entries that rise and fall with t, and so do
    the bounds on the sensitivity. With all rows there is a single Gram matrix, and t steps use a block of it.
    """
    if strategy.steps > LARGEST_DENSE_STEPS:
        return strategy
    try:
        return Dense(strategy.encoder()[:, :t])
    except InvalidArgument:  # the columns are nearly linearly dependent
        return strategy
