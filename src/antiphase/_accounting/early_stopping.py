"""A run that stops early: what the steps so far have cost."""

from __future__ import annotations

from dataclasses import replace

from antiphase import _check
from antiphase._accounting.guarantee import epsilon
from antiphase._accounting.mechanism import Mechanism
from antiphase._bound import Bound
from antiphase._check import invalid
from antiphase._errors import InvalidArgument
from antiphase._montecarlo import Sampling
from antiphase.strategies import Dense, Strategy

LARGEST_DENSE = 2048


def stopped(mechanism: Mechanism, steps: int) -> Mechanism:
    """The mechanism of the first `steps` steps, to be accounted for like any other.

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

    **Guarantee**: the mechanism covers the first t outputs, for a t fixed beforehand or chosen without looking at the
    outputs; where the outputs decide when to stop, the guarantee is that of the full run. Its sensitivity is never more
    than that of the full run. Its epsilon may be, where that comes from samples, by what two samples differ by.
    `stopped_epsilon` takes the smaller of the two; neither need grow from t to t + 1.

    Args:
        mechanism: the full run as it was planned.
        steps: how many steps have been released, at least 1.

    >>> from antiphase import EveryStep, strategies
    >>> stopped(Mechanism(strategies.Identity(8), EveryStep(), noise_std=2.0), 4).effective_noise_multiplier
    1.0

    Reference: Denisov et al. 2022, Thm 2.1.
    """
    t = _check.positive_integer("stopped", "steps", steps, "a run that released nothing costs nothing")
    if t > mechanism.strategy.steps:
        must = f"at most {mechanism.strategy.steps}, the steps of the strategy"
        raise invalid("stopped", "steps", must, steps, "extend the plan for a longer run")
    if t == mechanism.strategy.steps:
        return mechanism
    full = mechanism.reduction
    sampled = full.theorem.sensitivity == "column" or full.theorem.amplified  # what amplifies needs triangular blocks
    if sampled or mechanism.strategy.first_is_monotone:
        strategy = mechanism.strategy.first(t)
    else:
        strategy = _first_columns(mechanism.strategy, t)
    part = replace(mechanism, strategy=strategy)
    # Another family may have other bounds on its sensitivity.
    return part if part.reduction.sensitivity.value <= full.sensitivity.value else mechanism


def stopped_epsilon(
    mechanism: Mechanism,
    steps: int,
    delta: float,
    whole: Bound | None = None,
    sampling: Sampling = Sampling(),
) -> Bound:
    """The epsilon of the first `steps` steps: that of `stopped` or of the full run, whichever is smaller.

    The full run covers its beginning too. Its first t outputs are a function of all n, and stopping changes neither
    their joint law nor that of the batches: a run draws these as for n steps, whatever the participation, and a
    gradient depends on the past alone. That also holds for any rule by which outputs decide when to stop.

    **Guarantee**: never above the epsilon of the full run, and for t as in `stopped`. Where both are sampled, taking
    the smaller one is a choice among two mechanisms; `epsilon` leaves room for a choice among 1,000.

    Args:
        mechanism: the full run as it was planned.
        steps: how many steps have been released, at least 1.
        delta: between 0 and 1.
        whole: epsilon(mechanism, delta), where it is known already.
        sampling: for participations that take samples, as in `epsilon`.
    """
    part = stopped(mechanism, steps)
    full = epsilon(mechanism, delta, sampling) if whole is None else whole
    return min(full, full if part is mechanism else epsilon(part, delta, sampling), key=lambda bound: bound.value)


def _first_columns(strategy: Strategy, t: int) -> Strategy:
    """All rows of C on the first t columns, where that is small and has full column rank, else all of C.

    Of a matrix with mixed signs the leading blocks have Gram matrices whose entries rise and fall with t, and with
    them the bounds on the sensitivity. With all rows there is one Gram matrix, of which t steps are a part.
    """
    if strategy.steps > LARGEST_DENSE:
        return strategy
    try:
        return Dense(strategy.encoder()[:, :t])
    except InvalidArgument:  # the columns are nearly dependent
        return strategy
