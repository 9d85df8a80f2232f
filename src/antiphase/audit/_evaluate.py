"""Evaluates the sums that a program released: computes all bounds and tests of an audit.

Canaries are artificial examples. From the released sums, the attack computes a score for each canary, which is high if
the canary looks present in the data.
"""

from __future__ import annotations

import time

import numpy as np

from antiphase._accounting import Mechanism, check_delta, epsilon
from antiphase._bound import Bound
from antiphase._check import Array
from antiphase._errors import InvalidArgument
from antiphase._measured import Assumption, Audit, MeasuredLowerBound, StatisticalTest
from antiphase._plan import Plan
from antiphase.audit._contribution_test import contribution_test
from antiphase.audit._counting import check_confidence, counting_bound
from antiphase.audit._gaussian_form import gaussian_bound
from antiphase.audit._noise_test import noise_test
from antiphase.audit._one_run import one_run_bounds
from antiphase.audit._participation_test import participation_test
from antiphase.audit._release import Release
from antiphase.audit._scores import Scores, reference_scores, scores

LARGEST_REFERENCE, SMALLEST_REFERENCE = 400_000, 20_000  # limits on the number of simulated scores
SHARES = {"counting": 0.6, "gaussian": 0.3, "one run": 0.1}  # fractions of 1 - confidence that each bound may use
TEST_LEVEL = 0.2  # level of all tests together, as a fraction of 1 - confidence
CURVE_POINTS = 200
FEWEST = 10
MOST_ONE_RUN = 20_000  # with more canaries, the bounds from one run would take minutes


def evaluate(
    claimed: Plan | Mechanism,
    release: Release,
    *,
    delta: float | None = None,
    confidence: float = 0.95,
    separate_runs: bool = False,
    subject: str = "",
) -> Audit:
    """Return the audit of a release: lower bounds on epsilon, and tests of noise, contributions and participation.

    **Guarantee**: all bounds hold together with probability `confidence`, under their assumptions. A program that does
    what it claims is flagged with probability at most 1.2 (1 - confidence). An audit that finds nothing proves nothing,
    and never improves the claim.

    Args:
        claimed: plan or mechanism that the program claims to run.
        release: the sums that the program released.
        delta: delta of the bounds; by default the plan's delta, or 1e-5 for a mechanism.
        confidence: probability with which all bounds hold.
        separate_runs: True if each canary comes from its own run. The bound from `counting_bound` then needs no
            assumption about the program.
        subject: description of what was audited, shown on the page of the audit.
    """
    start = time.perf_counter()
    mechanism, at, claim = claim_of(claimed, delta)
    alpha = 1.0 - check_confidence("evaluate", confidence)
    if release.steps != mechanism.strategy.steps:
        raise InvalidArgument(
            f"The release has {release.steps} steps, but the mechanism has {mechanism.strategy.steps}.",
            hint="record one released sum for each step, including steps with an empty batch",
        )
    found = scores(mechanism, release)
    check_enough_canaries(found.inside, found.outside)
    reference = reference_scores(mechanism, found.signals, reference_size(release.canaries), seed=1)
    measured = _bounds(mechanism, found, reference, at, alpha, separate_runs)
    level = TEST_LEVEL * alpha / 3.0
    tests: list[StatisticalTest] = [
        contribution_test(mechanism, release, found, level),
        participation_test(mechanism, release.taking_part, level, single_run=release.single_run),
    ]
    remarks = []
    if release.quiet.shape[1] >= 2:
        tests.insert(0, noise_test(mechanism, release.quiet, level))
    else:
        remarks.append(
            "The noise was not tested, because there are fewer than two directions in which nobody contributes."
        )
    return Audit(
        subject or release.source,
        claim,
        at,
        measured,
        tuple(tests),
        points_of_curve(found.inside, found.outside),
        points_of_curve(*reference),
        alpha * (1.0 + TEST_LEVEL),
        release.seconds + time.perf_counter() - start,
        tuple(remarks),
        claimed.fingerprint if isinstance(claimed, Plan) else "",
    )


def check_enough_canaries(inside: Array, outside: Array) -> None:
    """Raise if there are too few scores to measure anything."""
    if min(len(inside), len(outside)) < FEWEST:
        raise InvalidArgument(
            f"An audit needs at least {FEWEST} canaries that are present and {FEWEST} that are absent.",
            hint="use more canaries; 100 are enough for the tests, and thousands for bounds",
        )


def reference_size(canaries: int) -> int:
    """Return how many scores to simulate. The thresholds are chosen with these scores."""
    return min(max(40 * canaries, SMALLEST_REFERENCE), LARGEST_REFERENCE)


def claim_of(claimed: Plan | Mechanism, delta: float | None) -> tuple[Mechanism, float, Bound]:
    """Return the mechanism, delta and epsilon that a plan or mechanism claims."""
    if isinstance(claimed, Mechanism):
        at = 1e-5 if delta is None else check_delta("evaluate", delta)
        return claimed, at, epsilon(claimed, at)
    budget = claimed.problem.budget.delta
    at = budget if delta is None else check_delta("evaluate", delta)
    return claimed.mechanism, at, claimed.guarantee if at == budget else epsilon(claimed.mechanism, at)


def _bounds(
    mechanism: Mechanism,
    found: Scores,
    reference: tuple[Array, Array],
    delta: float,
    alpha: float,
    separate_runs: bool,
) -> tuple[MeasuredLowerBound, ...]:
    assumes: Assumption = "none" if separate_runs else "independent canaries"
    measured = [
        counting_bound(
            found.inside,
            found.outside,
            delta,
            1.0 - SHARES["counting"] * alpha,
            reference=reference,
            assumes=assumes,
        ),
        gaussian_bound(mechanism, found, delta, 1.0 - SHARES["gaussian"] * alpha)[0],
    ]
    if not separate_runs and len(found.ratios) <= MOST_ONE_RUN:
        share = SHARES["one run"] * alpha / 2.0
        measured += one_run_bounds(found.ratios, found.present, delta, 1.0 - share, reference=reference)
    return tuple(measured)


def points_of_curve(inside: Array, outside: Array) -> tuple[tuple[float, float], ...]:
    """Return points of the ROC curve: pairs of false and true positive rates, for thresholds on the scores."""
    low = np.geomspace(1.0 / len(outside), 1.0, CURVE_POINTS)
    at = np.quantile(outside, 1.0 - low)
    false = 1.0 - np.searchsorted(np.sort(outside), at, side="left") / len(outside)
    true = 1.0 - np.searchsorted(np.sort(inside), at, side="left") / len(inside)
    return tuple(dict.fromkeys(zip(false.tolist(), true.tolist(), strict=True)))
