"""What a plan says besides its numbers: what each pipeline would gain, and where the error is a poor guide."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from antiphase import _check
from antiphase._accounting import Mechanism
from antiphase._plan import Candidate
from antiphase._problem import Problem
from antiphase._workload import PrefixSum
from antiphase.strategies import Banded, Toeplitz

SLOPE, OFFSET, GRID = -0.95, -4.64, 1.7
FEW_BANDS = 16


def advice(problem: Problem, candidates: Sequence[Candidate], best: Mechanism) -> Iterator[str]:
    """Notes on a plan, most useful first."""
    yield from _pipelines(candidates)
    if isinstance(best.strategy, (Banded, Toeplitz)) and best.strategy.bands > FEW_BANDS:
        yield (
            f"{best.strategy.bands} bands give the least error; with an adaptive optimizer fewer bands have been seen "
            "to learn better at equal error (McKenna 2024, section 4.5), so a smaller number is worth a try."
        )
    if problem.batch_size is not None and isinstance(problem.workload, PrefixSum) and problem.objective == "rms":
        effective = candidates[0].error / problem.batch_size
        yield (
            f"Effective error {effective:.4g} (per clipped gradient in the mean); a learning rate near "
            f"{suggested_learning_rate(effective):.3g} fits it, by a regression on one task, next-word prediction."
        )


def suggested_learning_rate(effective_error: float) -> float:
    """ln rate = -0.95 ln error - 4.64, rounded to a power of 1.7: fitted on one task, a place to start.

    Reference: Choquette-Choo et al. 2023 (amplified banded), App. I, Eq. 11 and Fig. 13.

    >>> round(suggested_learning_rate(0.05), 4)
    0.2035
    """
    rate = SLOPE * math.log(effective_error) + OFFSET
    return GRID ** round(rate / math.log(GRID))


def affordable_copies(parameters: int, memory_bytes: int, machines: int = 1) -> int:
    """Model-sized float32 buffers that a memory limit over a number of machines affords: about as many bands.

    Reference: McKenna 2024, Examples 3.1 to 3.3.

    >>> affordable_copies(4 << 20, 1 << 30), affordable_copies(4 << 20, 1 << 30, machines=64)
    (64, 4096)
    """
    owner = "affordable_copies"
    for name, value in (("parameters", parameters), ("memory_bytes", memory_bytes), ("machines", machines)):
        _check.positive_integer(owner, name, value)
    return machines * memory_bytes // (4 * parameters)


def _pipelines(candidates: Sequence[Candidate]) -> Iterator[str]:
    """The best of each kind of participation beside the best of all."""
    best: dict[str, Candidate] = {}
    for candidate in candidates:
        best.setdefault(candidate.participation.partition("(")[0], candidate)
    for name, candidate in list(best.items())[1:]:
        more = 100.0 * (candidate.error / candidates[0].error - 1.0)
        yield f"With {name} instead the best is {candidate.name}, with {more:.0f} % more error."
