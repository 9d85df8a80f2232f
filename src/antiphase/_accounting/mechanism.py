"""The mechanism: a strategy with its noise, and what is promised about participation."""

from __future__ import annotations

from functools import cached_property
from typing import Any, final

from antiphase import _check
from antiphase._accounting.reduction import Reduction, check_setting, reduce
from antiphase._accounting.theorems import Adjacency, Setting
from antiphase._check import invalid
from antiphase._participation import Participation
from antiphase._record import record
from antiphase.strategies import Strategy


@final
@record
class Mechanism:
    """C x + z with z i.i.d. N(0, noise_std^2), of which x + N z is released step by step.

    Adjacency says which data sets are neighbours: "zero-out" (an example's contributions become zero),
    "add-or-remove" (there is one example more or less), "replace" (an example has other contents). docs/accounting.md
    lists what is proved; anything else raises `NotProved` when it is accounted for.

    **Guarantee**: none by itself; `epsilon`, `delta`, `zcdp`, `gdp` and `compose` give it.

    Args:
        strategy: C.
        participation: how one example meets the steps.
        noise_std: standard deviation of z, for contributions of norm at most 1.
        adjacency: "zero-out", "add-or-remove" or "replace".
        examples: how many examples there are. Needed by `FixedSize`, and as an upper bound by `max_batch` with random
            participations; the rest does not depend on it.

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
        """noise_std over the sensitivity, what other libraries call the noise multiplier.

        The sensitivity is that of one contribution: sens(C) under the participation, or where sampling amplifies
        the largest column norm of C. An upper bound on the sensitivity makes this a lower bound. Replace adjacency
        changes a contribution by twice its norm; that factor is not in this number.
        """
        return self.noise_std / self.reduction.sensitivity.value

    def dp_event(self) -> Any:
        """The mechanism as an event of dp_accounting, for other accountants.

        For zero-out use `NeighboringRelation.REPLACE_SPECIAL`, for add-or-remove `ADD_OR_REMOVE_ONE`. For replace
        the event already has the factor 2 in its noise multiplier, which dp_accounting's RDP accountant wants under
        `REPLACE_ONE` and its PLD accountant, which doubles there by itself, under `REPLACE_SPECIAL`.
        """
        return self.reduction.release(self.noise_std).dp_event()

    @cached_property
    def reduction(self) -> Reduction:
        """The theorem that accounts for the mechanism and the sensitivity it uses."""
        return reduce(Setting(self.strategy, self.participation, self.adjacency, self.examples))
