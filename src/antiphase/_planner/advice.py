"""The notes of a plan: how its candidates were ranked, and how the chosen candidate compares with the others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from antiphase import _check
from antiphase._accounting import Mechanism
from antiphase._objective import Curvatures, resolved
from antiphase._plan import Candidate
from antiphase._planner.families import MAX_TOEPLITZ_WORK
from antiphase._planner.learning_rate import rate_for_error, rates_to_try
from antiphase._problem import Problem
from antiphase.strategies import Identity

FEW_COPIES = 8  # a plan that needs more model-sized buffers gets a note on its memory


def advice(problem: Problem, candidates: Sequence[Candidate], best: Mechanism) -> Iterator[str]:
    """Yield the notes on a plan, most useful first. `candidates[0]` is the chosen candidate."""
    yield _ranking(problem)
    if problem.examples is not None and problem.budget.delta > 1.0 / problem.examples:
        yield (
            f"Delta is larger than 1 / examples ({1.0 / problem.examples:.2g}). Such a delta allows a mechanism that "
            "publishes a few examples at random. Choose a delta well below 1 / examples."
        )
    yield from _memory(problem, candidates)
    yield from _gain(candidates, best)
    yield from _pipelines(candidates)
    yield from _by_rms(problem, candidates)
    yield from _more_bands(problem, candidates[0])
    yield from _learning_rate(problem, candidates[0])


def _ranking(problem: Problem) -> str:
    objective = resolved("advice", problem.objective)
    if isinstance(objective, Curvatures):
        low, high = objective.values.min(), objective.values.max()
        span = f"{low:.3g}" if low == high else f"{low:.3g} to {high:.3g}"
        when = {"last": "at the end of training", "all": "over all steps"}.get(str(objective.steps))
        when = when or f"averaged over the last {float(objective.steps):.0%} of the steps"
        also = ", plus the noise over all steps" if objective.trajectory else ""
        where = f"in directions where curvature x learning rate is {span}"
        return f"Ranked by the noise left in the model {when}, {where}{also}."
    over = "rms over" if objective == "rms" else "the largest over"
    return f"Ranked by the noise in the model, {over} the steps, as if gradients did not depend on the parameters."


def _memory(problem: Problem, candidates: Sequence[Candidate]) -> Iterator[str]:
    """Yield notes on the candidate with the least error, and on candidates that need much less memory."""
    chosen, least = candidates[0], min(candidates, key=lambda c: c.error)
    if least.error < chosen.error:
        gain = 100.0 * (1.0 - least.error / chosen.error)
        yield (
            f"This mechanism was chosen because it needs little memory: {_in_words(chosen.memory_copies, problem)}. "
            f"{least.name} ({least.batches} batches) has {gain:.2g} % less error, the least of all, but needs "
            f"{_in_words(least.memory_copies, problem)}; memory_tolerance=0 selects it."
        )
    if chosen.memory_copies > FEW_COPIES:
        yield f"The noise needs {_in_words(chosen.memory_copies, problem)}."
        smaller = [c for c in candidates if c.memory_copies <= chosen.memory_copies // 2]
        if smaller:
            other = min(smaller, key=lambda c: c.error)
            words = _in_words(other.memory_copies, problem)
            yield f"With {words}, {other.name} has {_more(other, chosen)}."


def _in_words(copies: int, problem: Problem) -> str:
    return memory_in_words(copies, problem.parameters, 8 if problem.lattice else 4)


def memory_in_words(copies: int, parameters: int | None, item_bytes: int = 4) -> str:
    """Return the number of model-sized buffers as text, with their size if the parameter count is known.

    `item_bytes` is the size of one number in bytes: 4 for float32, 8 for integer noise on a lattice.

    >>> memory_in_words(3, None), memory_in_words(1, 7_000_000_000)
    ('3 model-sized buffers', '1 model-sized buffer (28 GB)')
    """
    words = f"{copies:,} model-sized buffer" + ("" if copies == 1 else "s")
    if parameters is None or copies == 0:
        return words
    size, unit = float(item_bytes) * copies * parameters, "bytes"
    for larger in ("kB", "MB", "GB", "TB"):
        if size < 1000.0:
            break
        size, unit = size / 1000.0, larger
    return f"{words} ({size:.3g} {unit})"


def _by_rms(problem: Problem, candidates: Sequence[Candidate]) -> Iterator[str]:
    """Yield a note if ranking by rms error would put a different candidate first."""
    known = [c for c in candidates if c.rms_error is not None]
    if problem.objective in ("rms", "max") or not known:
        return
    first = min(known, key=lambda c: (c.rms_error, c.memory_copies))
    if first is not candidates[0]:
        yield f'Ranked by the rms error (objective="rms"), {first.name} ({first.batches} batches) would be first.'


def affordable_copies(parameters: int, memory_bytes: int, machines: int = 1) -> int:
    """Return the number of model-sized float32 buffers that fit into the memory of all machines together.

    If each machine stores a part of every buffer, this is about the number of bands that a banded strategy can have.

    Reference: McKenna 2024, Examples 3.1 to 3.3.

    >>> affordable_copies(4 << 20, 1 << 30), affordable_copies(4 << 20, 1 << 30, machines=64)
    (64, 4096)
    """
    owner = "affordable_copies"
    for name, value in (("parameters", parameters), ("memory_bytes", memory_bytes), ("machines", machines)):
        _check.positive_integer(owner, name, value)
    return machines * memory_bytes // (4 * parameters)


def _gain(candidates: Sequence[Candidate], best: Mechanism) -> Iterator[str]:
    """Yield a comparison of the chosen candidate with independent noise (DP-SGD), each under its own sampling."""
    plain = next((c for c in candidates if c.family == "identity"), None)
    if plain is not None and not isinstance(best.strategy, Identity):
        less = 100.0 * (1.0 - candidates[0].error / plain.error)
        yield f"The model has {less:.0f} % less noise than with DP-SGD ({plain.batches} batches) at the same budget."


def _pipelines(candidates: Sequence[Candidate]) -> Iterator[str]:
    """Yield comparisons of the chosen candidate with the best candidate of every other kind of participation."""
    best: dict[str, Candidate] = {}
    for candidate in candidates:
        best.setdefault(candidate.batches, candidate)
    for name, candidate in list(best.items())[1:]:
        if name != candidates[0].batches:
            yield f"With {name} batches, {candidate.name} would be best, with {_more(candidate, candidates[0])}."


def _more_bands(problem: Problem, best: Candidate) -> Iterator[str]:
    most = MAX_TOEPLITZ_WORK // problem.steps
    if best.family == "toeplitz" and best.memory_copies + 1 == most < problem.steps:
        yield f"The search stopped at {most:,} bands to limit its time; more bands may give less error."


def _learning_rate(problem: Problem, chosen: Candidate) -> Iterator[str]:
    rate = None if chosen.rms_error is None else rate_for_error(problem, chosen.rms_error)
    if rate is not None:
        grid = " or ".join(f"{value:g}" for value in rates_to_try(rate))
        yield f"For SGD, a model of bias and noise suggests a largest learning rate near {rate:.2g}: try {grid}."


def _more(candidate: Candidate, chosen: Candidate) -> str:
    share = 100.0 * (candidate.error / chosen.error - 1.0)
    return f"{share:.1f} % more error" if share >= 0.0 else f"{-share:.1f} % less error"
