"""Generates docs/accounting.md from the table of theorems."""

from __future__ import annotations

from antiphase._accounting.theorems import THEOREMS, Theorem

_INTRODUCTION = """# Proved privacy guarantees

`antiphase.epsilon`, `delta` and `calibrate` look up a mechanism in the table below. A combination that is not in the
table raises `NotProved`, and the error names the nearest combination that is covered. Every result is a `Bound` with
its kind, its method and its theorem.

This page is generated from the table in the code; a test keeps the two equal.

## Neighbouring data sets

| adjacency | the two data sets |
|---|---|
| zero-out | in one of them, one example contributes zero in every step; everything else, including batches, is equal |
| add-or-remove | one of them has one example less |
| replace | one example has different contents, so its contribution changes by up to twice the clipping norm |

## Theorems

n is the number of steps and C is the strategy matrix. The column "epsilon" gives the kind of the bound. "exact" applies
if the sensitivity is exact too; otherwise the bound is "upper". An "upper" bound is never below the true value. A
"confident" bound is an upper bound whose failure probability is included in delta. If several rows cover a mechanism,
the first one is used.
"""

_NOTES = """## Notes

**No amplification.** A single Gaussian mechanism releases C x + z, and everything that a run publishes is computed from
that output. This also holds if later gradients depend on earlier outputs. Delta may be as small as 1e-300;
`BallsInBins` and `PoissonMinSeparation` raise below 1e-200. `zcdp` and `gdp` treat every combination
as a single Gaussian mechanism, except Poisson and fixed-size sampling, for which they raise an error.

**Ideal noise.** All numbers on this page are for ideal noise: real numbers from a normal distribution. The accounting
functions do not know how a run generates its noise, so they answer at any delta. A run does know. Draws made on the
host are normal up to 53 standard deviations. The missing tail adds at most (1 + e^epsilon) tau to delta, where tau is
the number of draws times 2^-2101 (float64) or 2^-2111 (float32). `Run.report` states an epsilon that includes the
missing tail. It refuses if the tail needs more than half of delta, which happens only for epsilons above about 700 at
delta = 1e-300, or 1,400 at delta = 1e-6. Draws made on a device have a much smaller range, and the report states that
they are assumed to be normal. Rounding to floating point is not accounted for anywhere, and `zcdp` and `gdp` are always
for ideal noise.

**Deterministic participation and add-or-remove.** If adding an example moves other examples to other steps, the two
data sets differ in the contributions of more than one example. A promise such as `FixedEpochs` does not rule that out,
so only `EveryStep` is covered.

**Shuffling is not amplified.** Shuffled batches are often accounted for as Poisson batches. That is wrong and unsafe:
they can leak far more than Poisson batches of the same size (Chua et al. 2024). The bounds that are proved for
shuffling are far from tight at the noise levels of private training, and none is used here. `ShuffledEpochs` and
`FixedEpochs` are accounted for at their worst pattern. That guarantee holds for any order, even one that an adversary
knows. To benefit from randomness, use a participation in which each example draws its own steps.

**Poisson and cyclic Poisson.** If a strategy has at most as many bands as there are groups, the steps of one example
affect disjoint rows of C x, so each step is a separate sampled Gaussian mechanism. With more bands the rows overlap,
nothing is proved, and `NotProved` is raised. Each example must be assigned to its group independently.

**Truncated batches.** With `max_batch`, a sampled example can push another one out of the batch, even if its own
contribution is zero. The guarantee of plain Poisson sampling therefore does not carry over, not even under zero-out. A
step whose batch overflows is accounted for as replacing one example by another, weighted by the probability of an
overflow. `examples` is required; it is an upper bound on the number of examples.

**Fixed-size batches** are not Poisson batches under zero-out or add-or-remove: if an example is missing, another one
takes its place. They are covered under replace adjacency. `examples` is required; every group has at least
floor(examples / groups) members.

**Balls in bins and random min-separation** (`BallsInBins` and `PoissonMinSeparation`). If an example draws its steps at
random, the output is a mixture of Gaussians with one mode for each bin or pattern. Its delta is an integral in up to
thousands of dimensions. For removal and for addition of the example, this integral is estimated from samples whose
weights are proved to be bounded. The reported number ("confident") is a confidence limit on the mean weight, and delta
includes its failure probability. Another bound ("upper") needs no samples and is reported if it is smaller. It is the
bound without amplification, a moment bound or, for independent noise, a convolution. `MonteCarlo` sets how much work to
spend. If C has negative entries, their absolute values are used. Some mechanisms are accounted for at their worst
pattern, without amplification: strategies that are not lower triangular, and random min-separation with more bands than
the separation. `compose`, `group_epsilon`, `zcdp` and `gdp` always account for `BallsInBins` and `PoissonMinSeparation`
that way.

**Source of the randomness.** `epsilon` and `delta` draw fresh entropy on every call, unless the `MonteCarlo` has a
seed, and store it in `Bound.entropy`. The searches of planning and calibration use seeds that are hashes of their
arguments, so the same problem gives the same mechanism and the same fingerprint. The result is then certified with
fresh entropy, which is stored with the guarantee and is not part of the fingerprint. `Plan.load` repeats that
certificate from the stored entropy. `verify` never uses the stored entropy and draws its own, unless you pass a seed.
If a run stopped early, the entropy for the epsilon of its steps is derived from the run's secret, the run id, the plan
and the number of steps. The secret was drawn at random after the mechanism was chosen, so this is as good as fresh
entropy, and all reports state the same number. This does not hold for a secret made from a known integer, which the
report points out. `antiphase verify` also checks the epsilon of a run that stopped early, with entropy of its own.

**Cost of repeated calls.** A "confident" number from `epsilon` or `delta` fails with probability at most a millionth of
delta, and its delta includes that probability. Failure probabilities add up: the probability that any of k numbers is
wrong is at most k times as large, so calling k times and keeping the best result costs k times as much. After 1,000
calls the total reaches a thousandth of delta, which is the share reserved for it. Each further 1,000 calls cost another
thousandth. Choosing a seed for its result voids the guarantee. The certificates of plans and of `calibrate` are an
exception: each may use the whole thousandth. If a certificate fails by chance, it is tried again, up to 16 times.
Attempt r uses a fraction 2^-r of the share, so all attempts together stay within it. Do not base the decision to
*release* on the best of many numbers. Base it on one `verify`, with an `attempt` that counts every try that could have
led to the release.

**Rounding in sampled numbers** is bounded and included. Modes are made slightly longer, epsilon slightly smaller and
weights slightly larger, enough to cover proved bounds on the rounding error of each sum and function. The total effect
is usually below a millionth of delta; it grows with the number of bins and steps. The numbers from the random generator
are assumed to be independent and normal.

**Balls in bins with `max_batch`.** If a batch can overflow, an example affects which others are in it, and the
amplified guarantee no longer holds as stated, under any adjacency. The probability that the other examples alone fill
some batch is added to delta. It depends on `examples`, an upper bound on their number. If it exceeds half of delta,
zero-out is accounted for without amplification and add-or-remove raises an error. A `max_batch` of about seven standard
deviations above the mean batch size is enough for usual deltas. The same holds for random min-separation with
`max_batch`; an example that was dropped waits as if it had taken part.

**Stopping early.** `mechanism.first(t)` is the mechanism of the first t steps, for a t that was fixed in advance. The
guarantee of the full run also covers its first t steps, even if the outputs decide when to stop. If t was fixed in
advance, both guarantees hold, and the smaller epsilon is stated. It may decrease from t to t + 1, because the bounds
for different t are not equally tight, especially those computed from samples.

## References not checked against the source

Every theorem, lemma, algorithm and equation cited from five papers was checked against their text: Choquette-Choo et
al. 2023 (multi-epoch), Choquette-Choo et al. 2023 (amplified banded), Choquette-Choo et al. 2025 (near-exact
amplification), McKenna 2024 (scaling), and McMahan, Xu and Zhang 2024. The table lists the other works and how their
theorem numbers were confirmed. A number that is not confirmed may differ between editions. Where a number is not
confirmed, tests check the cited result against integrals, exhaustive search or another library.

| citation | used for | confirmed by |
|---|---|---|
| Denisov et al. 2022, Thm 2.1 | adaptivity, `Mechanism.first` | cited by Choquette-Choo et al. 2023 (multi-epoch) |
| Wang et al. 2023, Thm 9 | estimate, verify, release | restated as Thm 2.1 of Choquette-Choo et al. 2025 |
| Kalinin and Lampert 2024, Thm 2 | Toeplitz sensitivity | restated as Thm 3.1 of McMahan, Xu and Zhang 2024 |
| Dvijotham et al. 2024, Lemma 5.2 | BLT output scales | restated as Alg. 5 of McMahan, Xu and Zhang 2024 |
| Doroshenko et al. 2022, Alg. 1 | grids of privacy losses | source of dp_accounting, which implements it |
| Balle and Wang 2018, Thm 8 | delta of a Gaussian mechanism | not confirmed |
| Dong, Roth and Su 2019, Thms 2.7 and 2.14, Cors. 2.13 and 3.3 | `gdp`, groups, composition | not confirmed |
| Zhu, Dong and Wang 2022, Def. 7, Thms 10 and 11 | dominating pairs, composition, sampling | not confirmed |
| Koskela, Jälkö and Honkela 2020 | sums of privacy losses | not confirmed, no number cited |
| arXiv:2508.15089 | truncated Poisson batches | not confirmed, no number cited |
| Waudby-Smith and Ramdas 2024, section 4 | confidence limits | not confirmed; proved in `_montecarlo/betting.py` |
| Price 1958 | derivatives of delta by the Gram matrix | not confirmed; derived in `_montecarlo/slopes.py` |
| Bun and Steinke 2016, Prop. 1.6 | `zcdp` | not confirmed |
| Vadhan 2017, Lemma 2.2 | groups | not confirmed |
| Li et al. 2015, Prop. 3 | largest column norm | not confirmed |
| Henzinger, Upadhyay and Upadhyay 2023, Thm 2 | lower bound on the error | not confirmed |
| Matousek, Nikolov and Talwar 2020 | lower bound on the error | not confirmed, no number cited |
| Fichtenberger, Henzinger and Upadhyay 2023 | start of the Toeplitz search | not confirmed, no number cited |
| Honaker 2015; Kairouz et al. 2021, App. B | online tree | not confirmed |
| Denisov et al. 2022, section 3 and App. C | dense optimum, full tree decoder | not confirmed |
| Ponomareva et al. 2023, section 5.3 | contents of a report | cited in App. K.1 of the amplified banded paper |
| Chua et al. 2024 | shuffled batches leak more than Poisson | not confirmed, no number cited |
"""


def page() -> str:
    """Return the text of docs/accounting.md."""
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
