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

n is the number of steps, C the strategy. "upper" is never too small; "exact" is so where the sensitivity is exact too;
"confident" is an upper bound whose failure probability is already within delta. Of two rows the first that covers the
strategy counts.
"""

_NOTES = """## Notes

**Without amplification** one Gaussian mechanism releases C x + z; all that is published is computed from it, also when
later gradients depend on earlier outputs. Delta may be as small as 1e-300, and 1e-200 where samples
are drawn (balls in bins, random min-separation): these raise below. `zcdp` and `gdp` count all rows but those
of Poisson and fixed-size sampling this way.

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

**Balls in bins and random min-separation.** An example that draws its steps at random makes a mixture of Gaussians, of
as many modes as there are bins or patterns. delta of such a mixture is an integral in up to thousands of dimensions; it
is sampled with weights that are proved to be bounded, and a confidence limit on their mean is what is reported, its
failure probability added to delta ("confident"), in both directions. Beside it stands a bound without samples, which is
reported where it is smaller ("upper"): without amplification, a moment bound, and for independent noise a convolution.
The seed is made from the question itself, so that asking again is not another try; `verify` draws fresh samples for a
claim that was fixed before. `Sampling` says how much work to spend. Entries of C count by their absolute value.
Strategies whose noise in a step needs later rows of C, and random min-separation with more bands than the separation,
are accounted at their worst pattern, and so are all of these by `compose`, `group_epsilon`, `zcdp` and `gdp`.

**Balls in bins with `max_batch`.** Where a batch can overflow an example changes who else is in it, and the amplified
guarantee does not hold as it stands, under any adjacency. The probability that any batch is filled by others alone is
added to delta; it depends on `examples`, an upper bound. Where it exceeds half of delta, zero-out adjacency is charged
without amplification and add-or-remove raises. Some seven standard deviations above the mean batch are enough. Random
min-separation with `max_batch` is the same; an example that was dropped waits as if it had taken part.

**Stopping early.** `stopped(mechanism, t)` is the mechanism of the first t steps. The guarantee of the full run covers
its beginning too, and any rule by which outputs decide when to stop: reports state the smaller of the two epsilons.
It need not grow from t to t + 1, since one bound may be tighter than the next, least of all where samples give it.
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
        "confident or upper" if theorem.amplified else theorem.kind,
        theorem.reference,
    )
    escaped = (cell.replace("|", "\\|") for cell in cells)  # |C| would end the cell
    return f"| {' | '.join(escaped)} |"
