"""The notes of a plan: what other pipelines would cost, and where the error is a poor guide."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from antiphase import _check
from antiphase._accounting import Mechanism
from antiphase._error import error
from antiphase._plan import Candidate
from antiphase._planner.families import MAX_TOEPLITZ_WORK
from antiphase._problem import Problem
from antiphase._workload import PrefixSum
from antiphase.strategies import Identity

RATE_SLOPE, RATE_OFFSET, RATE_GRID = -0.95, -4.64, 1.7
FEW_COPIES = 8


def advice(problem: Problem, candidates: Sequence[Candidate], best: Mechanism) -> Iterator[str]:
    """Notes on a plan, most useful first."""
    yield from _gain(candidates, best)
    yield from _pipelines(candidates)
    yield from _fewer_bands(candidates)
    yield from _more_bands(problem, candidates[0])
    if problem.batch_size is not None:
        yield _learning_rate(problem.batch_size, best)


def suggested_learning_rate(effective_error: float) -> float:
    """A learning rate to start from: ln rate = -0.95 ln error - 4.64, rounded to a power of 1.7. Fitted on one task.

    Reference: Choquette-Choo et al. 2023 (amplified banded), App. I, Eq. 11 and Fig. 13.

    >>> round(suggested_learning_rate(0.05), 4)
    0.2035
    """
    rate = RATE_SLOPE * math.log(effective_error) + RATE_OFFSET
    return RATE_GRID ** round(rate / math.log(RATE_GRID))


def affordable_copies(parameters: int, memory_bytes: int, machines: int = 1) -> int:
    """Number of model-sized float32 buffers that fit into the memory of all machines; about as many bands.

    Reference: McKenna 2024, Examples 3.1 to 3.3.

    >>> affordable_copies(4 << 20, 1 << 30), affordable_copies(4 << 20, 1 << 30, machines=64)
    (64, 4096)
    """
    owner = "affordable_copies"
    for name, value in (("parameters", parameters), ("memory_bytes", memory_bytes), ("machines", machines)):
        _check.positive_integer(owner, name, value)
    return machines * memory_bytes // (4 * parameters)


def _gain(candidates: Sequence[Candidate], best: Mechanism) -> Iterator[str]:
    """The best candidate compared with independent noise, each with the batches that suit it."""
    plain = next((c for c in candidates if c.family == "identity"), None)
    if plain is not None and not isinstance(best.strategy, Identity):
        less = 100.0 * (1.0 - candidates[0].error / plain.error)
        yield f"Noise in the model is {less:.0f} % less than with DP-SGD ({plain.batches} batches) at the same budget."


def _pipelines(candidates: Sequence[Candidate]) -> Iterator[str]:
    """The best candidate of each kind of participation compared with the best of all."""
    best: dict[str, Candidate] = {}
    for candidate in candidates:
        best.setdefault(candidate.batches, candidate)
    for name, candidate in list(best.items())[1:]:
        yield f"With {name} batches instead, the best is {candidate.name}, with {_more(candidate, candidates)}."


def _fewer_bands(candidates: Sequence[Candidate]) -> Iterator[str]:
    """The rms error is a poor guide for adaptive optimizers (McKenna 2024, section 4.5)."""
    best = candidates[0]
    if best.memory_copies <= FEW_COPIES:
        return
    smaller = [c for c in candidates if c.memory_copies <= best.memory_copies // 2]
    least = f"; {smaller[0].name} has {_more(smaller[0], candidates)}" if smaller else ""
    yield (
        "With an adaptive optimizer, noise correlated over fewer steps was seen to train better at equal error "
        f"(McKenna 2024, section 4.5), so fewer bands are worth a try{least}."
    )


def _more_bands(problem: Problem, best: Candidate) -> Iterator[str]:
    most = MAX_TOEPLITZ_WORK // problem.steps
    if best.family == "toeplitz" and best.memory_copies + 1 == most < problem.steps:
        yield f"The search stopped at {most:,} bands to limit its time; more bands may give less error."


def _learning_rate(batch_size: int, best: Mechanism) -> str:
    effective = best.noise_std * error(best.strategy, PrefixSum()).rms / batch_size
    return (
        f"Effective error {effective:.4g} (prefix sums, per example in the batch). A regression on one task, "
        f"next-word prediction, suggests a learning rate near {suggested_learning_rate(effective):.3g} for it."
    )


def _more(candidate: Candidate, candidates: Sequence[Candidate]) -> str:
    return f"{100.0 * (candidate.error / candidates[0].error - 1.0):.1f} % more error"
