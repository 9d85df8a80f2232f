"""Search under sampling schemes with Monte Carlo accounting: balls-in-bins, and Poisson with a minimum separation.

Monte Carlo accounting draws random samples. It takes seconds for one mechanism, so the planner compares only a few
mechanisms. Under balls-in-bins, it optimizes their strategies for the noise that the budget requires after
amplification by sampling. For the objectives "rms" and "max", or if the problem names the participation, the planner
also tries the strategy of each family that is best without amplification. It first compares all strategies with few
samples. Then it calibrates the promising ones with many samples.

For objectives other than "rms" and "max", the planner tries BLTs (strategies with a few memory buffers) with one, two
and three buffers. It stops early if one more buffer reduces the error by less than 0.5 %. It also stops if another
participation has so much less error that BLTs with more buffers cannot reach it. In measurements, Toeplitz strategies
took longer to optimize and were no better. The planner therefore tries them only if BLTs are excluded.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from antiphase._errors import NotProved
from antiphase._montecarlo import MonteCarlo
from antiphase._objective import Curvatures
from antiphase._optimize import AmplifiedProblem, optimize, quick_amplified_blt
from antiphase._participation import BallsInBins, Participation, PoissonMinSeparation
from antiphase._planner.families import FAMILIES, MIN_BUFFER_GAIN, QUICK_BANDED_WORK, affords
from antiphase._planner.search import Evaluation, Proposal, Search
from antiphase._problem import Problem
from antiphase.strategies import Strategy

COARSE = MonteCarlo(slack=0.2)
OVER_STEPS_BUFFERS = (3,)  # numbers of buffers of BLTs for the objectives "rms" and "max"
TRAINING_BUFFERS = (1, 2, 3)  # numbers of buffers of BLTs for other objectives
TRAINING_BANDS = 64  # number of bands of the Toeplitz strategy for other objectives
ESTIMATE_ERROR = 0.02  # allowed relative error of an estimate from few samples
HOPELESS = 1.2  # measured: more buffers never reduced the error by this factor
NEAR = 1.05  # if memory also affects the choice, candidates within this factor of the least error get many samples
# Limits for trying balls-in-bins by default.
MAX_BINS = 1024  # the accountant works with bins x bins matrices
MAX_STEPS = 1 << 17
MAX_BINS_WORK = 1 << 21  # steps x bands


def needs_monte_carlo(participation: Participation) -> bool:
    """Return True if the accounting for this participation draws samples."""
    return isinstance(participation, (BallsInBins, PoissonMinSeparation))


def bins_are_quick(problem: Problem, participation: Participation) -> bool:
    """Return True if balls-in-bins has a proof under the problem's adjacency and its accounting takes only seconds."""
    assert isinstance(participation, BallsInBins)
    quick = participation.steps_per_epoch <= MAX_BINS and problem.steps <= MAX_STEPS
    return quick and problem.adjacency != "replace"


def try_monte_carlo(search: Search, families: set[str], participation: Participation) -> None:
    """Try a few promising mechanisms with few samples, then evaluate the best of them with many samples."""
    problem, before = search.problem, len(search.evaluations)
    if isinstance(problem.objective, Curvatures) and problem.participation is None:
        _try_for_training(search, families, participation)
        return
    proposals = list(_amplified(problem, families, participation))
    if _counts_all_steps(problem) or problem.participation is not None:
        proposals = [*_unamplified(search, families, participation), *proposals]
    for proposal in proposals:
        search.attempt(proposal, COARSE)
    for found in _contenders(search.evaluations[before:], 1.0 if _counts_all_steps(problem) else NEAR):
        search.evaluations.remove(found)
        search.attempt(_again(found, participation))


def _try_for_training(search: Search, families: set[str], participation: Participation) -> None:
    """Optimize a few strategies. Evaluate, with many samples, those that may have the least error.

    The errors of all BLTs are first estimated from the same few samples. The estimates show which BLTs may have the
    least error, and whether another buffer is worth trying. If there is no such BLT, the best one is evaluated with few
    samples, so that it appears in the table of candidates.
    """
    drafts: list[tuple[float, Proposal]] = []
    tolerance = (1.0 + search.memory_tolerance) * (1.0 + ESTIMATE_ERROR)
    for proposal in _amplified(search.problem, families, participation):
        if proposal.family != "blt" or proposal.size is None:
            search.attempt(proposal)
            continue
        search.tell(proposal.name, search.share)
        try:
            strategy, estimate = estimated_blt(search.problem, proposal.size, participation)
        except NotProved as error:
            search.refusals.append(error)
            break
        if drafts and estimate > (1.0 - MIN_BUFFER_GAIN) * drafts[-1][0]:
            break
        drafts.append((estimate, replace(proposal, make=partial(_same, strategy))))
        # In all measurements, each buffer reduced the error by less than the one before. We assume that this continues.
        next_gain = HOPELESS if len(drafts) == 1 else drafts[-2][0] / estimate
        if estimate > next_gain * tolerance * search.least_error:
            break
    if not drafts:
        return
    best = min(drafts, key=lambda draft: draft[0])
    near = tolerance * min(search.least_error, best[0])
    chosen = [proposal for estimate, proposal in drafts if estimate <= near]
    for proposal in chosen:
        search.attempt(proposal, MonteCarlo())
    if not chosen:
        search.attempt(best[1], COARSE)


def estimated_blt(problem: Problem, buffers: int, participation: Participation) -> tuple[Strategy, float]:
    """Return a BLT optimized for balls-in-bins sampling, and an estimate of its error from few samples.

    Args:
        problem: problem to plan for, whose objective is "rms", "max" or a `Curvatures`.
        buffers: number of buffers.
        participation: a `BallsInBins`.
    """
    assert isinstance(participation, BallsInBins)
    asked = AmplifiedProblem(problem.steps, participation, problem.workload, problem.objective, problem.budget)
    return quick_amplified_blt(asked, buffers)


def _same(strategy: Strategy) -> Strategy:
    return strategy


def _counts_all_steps(problem: Problem) -> bool:
    return problem.objective in ("rms", "max")


def _contenders(found: list[Evaluation], near: float) -> list[Evaluation]:
    """Return the Pareto front in error and memory, limited to candidates within a factor `near` of the least error."""
    front: list[Evaluation] = []
    for one in sorted(found, key=lambda evaluation: evaluation.candidate.error):
        is_near = not front or one.candidate.error <= near * front[0].candidate.error
        if is_near and all(one.candidate.memory_copies < better.candidate.memory_copies for better in front):
            front.append(one)
    return front


def _unamplified(search: Search, families: set[str], participation: Participation) -> list[Proposal]:
    """Return, for each family, a proposal for the strategy that is best without amplification.

    Finding these strategies is quick, because it draws no samples.
    """
    problem = replace(search.problem, adjacency="zero-out", participation=participation.worst_case, batch_size=None)
    kept = []
    for name, family in FAMILIES.items():
        if name in families:
            draft = Search(problem, search.tell)
            draft.share = search.share
            family(draft, participation.worst_case)
            if draft.evaluations:
                best = min(draft.evaluations, key=lambda evaluation: evaluation.candidate.error)
                kept.append(_again(best, participation))
    return kept


def _amplified(problem: Problem, families: set[str], participation: Participation) -> Iterator[Proposal]:
    """Yield proposals for strategies optimized for the noise that the budget requires with amplification."""
    if not isinstance(participation, BallsInBins) or participation.max_batch is not None:
        return
    for family, size in _sizes(problem, families, participation):
        fits = affords(problem, size if family == "blt" else size - 1) and size <= problem.steps
        if fits and family in families:
            option = "buffers" if family == "blt" else "bands"
            make = partial(_best, family, problem, participation, **{option: size})
            yield Proposal(family, make, participation, size, "for the bins")


def _sizes(problem: Problem, families: set[str], participation: BallsInBins) -> Iterator[tuple[str, int]]:
    """Yield the families and sizes to optimize for balls-in-bins."""
    if not _counts_all_steps(problem):
        if "blt" in families:
            yield from (("blt", buffers) for buffers in TRAINING_BUFFERS)
        elif problem.steps * TRAINING_BANDS <= MAX_BINS_WORK:
            yield "toeplitz", TRAINING_BANDS
        return
    widest = min(problem.steps, 2 * participation.steps_per_epoch)
    if problem.memory_copies is not None:
        widest = min(widest, problem.memory_copies + 1)
    if widest > 1 and problem.steps * widest**2 <= QUICK_BANDED_WORK:
        yield "toeplitz", widest
    yield from (("blt", buffers) for buffers in OVER_STEPS_BUFFERS)


def _best(family: str, problem: Problem, participation: Participation, **options: Any) -> Strategy:
    return optimize(
        family,
        steps=problem.steps,
        participation=participation,
        workload=problem.workload,
        objective=problem.objective,
        budget=problem.budget,
        **options,
    ).strategy


def _again(found: Evaluation, participation: Participation) -> Proposal:
    """Return a proposal that reuses the strategy of an earlier evaluation."""
    candidate, strategy = found.candidate, found.mechanism.strategy
    return Proposal(candidate.family, lambda: strategy, participation, candidate.size, candidate.variant)
