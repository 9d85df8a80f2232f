"""Which method answers for which strategy under which participation: the table that the manual prints."""

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
from antiphase._sensitivity import columns, earliest, fixed, shuffled, spectral, tree
from antiphase._sensitivity import separated as separated_module
from antiphase._sensitivity.bracket import Bracket, Case
from antiphase.strategies import BLT, Banded, BandedInverse, Dense, Fourier, Identity, Stamped, Strategy, Toeplitz, Tree

MULTI_EPOCH = "Choquette-Choo et al. 2023 (multi-epoch)"
AMPLIFIED = "Choquette-Choo et al. 2023 (amplified banded)"


@dataclass(frozen=True)
class Method:
    """One way to a squared sensitivity.

    Args:
        run: gives the bracket, or raises NotProved where its condition does not hold.
        condition: when it applies, and when its answer is exact.
        reference: author, year, theorem.
    """

    run: Callable[[Case], Bracket]
    condition: str
    reference: str


_FIXED = {
    "orthogonal": Method(
        fixed.orthogonal, "exact where bands <= steps between participations", f"{AMPLIFIED}, Prop. B.1"
    ),
    "nonnegative": Method(
        fixed.nonnegative,
        "exact where X >= 0 on the pattern, if need be after turning the sign of some contributions; so it always is"
        " for two participations and where bands <= 2 x steps between them",
        f"{MULTI_EPOCH}, Cor. 2.1; {AMPLIFIED}, Prop. E.1",
    ),
    "semidefinite": Method(
        fixed.semidefinite,
        f"exact for up to {fixed.LARGEST_PROGRAM} participations, whatever the signs",
        f"{MULTI_EPOCH}, Def. 1 and App. H.2; dual of max tr(X K) over correlation matrices K",
    ),
    "row-sum": Method(fixed.row_sum, "upper bound for all, exact where X >= 0", f"{AMPLIFIED}, Prop. E.1"),
    "spectral": Method(
        fixed.spectral,
        f"upper bound: k x the largest eigenvalue of X on a pattern; of all of X above {fixed.LARGEST_SPECTRUM}"
        f" participations, then for Toeplitz or up to {spectral.LARGEST_DENSE} steps",
        f"{MULTI_EPOCH}, Thm 2.1",
    ),
}

METHODS: dict[type[Deterministic], dict[str, Method]] = {
    SingleParticipation: {
        "column-norm": Method(columns.column_norm, "exact for all", "Li et al. 2015, Prop. 3"),
    },
    EveryStep: _FIXED,
    FixedEpochs: _FIXED,
    ShuffledEpochs: {
        "dynamic-program": Method(
            shuffled.dynamic_program,
            "exact where bands <= steps_per_epoch + 1, and for two epochs; otherwise an upper bound in which epochs"
            " that are not adjacent enter by row sums",
            f"{AMPLIFIED}, Prop. E.1; tridiagonal X has the signs of a chain",
        ),
        "row-sum": Method(
            shuffled.row_sum, "upper bound for all, each diagonal of X by its largest entry", f"{AMPLIFIED}, Prop. E.1"
        ),
        "spectral": Method(
            spectral.spectral,
            f"upper bound: k x the largest eigenvalue of X, up to {spectral.LARGEST_DENSE} steps or Toeplitz",
            f"{MULTI_EPOCH}, Thm 2.1",
        ),
    },
    MinSeparation: {
        "orthogonal": Method(
            separated_module.orthogonal, "exact where bands <= separation, or k = 1", f"{AMPLIFIED}, Thm 2 and Alg. 5"
        ),
        "earliest": Method(
            earliest.earliest,
            "exact where the coefficients of C are non-negative and non-increasing",
            "Kalinin and Lampert 2024, Thm 2; McMahan, Xu and Zhang 2024, Thm 3.1",
        ),
        "dynamic-program": Method(
            separated_module.dynamic_program,
            "exact where bands <= 2 x separation, and for two participations",
            f"{AMPLIFIED}, Prop. E.1; tridiagonal X has the signs of a chain",
        ),
        "subtrees": Method(
            tree.dynamic_program,
            "exact while the tables stay small: b = 400 with k = 20 does",
            f"Kairouz et al. 2021; {MULTI_EPOCH}, Cor. 2.1",
        ),
        "blocks": Method(
            lambda case: separated_module.blocks(case, solve),
            "upper bound, exact where the earliest pattern is the worst in a block and leaves room for the next",
            f"{AMPLIFIED}, Prop. E.1, for a block-diagonal X",
        ),
        "majorant": Method(
            earliest.majorant,
            "upper bound: the earliest pattern for the smallest non-increasing coefficients that bound those of C",
            "Kalinin and Lampert 2024, Thm 2",
        ),
        "levels": Method(
            tree.levels,
            "upper bound: k x the sum over levels of the most participations in a node",
            f"{MULTI_EPOCH}, Cor. 2.1",
        ),
        "row-sum": Method(
            separated_module.row_sum,
            "upper bound for all; where X has too many entries each diagonal by its largest one",
            f"{AMPLIFIED}, Thm 3 and Alg. 4",
        ),
        "spectral": Method(
            spectral.spectral,
            f"upper bound: k x the largest eigenvalue of X, up to {spectral.LARGEST_DENSE} steps or Toeplitz",
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

Row = dict[type[Deterministic], tuple[str, ...]]


def _row(classes: tuple[str, ...], separated: tuple[str, ...]) -> Row:
    return {
        SingleParticipation: _COLUMN,
        EveryStep: classes,
        FixedEpochs: classes,
        ShuffledEpochs: _CHAIN,
        MinSeparation: separated,
    }


TABLE: dict[type[Strategy], Row] = {
    Identity: _row(("orthogonal",), ("orthogonal",)),
    Dense: _row(_BANDED, _APART),
    Banded: _row(_BANDED, _APART),
    Toeplitz: _row(_BANDED, ("orthogonal", *_EARLY)),
    BLT: _row(_FULL, _EARLY),
    BandedInverse: _row(_FULL, _EARLY),
    Tree: _row(("nonnegative", "row-sum", "spectral"), ("orthogonal", "subtrees", "levels", "row-sum", "spectral")),
    Fourier: _row(_FULL, _APART),
    Stamped: _row(_BANDED, ("orthogonal", "subtrees", "dynamic-program", "blocks", "levels", "row-sum", "spectral")),
}


def methods(strategy: Strategy, participation: Deterministic) -> dict[str, Method]:
    """The methods for a pair, in the order in which they are tried."""
    names = TABLE.get(type(strategy), TABLE[Dense])[type(participation)]
    return {name: METHODS[type(participation)][name] for name in names}


def solve(case: Case) -> tuple[Bracket, str]:
    """The first exact answer, else the smallest upper bound, with the name of its method."""
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
            f"No method covers {type(case.strategy).__name__} of {case.steps} steps under {case.participation}. "
            + " ".join(reasons),
            hint="use fewer steps, fewer bands or a larger separation",
        )
    best, name = min(found, key=lambda pair: pair[0].upper)
    return Bracket(max(bracket.lower for bracket, _ in found), best.upper), name


_INTRODUCTION = """# Which method gives the sensitivity

`antiphase.sensitivity(strategy, participation)` tries the methods of the pair in the order below. The first that is
exact gives the answer; if none is, the smallest upper bound does. `method="..."` asks for one by name; if its condition
does not hold, `NotProved` is raised and names one that works. Exact means exact for vector contributions (gradients),
not only for numbers with a sign. Every answer is a `Bound` with its kind, method and theorem, and it is never below
the true value.

X is the Gram matrix C^T C; X has as many bands as C. A random participation is taken at its `worst_case`.

This page is generated from the table in the code; a test keeps the two equal.
"""


def page() -> str:
    """Return the text of docs/sensitivity.md, which prints this table."""
    return "\n".join([_INTRODUCTION, *_pair_lines(), *_method_lines()])


def _pair_lines() -> list[str]:
    lines = ["## Strategies and participations", ""]
    participations = list(METHODS)
    lines.append("| strategy | " + " | ".join(p.__name__ for p in participations) + " |")
    lines.append("|" + "---|" * (len(participations) + 1))
    for strategy, row in TABLE.items():
        cells = [", ".join(row[p]) for p in participations]
        lines.append(f"| {strategy.__name__} | " + " | ".join(cells) + " |")
    return [*lines, "", "A strategy that is not in the table is treated as Dense.", ""]


def _method_lines() -> list[str]:
    lines = ["## Methods", ""]
    for participation, known in METHODS.items():
        lines += [f"### {participation.__name__}", "", "| method | applies | reference |", "|---|---|---|"]
        lines += [f"| {name} | {method.condition} | {method.reference} |" for name, method in known.items()]
        lines.append("")
    return lines
