"""The table of methods for each strategy and participation, which docs/sensitivity.md shows.

In the conditions, X is the Gram matrix C^T C, and k is the largest number of participations. A pattern is a set of
steps in which one example takes part. The earliest pattern with separation b is 0, b, 2b, ..., (k - 1) b.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from antiphase._errors import NotProved
from antiphase._participation import (
    Deterministic,
    EveryStep,
    FixedEpochs,
    MinSeparation,
    ShuffledEpochs,
    SingleParticipation,
)
from antiphase._sensitivity import epochs, min_separation, norms, rounding, tree
from antiphase._sensitivity.bracket import Bracket, Case
from antiphase._sensitivity.rounding import RoundingRule
from antiphase.strategies import BLT, Banded, BandedInverse, Dense, Fourier, Identity, Stamped, Strategy, Toeplitz, Tree

MULTI_EPOCH = "Choquette-Choo et al. 2023 (multi-epoch)"
AMPLIFIED = "Choquette-Choo et al. 2023 (amplified banded)"


@dataclass(frozen=True)
class Method:
    """A method that computes or bounds the squared sensitivity.

    Args:
        run: function that returns the `Bracket`, or raises `NotProved` if the condition does not hold.
        condition: text for docs/sensitivity.md that says when the method applies and when its result is exact.
        reference: author, year and theorem.
    """

    run: Callable[[Case], Bracket]
    condition: str
    reference: str


_FIXED = {
    "orthogonal": Method(
        epochs.orthogonal, "exact if bands <= steps between participations", f"{AMPLIFIED}, Prop. B.1"
    ),
    "nonnegative": Method(
        epochs.nonnegative,
        "exact if X >= 0 on the pattern, possibly after flipping the signs of some contributions; always exact for two"
        " participations, or if bands <= 2 x steps between participations",
        f"{MULTI_EPOCH}, Cor. 2.1; {AMPLIFIED}, Prop. E.1",
    ),
    "semidefinite": Method(
        epochs.semidefinite,
        f"exact for up to {epochs.LARGEST_PROGRAM} participations, for any signs of X",
        f"{MULTI_EPOCH}, Def. 1 and App. H.2; dual of max tr(X K) over correlation matrices K",
    ),
    "row-sum": Method(epochs.row_sum, "upper bound in all cases, exact if X >= 0", f"{AMPLIFIED}, Prop. E.1"),
    "spectral": Method(
        epochs.spectral,
        f"upper bound: k x the largest eigenvalue of X on a pattern. Above {epochs.LARGEST_SPECTRUM} participations,"
        f" the eigenvalue of the whole X is used; this requires a Toeplitz matrix or at most"
        f" {norms.LARGEST_EIGENPROBLEM} steps",
        f"{MULTI_EPOCH}, Thm 2.1",
    ),
}

METHODS: dict[type[Deterministic], dict[str, Method]] = {
    SingleParticipation: {
        "column-norm": Method(norms.column_norm, "exact in all cases", "Li et al. 2015, Prop. 3"),
    },
    EveryStep: _FIXED,
    FixedEpochs: _FIXED,
    ShuffledEpochs: {
        "dynamic-program": Method(
            epochs.shuffled_dynamic_program,
            "exact if bands <= steps_per_epoch + 1, or for two epochs; otherwise an upper bound that uses row sums for"
            " epochs that are not adjacent",
            f"{AMPLIFIED}, Prop. E.1; signs can be chosen one after another if X is tridiagonal",
        ),
        "row-sum": Method(
            epochs.shuffled_row_sum,
            "upper bound in all cases: each diagonal of X is bounded by its largest entry",
            f"{AMPLIFIED}, Prop. E.1",
        ),
        "spectral": Method(
            norms.spectral,
            "upper bound: k x the largest eigenvalue of X; requires a Toeplitz matrix or at most"
            f" {norms.LARGEST_EIGENPROBLEM} steps",
            f"{MULTI_EPOCH}, Thm 2.1",
        ),
    },
    MinSeparation: {
        "orthogonal": Method(
            min_separation.orthogonal, "exact if bands <= separation or k = 1", f"{AMPLIFIED}, Thm 2 and Alg. 5"
        ),
        "earliest": Method(
            min_separation.earliest,
            "exact if the coefficients of C are non-negative and non-increasing",
            "Kalinin and Lampert 2024, Thm 2; McMahan, Xu and Zhang 2024, Thm 3.1",
        ),
        "dynamic-program": Method(
            min_separation.dynamic_program,
            "exact if bands <= 2 x separation, or for two participations",
            f"{AMPLIFIED}, Prop. E.1; signs can be chosen one after another if X is tridiagonal",
        ),
        "subtrees": Method(
            tree.dynamic_program,
            "exact if its tables are small enough, as for separation 400 and k = 20",
            f"Kairouz et al. 2021; {MULTI_EPOCH}, Cor. 2.1",
        ),
        "blocks": Method(
            lambda case: min_separation.blocks(case, solve),
            "upper bound; exact if the earliest pattern is the worst in each block, and its last step is at least the"
            " separation before the next block",
            f"{AMPLIFIED}, Prop. E.1, for a block-diagonal X",
        ),
        "majorant": Method(
            min_separation.majorant,
            "upper bound: the value for the earliest pattern, with the coefficients of C replaced by the smallest"
            " non-increasing numbers that are at least their absolute values",
            "Kalinin and Lampert 2024, Thm 2",
        ),
        "levels": Method(
            tree.levels,
            "upper bound: k x the sum over tree levels of the largest number of participations below a node of the"
            " level",
            f"{MULTI_EPOCH}, Cor. 2.1",
        ),
        "row-sum": Method(
            min_separation.row_sum,
            "upper bound in all cases; if X has too many entries, each diagonal is bounded by its largest entry",
            f"{AMPLIFIED}, Thm 3 and Alg. 4",
        ),
        "spectral": Method(
            norms.spectral,
            "upper bound: k x the largest eigenvalue of X; requires a Toeplitz matrix or at most"
            f" {norms.LARGEST_EIGENPROBLEM} steps",
            f"{MULTI_EPOCH}, Thm 2.1",
        ),
    },
}

_COLUMN = ("column-norm",)
_BANDED = ("orthogonal", "nonnegative", "semidefinite", "row-sum", "spectral")
_FULL = ("nonnegative", "semidefinite", "row-sum", "spectral")
_CHAIN = ("dynamic-program", "row-sum", "spectral")
_APART = ("orthogonal", "dynamic-program", "row-sum", "spectral")
_EARLY = ("earliest", "dynamic-program", "majorant", "row-sum", "spectral")


@dataclass(frozen=True)
class StrategyRow:
    """The row of the table for one class of strategies.

    Args:
        methods: for each participation, the names of the methods in the order in which they are tried.
        rounding: rule that bounds the rounding errors of these methods.
    """

    methods: dict[type[Deterministic], tuple[str, ...]]
    rounding: RoundingRule


def _row(fixed: tuple[str, ...], separated: tuple[str, ...], rule: RoundingRule) -> StrategyRow:
    methods: dict[type[Deterministic], tuple[str, ...]] = {
        SingleParticipation: _COLUMN,
        EveryStep: fixed,
        FixedEpochs: fixed,
        ShuffledEpochs: _CHAIN,
        MinSeparation: separated,
    }
    return StrategyRow(methods, rule)


TABLE: dict[type[Strategy], StrategyRow] = {
    Identity: _row(("orthogonal",), ("orthogonal",), rounding.INTEGERS),
    Dense: _row(_BANDED, _APART, rounding.DENSE),
    Banded: _row(_BANDED, _APART, rounding.BANDED),
    Toeplitz: _row(_BANDED, ("orthogonal", *_EARLY), rounding.TOEPLITZ),
    BLT: _row(_FULL, _EARLY, rounding.BUFFERS),
    BandedInverse: _row(_FULL, _EARLY, rounding.INVERSE),
    Tree: _row(
        ("nonnegative", "row-sum", "spectral"),
        ("orthogonal", "subtrees", "levels", "row-sum", "spectral"),
        rounding.INTEGERS,
    ),
    Fourier: _row(_FULL, _APART, rounding.FOURIER),
    Stamped: _row(
        _BANDED,
        ("orthogonal", "subtrees", "dynamic-program", "blocks", "levels", "row-sum", "spectral"),
        RoundingRule(
            lambda stamped, count, method: _rounding_rule(stamped.block).entries(stamped.block, count, method)
        ),
    ),
}
UNKNOWN_STRATEGY = StrategyRow(TABLE[Dense].methods, rounding.UNKNOWN)


def methods(strategy: Strategy, participation: Deterministic) -> dict[str, Method]:
    """Return the methods for a strategy and a participation, by name, in the order in which they are tried."""
    names = TABLE.get(type(strategy), UNKNOWN_STRATEGY).methods[type(participation)]
    return {name: METHODS[type(participation)][name] for name in names}


def roundings(case: Case, method: str, square: float) -> float:
    """Return an upper bound on the relative rounding error of the result of a method, in units of 2^-53."""
    return rounding.roundings(case, _rounding_rule(case.strategy.block), method, square)


def _rounding_rule(strategy: Strategy) -> RoundingRule:
    return TABLE.get(type(strategy), UNKNOWN_STRATEGY).rounding


def solve(case: Case) -> tuple[Bracket, str]:
    """Return the first exact result, or else the smallest upper bound, with the name of its method."""
    found: list[tuple[Bracket, str]] = []
    reasons: list[str] = []
    for name, method in methods(case.strategy, case.participation).items():
        try:
            bracket = method.run(case)
        except NotProved as error:
            reasons.append(f"{name}: {error.message}")
            continue
        if bracket.kind == "exact":
            return bracket, name
        found.append((bracket, name))
    if not found:
        raise NotProved(
            f"No method applies to {type(case.strategy).__name__} of {case.steps} steps under {case.participation}. "
            + " ".join(reasons),
            hint="use fewer steps, fewer bands or a larger separation",
        )
    best, name = min(found, key=lambda pair: pair[0].upper)
    return Bracket(max(bracket.lower for bracket, _ in found), best.upper), name


_INTRODUCTION = """# Sensitivity methods

`antiphase.sensitivity(strategy, participation)` tries the methods for the strategy and participation in the order
below. It returns the first exact result, or the smallest upper bound if no method is exact. To use a particular method,
pass `method="..."`. If the condition of that method does not hold, `NotProved` is raised, and its hint names a method
that works. A result is exact if it is the maximum over contributions that are vectors (gradients), not only over
contributions that are +1 or -1. Every result is a `Bound` with its kind, method and theorem, and it is never below the
true value.

X is the Gram matrix C^T C, which has as many bands as C. k is the largest number of participations. A pattern is a set
of steps in which one example takes part. The earliest pattern with separation b is 0, b, 2b, ..., (k - 1) b. A random
participation is replaced by its `worst_case`.

This page is generated from the table in the code; a test keeps the two equal.
"""


def page() -> str:
    """Return the text of docs/sensitivity.md."""
    return "\n".join([_INTRODUCTION, *_pair_lines(), *_method_lines()])


def _pair_lines() -> list[str]:
    lines = ["## Strategies and participations", ""]
    participations = list(METHODS)
    lines.append("| strategy | " + " | ".join(p.__name__ for p in participations) + " |")
    lines.append("|" + "---|" * (len(participations) + 1))
    for strategy, row in TABLE.items():
        cells = [", ".join(row.methods[p]) for p in participations]
        lines.append(f"| {strategy.__name__} | " + " | ".join(cells) + " |")
    return [*lines, "", "A strategy that is not in the table is treated as Dense.", ""]


def _method_lines() -> list[str]:
    lines = ["## Methods", ""]
    for participation, known in METHODS.items():
        lines += [f"### {participation.__name__}", "", "| method | applies | reference |", "|---|---|---|"]
        lines += [f"| {name} | {method.condition} | {method.reference} |" for name, method in known.items()]
        lines.append("")
    return lines
