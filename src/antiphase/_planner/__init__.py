"""The planner: every mechanism that fits a problem, and the one with the least error."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from antiphase._check import refuse
from antiphase._errors import NotProved
from antiphase._participation import CyclicPoisson, FixedSize, Poisson
from antiphase._plan import Plan
from antiphase._planner._advice import advice
from antiphase._planner._amplified import amplified
from antiphase._planner._families import FAMILIES
from antiphase._planner._pipelines import PIPELINES, check_pipelines, in_order
from antiphase._planner._trial import Outcome, evaluate
from antiphase._problem import Problem

Progress = Callable[[str], None]


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
    candidate in its table has a smaller expected error.

    Args:
        problem: what to train and what it may cost.
        families: of "identity", "tree", "fourier", "stamped", "toeplitz", "banded", "banded-inverse", "blt",
            "dense"; None for all.
        pipelines: of "poisson", "cyclic-poisson", "fixed-epochs", what the data pipeline can do, where the problem
            leaves the participation open; None for all.
        progress: called with the name of what is tried next.

    >>> import antiphase as ap
    >>> problem = ap.Problem(steps=64, budget=ap.Budget(2.0, 1e-6), participation=ap.FixedEpochs(4, 16))
    >>> plan(problem, families=["identity", "toeplitz"]).candidates[0].name
    'toeplitz (16 bands)'
    """
    chosen = _checked(families)
    names = tuple(PIPELINES if pipelines is None else pipelines)
    check_pipelines(names)
    say = progress or (lambda name: None)
    outcomes = [*_sampled(problem, chosen, names, say), *_promised(problem, chosen, names, say)]
    if not outcomes:
        raise NotProved(
            "No mechanism fits the problem: nothing is proved for its participation and adjacency within the memory.",
            hint="allow more families or memory, or use zero-out adjacency",
        )
    outcomes.sort(key=lambda outcome: (outcome.candidate.error, outcome.candidate.memory_copies))
    best = outcomes[0]
    return Plan(
        problem,
        best.mechanism,
        best.guarantee,
        best.candidate.error,
        tuple(outcome.candidate for outcome in outcomes),
        notes=tuple(advice(problem, [outcome.candidate for outcome in outcomes], best.mechanism)),
    )


def _sampled(problem: Problem, families: set[str], pipelines: tuple[str, ...], say: Progress) -> list[Outcome]:
    """Mechanisms with amplification by sampling."""
    given = problem.participation
    open_choice = given is None and {"poisson", "cyclic-poisson"} & set(pipelines)
    if not open_choice and not isinstance(given, (Poisson, CyclicPoisson, FixedSize)):
        return []
    say("banded with sampling")
    allowed = families if given is not None or "cyclic-poisson" in pipelines else families & {"identity"}
    return list(amplified(problem, allowed))


def _promised(problem: Problem, families: set[str], pipelines: tuple[str, ...], say: Progress) -> list[Outcome]:
    """Mechanisms whose guarantee needs no randomness in the batches."""
    participation = problem.participation
    if isinstance(participation, (Poisson, CyclicPoisson, FixedSize)):
        return []
    if participation is None:
        if "fixed-epochs" not in pipelines:
            return []
        participation = in_order(problem)
    found = []
    for name, family in FAMILIES.items():
        if name in families:
            say(name)
            found += [evaluate(trial, problem) for trial in family(problem, participation)]
    return [outcome for outcome in found if outcome is not None]


def _checked(families: Iterable[str] | None) -> set[str]:
    chosen = set(FAMILIES if families is None else families)
    for name in sorted(chosen - set(FAMILIES)):
        raise refuse("plan", "families", f"of {', '.join(FAMILIES)}", name, "None tries all")
    if not chosen:
        raise refuse("plan", "families", "at least one name", "none", "None tries all")
    return chosen
