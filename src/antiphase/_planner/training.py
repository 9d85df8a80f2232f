"""Replaces the objective "training" with a `Curvatures` objective, which depends on the learning rate.

A `Curvatures` objective measures the noise in directions in which the loss has given curvatures.

If the problem does not state the learning rate, the planner predicts it from the error of reference strategies (see
`reference_strategy`) under the sampling that the pipelines allow. The prediction only needs to be accurate to a factor
of about two.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from antiphase._accounting import seeded_calibration
from antiphase._error import error
from antiphase._errors import AntiphaseError
from antiphase._objective import training_objective
from antiphase._participation import CyclicPoisson, Participation, Poisson
from antiphase._planner.amplified import rule_of_thumb
from antiphase._planner.learning_rate import rate_for_error
from antiphase._planner.pipelines import PROMISED, SAMPLED, in_groups, most_groups, promised
from antiphase._problem import Problem
from antiphase._workload import Momentum, Workload
from antiphase.strategies import Toeplitz

MAX_BANDS = 64  # largest number of bands of a reference strategy
MORE_BANDS = 4  # the best number of bands is at most about this many times `rule_of_thumb`
UNKNOWN_RATE = 1.0  # learning rate x clipping norm if no rate can be predicted


def with_objective(problem: Problem, pipelines: Sequence[str]) -> Problem:
    """Return the problem with `Curvatures` in place of the objective "training"."""
    if problem.objective != "training":
        return problem
    rate = problem.learning_rate or expected_rate(problem, pipelines)
    scale = UNKNOWN_RATE if rate is None else rate * problem.clip_norm
    return replace(problem, objective=training_objective(scale))


def expected_rate(problem: Problem, pipelines: Sequence[str]) -> float | None:
    """Return the learning rate predicted from the least error of a few reference strategies; None if unknown."""
    if problem.batch_size is None:
        return None
    errors = []
    for participation, bands in _references(problem, pipelines):
        try:
            errors.append(_error(problem, participation, bands))
        except AntiphaseError:  # no guarantee is proved for this reference
            continue
    return rate_for_error(problem, min(errors)) if errors else None


def _references(problem: Problem, pipelines: Sequence[str]) -> list[tuple[Participation, int]]:
    """Return the participations to use for the prediction, each with the number of bands of its reference strategy."""
    given, few = problem.participation, rule_of_thumb(problem)
    numbers = (few, MORE_BANDS * few)
    if given is not None:
        if given.sampling_groups is not None:
            return [(given, given.sampling_groups)]
        spacing = given.worst_case.spacing(problem.steps)
        worst: tuple[Participation, int] = (given.worst_case, min(MAX_BANDS, spacing))
        if given.worst_case == given:
            return [worst]
        counts = {min(bands, spacing, MAX_BANDS) for bands in numbers}
        return [*((_sampled(bands, spacing), bands) for bands in sorted(counts)), worst]
    found: list[tuple[Participation, int]] = []
    if {*SAMPLED, "balls-in-bins"} & set(pipelines):
        counts = {min(bands, most_groups(problem), MAX_BANDS) for bands in numbers}
        found.extend((in_groups(problem, bands), bands) for bands in sorted(counts))
    for name in pipelines:
        if name in PROMISED and name != "balls-in-bins":
            worst_case = promised(problem, name).worst_case
            found.append((worst_case, min(MAX_BANDS, worst_case.spacing(problem.steps))))
    return found


def _error(problem: Problem, participation: Participation, bands: int) -> float:
    """Return the rms error of the reference strategy, calibrated to the budget."""
    strategy = reference_strategy(problem.workload, problem.steps, bands)
    noise = seeded_calibration(strategy, participation, problem.budget, problem.adjacency, problem.examples)
    return noise.mechanism.noise_std * float(error(strategy, problem.workload).rms)


def reference_strategy(workload: Workload, steps: int, bands: int) -> Toeplitz:
    """Return the matrix square root of the workload for a constant learning rate, truncated to `bands` coefficients.

    This strategy is near the optimum and quick to compute.

    >>> from antiphase import PrefixSum
    >>> reference_strategy(PrefixSum(), 4, 3).coefficients.tolist()
    [1.0, 0.5, 0.375]
    """
    count = min(bands, steps)
    root = np.cumprod([1.0, *((2 * k - 1) / (2 * k) for k in range(1, count))])
    beta = workload.beta if isinstance(workload, Momentum) else 0.0
    return Toeplitz(np.convolve(root, root * beta ** np.arange(count))[:count], steps)


def _sampled(groups: int, spacing: int) -> Poisson | CyclicPoisson:
    """Return Poisson sampling with the batch size at which an epoch takes `spacing` steps.

    The planner uses this participation to estimate how much amplification helps.
    """
    rate = min(1.0, groups / spacing)
    return Poisson(rate) if groups == 1 else CyclicPoisson(groups, rate)
