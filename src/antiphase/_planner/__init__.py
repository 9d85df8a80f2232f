"""The planner: every mechanism that fits a problem, and the one with the least error."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from antiphase._accounting import certified
from antiphase._check import invalid
from antiphase._participation import Participation
from antiphase._plan import Plan
from antiphase._planner.advice import advice, affordable_copies
from antiphase._planner.amplified import amplified
from antiphase._planner.families import FAMILIES
from antiphase._planner.pipelines import DEFAULT, PIPELINES, PROMISED, check_pipelines, promised, sizes
from antiphase._planner.published_strategies import published
from antiphase._planner.refusal import nothing_fits
from antiphase._planner.sampled import compare_sampled, takes_samples
from antiphase._planner.trial import Outcome, Progress, Trials
from antiphase._problem import Problem

__all__ = ["FAMILIES", "PIPELINES", "affordable_copies", "plan", "published"]


def plan(
    problem: Problem,
    families: Iterable[str] | None = None,
    *,
    pipelines: Iterable[str] | None = None,
    progress: Progress | None = None,
) -> Plan:
    """The mechanism with the least expected error that keeps the budget within the memory limit.

    Every family that the participation allows is tried, with the amplification that the participation offers. Where
    the problem names no participation, those that a program can enforce from examples and batch size are compared.

    **Guarantee**: the plan keeps the budget, by the accountant that the table in docs/accounting.md names; no
    candidate in its table has a smaller expected error, nor has a family alone, up to the accuracy of the optimisers
    (0.01 %; where samples are drawn to account for it, as far as few samples tell). A family that cannot win, by a
    proved bound, is left out. By hand a little may be gained with sizes that are not tried: numbers of bands between
    neighbours an eighth apart, buffers that gain less than 0.5 %, and free columns of a banded strategy of more work
    than steps x bands^2 = 2^30, or than 2^26 with fewer bands than steps / 10,000, which may take hours. The dense
    family may take minutes above 2,000 steps, up to its limit of 8,192; a memory limit or `families` leaves it out.

    Args:
        problem: what to train and what it may cost.
        families: of "identity", "tree", "fourier", "stamped", "toeplitz", "banded", "banded-inverse", "blt",
            "dense"; None for all.
        pipelines: of "poisson", "cyclic-poisson", "fixed-size", "fixed-epochs", "shuffled-epochs", "balls-in-bins",
            what the data pipeline can do, where the problem leaves the participation open; None for the first four.
        progress: called with the name of what is tried next and the share of the work that is done.

    >>> import antiphase as ap
    >>> problem = ap.Problem(steps=64, budget=ap.Budget(2.0, 1e-6), participation=ap.FixedEpochs(4, 16))
    >>> plan(problem, families=["identity", "toeplitz"]).candidates[0].name
    'toeplitz (16 bands)'
    """
    chosen = _checked(families)
    names = tuple(DEFAULT if pipelines is None else pipelines)
    check_pipelines(names)
    trials = Trials(problem, progress)
    _try_all(trials, chosen, names)
    if not trials.outcomes:
        raise nothing_fits(trials, chosen)
    outcomes = sorted(trials.outcomes, key=lambda found: (found.candidate.error, found.candidate.memory_copies))
    best = outcomes[0] = _certified(outcomes[0], problem)
    candidates = tuple(outcome.candidate for outcome in outcomes)
    notes = tuple(advice(problem, candidates, best.mechanism))
    return Plan(problem, best.mechanism, best.guarantee, best.candidate.error, candidates, notes=notes)


def _certified(best: Outcome, problem: Problem) -> Outcome:
    """With the budget certified by fresh entropy, where the guarantee rests on samples that the choice was made by."""
    if best.guarantee.kind != "confident":
        return best
    guarantee = certified(best.mechanism, best.guarantee, problem.budget)
    return replace(best, guarantee=guarantee, candidate=replace(best.candidate, epsilon=guarantee.value))


def _try_all(trials: Trials, families: set[str], pipelines: tuple[str, ...]) -> None:
    """First what sampling amplifies, then what holds for any order of the batches."""
    given = trials.problem.participation
    if given is None:
        sizes(trials.problem)
    amplified(trials, families, pipelines)
    for participation in _promises(trials.problem, given, pipelines):
        if takes_samples(participation):
            compare_sampled(trials, families, participation)
            continue
        for i, (name, family) in enumerate(FAMILIES.items()):
            trials.share = (i + 1) / (len(FAMILIES) + 1)
            if name in families:
                family(trials, participation)


def _promises(problem: Problem, given: Participation | None, pipelines: tuple[str, ...]) -> list[Participation]:
    if given is None:
        return [promised(problem, name) for name in pipelines if name in PROMISED]
    return [given] if given.sampling_groups is None else []


def _checked(families: Iterable[str] | None) -> set[str]:
    chosen = set(FAMILIES if families is None else families)
    for name in sorted(chosen - set(FAMILIES)):
        raise invalid("plan", "families", f"of {', '.join(FAMILIES)}", name, "None tries all")
    if not chosen:
        raise invalid("plan", "families", "at least one name", "none", "None tries all")
    return chosen
