"""Lower bounds on epsilon from counts of scores above a threshold, without assumptions about the program.

A score is a number that is high if a canary (artificial example) looks present in the data. Let P and Q be the
distributions of a score with and without the canary. If a program is (epsilon, delta)-differentially private, every
set S of scores satisfies this hypothesis H:

    H(epsilon):  p <= e^epsilon q + delta     for   p = P(S),  q = Q(S).

H also holds with P and Q exchanged. The bound is the largest epsilon for which H is rejected at level alpha = 1 -
confidence. S must not depend on the scores that are counted. There are n_1 present canaries, and the scores of k_1 of
them are in S. There are n_0 absent canaries, and the scores of k_0 of them are in S. S usually holds high scores. If it
holds low scores, present and absent canaries are exchanged. For a given q, H gives two independent p-values,

    p_1 = Pr(Bin(n_1, e^epsilon q + delta) >= k_1)    and    p_0 = Pr(Bin(n_0, q) <= k_0).

They are combined as c = p_1^a p_0 for a weight a in (0, 1]. If H is true, c or a smaller value has a probability of at
most c (1 - log c) for a = 1 (Fisher), and (c - a c^(1/a)) / (1 - a) for a < 1 (Good 1955). H is rejected if this
probability is at most alpha for every q. Since p_1 increases with q and p_0 decreases, c can be bounded for all q in an
interval: it is at most p_1^a at the upper end times p_0 at the lower end. So it suffices to check finitely many
intervals that together contain every q.

The usual method computes two separate confidence limits for p and q (Clopper and Pearson 1934). It gives smaller
bounds, because it allows both counts to be unlucky at the same time.

Two tests are made, which share alpha. By Bonferroni's inequality, the larger of their bounds is valid at the stated
confidence.

1. **Planned** (nine tenths of alpha): the set S and the weight a are chosen with scores that are simulated for the
   claimed mechanism. This choice does not depend on the data, so all scores can be counted. If the program does what it
   claims, the threshold of S is nearly the best possible one.
2. **Held out** (one tenth of alpha): S and a are chosen with a quarter of the scores, and the others are counted. This
   test detects programs that leak in a way that the claim does not suggest.

If the canaries of one run take part in different steps, the scores are independent but not identically distributed. H
then still holds for the means of P(S) and Q(S) over the canaries. By Hoeffding (1956), Thm 4, a sum of independent
indicators has tails no heavier than the binomial distribution with the same mean, for counts that differ from the mean
by at least one. A p-value of at most 1/4 implies such a count if k_1 >= 2 and n_0 - k_0 >= 2, so it stays valid. If k_1
is 1, p_1 is the probability that at least one score of a present canary is in S. This probability is at most the mean
number of such scores, which is at most -log(1 - p) for a binomial p-value p, and -log(1 - p) <= p e^p for p <= 1/4. So
p is then replaced by p e^p. If n_0 - k_0 is 1, the same holds for p_0 and the scores of absent canaries that are not in
S. P-values above 1/4 are replaced by 1. Both replacements are made only for scores that are not identically
distributed.

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
CHOOSING_SHARE = 0.25  # fraction of the scores that choose the threshold of the held-out test
WEIGHTS = (0.04, 0.1, 0.25, 0.5, 1.0)  # weights a that are tried
THRESHOLDS = 24  # number of thresholds to try, for high and for low scores each
LEVELS, PLAN_LEVELS = 400, 60  # numbers of intervals of q, for bounds and for planning
HALVINGS, PLAN_HALVINGS = 40, 12  # numbers of bisections of epsilon, for bounds and for planning
LARGEST_EPSILON = 60.0
LARGEST_P = 0.25  # larger p-values count as 1 if scores are not identically distributed


@dataclass(frozen=True)
class Threshold:
    """A test that counts the scores in a set S, as in the module's docstring.

    S holds the scores that are at least `at` or, if `below` is true, at most `at`. If `below` is true, present and
    absent canaries exchange roles, because absent canaries have low scores.

    Args:
        at: the threshold.
        below: if true, S holds low scores.
        weight: the weight a, the exponent of p_1 in the combination of the two p-values.
    """

    at: float
    below: bool
    weight: float

    def counts(self, inside: Array, outside: Array) -> tuple[int, int, int, int]:
        """Return k_1, n_1, k_0 and n_0, as defined in the module's docstring."""
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
    """Return the usual bound log((p - delta) / q), for comparison. Here p is a lower and q an upper confidence limit.

    Args:
        counts: k_1, n_1, k_0 and n_0, as defined in the module's docstring.
        delta: delta of the bound.
        alpha: failure probability.
        split: share of alpha for the lower limit p; the rest is for q.
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
    """Return the largest epsilon that the counts of one test reject at level alpha, or 0 if they reject none.

    Args:
        counts: k_1, n_1, k_0 and n_0, as defined in the module's docstring.
        delta: delta of the bound.
        alpha: failure probability.
        weight: the weight a, the exponent of p_1 in the combination of the two p-values.
        levels: number of intervals of q. With fewer intervals, the bound is faster to compute and looser, but still
            valid.
        halvings: number of bisections of epsilon.
        identical: False if the scores of present (or of absent) canaries have different distributions. Some p-values
            are then replaced by larger ones.

    >>> round(combined_epsilon((500, 1000, 100, 1000), 0.0, 0.05, 1.0), 3)
    1.402
    """
    from scipy.special import betainc, betaincinv

    k1, n1, k0, n0 = counts
    if k1 == 0:
        return 0.0
    smallest = _combined_log(alpha, weight)
    # Values of p_0, from 1 (at q = 0) down to a value so small that H is rejected for any p_1, and the corresponding q.
    logs = np.concatenate([[0.0], -np.geomspace(1e-9, -smallest, levels)])
    q = betaincinv(k0 + 1.0, n0 - k0, -np.expm1(logs)) if k0 < n0 else np.append(0.0, np.ones(levels))
    if k0 == n0:
        logs = np.zeros(levels + 1)
    second = _valid(logs[:-1], n0 - k0, identical)

    def rejects(epsilon: float) -> bool:
        p = np.minimum(math.exp(epsilon) * q[1:] + delta, 1.0)
        with np.errstate(divide="ignore"):
            first = _valid(np.log(betainc(float(k1), n1 - k1 + 1.0, p)), k1, identical)
        return bool((weight * first + second <= smallest).all())

    if not rejects(0.0):
        return 0.0
    low, high = 0.0, LARGEST_EPSILON
    for _ in range(halvings):
        middle = (low + high) / 2.0
        low, high = (middle, high) if rejects(middle) else (low, middle)
    return low


def _valid(logs: Array, count: int, identical: bool) -> Array:
    """Return logs of p-values that are also valid for scores that are not identically distributed.

    Args:
        logs: logs of binomial p-values for at least `count` scores.
        count: number of scores, k_1 or n_0 - k_0.
        identical: True if the scores are identically distributed. Then nothing is changed.
    """
    if identical:
        return logs
    larger = logs + np.exp(logs) if count == 1 else logs
    return np.where(logs > math.log(LARGEST_P), 0.0, larger)


def _combined_log(alpha: float, weight: float) -> float:
    """Return log c such that p_1^weight p_0 <= c with probability alpha, for independent uniform p_1 and p_0."""
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
    """Return a test with nearly the largest typical bound, if scores are distributed as in `reference`.

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
            # Two typical counts of absent canaries: one slightly lucky, one slightly unlucky.
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
    """Choose a threshold with some of the scores. Return the bound from the other scores, and the threshold."""
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
    """Return a lower bound on epsilon from the scores of present canaries and of absent canaries.

    **Guarantee**: if the scores are independent, and the program is (epsilon, delta)-differentially private, then the
    bound is above epsilon with probability at most 1 - confidence. Scores of separate runs are independent.

    Args:
        inside: scores of present canaries; high scores mean that the canary looks present.
        outside: scores of absent canaries.
        delta: delta of the bound.
        confidence: probability with which the bound holds, at least 0.5.
        reference: scores of present and of absent canaries, simulated for the claimed mechanism, to choose a threshold.
            If None, the threshold is chosen with a quarter of the scores.
        assumes: "none" for scores of separate runs of one canary. "independent canaries" for canaries of one run, which
            may take part in different steps.
        seed: seed that chooses the random quarter.

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
    value = _check.real(owner, "confidence", confidence, 0.5, 1.0, "use a value such as 0.95")
    if value == 1.0:
        raise invalid(owner, "confidence", "below 1", confidence, "use a value such as 0.95")
    return value


def _candidates(miss: Array, trials: int) -> Array:
    """Return thresholds to try. Few absent canaries have scores above most of these, and none above the largest."""
    shares = np.geomspace(0.05, trials, THRESHOLDS) / trials
    return np.unique(np.append(np.quantile(miss, 1.0 - np.minimum(shares, 1.0)), np.nextafter(miss[-1], np.inf)))


def _checked(name: str, values: Array) -> Array:
    return _check.array("counting_bound", name, values, 1)
