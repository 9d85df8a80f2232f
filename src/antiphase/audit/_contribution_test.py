"""Tests the sizes of canaries' contributions. Canaries are artificial examples.

A canary may contribute at most the clipping norm, and only in the steps in which it takes part.
"""

from __future__ import annotations

import math

import numpy as np

from antiphase._accounting import Mechanism
from antiphase._check import Array
from antiphase._measured import StatisticalTest
from antiphase.audit._gaussian_form import signal_ratio
from antiphase.audit._release import Flags, Release
from antiphase.audit._scores import Scores

TOLERANCE = 2e-3  # error in a contribution that rounding can cause, as a fraction of the clipping norm
LEAST_NOISE = 1e-12


def contribution_test(mechanism: Mechanism, release: Release, found: Scores, level: float = 0.01) -> StatisticalTest:
    """Test whether canaries contributed as claimed. The test has several parts, each with its own p-value.

    | part | detects |
    |---|---|
    | signal to noise | contributions that are too large for the noise, over all canaries together |
    | size | contributions that exceed the clipping norm on average, over all steps or in a single step |
    | largest | a single canary with too large a contribution |
    | other steps | contributions of canaries in steps that they did not take part in |
    | absent | contributions of canaries that are absent |
    | replay | two different releases of one step |

    Args:
        mechanism: claimed mechanism.
        release: the released sums.
        found: attack scores of the release, as returned by `scores`.
        level: largest probability of a false alarm, if the noise is as claimed.
    """
    present, absent = release.present, ~release.present
    spread = _step_deviations(mechanism)
    signs = np.ones(release.steps) if release.signs is None else release.signs
    values = release.projections * signs[:, None]
    inside = release.taking_part & present[None, :]
    outside = ~release.taking_part & present[None, :]
    signals = found.signals[present] / (2.0 if mechanism.adjacency == "replace" else 1.0)
    excess = found.values[present] - (1.0 + TOLERANCE) * signals
    each_step = _means(values - 1.0 - TOLERANCE, inside, spread, two_sided=False)
    parts = [
        ("signal to noise", signal_ratio(found.values, found.signals, present, 0.95).p_value),
        ("size", min(1.0, 2.0 * min(each_step, _whole(excess, signals)))),
        ("largest", _largest(excess)),
        ("other steps", _means(release.projections, outside, spread, two_sided=True)),
        ("replay", 0.0 if release.replayed > TOLERANCE else 1.0),
    ]
    if mechanism.adjacency != "replace":
        everywhere = np.broadcast_to(absent[None, :], release.taking_part.shape)
        parts.append(("absent", _means(release.projections, everywhere, spread, two_sided=True)))
    return StatisticalTest("contributions", tuple(parts), level, release.canaries)


def _step_deviations(mechanism: Mechanism) -> Array:
    """Return the standard deviation of the released noise in each step."""
    return mechanism.noise_std * np.linalg.norm(mechanism.strategy.noising(), axis=1)


def _means(values: Array, chosen: Flags, spread: Array, *, two_sided: bool) -> float:
    """Return the p-value of the step in which the mean of the chosen canaries is most significant.

    Bonferroni's correction accounts for the number of steps.
    """
    from scipy.special import ndtr

    counts = chosen.sum(axis=1)
    rows = counts > 0
    if not rows.any():
        return 1.0
    totals = np.where(chosen, values, 0.0).sum(axis=1)[rows]
    slack = TOLERANCE * counts[rows] if two_sided else 0.0
    sizes = np.maximum(np.abs(totals) - slack, 0.0) if two_sided else totals
    worst = float((sizes / (np.maximum(spread[rows], LEAST_NOISE) * np.sqrt(counts[rows]))).max())
    return min(1.0, (2.0 if two_sided else 1.0) * int(rows.sum()) * float(ndtr(-worst)))


def _whole(excess: Array, signals: Array) -> float:
    """Return the p-value of the sum of `excess` over the canaries, weighted by their expected signals."""
    from scipy.special import ndtr

    size = float(np.linalg.norm(signals))
    return float(ndtr(-float(signals @ excess) / size)) if size > 0.0 else 1.0


def _largest(excess: Array) -> float:
    from scipy.special import ndtr

    return min(1.0, len(excess) * float(ndtr(-float(excess.max(initial=-math.inf))))) if len(excess) else 1.0
