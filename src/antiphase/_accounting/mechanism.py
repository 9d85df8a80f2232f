"""The mechanism: a strategy with its noise and its participation."""

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

LARGEST_DENSE_STEPS = 2048  # steps up to which the first columns of a C with negative entries are charged on their own


@final
@record
class Mechanism:
    """C x + z with z i.i.d. N(0, noise_std^2), of which x + N z is released step by step.

    Adjacency says which data sets are neighbours: "zero-out" (an example's contributions become zero),
    "add-or-remove" (there is one example more or less), "replace" (an example has other contents). docs/accounting.md
    lists what is proved; anything else raises `NotProved` when it is accounted for.

    **Guarantee**: none by itself; `epsilon`, `delta`, `zcdp`, `gdp` and `compose` give it.

    Args:
        strategy: strategy matrix, C.
        participation: steps in which one example takes part.
        noise_std: standard deviation of z, for contributions of norm at most 1.
        adjacency: "zero-out", "add-or-remove" or "replace".
        examples: number of examples. Needed by `FixedSize`, and as an upper bound by `max_batch` with random
            participations; nothing else depends on it.

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
        hint = "a standard deviation is greater than 0; without noise there is no privacy"
        noise = _check.real("Mechanism", "noise_std", self.noise_std, 0.0, float("inf"), hint)
        if noise == 0.0:
            raise invalid("Mechanism", "noise_std", "greater than 0", self.noise_std, hint)
        object.__setattr__(self, "noise_std", noise)

    @property
    def effective_noise_multiplier(self) -> float:
        """noise_std divided by the sensitivity, which other libraries call the noise multiplier.

        The sensitivity is that of one contribution: sens(C) under the participation, or where sampling amplifies
        the largest column norm of C. An upper bound on the sensitivity makes this a lower bound. Replace adjacency
        changes a contribution by twice its norm; that factor is not in this number.
        """
        return self.noise_std / self.reduction.sensitivity.value

    def first(self, steps: int) -> Mechanism:
        """Return the mechanism of the first `steps` steps, to account for a run that stops early.

        The first t outputs x_s + (N z)_s use the rows of z that the first t steps complete, so they are computed from
        these rows of C x + z: the mechanism of the leading part of C.

        | strategy | charged as |
        |---|---|
        | Identity, Toeplitz, BLT, BandedInverse, Banded, lower-triangular Dense | the leading t x t block |
        | column-normalised Toeplitz | the same block, as Banded: its columns keep the scale of the full run |
        | online Tree | a tree over t steps: all nodes completed so far, and those a run of t steps would complete |
        | Stamped | whole blocks, up to the one under way |
        | other Dense, full Tree, Fourier | the full run: each output uses all of z |
        | C with negative entries, not amplified | the first t columns with all rows; above 2048 steps the full run |

        **Guarantee**: the mechanism covers the first t outputs, for a t fixed beforehand or chosen without looking at
        the outputs; where the outputs decide when to stop, the guarantee is that of the full run. Its sensitivity is
        never more than that of the full run. Its epsilon may be, where that comes from samples, by what two samples
        differ by. Run reports state the smaller of the two; neither need grow from t to t + 1.

        Args:
            steps: number of steps released, from 1 to the number of steps planned.

        >>> from antiphase import EveryStep, strategies
        >>> Mechanism(strategies.Identity(8), EveryStep(), noise_std=2.0).first(4).effective_noise_multiplier
        1.0

        Reference: Denisov et al. 2022, Thm 2.1.
        """
        n, owner = self.strategy.steps, "Mechanism.first"
        t = _check.positive_integer(owner, "steps", steps, "a run that released nothing costs nothing")
        if t > n:
            must = f"at most {n}, the number of steps of the strategy"
            raise invalid(owner, "steps", must, steps, "use Plan.extend for a longer run")
        if t == n:
            return self
        full = self.reduction
        # Amplification theorems need lower-triangular blocks.
        triangular = full.theorem.sensitivity == "column" or full.theorem.amplified
        part = replace(self, strategy=_first_steps(self.strategy, t, triangular))
        # Another family of strategies may have another bound on its sensitivity.
        return part if part.reduction.sensitivity.value <= full.sensitivity.value else self

    def dp_event(self) -> Any:
        """Return the mechanism as an event of dp_accounting, for other accountants.

        For zero-out use `NeighboringRelation.REPLACE_SPECIAL`, for add-or-remove `ADD_OR_REMOVE_ONE`. For replace
        the event already has the factor 2 in its noise multiplier, which dp_accounting's RDP accountant wants under
        `REPLACE_ONE` and its PLD accountant, which doubles there by itself, under `REPLACE_SPECIAL`.
        """
        return self.reduction.release(self.noise_std).dp_event()

    @cached_property
    def reduction(self) -> Reduction:
        """The theorem that accounts for the mechanism and the sensitivity it uses."""
        return reduce(Setting(self.strategy, self.participation, self.adjacency, self.examples))


def _first_steps(strategy: Strategy, steps: int, triangular: bool) -> Strategy:
    """Return the strategy that the first `steps` steps of a run are charged as; see `Mechanism.first`.

    Args:
        strategy: C of the full run.
        steps: number of steps released, fewer than the strategy has.
        triangular: whether the accounting needs a lower-triangular block even if C has negative entries.
    """
    if triangular or strategy.first_is_monotone:
        return strategy.first(steps)
    return _first_columns(strategy, steps)


def _first_columns(strategy: Strategy, t: int) -> Strategy:
    """All rows of C on the first t columns, where that is small and has full column rank, else all of C.

    The leading blocks of a matrix with mixed signs have Gram matrices whose entries rise and fall with t, and so do the
    bounds on the sensitivity. With all rows there is one Gram matrix, and t steps are a part of it.
    """
    if strategy.steps > LARGEST_DENSE_STEPS:
        return strategy
    try:
        return Dense(strategy.encoder()[:, :t])
    except InvalidArgument:  # the columns are nearly dependent
        return strategy
