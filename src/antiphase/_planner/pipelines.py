"""Participations that a data pipeline can enforce, for problems that leave the participation open."""

from __future__ import annotations

from antiphase._check import invalid
from antiphase._participation import (
    BallsInBins,
    CyclicPoisson,
    FixedEpochs,
    FixedSize,
    Participation,
    Poisson,
    ShuffledEpochs,
)
from antiphase._problem import Problem

SAMPLED = ("poisson", "cyclic-poisson", "fixed-size")
PROMISED = ("fixed-epochs", "balls-in-bins", "shuffled-epochs")
PIPELINES = (*SAMPLED, *PROMISED)
DEFAULT = (*SAMPLED, "fixed-epochs")  # shuffled epochs never beat these; balls-in-bins need Monte Carlo accounting


def check_pipelines(pipelines: tuple[str, ...]) -> None:
    """Raise InvalidArgument for unknown names, or none at all."""
    for name in pipelines:
        if name not in PIPELINES:
            raise invalid("plan", "pipelines", f"any of {', '.join(PIPELINES)}", name, "or give a participation")
    if not pipelines:
        raise invalid("plan", "pipelines", "at least one name", "none", "leave it out to try the usual ones")


def most_groups(problem: Problem) -> int:
    """The largest number of groups such that each has enough examples for a batch."""
    examples, batch_size = sizes(problem)
    return examples // batch_size


def in_groups(problem: Problem, groups: int) -> CyclicPoisson | Poisson:
    """Poisson sampling from groups in turn, at the rate that gives the batch size on average."""
    examples, batch_size = sizes(problem)
    rate = batch_size * groups / examples
    return Poisson(rate) if groups == 1 else CyclicPoisson(groups, rate)


def in_fixed_sizes(problem: Problem, groups: int) -> FixedSize:
    """Batches of exactly the batch size, from groups in turn."""
    return FixedSize(groups, sizes(problem)[1])


def promised(problem: Problem, pipeline: str) -> Participation:
    """Epochs that use every example once."""
    examples, batch_size = sizes(problem)
    steps_per_epoch = -(-examples // batch_size)
    kinds = {"fixed-epochs": FixedEpochs, "shuffled-epochs": ShuffledEpochs, "balls-in-bins": BallsInBins}
    return kinds[pipeline](-(-problem.steps // steps_per_epoch), steps_per_epoch)


def sizes(problem: Problem) -> tuple[int, int]:
    """Number of examples and batch size; raises InvalidArgument if either is missing."""
    if problem.examples is None or problem.batch_size is None:
        raise invalid(
            "Problem",
            "participation",
            "given, unless examples and batch_size are",
            None,
            "pass examples=... and batch_size=..., or participation=FixedEpochs(epochs, steps_per_epoch)",
        )
    return problem.examples, problem.batch_size
