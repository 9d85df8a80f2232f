"""The table of theorems, which gives the theorem for each participation, adjacency and kind of strategy.

A combination that is not in the table is not proved and raises `NotProved`. To add an accountant, add a subclass of
`StandardMechanism` and rows for it. docs/accounting.md prints the table.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, get_args

from antiphase._accounting.fixed_size import FixedSizeSampled
from antiphase._accounting.poisson import PoissonSampled, Truncation
from antiphase._accounting.standard_mechanism import Gaussian, StandardMechanism
from antiphase._bound import Kind
from antiphase._check import invalid, one_of
from antiphase._errors import NotProved
from antiphase._lattice import Lattice
from antiphase._participation import (
    BallsInBins,
    CyclicPoisson,
    EveryStep,
    FixedEpochs,
    FixedSize,
    MinSeparation,
    Participation,
    Poisson,
    PoissonMinSeparation,
    ShuffledEpochs,
    SingleParticipation,
)
from antiphase.strategies import Strategy

Adjacency = Literal["zero-out", "add-or-remove", "replace"]
Strategies = Literal["any", "one band", "bands <= groups", "lower triangular", "bands <= separation"]


def check_adjacency(owner: str, adjacency: Any) -> Adjacency:
    """Return `adjacency` as one of the three supported names, else raise."""
    names: tuple[Adjacency, ...] = get_args(Adjacency)
    return one_of(owner, "adjacency", adjacency, names, "use 'zero-out', the most common choice")


@dataclass(frozen=True)
class Setting:
    """A mechanism without its noise level; the fields are as for `Mechanism`."""

    strategy: Strategy
    participation: Any
    adjacency: Adjacency
    examples: int | None
    lattice: Lattice | None = None


@dataclass(frozen=True)
class Theorem:
    """One row of the table.

    Args:
        participation: class of the participation.
        max_batch: True if the theorem covers only truncated batches, False if only batches that are not truncated, None
            if both.
        adjacency: which data sets are neighbours.
        strategies: strategies that the theorem covers.
        sensitivity: "pattern" for sens(C) under the participation's worst case, or "column" for the largest column
            norm of C.
        factor: largest change of one contribution between neighbouring data sets, if contributions have norm at most 1.
        release: function from a setting and a noise multiplier to the standard mechanism whose guarantee the theorem
            uses, such as one Gaussian mechanism.
        kind: kind of the bound on epsilon if the sensitivity is exact.
        account: description of the standard mechanism, for docs/accounting.md.
        reference: author, year, theorem.
        remark: text that is appended to `Bound.method` if the bound is computed from `release`.
        amplified: True if `amplified.py` computes `epsilon` and `delta`. It uses `release` where it cannot prove
            amplification.
        lattice: True if the theorem also covers lattice noise. The sensitivity then includes the effect of rounding.
    """

    participation: type[Participation]
    max_batch: bool | None
    adjacency: Adjacency
    strategies: Strategies
    sensitivity: Literal["pattern", "column"]
    factor: float
    release: Callable[[Setting, float], StandardMechanism]
    kind: Kind
    account: str
    reference: str
    remark: str = ""
    amplified: bool = False
    lattice: bool = True


def _gaussian(setting: Setting, multiplier: float) -> StandardMechanism:
    return Gaussian(multiplier)


def _poisson(setting: Setting, multiplier: float) -> StandardMechanism:
    sampling: Poisson | CyclicPoisson = setting.participation
    groups = sampling.sampling_groups
    count = -(-setting.strategy.steps // groups)
    truncation = None
    if sampling.max_batch is not None:
        # Of two neighbouring data sets, account for the larger one.
        examples = _examples(setting) + (setting.adjacency == "add-or-remove")
        truncation = Truncation(examples, groups, sampling.max_batch)
    return PoissonSampled(multiplier, sampling.rate, count, truncation)


def _fixed_size(setting: Setting, multiplier: float) -> StandardMechanism:
    sampling: FixedSize = setting.participation
    group = _examples(setting) // sampling.groups
    if sampling.batch_size > group:
        raise invalid(
            "FixedSize",
            "batch_size",
            f"at most {group}, the size of the smallest group when {setting.examples} examples are split into "
            f"{sampling.groups} groups",
            sampling.batch_size,
            "use a smaller batch size or fewer groups",
        )
    return FixedSizeSampled(multiplier, sampling.batch_size, group, -(-setting.strategy.steps // sampling.groups))


def _truncated_add_or_remove(setting: Setting, multiplier: float) -> StandardMechanism:
    """Raise `NotProved`: an added example can displace another one, which no standard mechanism covers."""
    raise NotProved(
        f"No theorem covers {setting.participation} under add-or-remove adjacency without amplification.",
        hint="use max_batch=None or zero-out adjacency",
    )


def _examples(setting: Setting) -> int:
    if setting.examples is None:
        name = type(setting.participation).__name__
        raise invalid(
            "Mechanism",
            "examples",
            f"the number of examples for this {name}",
            None,
            "pass examples=...; the guarantee depends on the number of examples",
        )
    return setting.examples


STREAMS = "Denisov et al. 2022, Thm 2.1; Balle and Wang 2018, Thm 8"
_BANDED = "Choquette-Choo et al. 2023 (amplified banded), Thm 5"
_PAIRS = "Zhu, Dong and Wang 2022, Thms 10 and 11"
_TRUNCATED = "arXiv:2508.15089"
_ONE_GAUSSIAN = "one Gaussian mechanism, noise_std / sens(C)"
_STEPS = "n Poisson-sampled Gaussian mechanisms, noise_std / largest entry of C"
_ROUNDS = "ceil(n / groups) Poisson-sampled Gaussian mechanisms, noise_std / largest column norm"
_TRUNCATION = "; with the probability of an overflow, a step replaces one example with another"
_PROMISES = (SingleParticipation, EveryStep, FixedEpochs, ShuffledEpochs, MinSeparation)
_SAMPLED: tuple[tuple[type[Participation], Strategies, str, str], ...] = (
    (Poisson, "one band", _STEPS, _PAIRS),
    (CyclicPoisson, "bands <= groups", _ROUNDS, f"{_BANDED}; {_PAIRS}"),
)
_EITHER: tuple[Adjacency, ...] = ("zero-out", "add-or-remove")
_LEMMA = "Choquette-Choo et al. 2025 (near-exact amplification)"
_CERTIFIED = "Wang et al. 2023, Thm. 9; Waudby-Smith and Ramdas 2024"
_OVERFLOW = "; the probability that a batch overflows is added to delta"
_MIXED: tuple[tuple[type[Participation], Strategies, str, str], ...] = (
    (
        BallsInBins,
        "lower triangular",
        "equal mixture of one Gaussian per bin, centred at the sum of the bin's columns of |C|, against one Gaussian "
        "at 0",
        f"{_LEMMA}, Lemma 3.2 (Lemma C.1 for negative entries); {_CERTIFIED}",
    ),
    (
        PoissonMinSeparation,
        "bands <= separation",
        "mixture of one Gaussian per pattern, centred at the sum of the pattern's columns of |C|, against one Gaussian "
        "at 0",
        f"{_LEMMA}, Lemma C.1; {_CERTIFIED}",
    ),
)

THEOREMS: tuple[Theorem, ...] = (
    *(
        Theorem(promise, None, "zero-out", "any", "pattern", 1.0, _gaussian, "exact", _ONE_GAUSSIAN, STREAMS)
        for promise in _PROMISES
    ),
    *(
        Theorem(promise, None, "replace", "any", "pattern", 2.0, _gaussian, "exact", f"{_ONE_GAUSSIAN} / 2", STREAMS)
        for promise in _PROMISES
    ),
    Theorem(EveryStep, None, "add-or-remove", "any", "pattern", 1.0, _gaussian, "exact", _ONE_GAUSSIAN, STREAMS),
    *(
        Theorem(
            sampling,
            max_batch,
            adjacency,
            strategies,
            "column",
            1.0,
            _poisson,
            "upper",
            account,
            reference,
            lattice=not max_batch,
        )
        for sampling, strategies, words, theorem in _SAMPLED
        for max_batch, account, reference in (
            (False, words, theorem),
            (True, words + _TRUNCATION, f"{theorem}; {_TRUNCATED}"),
        )
        for adjacency in _EITHER
    ),
    Theorem(
        FixedSize,
        None,
        "replace",
        "bands <= groups",
        "column",
        2.0,
        _fixed_size,
        "upper",
        "ceil(n / groups) Gaussian mechanisms on samples without replacement, noise_std / largest column norm / 2",
        f"{_BANDED}; {_PAIRS}",
        lattice=False,
    ),
    *(
        Theorem(
            sampling,
            max_batch,
            adjacency,
            strategies,
            "pattern",
            1.0,
            _gaussian if adjacency == "zero-out" or not max_batch else _truncated_add_or_remove,
            "upper",
            account,
            reference,
            ", without amplification",
            amplified=True,
        )
        for sampling, strategies, words, reference in _MIXED
        for max_batch, account in ((False, words), (True, words + _OVERFLOW))
        for adjacency in _EITHER
    ),
    *(
        Theorem(
            sampling,
            max_batch,
            adjacency,
            "any",
            "pattern",
            1.0,
            _gaussian,
            "upper",
            "one Gaussian mechanism at the worst pattern, without amplification",
            STREAMS,
            ", without amplification",
        )
        for sampling in (BallsInBins, PoissonMinSeparation)
        for max_batch, adjacency in ((None, _EITHER[0]), (False, _EITHER[1]))
    ),
)
