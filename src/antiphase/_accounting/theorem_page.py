"""Generates docs/accounting.md from the table of theorems."""

from __future__ import annotations

from antiphase._accounting.theorems import THEOREMS, Theorem

_INTRODUCTION = """# Proved privacy guarantees

`antiphase.epsilon`, `delta` and `calibrate` look up a mechanism in the table below. A combination that is not in the
table raises `NotProved`, and the error names the nearest combination that is covered. Every result is a `Bound` with
its kind, its method and its theorem.

This page is generated from the table in the code, and a test checks that the two agree.

## Neighbouring data sets

| adjacency | the two data sets |
|---|---|
| zero-out | in one of them, one example contributes zero in every step; everything else, including batches, is equal |
| add-or-remove | one of them has one more example than the other |
| replace | one example has different contents, so its contribution changes by up to twice the clipping norm |

## Theorems

n is the number of steps, and C is the strategy matrix. A *pattern* is a set of steps in which one example takes part.
The worst pattern is the one with the largest sensitivity. The column "accounted as" names a mechanism with a known
guarantee, and its noise multiplier.

The column "epsilon" gives the kind of the bound. An "exact" bound requires an exact sensitivity; if the sensitivity is
only an upper bound, epsilon is an upper bound as well. An "upper" bound is never below the true value. A "confident"
bound is an upper bound whose failure probability is included in delta. If several rows cover a mechanism, the first one
is used.
"""

_NOTES = """## Notes

**No amplification.** Without amplification, a run is a single Gaussian mechanism with the output C x + z. Everything
that the run publishes is computed from this output. This also holds if later gradients depend on earlier outputs. Delta
may be as small as 1e-300. For `BallsInBins` and `PoissonMinSeparation`, a delta below 1e-200 raises an error. `zcdp`
and `gdp` raise an error for Poisson and fixed-size sampling, and treat every other combination as a single Gaussian
mechanism.

**Ideal noise.** All numbers on this page are for ideal noise: real numbers from a normal distribution. The accounting
functions do not know how a run generates its noise, so they do not account for the generator. The report of a run does.
Draws made on the host are normal up to 53 standard deviations. Beyond that, the tail is missing. The missing tail adds
at most (1 + e^epsilon) tau to delta, where tau is the number of draws times 2^-2101 (float64) or 2^-2111 (float32).
`Run.report` states an epsilon that includes the missing tail. It raises an error if the tail needs more than half of
delta. This happens only for epsilons above about 700 at delta = 1e-300, or above about 1,400 at delta = 1e-6. Draws
made on a device have a much smaller range, and the report states that they are assumed to be normal. Rounding of the
noise to floating-point numbers is never accounted for; [lattice noise](lattice-noise.md) avoids such rounding. `zcdp`
and `gdp` always assume ideal noise.

**Deterministic participation and add-or-remove.** If adding an example moves other examples to other steps, the two
data sets differ in the contributions of more than one example. A promise such as `FixedEpochs` does not rule that out.
Under add-or-remove, `EveryStep` is therefore the only deterministic participation that is covered.

**No amplification by shuffling.** Shuffled batches are often accounted for as Poisson batches. That is wrong and
unsafe: shuffled batches can leak far more than Poisson batches of the same size (Chua et al. 2024). The proved bounds
for shuffling are far from tight at the noise levels of private training, so Antiphase does not use them. It accounts
for `ShuffledEpochs` and `FixedEpochs` at their worst pattern. This guarantee holds for every order of the examples,
even if an adversary knows the order. To benefit from randomness, use a participation in which each example draws its
own steps.

**Poisson and cyclic Poisson.** Cyclic Poisson sampling assigns each example to one of several groups, which take turns.
Plain Poisson sampling has one group. If a strategy has at most as many bands as there are groups, the participations of
one example affect disjoint rows of C x. Each participation is then a separate Poisson-sampled Gaussian mechanism. With
more bands, the rows overlap, no theorem applies, and `NotProved` is raised. The group of each example must be
independent of the other examples.

**Truncated batches.** With `max_batch`, a sampled example can push another one out of the batch. Even an example whose
own contribution is zero can do that. The guarantee of plain Poisson sampling therefore does not carry over, not even
under zero-out. Every step is accounted for as a random choice of two cases. If the other examples alone fill the batch,
it is a step that replaces one example with another. Otherwise, it is a step of plain Poisson sampling. The argument
`examples`, an upper bound on the number of examples, is required.

**Fixed-size batches** cannot be accounted for like Poisson batches under zero-out or add-or-remove, because another
example takes the place of a missing one. They are covered under replace adjacency. The argument `examples` is required,
because the sampling probability depends on the size of the smallest group, floor(examples / groups).

**Balls in bins and random min-separation** (`BallsInBins` and `PoissonMinSeparation`). If an example draws its steps at
random, the output is a mixture of Gaussians, with one Gaussian for each bin or pattern. The mean of such a Gaussian is
called a mode. The delta of the mechanism is an integral in up to thousands of dimensions. There is one integral for
removing the example and one for adding it. Both are estimated by importance sampling, with weights that are proved to
be bounded. The reported "confident" number is a confidence limit on the mean weight, and delta includes its failure
probability. A second bound, of kind "upper", needs no samples and is reported if it is smaller. It is the smallest
bound of up to three: the bound without amplification, the largest possible weight of a sample and, for random
min-separation, a mean of Gaussian deltas over the random number of participations. For balls in bins with independent
noise, a bound computed by convolution replaces the largest weight. `MonteCarlo` sets the number of samples and the
precision. If C has negative entries, their absolute values are used. Some mechanisms are accounted for at their worst
pattern, without amplification: strategies that are not lower triangular, and random min-separation with a strategy that
has more bands than the separation. `compose`, `group_epsilon` for more than one example, `zcdp` and `gdp` always
account for `BallsInBins` and `PoissonMinSeparation` at the worst pattern.

**Source of the randomness.** On every call, `epsilon` and `delta` draw fresh entropy and store it in `Bound.entropy`.
If you pass a `MonteCarlo` with a seed, they draw no entropy. `plan` and `calibrate` search with seeds that are hashes
of the arguments, so the same problem gives the same mechanism and the same fingerprint. The result is then certified
with fresh entropy. This entropy is stored with the guarantee and is not part of the fingerprint. `Plan.load` repeats
that certificate from the stored entropy. `verify` never uses the stored entropy. It draws fresh entropy, unless you
pass a seed. If a run stopped early, its epsilon is computed with entropy derived from the run's secret, the run id, the
plan and the number of steps. The secret was drawn at random after the mechanism was chosen, so the derived entropy is
as good as fresh entropy. All reports of the run state the same number. If the secret was made from a known integer, the
entropy is not fresh, and the report says so. `antiphase verify` also checks the epsilon of a run that stopped early,
with its own fresh entropy.

**Cost of repeated calls.** A "confident" number from `epsilon` or `delta` fails with probability at most a millionth of
delta, and its delta includes that probability. Failure probabilities add up: the probability that any of k numbers is
wrong is at most k times as large. So if you call the function k times and keep the best result, the failure probability
is k times as large. After 1,000 calls, the total reaches a thousandth of delta, which is the share of delta reserved
for such failures. Every further 1,000 calls add another thousandth. If you choose a seed because of its result, the
guarantee does not hold. The certificates of plans and of `calibrate` are an exception: each may be wrong with
probability up to a thousandth of delta, the whole share. If, by chance, fresh samples do not confirm a true claim, the
claim is tested again, up to 16 times. Attempt r uses a fraction 2^-r of the share, so all attempts together stay within
it. Do not base the decision to *release* on the best of many numbers. Base it on one call of `verify`, and set its
argument `attempt` to the number of tries so far that could have led to the release, including this one.

**Rounding errors in sampled numbers** are bounded, and delta includes the bounds. The computation uses slightly longer
modes, a slightly smaller epsilon and slightly larger weights. These changes cover the proved bounds on the rounding
error of each sum and function. Their total effect is usually below a millionth of delta, and it grows with the numbers
of bins and steps. The proof assumes that the random generator returns independent normal numbers.

**Balls in bins with `max_batch`.** If a batch can overflow, that is, if more than `max_batch` examples can be drawn for
it, an example affects which other examples are in the batch. The amplified guarantee then no longer holds as stated,
under any adjacency. Therefore, delta includes the probability that the other examples alone fill some batch. This
probability depends on `examples`, an upper bound on the number of examples. If it exceeds half of delta, the guarantee
for zero-out is computed without amplification, and add-or-remove raises an error. For usual deltas, a `max_batch` about
seven standard deviations above the mean batch size is enough. The same holds for random min-separation with
`max_batch`, where an example that was dropped from a full batch waits `separation` steps as if it had taken part.

**Stopping early.** `mechanism.first(t)` is the mechanism of the first t steps, for a t that was fixed in advance. The
guarantee of the full run also covers its first t steps, even if the outputs decide when to stop. If t was fixed in
advance, both guarantees hold, and reports state the smaller epsilon. The stated epsilon may decrease from t to t + 1,
because the bounds for different t are not equally tight, especially if they are computed from samples.

**Extending.** The guarantee of an extended plan holds for a number of steps that was chosen without looking at the
outputs. If the outputs decide whether a run is extended, the guarantee of the largest possible number of steps applies,
even if the run was not extended. If the number of extensions is not limited, no guarantee holds.

## References not checked against the source

Every theorem, lemma, algorithm and equation cited from five papers was checked against their text: Choquette-Choo et
al. 2023 (multi-epoch), Choquette-Choo et al. 2023 (amplified banded), Choquette-Choo et al. 2025 (near-exact
amplification), McKenna 2024 (scaling), and McMahan, Xu and Zhang 2024. The table lists the other works, and how their
theorem numbers were confirmed. Theorem numbers that were not confirmed may differ between editions of a paper. Tests
check the results cited under these numbers against integrals, exhaustive search or another library.

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
| Price 1958 | derivatives of delta in the Gram matrix | not confirmed; derived in `_montecarlo/slopes.py` |
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
