"""`Mechanism`: a strategy together with its participation and noise level."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import Any, final

from antiphase import _check
from antiphase._accounting.reduction import Reduction, check_setting, reduce
from antiphase._accounting.theorems import Adjacency, Setting
from antiphase._check import invalid
from antiphase._errors import InvalidArgument, enough_memory
from antiphase._lattice import Lattice
from antiphase._participation import Participation
from antiphase._record import optional, record
from antiphase.strategies import Dense, Strategy

LARGEST_DENSE_STEPS = 2048  # longest run for which `first` uses only the first columns of a C with negative entries


@final
@record
class Mechanism:
    """The mechanism C x + z, where the entries of z are i.i.d. N(0, noise_std^2).

    The rows of x are the sums of clipped gradients, one row per step. A run releases x + N z step by step, where N is
    the noising matrix, a left inverse of C.

    The adjacency defines which data sets are neighbours: "zero-out" (the contributions of an example become zero),
    "add-or-remove" (one example more or less), or "replace" (the contents of an example change). docs/accounting.md
    lists the combinations that are proved. Accounting for any other combination raises `NotProved`.

    **Guarantee**: none by itself; use `epsilon`, `delta`, `zcdp`, `gdp` or `compose`.

    Args:
        strategy: strategy matrix, C.
        participation: steps in which one example participates.
        noise_std: standard deviation of z, if contributions are clipped to norm 1.
        adjacency: "zero-out", "add-or-remove" or "replace".
        examples: number of examples. Required by `FixedSize`, and by `Poisson` and `CyclicPoisson` with `max_batch`.
            `BallsInBins` and `PoissonMinSeparation` with `max_batch` need it for amplification. With `max_batch`, an
            upper bound on the number is enough. Other mechanisms ignore it.
        lattice: grid on which the noise is computed in exact integers; None for noise in floating point. With a
            lattice, the strategy must come from `rounded_strategy`.

    >>> from antiphase import FixedEpochs, strategies
    >>> Mechanism(strategies.Identity(8), FixedEpochs(4, 2), noise_std=3.0).effective_noise_multiplier
    1.5
    """

    strategy: Strategy
    participation: Participation
    noise_std: float
    adjacency: Adjacency = "zero-out"
    examples: int | None = None
    lattice: Lattice | None = optional(None)

    def __post_init__(self) -> None:
        *_, examples = check_setting("Mechanism", self.strategy, self.participation, self.adjacency, self.examples)
        object.__setattr__(self, "examples", examples)
        hint = "pass a positive standard deviation; without noise there is no privacy"
        noise = _check.real("Mechanism", "noise_std", self.noise_std, 0.0, float("inf"), hint)
        if noise == 0.0:
            raise invalid("Mechanism", "noise_std", "greater than 0", self.noise_std, hint)
        object.__setattr__(self, "noise_std", noise)
        if self.lattice is not None:
            if not isinstance(self.lattice, Lattice):
                raise invalid("Mechanism", "lattice", "a Lattice or None", self.lattice, "make one with choose_lattice")
            self.lattice.rounding(self.strategy, 1)  # raises if the strategy has no integer form

    @property
    def effective_noise_multiplier(self) -> float:
        """noise_std / sensitivity, which other libraries call the noise multiplier.

        The sensitivity is the largest column norm of C for `Poisson`, `CyclicPoisson` and `FixedSize`, and sens(C)
        under the worst case of the participation otherwise. If the sensitivity is an upper bound, the multiplier is a
        lower bound. Replace adjacency changes a contribution by up to twice its norm; that factor of 2 is not included.
        """
        return self.noise_std / self.reduction.sensitivity.value

    def first(self, steps: int) -> Mechanism:
        """Return the mechanism of the first `steps` steps, to account for a run that stops early.

        Let t = `steps`. The first t outputs x_s + (N z)_s use only some rows of z. They can be computed from the same
        rows of C x + z, which are the output of a mechanism whose strategy is the leading part of C.

        | strategy | accounted for as |
        |---|---|
        | Identity, Toeplitz, BLT, BandedInverse, Banded, lower-triangular Dense | the leading t x t block |
        | column-normalised Toeplitz | the leading t x t block as a Banded, with the column scales of the full run |
        | online Tree | a tree over t steps: all nodes completed so far, and the partial nodes that end at step t |
        | Stamped | all blocks up to and including the current one |
        | other Dense, full Tree, Fourier | the full run, because each output uses all of z |
        | C with negative entries, not amplified | the first t columns with all rows; above 2048 steps the full run |

        **Guarantee**: the returned mechanism covers the first t outputs if t is fixed in advance or chosen without
        looking at the outputs. If the outputs decide when to stop, the guarantee of the full run applies. The
        sensitivity is never larger than the sensitivity of the full run. An epsilon computed from samples, however, can
        be larger than that of the full run because of sampling error. Run reports state the smaller of the two
        epsilons, and that number may decrease from t to t + 1.

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
        # The lattice noise of the first steps is that of the leading block.
        triangular = triangular or self.lattice is not None
        part = replace(self, strategy=_first_steps(self.strategy, t, triangular))
        # `part` may have a different strategy class, with a looser bound on its sensitivity.
        return part if part.reduction.sensitivity.value <= full.sensitivity.value else self

    def dp_event(self) -> Any:
        """Return the mechanism as a dp_accounting event, for use with other accountants.

        For zero-out use `NeighboringRelation.REPLACE_SPECIAL`, and for add-or-remove `ADD_OR_REMOVE_ONE`. For replace,
        the noise multiplier of the event already includes the factor 2: use `REPLACE_ONE` with the RDP accountant of
        dp_accounting, but `REPLACE_SPECIAL` with its PLD accountant. Under `REPLACE_ONE` the PLD accountant would apply
        the factor a second time.
        """
        return self.reduction.release(self.noise_std).dp_event()

    @cached_property
    def reduction(self) -> Reduction:
        """The theorem that covers the mechanism, and the sensitivity that the theorem uses."""
        with enough_memory(f"account for {self.strategy.steps:,} steps", hint="use fewer steps"):
            return reduce(Setting(self.strategy, self.participation, self.adjacency, self.examples, self.lattice))


def _first_steps(strategy: Strategy, steps: int, triangular: bool) -> Strategy:
    """Return the strategy that accounts for the first `steps` steps of a run; see `Mechanism.first`.

    Args:
        strategy: strategy of the full run, C.
        steps: number of steps released, fewer than `strategy.steps`.
        triangular: True if the accounting needs a lower-triangular matrix even if C has negative entries.
    """
    if triangular or strategy.first_is_monotone:
        return strategy.first(steps)
    return _first_columns(strategy, steps)


def _first_columns(strategy: Strategy, t: int) -> Strategy:
    """Return the first t columns of C, with all rows, as a dense strategy.

    Returns C itself if it has more than LARGEST_DENSE_STEPS steps or if the columns are nearly linearly dependent. If C
    has entries of both signs, the Gram matrix of its leading t x t block need not increase with t, so a bound on its
    sensitivity could exceed the sensitivity of the full run. The Gram matrix of the first t columns does not have this
    problem, because it is a block of C^T C.
    """
    if strategy.steps > LARGEST_DENSE_STEPS:
        return strategy
    try:
        return Dense(strategy.encoder()[:, :t])
    except InvalidArgument:  # the columns are nearly linearly dependent
        return strategy
