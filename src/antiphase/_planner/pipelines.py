"""The ways to draw batches that a data pipeline can enforce. They are tried if a problem names no participation."""

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

SAMPLED = ("poisson", "cyclic-poisson", "fixed-size")  # draw a new sample in every step
PROMISED = ("fixed-epochs", "balls-in-bins", "shuffled-epochs")  # use every example once per epoch
PIPELINES = (*SAMPLED, *PROMISED)
# The default leaves out "shuffled-epochs", which never beat fixed epochs. It also leaves out "balls-in-bins", whose
# accounting is slow; `default_pipelines` adds it if the accounting takes only seconds.
DEFAULT = (*SAMPLED, "fixed-epochs")


def check_pipelines(pipelines: tuple[str, ...]) -> None:
    """Raise `InvalidArgument` if a name is unknown or if there are no names."""
    for name in pipelines:
        if name not in PIPELINES:
            raise invalid(
                "plan",
                "pipelines",
                f"any of {', '.join(PIPELINES)}",
                name,
                "use one of these names, or pass a participation in the problem",
            )
    if not pipelines:
        raise invalid("plan", "pipelines", "at least one name", "none", "omit pipelines to try the default ones")


def most_groups(problem: Problem) -> int:
    """Return the largest number of groups of examples for which each group has enough examples for a batch."""
    examples, batch_size = sizes(problem)
    return examples // batch_size


def in_groups(problem: Problem, groups: int) -> CyclicPoisson | Poisson:
    """Return Poisson sampling from `groups` groups that take turns, with the problem's batch size on average."""
    examples, batch_size = sizes(problem)
    rate = batch_size * groups / examples
    return Poisson(rate) if groups == 1 else CyclicPoisson(groups, rate)


def in_fixed_sizes(problem: Problem, groups: int) -> FixedSize:
    """Return sampling of fixed-size batches from `groups` groups that take turns."""
    return FixedSize(groups, sizes(problem)[1])


def promised(problem: Problem, pipeline: str) -> Participation:
    """Return the participation (when examples take part) of a pipeline that uses every example once per epoch."""
    examples, batch_size = sizes(problem)
    steps_per_epoch = -(-examples // batch_size)
    kinds = {"fixed-epochs": FixedEpochs, "shuffled-epochs": ShuffledEpochs, "balls-in-bins": BallsInBins}
    return kinds[pipeline](-(-problem.steps // steps_per_epoch), steps_per_epoch)


def sizes(problem: Problem) -> tuple[int, int]:
    """Return the number of examples and the batch size. Raises `InvalidArgument` if either is missing."""
    if problem.examples is None or problem.batch_size is None:
        raise invalid(
            "Problem",
            "participation",
            "given if examples or batch_size is missing",
            None,
            "pass examples=... and batch_size=..., or participation=FixedEpochs(epochs, steps_per_epoch)",
        )
    return problem.examples, problem.batch_size
