"""Black-box audits, which attack only the final model of a program.

A canary is an artificial example whose contribution is a known vector, called its direction. An adversary who has only
the final model can measure how far the model moved along the direction of each canary. If the optimizer is linear, the
final model is a weighted sum of the released sums of all steps. The weights are the last row of the workload A, the
matrix that maps released sums to models.

An adversary in a white-box audit has the released sum of every step and can choose better weights, from the likelihood
ratio. A white-box audit also tests noise, contributions and participation. A black-box audit has less information and
no such tests, so it finds much less. Its lower bounds on epsilon are valid for any optimizer and any scores.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np

from antiphase._accounting import Mechanism
from antiphase._check import Array, invalid
from antiphase._measured import Assumption, Audit
from antiphase._participation import Deterministic
from antiphase._plan import Plan
from antiphase._workload import PrefixSum, Workload
from antiphase.audit._canary import canary_signs, worst_pattern
from antiphase.audit._counting import check_confidence, counting_bound
from antiphase.audit._evaluate import MOST_ONE_RUN, check_enough_canaries, claim_of, points_of_curve, reference_size
from antiphase.audit._one_run import one_run_bounds
from antiphase.audit._patterns import random_patterns
from antiphase.audit._release import Flags, Release
from antiphase.audit._scores import final_model_scores

# Fraction of the failure probability for `counting_bound`. The two bounds of `one_run_bounds` share the rest.
COUNTING_SHARE = 0.8
REMARK = "Only final models were attacked: noise, contributions and participation were not tested."


@dataclass(frozen=True)
class FinalModels:
    """Attack scores of canaries, computed from final models.

    Args:
        scores: score of each canary, shape (canaries,). A high score means that the canary looks present. The score can
            be how far the model moved along the canary's direction, or any other score, such as a negative loss.
        present: for each canary, True if its coin flip put it into the data.
        source: description of how the models were made.
        seconds: how long it took to make the models.
    """

    scores: Array
    present: Flags
    source: str = "final models"
    seconds: float = 0.0

    def __post_init__(self) -> None:
        scores, present = np.asarray(self.scores, np.float64), np.asarray(self.present, np.bool_)
        if scores.ndim != 1 or not np.isfinite(scores).all():
            raise invalid(
                "FinalModels", "scores", "a finite number per canary", f"shape {scores.shape}", "pass a vector"
            )
        if present.shape != scores.shape:
            hint = "pass one flag for each canary"
            raise invalid("FinalModels", "present", f"{len(scores)} flags", f"shape {present.shape}", hint)
        object.__setattr__(self, "scores", scores)
        object.__setattr__(self, "present", present)


def final_models(release: Release, workload: Workload | None = None) -> FinalModels:
    """Return the scores that an adversary can compute from the final model of a release alone.

    Args:
        release: the released sums.
        workload: optimizer that turns released sums into models; by default plain SGD, `PrefixSum()`.
    """
    values = final_model_scores(release, PrefixSum() if workload is None else workload)
    return FinalModels(values, release.present, f"{release.source}, final model", release.seconds)


def joined_final_models(found: list[FinalModels]) -> FinalModels:
    """Combine the final models of several runs of the same program."""
    return FinalModels(
        np.concatenate([one.scores for one in found]),
        np.concatenate([one.present for one in found]),
        f"{found[0].source}, {len(found)} runs" if len(found) > 1 else found[0].source,
        sum(one.seconds for one in found),
    )


def evaluate_final_models(
    claimed: Plan | Mechanism,
    found: FinalModels,
    *,
    workload: Workload | None = None,
    delta: float | None = None,
    confidence: float = 0.95,
    separate_runs: bool = False,
    subject: str = "",
) -> Audit:
    """Audit final models. The result contains lower bounds on epsilon, but no statistical tests.

    **Guarantee**: all bounds hold together with probability `confidence`, under their assumptions. A program that does
    what it claims is flagged with probability at most 1 - confidence.

    Args:
        claimed: plan or mechanism that the program claims to run.
        found: scores from the final models.
        workload: optimizer of the program. The thresholds on the scores are chosen with scores that are simulated for
            this optimizer. The default is the plan's workload, or plain SGD if `claimed` is a mechanism.
        delta: delta of the bounds; by default the plan's delta, or 1e-5 for a mechanism.
        confidence: probability with which all bounds hold.
        separate_runs: True if each canary comes from its own run. The bounds then need no assumption about the program.
        subject: description of what was audited, shown on the page of the audit.

    >>> import antiphase as ap
    >>> from antiphase.audit import simulate
    >>> mechanism = ap.Mechanism(ap.strategies.Identity(4), ap.EveryStep(), noise_std=1.0)
    >>> models = final_models(simulate(mechanism, canaries=1000, secret=ap.Secret.insecure(1)))
    >>> evaluate_final_models(mechanism, models).flagged
    False
    """
    start = time.perf_counter()
    mechanism, at, claim = claim_of(claimed, delta)
    alpha = 1.0 - check_confidence("evaluate_final_models", confidence)
    inside, outside = found.scores[found.present], found.scores[~found.present]
    check_enough_canaries(inside, outside)
    if workload is None:
        workload = claimed.problem.workload if isinstance(claimed, Plan) else PrefixSum()
    reference = final_model_reference(mechanism, workload, reference_size(len(found.scores)), seed=1)
    assumes: Assumption = "none" if separate_runs else "independent canaries"
    with_theorems = not separate_runs and len(found.scores) <= MOST_ONE_RUN
    share = COUNTING_SHARE if with_theorems else 1.0
    measured = [counting_bound(inside, outside, at, 1.0 - share * alpha, reference=reference, assumes=assumes)]
    if with_theorems:
        each = (1.0 - share) * alpha / 2.0
        measured += one_run_bounds(found.scores, found.present, at, 1.0 - each, reference=reference)
    return Audit(
        subject or found.source,
        claim,
        at,
        tuple(measured),
        (),
        points_of_curve(inside, outside),
        points_of_curve(*reference),
        alpha,
        found.seconds + time.perf_counter() - start,
        (REMARK,),
        claimed.fingerprint if isinstance(claimed, Plan) else "",
    )


def final_model_reference(mechanism: Mechanism, workload: Workload, count: int, seed: int) -> tuple[Array, Array]:
    """Return simulated scores of present and of absent canaries, from final models of the claimed mechanism.

    Thresholds are chosen with these scores, so the thresholds do not depend on the scores that are counted.

    Args:
        mechanism: mechanism that the program claims to run.
        workload: optimizer that turns released sums into models.
        count: number of scores of present canaries, and of absent canaries.
        seed: seed of the simulation.
    """
    rng, strategy = np.random.default_rng(seed), mechanism.strategy
    weights = workload.matrix(strategy.steps)[-1]
    deviation = mechanism.noise_std * float(np.linalg.norm(weights @ strategy.noising()))
    if isinstance(mechanism.participation, Deterministic):
        signals = np.full(count, float(weights @ worst_pattern(strategy, mechanism.participation)))
    else:
        signs = canary_signs(strategy, mechanism.participation)
        signals = (weights * signs) @ random_patterns(mechanism, count, rng)
    absent = -signals if mechanism.adjacency == "replace" else 0.0 * signals
    noise = deviation * rng.standard_normal((2, count))
    return signals + noise[0], absent + noise[1]
