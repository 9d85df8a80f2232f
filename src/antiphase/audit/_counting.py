"""Lower bounds on epsilon from counts of scores above a threshold, without assumptions on the program.

If a program is (epsilon, delta)-differentially private, then P(S) <= e^epsilon Q(S) + delta for every set S of scores,
where P and Q are the distributions with and without the canary, and the same with P and Q exchanged. So

    H(epsilon):  p <= e^epsilon q + delta     for   p = P(S),  q = Q(S).

The bound is the largest epsilon for which H is rejected at level alpha = 1 - confidence. S must not depend on the
scores that are counted. Let the canaries that should be in S have k_1 of n_1 scores there, and the others k_0 of n_0.
For a given q, H gives two independent p-values, p_1 = Pr(Bin(n_1, e^epsilon q + delta) >= k_1) and
p_0 = Pr(Bin(n_0, q) <= k_0). They are combined as c = p_1^a p_0 for a weight a in (0, 1]; Good (1955) gives the
probability of a c this small, c (1 - log c) for a = 1 (Fisher) and (c - a c^(1/a)) / (1 - a) otherwise. H is rejected
if that is at most alpha for every q. p_1 increases in q and p_0 decreases, so the largest c on an interval is bounded
by its values at the ends, and no q is left out. Two separate confidence limits (Clopper and Pearson 1934) for p and q,
the usual way, are looser: they allow both counts to be unlucky at the same time.

There are two tests, and the larger of their bounds is valid at the confidence by Bonferroni's inequality.

1. **Planned** (nine tenths of alpha): S, its direction, and the weight a are chosen with simulated scores of the
   claimed pair of distributions. They do not depend on the data, so all scores are counted. If the program does what it
   claims, this is nearly the best threshold there is.
2. **Held out** (one tenth of alpha): S is chosen with a quarter of the scores, and the others are counted. It finds
   programs that leak in another way than the claim suggests.

If the canaries of one run have different patterns, the scores are independent but not identically distributed. The
limits are still valid, for the mean of the probabilities: by Hoeffding (1956), Thm 4, a sum of independent indicators
has tails no heavier than the binomial distribution with the same mean, from one count beyond the mean on. So p-values
of up to 1/4 stay valid, and larger ones count as 1 for such scores. The mean of P(S) over canaries obeys the same
inequality with the mean of Q(S).

Reference: Good 1955 (weighted combination of p-values); Jagielski, Ullman and Oprea 2020, Nasr et al. 2021 (audits with
thresholds).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from antiphase import _check
from antiphase._check import Array, invalid
from antiphase._measured import Assumption, MeasuredLowerBound

PLANNED_SHARE = 0.9
CHOOSING_SHARE = 0.25  # of the scores, to choose a threshold that the others are counted with
WEIGHTS = (0.04, 0.1, 0.25, 0.5, 1.0)  # of the p-value of the canaries that should be in S
THRESHOLDS = 24  # thresholds that are tried in a plan, in each direction
LEVELS, PLAN_LEVELS = 400, 60  # intervals of q
HALVINGS, PLAN_HALVINGS = 40, 12
LARGEST_EPSILON = 60.0
LARGEST_P = 0.25  # larger p-values count as 1 if scores are not identically distributed


@dataclass(frozen=True)
class Threshold:
    """A test: the scores of at least `at` are in S, or, if `below`, those of at most `at`.

    If `below`, the roles of present and absent canaries are exchanged: absent canaries have low scores.

    Args:
        at: the threshold.
        below: whether low scores are in S.
        weight: the weight a.
    """

    at: float
    below: bool
    weight: float

    def counts(self, inside: Array, outside: Array) -> tuple[int, int, int, int]:
        """Return hits and number of the canaries that should hit, then of those that should not."""
        if self.below:
            return int((outside <= self.at).sum()), len(outside), int((inside <= self.at).sum()), len(inside)
        return int((inside >= self.at).sum()), len(inside), int((outside >= self.at).sum()), len(outside)


def lower_limit(hits: Array | int, trials: int, failure: float) -> Array:
    """Return the Clopper-Pearson lower confidence limit of a probability."""
    from scipy.special import betaincinv

    k = np.asarray(hits, dtype=np.float64)
    return np.where(k > 0, betaincinv(np.maximum(k, 1.0), trials - k + 1.0, failure), 0.0)


def upper_limit(hits: Array | int, trials: int, failure: float) -> Array:
    """Return the Clopper-Pearson upper confidence limit of a probability."""
    from scipy.special import betaincinv

    k = np.asarray(hits, dtype=np.float64)
    return np.where(k < trials, betaincinv(k + 1.0, np.maximum(trials - k, 1.0), 1.0 - failure), 1.0)


def counted_epsilon(
    counts: tuple[Array | int, int, Array | int, int], delta: float, alpha: float, split: float
) -> Array:
    """Return the bound of two separate limits, log((p - delta) / q): the usual one, to compare with.

    Args:
        counts: hits and trials of the canaries that should hit, then of the others.
        delta: delta of the bound.
        alpha: failure probability.
        split: share of alpha for the lower limit.
    """
    p = lower_limit(counts[0], counts[1], alpha * split)
    q = upper_limit(counts[2], counts[3], alpha * (1.0 - split))
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(p > delta, np.maximum(np.log(np.maximum(p - delta, 1e-300)) - np.log(q), 0.0), 0.0)


def combined_epsilon(
    counts: tuple[int, int, int, int],
    delta: float,
    alpha: float,
    weight: float,
    levels: int = LEVELS,
    halvings: int = HALVINGS,
    *,
    identical: bool = True,
) -> float:
    """Return the largest epsilon that the counts of one test reject at level alpha, at least 0.

    Args:
        counts: hits and trials of the canaries that should hit, then of the others.
        delta: delta of the bound.
        alpha: failure probability.
        weight: the weight a.
        levels: number of intervals of q; fewer are quicker and give a lower bound that is looser, never wrong.
        halvings: number of bisections.
        identical: whether all scores of a kind have the same distribution. If not, p-values above 1/4 count as 1.

    >>> round(combined_epsilon((500, 1000, 100, 1000), 0.0, 0.05, 1.0), 3)
    1.402
    """
    from scipy.special import betainc, betaincinv

    k1, n1, k0, n0 = counts
    if k1 == 0:
        return 0.0
    smallest = _combined_log(alpha, weight)
    # p-values of q from 1 (at q = 0) down to one that rejects by itself, and the q that belong to them.
    logs = np.concatenate([[0.0], -np.geomspace(1e-9, -smallest, levels)])
    q = betaincinv(k0 + 1.0, n0 - k0, -np.expm1(logs)) if k0 < n0 else np.append(0.0, np.ones(levels))
    if k0 == n0:
        logs = np.zeros(levels + 1)
    second = _capped(logs[:-1], identical)

    def rejects(epsilon: float) -> bool:
        p = np.minimum(math.exp(epsilon) * q[1:] + delta, 1.0)
        with np.errstate(divide="ignore"):
            first = _capped(np.log(betainc(float(k1), n1 - k1 + 1.0, p)), identical)
        return bool((weight * first + second <= smallest).all())

    if not rejects(0.0):
        return 0.0
    low, high = 0.0, LARGEST_EPSILON
    for _ in range(halvings):
        middle = (low + high) / 2.0
        low, high = (middle, high) if rejects(middle) else (low, middle)
    return low


def _capped(logs: Array, identical: bool) -> Array:
    """Return log p-values; unless scores are identically distributed, those above LARGEST_P are replaced by 0."""
    return logs if identical else np.where(logs > math.log(LARGEST_P), 0.0, logs)


def _combined_log(alpha: float, weight: float) -> float:
    """Return log c of the combination p_1^weight p_0 that has probability alpha."""
    low, high = math.log(alpha) * 4.0 - 20.0, 0.0
    for _ in range(80):
        x = (low + high) / 2.0
        if weight == 1.0:
            chance = math.exp(x) * (1.0 - x)
        else:
            chance = (math.exp(x) - weight * math.exp(x / weight)) / (1.0 - weight)
        low, high = (x, high) if chance <= alpha else (low, x)
    return low


def planned_threshold(reference: tuple[Array, Array], trials: tuple[int, int], delta: float, alpha: float) -> Threshold:
    """Return the test with nearly the largest typical bound, if scores are distributed as in `reference`.

    Args:
        reference: scores of present and of absent canaries, simulated or held out.
        trials: number of present and of absent canaries that will be counted.
        delta: delta of the bound.
        alpha: failure probability.
    """
    from scipy.special import pdtrik

    best, found = -1.0, Threshold(0.0, False, 0.5)
    for below in (False, True):
        hit, miss = (np.sort(-reference[1]), np.sort(-reference[0])) if below else map(np.sort, reference)
        n1, n0 = (trials[1], trials[0]) if below else trials
        for at in _candidates(miss, n0):
            p = 1.0 - np.searchsorted(hit, at, side="left") / len(hit)
            mean = n0 * (1.0 - np.searchsorted(miss, at, side="left") / len(miss))
            # Counts of absent canaries that are a little lucky and a little unlucky.
            many = [min(n0, max(0, math.ceil(float(pdtrik(u, mean)))) if mean > 0.0 else 0) for u in (0.3, 0.7)]
            for weight in WEIGHTS:
                typical = [
                    combined_epsilon((round(n1 * p), n1, k, n0), delta, alpha, weight, PLAN_LEVELS, PLAN_HALVINGS)
                    for k in many
                ]
                if sum(typical) > best:
                    best, found = sum(typical), Threshold(float(-at if below else at), below, weight)
    return found


def held_out(
    inside: Array, outside: Array, delta: float, alpha: float, rng: np.random.Generator, *, identical: bool
) -> tuple[float, Threshold]:
    """Return the bound with a threshold that was chosen with a part of the scores, and the threshold."""
    inside, outside = rng.permutation(inside), rng.permutation(outside)
    a, b = max(1, int(CHOOSING_SHARE * len(inside))), max(1, int(CHOOSING_SHARE * len(outside)))
    test = planned_threshold((inside[:a], outside[:b]), (len(inside) - a, len(outside) - b), delta, alpha)
    counts = test.counts(inside[a:], outside[b:])
    return combined_epsilon(counts, delta, alpha, test.weight, identical=identical), test


def counting_bound(
    inside: Array,
    outside: Array,
    delta: float,
    confidence: float = 0.95,
    *,
    reference: tuple[Array, Array] | None = None,
    assumes: Assumption = "none",
    seed: int = 0,
) -> MeasuredLowerBound:
    """Return a lower bound on epsilon from scores of canaries that were present, and of canaries that were absent.

    **Guarantee**: if the scores are independent, and the program is (epsilon, delta)-differentially private, then the
    bound is above epsilon with probability at most 1 - confidence. Scores of separate runs are independent.

    Args:
        inside: scores of present canaries; high scores mean that the canary looks present.
        outside: scores of absent canaries.
        delta: delta of the bound.
        confidence: probability with which the bound holds, at least 0.5.
        reference: simulated scores of the claimed pair, present and absent, from which a threshold is planned. Without
            them, the threshold is chosen with a quarter of the scores.
        assumes: "none" for scores of separate runs of one canary; "independent canaries" for canaries of one run, which
            may have different patterns.
        seed: seed of the random quarter.

    >>> rng = np.random.default_rng(0)
    >>> inside, outside = rng.normal(3.0, 1.0, 5000), rng.normal(0.0, 1.0, 5000)
    >>> counting_bound(inside, outside, 1e-5).measured_epsilon_at_least > 4.0
    True

    Reference: Good 1955; Hoeffding 1956, Thm 4; see the module's docstring for the proof.
    """
    inside, outside = _checked("inside", inside), _checked("outside", outside)
    alpha = 1.0 - check_confidence("counting_bound", confidence)
    rng, identical = np.random.default_rng(seed), assumes == "none"
    if reference is None:
        value, test = held_out(inside, outside, delta, alpha, rng, identical=identical)
        method = "threshold chosen with a quarter of the scores"
    else:
        share = PLANNED_SHARE * alpha
        test = planned_threshold(reference, (len(inside), len(outside)), delta, share)
        counts = test.counts(inside, outside)
        value = combined_epsilon(counts, delta, share, test.weight, identical=identical)
        other, _ = held_out(inside, outside, delta, alpha - share, rng, identical=identical)
        value, method = max((value, "threshold planned for the claim"), (other, "threshold from held-out scores"))
    return MeasuredLowerBound(value, delta, confidence, method, assumes, len(inside) + len(outside))


def check_confidence(owner: str, confidence: float) -> float:
    """Return the confidence as a float; raise unless it is between 0.5 and 1."""
    value = _check.real(owner, "confidence", confidence, 0.5, 1.0, "0.95 is common")
    if value == 1.0:
        raise invalid(owner, "confidence", "below 1", confidence, "0.95 is common")
    return value


def _candidates(miss: Array, trials: int) -> Array:
    """Return thresholds, dense where few absent canaries hit, and one above all of them."""
    shares = np.geomspace(0.05, trials, THRESHOLDS) / trials
    return np.unique(np.append(np.quantile(miss, 1.0 - np.minimum(shares, 1.0)), np.nextafter(miss[-1], np.inf)))


def _checked(name: str, values: Array) -> Array:
    return _check.array("counting_bound", name, values, 1)
