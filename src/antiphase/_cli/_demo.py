"""`antiphase demo`: every mechanism on one problem, side by side."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Annotated

import typer

import antiphase as ap
from antiphase._bound import Kind
from antiphase._cli._output import print_json, print_table, talk, with_progress
from antiphase.strategies import BLT, BandedInverse, Fourier, Identity, Stamped, Strategy, Toeplitz, Tree

EPOCHS, STEPS_PER_EPOCH = 20, 100
STEPS = EPOCHS * STEPS_PER_EPOCH
PARTICIPATION = ap.FixedEpochs(EPOCHS, STEPS_PER_EPOCH)
WORKLOAD = ap.PrefixSum()

MECHANISMS: dict[str, Callable[[], Strategy]] = {
    "Identity (DP-SGD)": lambda: Identity(STEPS),
    "Tree, online": lambda: Tree(STEPS, "online"),
    "Tree, online, x 10": lambda: Stamped(Tree(STEPS // 10, "online"), 10),
    "Tree, full": lambda: Tree(STEPS, "full"),
    "Tree, full, x 5": lambda: Stamped(Tree(STEPS // 5, "full"), 5),
    "Fourier, direct": lambda: Fourier(STEPS, "direct"),
    "Fourier, direct, x 5": lambda: Stamped(Fourier(STEPS // 5, "direct"), 5),
    "Fourier, optimal": lambda: Fourier(STEPS, "optimal"),
    "Fourier, optimal, x 5": lambda: Stamped(Fourier(STEPS // 5, "optimal"), 5),
    "Toeplitz root": lambda: Toeplitz.square_root(STEPS),
    "Toeplitz root, 100 bands": lambda: Toeplitz.square_root(STEPS, STEPS_PER_EPOCH),
    "Inverse root, 16 bands": lambda: BandedInverse.square_root(16, STEPS),
    "Inverse root, 64 bands": lambda: BandedInverse.square_root(64, STEPS),
    # Decays found by minimising the rms loss of this very problem.
    "BLT, 2 buffers": lambda: BLT.from_decays([0.98455, 0.57384], [0.85279, 0.19618], STEPS),
}


@dataclass(frozen=True)
class Row:
    """What is compared: error is per unit of noise, loss = sensitivity x error."""

    mechanism: str
    sensitivity: float
    sensitivity_kind: Kind
    rms_error: float
    rms_loss: float
    max_loss: float
    memory_copies: int


def demo(
    as_json: Annotated[bool, typer.Option("--json", help="Print the comparison as JSON.")] = False,
) -> None:
    """Compare all mechanisms on 2,000 steps of plain SGD, 20 epochs of 100 steps in a fixed order.

    At equal privacy, noise in the model is proportional to the loss, so a smaller loss is better.

    Example: antiphase demo --json
    """
    talk(f"{len(MECHANISMS)} mechanisms, {STEPS:,} steps, {EPOCHS} epochs of {STEPS_PER_EPOCH} steps, prefix sum")
    rows = [compare(name, make()) for name, make in with_progress([*MECHANISMS.items()], "Comparing")]
    if as_json:
        problem = {"steps": STEPS, "participation": ap.to_json(PARTICIPATION), "workload": ap.to_json(WORKLOAD)}
        print_json({"problem": problem, "candidates": [asdict(row) for row in rows]})
    else:
        _print(rows)


def compare(mechanism: str, strategy: Strategy) -> Row:
    """One mechanism on the demo's problem."""
    sensitivity = ap.sensitivity(strategy, PARTICIPATION)
    error = ap.error(strategy, WORKLOAD)
    return Row(
        mechanism=mechanism,
        sensitivity=sensitivity.value,
        sensitivity_kind=sensitivity.kind,
        rms_error=error.rms,
        rms_loss=sensitivity.value * error.rms,
        max_loss=sensitivity.value * error.max,
        memory_copies=strategy.memory_copies,
    )


def _print(rows: list[Row]) -> None:
    best = min(row.rms_loss for row in rows)
    print_table(
        f"{STEPS:,} steps, {EPOCHS} epochs: noise in the model at equal privacy",
        ["mechanism", "sensitivity", "rms\nerror", "rms\nloss", "max\nloss", "memory\ncopies", "times\nbest"],
        (
            [
                row.mechanism,
                f"{row.sensitivity:.3f} {row.sensitivity_kind}",
                f"{row.rms_error:.3f}",
                f"{row.rms_loss:.3f}",
                f"{row.max_loss:.3f}",
                f"{row.memory_copies:,}",
                f"{row.rms_loss / best:.3f}",
            ]
            for row in sorted(rows, key=lambda row: row.rms_loss)
        ),
    )
