"""The page of the manual that prints the table of theorems."""

from __future__ import annotations

from antiphase._accounting.theorems import THEOREMS, Theorem

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

**Ideal noise.** Every number here is for ideal noise: real numbers, normally distributed without end. Accountants know
no tensors, so they cannot know how far a run's noise is from that, and answer at any delta. A run does know. Its draws
on the host are normal up to 53 standard deviations, which adds at most (1 + e^epsilon) tau to delta, where tau is the
number of draws times 2^-2101 (float64) or 2^-2111 (float32). `Run.report` states an epsilon that covers this. Where no
delta is left for it, it refuses: at an epsilon beyond 700 for delta = 1e-300, beyond 1,400 for 1e-6. Draws on a device
end much earlier, and the report names it as an assumption that they are normal. Rounding to floating point is accounted
for nowhere, and `zcdp` and `gdp` are always for ideal noise.

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
`MonteCarlo` says how much work to spend. Entries of C count by their absolute value. Strategies whose noise in a step
needs later rows of C, and random min-separation with more bands than the separation, are accounted at their worst
pattern, and so are all of these by `compose`, `group_epsilon`, `zcdp` and `gdp`.

**What sampled numbers are random in.** `epsilon` and `delta` draw fresh entropy on every call, unless the `MonteCarlo`
has a seed, and keep it in `Bound.entropy`. Planning and calibration search with seeds that are a hash of the question,
so that the same problem gives the same mechanism and the same fingerprint. What they choose is certified at the end
with fresh entropy, which is stored with the guarantee and is not part of the fingerprint. `Plan.load` repeats that
certificate from the stored entropy. `verify` never uses it: it draws its own.

**What repeated calls cost.** One "confident" number fails with a probability of at most a millionth of delta, which is
within the delta it is stated for. Failure probabilities add up: of k calls some number is wrong with at most k times
that probability, and whoever asks k times and keeps the best answer must count k times. There is room for 1,000 calls
before this reaches a thousandth of delta, the share that is set aside; after that, each further 1,000 cost another
thousandth. A seed that was picked for its answer voids the guarantee. The certificate of a plan is the exception: it
spends up to a thousandth of delta by itself. Where it fails by chance it is tried again, up to 16 times, attempt r with
2^-r of that share, so that all attempts together stay within it. Whether to *release* should not rest on the best of
many numbers but on one `verify`, whose `attempt` counts every try that could have led to the release.

**Rounding in sampled numbers** is bounded and added: modes are made a little longer, epsilon a little smaller, weights
a little larger, by bounds on every sum and function that they come from. Together that is below a millionth of delta
in usual cases, and grows with the number of bins and steps. The numbers of the generator are taken to be independent
and normal.

**Balls in bins with `max_batch`.** Where a batch can overflow an example changes who else is in it, and the amplified
guarantee does not hold as it stands, under any adjacency. The probability that any batch is filled by others alone is
added to delta; it depends on `examples`, an upper bound. Where it exceeds half of delta, zero-out adjacency is charged
without amplification and add-or-remove raises. Some seven standard deviations above the mean batch are enough. Random
min-separation with `max_batch` is the same; an example that was dropped waits as if it had taken part.

**Stopping early.** `mechanism.first(t)` is the mechanism of the first t steps. The guarantee of the full run covers
its beginning too, and any rule by which outputs decide when to stop: reports state the smaller of the two epsilons.
It need not grow from t to t + 1, since one bound may be tighter than the next, least of all where samples give it.

## References not checked against the source

Five papers were at hand when this was written, and every theorem, lemma, algorithm and equation cited from them was
compared with the text: Choquette-Choo et al. 2023 (multi-epoch), Choquette-Choo et al. 2023 (amplified banded),
Choquette-Choo et al. 2025 (near-exact amplification), McKenna 2024 (scaling), McMahan, Xu and Zhang 2024. Numbers of
theorems in other works are confirmed only as far as this table says. A number that is not confirmed may be off by an
edition; what it is cited for is tested, against integrals, exhaustive search or another library.

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
| Price 1958 | slopes of delta in the Gram matrix | not confirmed; derived in `_montecarlo/slopes.py` |
| Bun and Steinke 2016, Prop. 1.6 | `zcdp` | not confirmed |
| Vadhan 2017, Lemma 2.2 | groups | not confirmed |
| Li et al. 2015, Prop. 3 | largest column norm | not confirmed |
| Henzinger, Upadhyay and Upadhyay 2023, Thm 2 | lower bound on the error | not confirmed |
| Matousek, Nikolov and Talwar 2020 | lower bound on the error | not confirmed, no number cited |
| Fichtenberger, Henzinger and Upadhyay 2023 | start of the Toeplitz search | not confirmed, no number cited |
| Honaker 2015; Kairouz et al. 2021, App. B | online tree | not confirmed |
| Denisov et al. 2022, section 3 and App. C | dense optimum, full tree decoder | not confirmed |
| Ponomareva et al. 2023, section 5.3 | what a report states | cited so in App. K.1 of the amplified banded paper |
| Chua et al. 2024 | shuffled batches leak more than Poisson | not confirmed, no number cited |
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
