"""How `plan` chooses: try every family under every participation that fits, then take the least error or memory."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from antiphase import _check as check
from antiphase._accounting import certified
from antiphase._errors import AntiphaseError, NotProved, Refused
from antiphase._participation import Participation
from antiphase._plan import Plan
from antiphase._planner.advice import advice
from antiphase._planner.amplified import try_amplified
from antiphase._planner.families import FAMILIES, least_copies
from antiphase._planner.monte_carlo import bins_are_quick, needs_monte_carlo, try_monte_carlo
from antiphase._planner.pipelines import DEFAULT, PROMISED, check_pipelines, promised, sizes
from antiphase._planner.search import Evaluation, Progress, Search
from antiphase._problem import Problem

FREE_COLUMN_FAMILIES = {"banded", "dense"}
MEMORY_TOLERANCE = 0.01  # fraction of the error that may be given up to save memory


def plan(
    problem: Problem,
    families: Iterable[str] | None = None,
    *,
    pipelines: Iterable[str] | None = None,
    memory_tolerance: float | None = None,
    progress: Progress | None = None,
) -> Plan:
    """Find the mechanism with the least expected error within the privacy budget and the memory limit.

    The error is the problem's objective. Of all mechanisms within `memory_tolerance` of the least error, the plan takes
    the one that needs the least memory.

    Tries every family that the participation allows, with the amplification that the participation offers. If the
    problem leaves the participation open, compares those that a program can enforce, given the number of examples and
    the batch size.

    **Guarantee**: the plan keeps the budget, by the accountant that the table in docs/accounting.md names. No candidate
    in its table has an expected error that is smaller by more than `memory_tolerance`, and trying any single family
    alone would not find one either, up to the accuracy of the optimizers (0.01 %, or 2 % for the dense family under
    `Curvatures`) and, if the accounting draws samples, up to the accuracy of a comparison with few samples. A family is
    left out only if a proved bound shows that it cannot win. Sizes that are not tried may give slightly less error:
    numbers of bands between two that differ by an eighth, buffers that gain less than 0.5 %, and free columns of a
    banded strategy that takes more work than steps x bands^2 = 2^30, or than 2^26 with fewer bands than steps / 10,000,
    which may take hours. The dense family may take minutes above 2,000 steps, up to its limit of 8,192; exclude it with
    a memory limit or `families`.

    Args:
        problem: what to train, and at what cost.
        families: any of "identity", "tree", "fourier", "stamped", "toeplitz", "banded", "banded-inverse", "blt",
            "dense"; None tries all; for the objective "training", all but "banded" and "dense", whose free columns took
            minutes to optimize and did not train better (docs/training.md).
        pipelines: what the data pipeline can do, if the problem leaves the participation open: any of "poisson",
            "cyclic-poisson", "fixed-size", "fixed-epochs", "balls-in-bins", "shuffled-epochs"; None tries the first
            four and, for the objective "training" or `Curvatures`, also balls-in-bins.
        memory_tolerance: fraction of the least error that may be given up to save memory; 0 takes the least error. By
            default 0.01 for the objective "training" or `Curvatures`, and 0 for "rms" and "max".
        progress: called with the name of the next candidate and the fraction of the work that is done.

    >>> import antiphase as ap
    >>> problem = ap.Problem(steps=64, budget=ap.Budget(2.0, 1e-6), participation=ap.FixedEpochs(4, 16))
    >>> best = plan(problem, families=["identity", "toeplitz"]).candidates[0]
    >>> best.name, best.family, best.size
    ('toeplitz (16 bands)', 'toeplitz', 16)
    """
    chosen = _checked(families, problem)
    names = _default_pipelines(problem) if pipelines is None else tuple(pipelines)
    check_pipelines(names)
    tolerance = _tolerance(problem, memory_tolerance)
    search = Search(problem, progress)
    _try_all(search, chosen, names)
    if not search.evaluations:
        raise _nothing_fits(search, chosen)
    ranked = sorted(search.evaluations, key=lambda found: (found.candidate.error, found.candidate.memory_copies))
    thrifty = least_memory(ranked, tolerance)
    best = _certified(thrifty, problem)
    candidates = (best.candidate, *(found.candidate for found in ranked if found is not thrifty))
    notes = tuple(advice(problem, candidates, best.mechanism))
    return Plan(problem, best.mechanism, best.guarantee, best.candidate.error, candidates, notes=notes)


def _tolerance(problem: Problem, given: float | None) -> float:
    if given is None:
        return 0.0 if problem.objective in ("rms", "max") else MEMORY_TOLERANCE
    return check.real("plan", "memory_tolerance", given, 0.0, 1.0, "0.01 gives up 1 % of the error")


def least_memory(evaluations: Sequence[Evaluation], tolerance: float) -> Evaluation:
    """The evaluation that needs the least memory among those within a fraction `tolerance` of the least error."""
    least = min(found.candidate.error for found in evaluations)
    near = [found for found in evaluations if found.candidate.error <= (1.0 + tolerance) * least]
    return min(near, key=lambda found: (found.candidate.memory_copies, found.candidate.error))


def _certified(best: Evaluation, problem: Problem) -> Evaluation:
    """Certify a sampled guarantee with fresh entropy, since the samples so far were used to choose."""
    if best.guarantee.kind != "confident":
        return best
    guarantee = certified(best.mechanism, best.guarantee, problem.budget)
    return replace(best, guarantee=guarantee, candidate=replace(best.candidate, epsilon=guarantee.value))


def _try_all(search: Search, families: set[str], pipelines: tuple[str, ...]) -> None:
    """Try mechanisms amplified by sampling first, then those whose guarantee holds for any order of the batches."""
    given = search.problem.participation
    if given is None:
        sizes(search.problem)
    try_amplified(search, families, pipelines)
    for participation in _promises(search.problem, given, pipelines):
        if needs_monte_carlo(participation):
            try_monte_carlo(search, families, participation)
            continue
        for i, (name, try_family) in enumerate(FAMILIES.items()):
            search.share = (i + 1) / (len(FAMILIES) + 1)
            if name in families:
                try_family(search, participation)


def _default_pipelines(problem: Problem) -> tuple[str, ...]:
    """The pipelines to try by default, with balls-in-bins if the end of training counts and accounting is quick."""
    if problem.objective in ("rms", "max") or problem.participation is not None:
        return DEFAULT
    quick = bins_are_quick(problem, promised(problem, "balls-in-bins"))
    return (*DEFAULT, "balls-in-bins") if quick else DEFAULT


def _promises(problem: Problem, given: Participation | None, pipelines: tuple[str, ...]) -> list[Participation]:
    """The participations to try besides those amplified by sampling."""
    if given is None:
        return [promised(problem, name) for name in pipelines if name in PROMISED]
    return [given] if given.sampling_groups is None else []


def _checked(families: Iterable[str] | None, problem: Problem) -> set[str]:
    chosen = set(_default_families(problem) if families is None else families)
    for name in sorted(chosen - set(FAMILIES)):
        raise check.invalid("plan", "families", f"any of {', '.join(FAMILIES)}", name, "leave it out to try all")
    if not chosen:
        raise check.invalid("plan", "families", "at least one name", "none", "leave it out to try all")
    return chosen


def _default_families(problem: Problem) -> set[str]:
    """All families; if the end of training counts, without those with free columns, which then train no better."""
    if problem.objective in ("rms", "max"):
        return set(FAMILIES)
    return set(FAMILIES) - FREE_COLUMN_FAMILIES


def _nothing_fits(search: Search, families: set[str]) -> AntiphaseError:
    """The error to raise if no mechanism fits; its hint names the nearest problem that works."""
    problem = search.problem
    limit = problem.memory_copies
    least = min(least_copies(family, problem.steps, problem.participation) for family in families)
    names = ", ".join(sorted(families))
    if limit is not None and least > limit:
        return Refused(
            f"No mechanism of {names} fits into memory_copies={limit}.",
            hint=f"the nearest problem that works has memory_copies={least}; family identity needs none",
        )
    proofs = [error for error in search.refusals if isinstance(error, NotProved)]
    if proofs:
        return NotProved(f"No mechanism of {names} fits. {proofs[0].message}", hint=proofs[0].hint)
    if search.refusals:
        return Refused(f"No mechanism of {names} fits. {search.refusals[0].message}", hint=search.refusals[0].hint)
    return NotProved(
        f"No mechanism of {names} can be tried with {problem.participation or 'these pipelines'} and {problem.steps} "
        "steps.",
        hint="omit families to try all of them; sampling is proved only for identity, toeplitz and banded",
    )
