"""The function `plan`, which tries families and participations, and chooses a mechanism by error and memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
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
from antiphase._planner.training import with_objective
from antiphase._problem import Problem

NOT_FOR_TRAINING = {"banded", "banded-inverse", "dense", "fourier", "stamped", "tree"}  # see `_default_families`
NOT_ON_A_LATTICE = {"banded", "dense", "fourier", "stamped", "tree"}  # left out by default for lattice noise
MEMORY_TOLERANCE = 0.01  # fraction by which the error may exceed the least error, in exchange for less memory


def plan(
    problem: Problem,
    families: Iterable[str] | None = None,
    *,
    pipelines: Iterable[str] | None = None,
    memory_tolerance: float | None = None,
    progress: Progress | None = None,
) -> Plan:
    """Find the mechanism with the least expected error within the privacy budget and the memory limit.

    The problem's objective defines the error. The objective "training" measures the noise in directions in which the
    loss is curved, for a range of curvatures that depends on the problem's learning rate. If the problem states no
    learning rate, the planner predicts one. The plan's notes state the range of curvatures. Among all mechanisms whose
    error is within `memory_tolerance` of the least error, the planner chooses the one that needs the least memory.

    The planner tries every family in `families` that the participation allows. The participation states in which steps
    an example can be used. If the participation draws batches at random, the planner uses the amplification of privacy
    that is proved for it. If the problem names no participation, the planner compares all participations in
    `pipelines`. The problem must then state the number of examples and the batch size.

    **Guarantee**: the plan is within the budget. The table in docs/accounting.md names the accountant that proves this.
    The expected error of the chosen mechanism exceeds the error of any other candidate by at most the fraction
    `memory_tolerance`. Calling `plan` with only one of the `families` does not give a better mechanism, up to the
    accuracy of the search. The optimizers are accurate to 0.01 % (2 % for the dense family under `Curvatures`). If the
    accounting draws samples, candidates are first compared with few samples. The search is then no more accurate than
    this comparison. A family in `families` is skipped only if a proved bound shows that it cannot win.

    These sizes are not tried, and may give slightly less error:

    - numbers of bands between two tried numbers that differ by at most an eighth
    - BLTs with more buffers, once a further buffer has reduced the error by less than 0.5 %
    - BLTs with more buffers under balls-in-bins, once another participation has so much less error that a further
      buffer cannot make up for it
    - banded strategies with separately optimized columns, if optimizing them may take hours (steps x bands^2 above
      2^30) or would gain little (steps x bands^2 above 2^26, with fewer bands than steps / 10,000)

    Above 2,000 steps, the dense family may take minutes; its limit is 8,192 steps. To exclude it, set a memory limit or
    pass `families`.

    Args:
        problem: the training problem: steps, budget, participation, objective and limits.
        families: any of "identity", "tree", "fourier", "stamped", "toeplitz", "banded", "banded-inverse", "blt",
            "dense". None tries all of them for "rms" and "max". For "training" and `Curvatures`, None leaves out
            "banded" and "dense", which take minutes to optimize and did not give better models (docs/training.md). It
            also leaves out "tree", "fourier", "stamped" and "banded-inverse", which take most of the remaining time and
            were never best.
        pipelines: names of the ways to draw batches that the data pipeline supports, for a problem that names no
            participation: any of "poisson", "cyclic-poisson", "fixed-size", "fixed-epochs", "balls-in-bins",
            "shuffled-epochs"; None tries the first four. For the objective "training" or `Curvatures`, None also tries
            balls-in-bins if its accounting takes only seconds. Leave out "balls-in-bins" to save about half of the
            time.
        memory_tolerance: fraction by which the error may exceed the least error, in exchange for less memory; 0 always
            chooses the least error. By default 0.01 for the objective "training" or `Curvatures`, and 0 for "rms" and
            "max".
        progress: called with the name of the next candidate and the fraction of the work that is done.

    >>> import antiphase as ap
    >>> problem = ap.Problem(steps=64, budget=ap.Budget(2.0, 1e-6), participation=ap.FixedEpochs(4, 16))
    >>> best = plan(problem, families=["identity", "toeplitz"]).candidates[0]
    >>> best.name, best.family, best.size
    ('toeplitz (16 bands)', 'toeplitz', 16)
    """
    chosen = _checked(families, problem)
    names = default_pipelines(problem) if pipelines is None else tuple(pipelines)
    check_pipelines(names)
    search = Search(with_objective(problem, names), progress, _tolerance(problem, memory_tolerance))
    for _ in _try_all(search, chosen, names):
        pass
    if not search.evaluations:
        raise _nothing_fits(search, chosen)
    return _best_plan(search, problem)


def plans_so_far(
    problem: Problem, pipelines: Iterable[str] | None = None, progress: Progress | None = None
) -> Iterator[tuple[Plan, bool]]:
    """Yield (best plan so far, False) before each participation with Monte Carlo accounting, and finally (plan, True).

    Monte Carlo accounting draws random samples and takes most of the time. The last plan is the one that `plan`
    returns. Nothing is yielded before the first candidate fits.
    """
    names = default_pipelines(problem) if pipelines is None else tuple(pipelines)
    check_pipelines(names)
    families = _checked(None, problem)
    search = Search(with_objective(problem, names), progress, _tolerance(problem, None))
    for _ in _try_all(search, families, names):
        if search.evaluations:
            yield _best_plan(search, problem), False
    if not search.evaluations:
        raise _nothing_fits(search, families)
    yield _best_plan(search, problem), True


def _best_plan(search: Search, problem: Problem) -> Plan:
    """Choose the best mechanism evaluated so far, and return it as a plan for the problem as the user stated it."""
    ranked = sorted(search.evaluations, key=lambda found: (found.candidate.error, found.candidate.memory_copies))
    thrifty = least_memory(ranked, search.memory_tolerance)
    best = _certified(thrifty, problem)
    candidates = (best.candidate, *(found.candidate for found in ranked if found is not thrifty))
    notes = tuple(advice(search.problem, candidates, best.mechanism))
    return Plan(problem, best.mechanism, best.guarantee, best.candidate.error, candidates, notes=notes)


def ranked_problem(problem: Problem, pipelines: Iterable[str] | None = None) -> Problem:
    """Return the problem with the objective that `plan` ranks by: `Curvatures` in place of "training".

    Errors of plans are comparable if they were ranked by the same objective.
    """
    return with_objective(problem, default_pipelines(problem) if pipelines is None else tuple(pipelines))


def _tolerance(problem: Problem, given: float | None) -> float:
    if given is None:
        return 0.0 if problem.objective in ("rms", "max") else MEMORY_TOLERANCE
    return check.real("plan", "memory_tolerance", given, 0.0, 1.0, "use for example 0.01 to accept 1 % more error")


def least_memory(evaluations: Sequence[Evaluation], tolerance: float) -> Evaluation:
    """Return the evaluation with the least memory among those within a fraction `tolerance` of the least error."""
    least = min(found.candidate.error for found in evaluations)
    near = [found for found in evaluations if found.candidate.error <= (1.0 + tolerance) * least]
    return min(near, key=lambda found: (found.candidate.memory_copies, found.candidate.error))


def _certified(best: Evaluation, problem: Problem) -> Evaluation:
    """Return the evaluation with a new guarantee if its guarantee is based on random samples, otherwise unchanged.

    The new guarantee is based on new samples, because the earlier samples were used to choose the mechanism.
    """
    if best.guarantee.kind != "confident":
        return best
    guarantee = certified(best.mechanism, best.guarantee, problem.budget)
    return replace(best, guarantee=guarantee, candidate=replace(best.candidate, epsilon=guarantee.value))


def _try_all(search: Search, families: set[str], pipelines: tuple[str, ...]) -> Iterator[None]:
    """Try amplification by sampling, then all other participations. Yields before each one that needs Monte Carlo."""
    given = search.problem.participation
    if given is None:
        sizes(search.problem)
    try_amplified(search, families, pipelines)
    for participation in sorted(_promises(search.problem, given, pipelines), key=needs_monte_carlo):
        if needs_monte_carlo(participation):
            yield
            try_monte_carlo(search, families, participation)
            continue
        for i, (name, try_family) in enumerate(FAMILIES.items()):
            search.share = (i + 1) / (len(FAMILIES) + 1)
            if name in families:
                try_family(search, participation)


def default_pipelines(problem: Problem) -> tuple[str, ...]:
    """Return the pipelines to try by default.

    They include balls-in-bins if its accounting takes only seconds and the objective is neither "rms" nor "max".
    """
    if problem.objective in ("rms", "max") or problem.participation is not None:
        return DEFAULT
    quick = bins_are_quick(problem, promised(problem, "balls-in-bins"))
    return (*DEFAULT, "balls-in-bins") if quick else DEFAULT


def _promises(problem: Problem, given: Participation | None, pipelines: tuple[str, ...]) -> list[Participation]:
    """Return the participations to try, except those that `try_amplified` tries."""
    if given is None:
        return [promised(problem, name) for name in pipelines if name in PROMISED]
    return [given] if given.sampling_groups is None else []


def _checked(families: Iterable[str] | None, problem: Problem) -> set[str]:
    chosen = set(_default_families(problem) if families is None else families)
    if problem.lattice and families is None:
        chosen -= NOT_ON_A_LATTICE
    for name in sorted(chosen - set(FAMILIES)):
        raise check.invalid("plan", "families", f"any of {', '.join(FAMILIES)}", name, "omit families to try all")
    if not chosen:
        raise check.invalid("plan", "families", "at least one name", "none", "omit families to try all")
    return chosen


def _default_families(problem: Problem) -> set[str]:
    """Return all families for "rms" and "max". Other objectives leave out slow families that gave no better models."""
    if problem.objective in ("rms", "max"):
        return set(FAMILIES)
    return set(FAMILIES) - NOT_FOR_TRAINING


def _nothing_fits(search: Search, families: set[str]) -> AntiphaseError:
    """Return the error to raise if no mechanism fits. If possible, its hint says how to change the problem."""
    problem = search.problem
    limit = problem.memory_copies
    least = min(least_copies(family, problem.steps, problem.participation) for family in families)
    names = ", ".join(sorted(families))
    if limit is not None and least > limit:
        return Refused(
            f"No mechanism of the families {names} fits into memory_copies={limit}.",
            hint=f"use memory_copies={least} or more; the family identity needs no memory",
        )
    proofs = [error for error in search.refusals if isinstance(error, NotProved)]
    if proofs:
        return NotProved(f"No mechanism of the families {names} fits. {proofs[0].message}", hint=proofs[0].hint)
    if search.refusals:
        first = search.refusals[0]
        return Refused(f"No mechanism of the families {names} fits. {first.message}", hint=first.hint)
    return NotProved(
        f"No mechanism of the families {names} can be tried with {problem.participation or 'these pipelines'} and "
        f"{problem.steps} steps.",
        hint="omit families to try all of them; amplification by Poisson, cyclic Poisson or fixed-size sampling is "
        "proved only for identity, toeplitz and banded",
    )
