"""The report of the demo, as plain text and as Markdown."""

from __future__ import annotations

from collections.abc import Sequence

from antiphase._bound import digits_up, rounded_up
from antiphase._demo.comparison import NOISELESS_RATE, Arm, Comparison
from antiphase._plan import in_words

Row = Sequence[str]


def as_text(found: Comparison) -> str:
    """Return the report as plain text, for a terminal."""
    lines = [*title_lines(found), "", *_aligned(results(found)), "", *gains(found), ""]
    lines += [*_aligned(guarantees(found)), "", *(f"- {remark}" for remark in remarks(found))]
    return "\n".join(lines) + "\n"


def as_markdown(found: Comparison) -> str:
    """Return the report as Markdown, for a file."""
    lines = ["# Private training on handwritten digits", "", *title_lines(found), "", *_piped(results(found)), ""]
    lines += [*gains(found), "", "## Planned and actual privacy", "", *_piped(guarantees(found)), ""]
    lines += ["## How to read this", "", *(f"- {remark}" for remark in remarks(found))]
    return "\n".join(lines) + "\n"


def title_lines(found: Comparison) -> list[str]:
    """Return sentences about what was trained, and about the guarantee of every run."""
    problem, seeds = found.chosen.plan.problem, len(found.chosen.accuracies)
    return [
        f"Softmax regression on {problem.examples:,} handwritten digits, one epoch, {seeds} runs each.",
        f"Every run satisfies epsilon {digits_up(problem.budget.epsilon)} at delta {digits_up(problem.budget.delta)}.",
    ]


def results(found: Comparison) -> list[Row]:
    """Return the table of results, with its header first."""
    return [
        (
            "noise",
            "batch size",
            "steps",
            "test accuracy (95 %)",
            "predicted noise in the model",
            "memory copies",
            "learning rate",
        ),
        *(_result(arm) for arm in found.arms),
        ("none, no privacy", *_size(found.chosen), str(found.without_noise), "0", "0", f"{NOISELESS_RATE:g}"),
    ]


def _result(arm: Arm) -> Row:
    """Return the table row of one arm. The predicted noise is learning rate * plan's error / batch size."""
    copies = arm.plan.mechanism.strategy.memory_copies
    noise = arm.learning_rate * arm.plan.error / _batch(arm)
    return arm.name, *_size(arm), str(arm.accuracy), f"{noise:.2f}", f"{copies}", f"{arm.learning_rate:g}"


def guarantees(found: Comparison) -> list[Row]:
    """Return the table of planned and actual guarantees, with its header first."""
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


def gains(found: Comparison) -> list[str]:
    """Return sentences about the accuracy that correlated noise gains over DP-SGD, with confidence intervals."""
    plain, larger = found.gain(found.plain), found.gain(found.larger)
    return [
        f"At the same epsilon, correlated noise gains {_points(plain.value)} +- {_points(plain.margin)} percentage "
        "points over DP-SGD with the same batch size,",
        f"and {_points(larger.value)} +- {_points(larger.margin)} percentage points over DP-SGD with its best batch "
        "size.",
    ]


def remarks(found: Comparison) -> list[str]:
    """Return notes on how to read the results."""
    return [
        "DP-SGD benefits from amplification by Poisson sampling. The learning rate of every mechanism is the best on "
        "the same grid, chosen in separate runs. The table of all mechanisms shows the learning rate of the first "
        "step.",
        "With more epochs or larger batches, the gain over DP-SGD is smaller, because amplification is stronger.",
        "Epsilon is for one run. Releasing the results of all runs would have a larger epsilon.",
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
