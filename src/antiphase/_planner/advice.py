"""The notes of a plan: what other pipelines would cost, and where the error is a poor guide."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from antiphase import _check
from antiphase._accounting import Mechanism
from antiphase._error import error
from antiphase._objective import Curvatures, resolved
from antiphase._plan import Candidate
from antiphase._planner.families import MAX_TOEPLITZ_WORK
from antiphase._problem import Problem
from antiphase._workload import PrefixSum
from antiphase.strategies import Identity

RATE_SLOPE, RATE_OFFSET, RATE_GRID = -0.95, -4.64, 1.7
FEW_COPIES = 8


def advice(problem: Problem, candidates: Sequence[Candidate], best: Mechanism) -> Iterator[str]:
    """Notes on a plan, most useful first. The first candidate is the one that was chosen."""
    yield _ranking(problem)
    yield from _memory(problem, candidates)
    yield from _gain(candidates, best)
    yield from _pipelines(candidates)
    yield from _by_rms(problem, candidates)
    yield from _more_bands(problem, candidates[0])
    if problem.batch_size is not None:
        yield _learning_rate(problem.batch_size, best)


def _ranking(problem: Problem) -> str:
    objective = resolved("advice", problem.objective)
    if isinstance(objective, Curvatures):
        low, high = objective.values.min(), objective.values.max()
        span = f"{low:.3g}" if low == high else f"{low:.3g} to {high:.3g}"
        when = {"last": "at the end of training", "all": "over all steps"}.get(str(objective.steps))
        when = when or f"over the last {float(objective.steps):.0%} of the steps"
        return f"Ranked by the noise left in the model {when}, where curvature x learning rate is {span}."
    over = "rms over" if objective == "rms" else "the largest over"
    return f"Ranked by the noise in the model, {over} the steps, as if gradients did not depend on the parameters."


def _memory(problem: Problem, candidates: Sequence[Candidate]) -> Iterator[str]:
    """What more memory would gain, and what less would cost if the plan needs a lot."""
    chosen, least = candidates[0], min(candidates, key=lambda c: c.error)
    if least.error < chosen.error:
        gain = 100.0 * (1.0 - least.error / chosen.error)
        yield (
            f"Chosen for its memory, {memory_in_words(chosen.memory_copies, problem.parameters)}. The least "
            f"error, {gain:.2g} % less, is that of {least.name} ({least.batches} batches), with "
            f"{memory_in_words(least.memory_copies, problem.parameters)}; memory_tolerance=0 selects it."
        )
    if chosen.memory_copies > FEW_COPIES:
        yield f"The noise needs {memory_in_words(chosen.memory_copies, problem.parameters)}."
        smaller = [c for c in candidates if c.memory_copies <= chosen.memory_copies // 2]
        if smaller:
            other = min(smaller, key=lambda c: c.error)
            words = memory_in_words(other.memory_copies, problem.parameters)
            yield f"With {words}, {other.name} has {_more(other, chosen)}."


def memory_in_words(copies: int, parameters: int | None) -> str:
    """Number of model-sized buffers, with their size as float32 if the number of parameters is known.

    >>> memory_in_words(3, None), memory_in_words(1, 7_000_000_000)
    ('3 model-sized buffers', '1 model-sized buffer (28 GB)')
    """
    words = f"{copies:,} model-sized buffer" + ("" if copies == 1 else "s")
    if parameters is None or copies == 0:
        return words
    size, unit = 4.0 * copies * parameters, "bytes"
    for larger in ("kB", "MB", "GB", "TB"):
        if size < 1000.0:
            break
        size, unit = size / 1000.0, larger
    return f"{words} ({size:.3g} {unit})"


def _by_rms(problem: Problem, candidates: Sequence[Candidate]) -> Iterator[str]:
    """What the ranking by rms error would put first."""
    known = [c for c in candidates if c.rms_error is not None]
    if problem.objective in ("rms", "max") or not known:
        return
    first = min(known, key=lambda c: (c.rms_error, c.memory_copies))
    if first is not candidates[0]:
        yield f'By rms error over the steps (objective="rms"), {first.name} ({first.batches} batches) would be first.'


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
        if name != candidates[0].batches:
            yield f"With {name} batches instead, the best is {candidate.name}, with {_more(candidate, candidates[0])}."


def _more_bands(problem: Problem, best: Candidate) -> Iterator[str]:
    most = MAX_TOEPLITZ_WORK // problem.steps
    if best.family == "toeplitz" and best.memory_copies + 1 == most < problem.steps:
        yield f"The search stopped at {most:,} bands to limit its time; more bands may give less error."


def _learning_rate(batch_size: int, best: Mechanism) -> str:
    effective = best.noise_std * error(best.strategy, PrefixSum()).rms / batch_size
    return (
        f"Effective error {effective:.4g} (prefix sums, per example in the batch). A regression on one task, "
        f"next-word prediction, suggests a learning rate near {suggested_learning_rate(effective):.3g}."
    )


def _more(candidate: Candidate, chosen: Candidate) -> str:
    share = 100.0 * (candidate.error / chosen.error - 1.0)
    return f"{share:.1f} % more error" if share >= 0.0 else f"{-share:.1f} % less error"
