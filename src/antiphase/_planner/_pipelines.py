"""Which participations a data pipeline could give, for a problem that leaves the choice open."""

from __future__ import annotations

from antiphase._check import refuse
from antiphase._participation import CyclicPoisson, FixedEpochs, Participation, Poisson
from antiphase._problem import Problem

PIPELINES = ("poisson", "cyclic-poisson", "fixed-epochs")


def check_pipelines(pipelines: tuple[str, ...]) -> None:
    """Refuse a name that is not known."""
    for name in pipelines:
        if name not in PIPELINES:
            raise refuse("plan", "pipelines", f"of {', '.join(PIPELINES)}", name, "give a participation for any other")


def rate_for(problem: Problem, groups: int) -> float:
    """The probability that gives the batch size on average from one group."""
    examples, batch_size = sizes(problem)
    return batch_size * groups / examples


def most_groups(problem: Problem) -> int:
    """The most groups that still fill the batch."""
    examples, batch_size = sizes(problem)
    return examples // batch_size


def in_groups(problem: Problem, groups: int) -> CyclicPoisson | Poisson:
    """Poisson sampling from groups that take turns."""
    rate = rate_for(problem, groups)
    return Poisson(rate) if groups == 1 else CyclicPoisson(groups, rate)


def in_order(problem: Problem) -> Participation:
    """The same order in every epoch."""
    examples, batch_size = sizes(problem)
    steps_per_epoch = max(1, -(-examples // batch_size))
    return FixedEpochs(-(-problem.steps // steps_per_epoch), steps_per_epoch)


def sizes(problem: Problem) -> tuple[int, int]:
    """Examples and batch size, both needed."""
    if problem.examples is None or problem.batch_size is None:
        raise refuse(
            "Problem",
            "participation",
            "given, or examples and batch_size to choose one from",
            None,
            "pass examples=... and batch_size=..., or participation=FixedEpochs(epochs, steps_per_epoch)",
        )
    return problem.examples, problem.batch_size
