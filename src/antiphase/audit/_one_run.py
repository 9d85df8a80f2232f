"""Lower bounds on epsilon from many canaries in one run, without assuming that their scores are independent.

Canaries are artificial examples. Every canary has its own fair coin, which decides whether it is present in the data.
From the released values, the attack computes a score for each canary, which is high if the canary looks present. It
guesses that the canaries with the highest scores are present, and abstains on the others. Let m be the number of
canaries, r the number of guesses, and c the number of correct guesses. Two theorems bound the probability of this many
correct guesses:

- `steinke_epsilon` assumes that the program is (epsilon, delta)-differentially private for each canary. Then the
  probability of c or more correct guesses is at most Pr(Bin(r, e^epsilon / (1 + e^epsilon)) >= c) plus a term for
  delta. Steinke, Nasr and Jagielski 2023, Thm 5.2.
- `tradeoff_epsilon` assumes that the program has the trade-off function f of a Gaussian mechanism for each canary. Let
  p_i be the probability of exactly i correct guesses. For each i, the sums R_i = sum_{j >= i} j p_j / m and
  H_i = sum_{j >= i} (r - j) p_j / m satisfy R_{i+1} <= 1 - f(H_i). As the probabilities p_i cannot add up to more than
  1, these inequalities limit how probable c or more correct guesses are. Mahloujifar, Melis and Chaudhuri 2024, Thm
  3.2.

The number of guesses is chosen with simulated scores of the claimed mechanism. This choice does not depend on the data,
so the bounds need no correction for the several numbers that were compared. The coins must be fair and independent. In
particular, do not fix the number of present canaries.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from antiphase._check import Array
from antiphase._measured import MeasuredLowerBound
from antiphase.audit._counting import check_confidence
from antiphase.audit._release import Flags

PLANNED_GUESSES = 24  # number of candidates that `planned_guesses` compares
LARGEST_EPSILON = 200.0


def steinke_epsilon(canaries: int, guesses: int, correct: int, delta: float, alpha: float) -> float:
    """Return the largest epsilon that is rejected at level alpha by the number of correct guesses; 0 if there is none.

    >>> round(steinke_epsilon(1000, 100, 95, 0.0, 0.05), 3)
    2.172

    Reference: Steinke, Nasr and Jagielski 2023, Thm 5.2.
    """
    return _largest_rejected(lambda epsilon: steinke_p_value(canaries, guesses, correct, epsilon, delta) <= alpha)


def steinke_p_value(canaries: int, guesses: int, correct: int, epsilon: float, delta: float) -> float:
    """Return a bound on the probability of `correct` or more correct guesses under (epsilon, delta)-DP."""
    from scipy.stats import binom

    bias = 1.0 / (1.0 + math.exp(-epsilon))
    # Probabilities of at least c, c - 1, ..., 0 correct guesses, where c is `correct`.
    tails = binom.sf(np.arange(correct, -1, -1) - 1, guesses, bias)
    share = float(np.max((tails[1:] - tails[0]) / np.arange(1, correct + 1), initial=0.0))
    return min(1.0, float(tails[0]) + 2.0 * canaries * delta * share)


def tradeoff_epsilon(canaries: int, guesses: int, correct: int, delta: float, alpha: float) -> float:
    """Return a lower bound on epsilon at delta, for programs with a Gaussian trade-off function.

    A program is mu-Gaussian if, for each canary, its trade-off function is at least that of N(0, 1) against N(mu, 1).
    The result is the epsilon, at delta, of the largest mu that the number of correct guesses rejects at level alpha; 0
    if it rejects none.

    Reference: Mahloujifar, Melis and Chaudhuri 2024, Thm 3.2.
    """
    from antiphase._accounting import gaussian_epsilon

    low, high = 0.0, 1.0
    if not rejects_gaussian(canaries, guesses, correct, 1e-9, alpha):
        return 0.0
    while high < 64.0 and rejects_gaussian(canaries, guesses, correct, high, alpha):
        low, high = high, 2.0 * high
    for _ in range(30):
        middle = (low + high) / 2.0
        low, high = (middle, high) if rejects_gaussian(canaries, guesses, correct, middle, alpha) else (low, middle)
    return gaussian_epsilon(low, delta) * (1.0 - 1e-9) if low > 0.0 else 0.0


def rejects_gaussian(canaries: int, guesses: int, correct: int, mu: float, alpha: float) -> bool:
    """Return whether `correct` or more correct guesses have probability below alpha for every mu-Gaussian program.

    Assume that for some mu-Gaussian program, this probability is alpha. The theorem then gives lower bounds on the
    probabilities of exactly `correct` - 1, `correct` - 2, ... correct guesses, one after another. If all probabilities
    add up to more than 1, the assumption is wrong, and mu is rejected.
    """
    right, wrong = alpha * correct / canaries, alpha * (guesses - correct) / canaries
    for i in range(correct - 1, -1, -1):
        needed = _normal(_quantile(right) - mu)  # the smallest H with R <= 1 - f(H), where R is `right`
        if needed <= wrong:
            break
        right = min(right + i * (needed - wrong) / (guesses - i), 1.0)
        wrong = needed
    return right + wrong > guesses / canaries


def one_run_bounds(
    ratios: Array,
    present: Flags,
    delta: float,
    confidence: float = 0.95,
    *,
    reference: tuple[Array, Array],
) -> tuple[MeasuredLowerBound, MeasuredLowerBound]:
    """Return the bounds of `steinke_epsilon` and `tradeoff_epsilon` from the scores of one run.

    **Guarantee**: each bound holds with probability `confidence`. The bound of `steinke_epsilon` needs no assumption
    about the program. The bound of `tradeoff_epsilon` assumes a Gaussian trade-off function. Scores may depend on each
    other in any way.

    Args:
        ratios: score of each canary, shape (canaries,); a high score means that the canary looks present.
        present: for each canary, the outcome of its fair and independent coin.
        delta: delta of the bounds.
        confidence: confidence of each bound.
        reference: scores of present and of absent canaries, simulated for the claimed mechanism. They serve to choose
            the number of guesses.
    """
    alpha = 1.0 - check_confidence("one_run_bounds", confidence)
    order = np.argsort(-ratios, kind="stable")
    m = len(ratios)
    plain = planned_guesses(reference, m, lambda r, c: steinke_epsilon(m, r, c, delta, alpha))
    curve = planned_guesses(reference, m, lambda r, c: tradeoff_epsilon(m, r, c, delta, alpha))

    def correct(guesses: int) -> int:
        return int(np.asarray(present)[order[:guesses]].sum())

    steinke = steinke_epsilon(m, plain, correct(plain), delta, alpha)
    gaussian = tradeoff_epsilon(m, curve, correct(curve), delta, alpha)
    return (
        MeasuredLowerBound(steinke, delta, confidence, f"{plain} guesses in one run, binomial", "none", m),
        MeasuredLowerBound(
            gaussian, delta, confidence, f"{curve} guesses in one run, trade-off function", "Gaussian trade-off", m
        ),
    )


def planned_guesses(reference: tuple[Array, Array], canaries: int, bound: Callable[[int, int], float]) -> int:
    """Return the number of guesses that typically gives the largest bound, for scores distributed as in `reference`.

    `bound` maps the number of guesses and the number of correct guesses to a lower bound on epsilon.
    """
    both = np.concatenate(reference)
    is_present = np.concatenate([np.ones(len(reference[0])), np.zeros(len(reference[1]))])
    hits = np.cumsum(is_present[np.argsort(-both, kind="stable")])
    tried = np.unique(np.geomspace(1, canaries, PLANNED_GUESSES).round().astype(int))
    expected = {}
    for r in tried:
        rate = hits[max(0, round(len(both) * r / canaries) - 1)] / max(1, round(len(both) * r / canaries))
        # Half a standard deviation below the mean, so that the choice does not count on luck.
        correct = math.floor(r * rate - 0.5 * math.sqrt(max(r * rate * (1.0 - rate), 0.0)))
        expected[int(r)] = bound(int(r), max(correct, 0))
    return max(expected, key=lambda r: (expected[r], r))


def _largest_rejected(rejects: Callable[[float], bool]) -> float:
    if not rejects(0.0):
        return 0.0
    low, high = 0.0, 1.0
    while high < LARGEST_EPSILON and rejects(high):
        low, high = high, 2.0 * high
    for _ in range(30):
        middle = (low + high) / 2.0
        low, high = (middle, high) if rejects(middle) else (low, middle)
    return low


def _normal(x: float) -> float:
    return math.erfc(-x / math.sqrt(2.0)) / 2.0


def _quantile(p: float) -> float:
    from scipy.special import ndtri

    return float(ndtri(min(p, 1.0)))
