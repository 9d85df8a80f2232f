"""The page of the manual that prints the table of theorems."""

from __future__ import annotations

from antiphase._accounting._theorems import THEOREMS, Theorem

_INTRODUCTION = """# What is proved about privacy

`antiphase.epsilon`, `delta` and `calibrate` look a mechanism up in the table below. A combination that is not in it
raises `NotProved` and names the nearest one that is. Every answer is a `Bound` that says how far it can be trusted and
names the theorem.

This page is generated from the table in the code; a test keeps the two equal.

## Neighbouring data sets

| adjacency | the two data sets |
|---|---|
| zero-out | one example contributes zero in every step; everything else, the batches too, stays as it is |
| add-or-remove | one example is not there |
| replace | one example has other contents, which changes a contribution by up to twice its norm |

## Theorems

n is the number of steps, C the strategy. "upper" is never too small; "exact" is so where the sensitivity is exact too.
"""

_NOTES = """## Notes

**Without amplification** one Gaussian mechanism releases C x + z; all that is published is computed from it, also when
later gradients depend on earlier outputs. Delta may be as small as 1e-300. `zcdp` and `gdp` exist for these rows only.

**Deterministic participation and add-or-remove.** If an example that is added moves others to other steps, the two
data sets differ in more than one example's contributions. A promise such as `FixedEpochs` does not say that it moves
none, so only `EveryStep` is covered.

**Shuffling is not amplified.** A data loader that shuffles is often accounted as Poisson sampling. That is wrong, and
not on the safe side: shuffled batches can leak far more than Poisson batches of the same size (Chua et al. 2024).
Bounds that are proved for shuffling are far from tight at the noise of private training; none is used here.
`ShuffledEpochs` and `FixedEpochs` are accounted at their worst pattern, which holds whatever the order is and even if
it is known. To gain from randomness use a participation in which each example draws its own steps.

**Poisson and cyclic Poisson.** A strategy with at most as many bands as there are groups touches disjoint rows of
C x in the steps of one example, so each of these steps is a sampled Gaussian mechanism of its own. With more bands the
rows overlap, nothing is proved, and it raises. Groups must be drawn for each example on its own.

**Truncated batches.** With `max_batch` an example that is sampled can push another out of the batch, also where it
contributes zero, so the guarantee of plain Poisson sampling does not carry over, not even under zero-out. A step in
which a batch overflows is charged as a substitution of one example for another, with the probability that it does.
`examples` must be given, an upper bound on the number of examples.

**Fixed-size batches** are not Poisson batches under zero-out or add-or-remove: where the example is missing another
one stands in its place. They are covered under replace. `examples` must be given; groups have floor(examples / groups)
members at least.

**Balls in bins and random min-separation** are accounted here at their worst pattern, which their randomness can only
improve on.

**Stopping early.** `stopped(mechanism, t)` is the mechanism of the first t steps and never costs more than t + 1 steps.
"""


def page() -> str:
    """The text of docs/accounting.md."""
    lines = [
        "| participation | adjacency | strategies | accounted as | epsilon | theorem |",
        "|---|---|---|---|---|---|",
    ]
    return "\n".join([_INTRODUCTION, *lines, *(_row(theorem) for theorem in THEOREMS), "", _NOTES])


def _row(theorem: Theorem) -> str:
    batches = {None: "", True: " with `max_batch`", False: " without `max_batch`"}[theorem.max_batch]
    cells = (
        f"{theorem.participation.__name__}{batches}",
        theorem.adjacency,
        theorem.strategies,
        theorem.account,
        theorem.kind,
        theorem.reference,
    )
    return f"| {' | '.join(cells)} |"
