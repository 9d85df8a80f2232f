"""The report of the demo, as plain text and as Markdown."""

from __future__ import annotations

from collections.abc import Sequence

from antiphase._bound import digits_up, rounded_up
from antiphase._demo.comparison import NOISELESS_RATE, Arm, Comparison
from antiphase._plan import in_words

Row = Sequence[str]


def as_text(found: Comparison) -> str:
    """Return the report as plain text, for a terminal."""
    lines = [*_title(found), "", *_aligned(_results(found)), "", *_gain(found), ""]
    lines += [*_aligned(_guarantees(found)), "", *(f"- {remark}" for remark in _remarks(found))]
    return "\n".join(lines) + "\n"


def as_markdown(found: Comparison) -> str:
    """Return the report as Markdown, for a file."""
    lines = ["# Private training on handwritten digits", "", *_title(found), "", *_piped(_results(found)), ""]
    lines += [*_gain(found), "", "## Planned and actual privacy", "", *_piped(_guarantees(found)), ""]
    lines += ["## How to read this", "", *(f"- {remark}" for remark in _remarks(found))]
    return "\n".join(lines) + "\n"


def _title(found: Comparison) -> list[str]:
    problem, seeds = found.chosen.plan.problem, len(found.chosen.accuracies)
    return [
        f"Softmax regression on {problem.examples:,} handwritten digits, one epoch, {seeds} runs each.",
        f"Every run satisfies epsilon {digits_up(problem.budget.epsilon)} at delta {digits_up(problem.budget.delta)}.",
    ]


def _results(found: Comparison) -> list[Row]:
    return [
        (
            "noise",
            "batch size",
            "steps",
            "test accuracy (95 %)",
            "noise in the model",
            "memory copies",
            "learning rate",
        ),
        *(_result(arm) for arm in found.arms),
        ("none, no privacy", *_size(found.chosen), str(found.without_noise), "0", "0", f"{NOISELESS_RATE:g}"),
    ]


def _result(arm: Arm) -> Row:
    """Return the row of one arm; the noise in the model is per parameter, rms over the steps."""
    copies = arm.plan.mechanism.strategy.memory_copies
    noise = arm.learning_rate * arm.plan.error / _batch(arm)
    return arm.name, *_size(arm), str(arm.accuracy), f"{noise:.2f}", f"{copies}", f"{arm.learning_rate:g}"


def _guarantees(found: Comparison) -> list[Row]:
    return [
        ("noise", "sampling", "steps run", "planned epsilon", "epsilon from the ledger", "adjacency"),
        *(
            (
                arm.name,
                in_words(arm.plan.mechanism.participation),
                f"{arm.report.steps_run} of {arm.report.steps_planned}",
                rounded_up(arm.report.planned.value),
                _ledger_epsilon(arm),
                arm.report.adjacency,
            )
            for arm in found.arms
        ),
    ]


def _gain(found: Comparison) -> list[str]:
    plain, larger = found.gain(found.plain), found.gain(found.larger)
    return [
        f"At the same epsilon, correlated noise gains {_points(plain.value)} +- {_points(plain.margin)} percentage "
        "points over DP-SGD with the same batch size,",
        f"and {_points(larger.value)} +- {_points(larger.margin)} percentage points over DP-SGD with its best batch "
        "size.",
    ]


def _remarks(found: Comparison) -> list[str]:
    return [
        "DP-SGD benefits from amplification by Poisson sampling. Every learning rate, given for the first step, is the "
        "best of the same grid, chosen in separate runs.",
        "With more epochs or larger batches the difference is smaller, because amplification does most of the work.",
        "Epsilon is for one run. Releasing all runs would cost more.",
        *(f"{arm.name}: {remark}" for arm in found.arms for remark in arm.report.remarks),
    ]


def _batch(arm: Arm) -> int:
    assert arm.plan.problem.batch_size is not None
    return arm.plan.problem.batch_size


def _size(arm: Arm) -> Row:
    return f"{_batch(arm)}", f"{arm.plan.steps}"


def _points(value: float) -> str:
    return f"{100.0 * value:.1f}"


def _ledger_epsilon(arm: Arm) -> str:
    bound = arm.report.guarantee
    return "no steps were run" if bound is None else f"{rounded_up(bound.value)} ({bound.kind})"


def _aligned(rows: Sequence[Row]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def _piped(rows: Sequence[Row]) -> list[str]:
    lines = [f"| {' | '.join(row)} |" for row in rows]
    return [lines[0], f"|{'---|' * len(rows[0])}", *lines[1:]]
