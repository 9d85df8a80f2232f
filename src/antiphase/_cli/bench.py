"""`antiphase bench`: measure the time and memory that a plan needs on this machine."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Annotated

import typer

import antiphase as ap
from antiphase._cli.memory import physical_memory
from antiphase._cli.output import print_facts, print_json, progress_bar
from antiphase._errors import NotEnoughMemory
from antiphase.strategies import Identity

SECONDS = 3.0  # duration of each measurement
FLOAT32_BYTES = 4


def bench(
    path: Annotated[Path, typer.Argument(help="Plan file, as written by antiphase plan --output.")],
    parameters: Annotated[int, typer.Option(min=1, help="Number of model parameters.")] = 1_000_000,
    replan: Annotated[bool, typer.Option(help="Also measure how long planning takes.")] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Print the numbers as JSON.")] = False,
) -> None:
    """Measure the time that this machine needs to plan, to make the noise of one step, and to draw one batch.

    PATH is a plan file, as written by antiphase plan --output.

    The noise is float32 and is added to a gradient in place. Independent noise, as in DP-SGD, is also measured for
    comparison.

    Example: antiphase bench plan.json --parameters 4000000
    """
    plan = ap.Plan.load(path)
    _check_memory(
        FLOAT32_BYTES * parameters * (plan.mechanism.strategy.memory_copies + 3)
    )  # buffers, plus the gradient, the noise and one block of noise
    with progress_bar() as progress:
        copies = plan.mechanism.strategy.memory_copies
        found: dict[str, float] = {"parameters": parameters, "memory_bytes": FLOAT32_BYTES * parameters * copies}
        progress("noise", 0.1)
        found |= {"noise_seconds": _noise(plan.mechanism, parameters)}
        progress("independent noise", 0.4)
        plain = ap.Mechanism(Identity(plan.steps), plan.mechanism.participation, 1.0)
        found |= {"floor_seconds": _noise(plain, parameters)}
        if plan.problem.examples is not None:
            progress("batches", 0.6)
            found |= {"batch_seconds": _batches(plan, plan.problem.examples)}
        if replan:
            found |= {"plan_seconds": _planning(plan, lambda name, share: progress(name, 0.7 + 0.3 * share))}
    if as_json:
        print_json(found)
    else:
        _print(plan, found)


def _check_memory(needed: int) -> None:
    if needed > physical_memory():
        raise NotEnoughMemory(
            f"The noise for this many parameters needs {needed / 1e9:,.0f} GB. This machine has "
            f"{physical_memory() / 1e9:,.0f} GB.",
            hint="use a smaller --parameters; the time per step is proportional to it",
        )


def _noise(mechanism: ap.Mechanism, parameters: int) -> float:
    """Return the mean time per step in seconds, without the first step, which includes compilation."""
    import numpy as np

    stream, gradient = (
        ap.NoiseStream(mechanism, [(parameters,)], ap.Secret.generate()),
        np.zeros(parameters, np.float32),
    )
    stream.add_to([gradient])
    start, first = perf_counter(), stream.step
    while stream.step < stream.steps and perf_counter() - start < SECONDS:
        stream.add_to([gradient])
    return (perf_counter() - start) / max(1, stream.step - first)


def _batches(plan: ap.Plan, examples: int) -> float:
    sampler = plan.mechanism.participation.sampler(examples, plan.steps, ap.Secret.generate())
    sampler.batch(0)
    start, step = perf_counter(), 0
    while step + 1 < plan.steps and perf_counter() - start < SECONDS / 3:
        step += 1
        sampler.batch(step)
    return (perf_counter() - start) / max(1, step)


def _planning(plan: ap.Plan, progress: Callable[[str, float], None]) -> float:
    start = perf_counter()
    ap.plan(plan.problem, progress=progress)
    return perf_counter() - start


def _print(plan: ap.Plan, found: dict[str, float]) -> None:
    strategy = type(plan.mechanism.strategy).__name__
    rows = [
        ("plan", f"{strategy}, {plan.steps:,} steps"),
        ("model", f"{found['parameters']:,} parameters"),
        ("noise per step", f"{1e3 * found['noise_seconds']:.3g} ms"),
        ("independent noise", f"{1e3 * found['floor_seconds']:.3g} ms per step, for comparison"),
        ("noise, all steps", f"{found['noise_seconds'] * plan.steps:.3g} s"),
        ("noise memory", f"{found['memory_bytes'] / 1e6:,.0f} MB, {plan.mechanism.strategy.memory_copies} copies"),
    ]
    if "batch_seconds" in found:
        rows.append(("batch per step", f"{1e3 * found['batch_seconds']:.3g} ms"))
    if "plan_seconds" in found:
        rows.append(("planning", f"{found['plan_seconds']:.3g} s"))
    print_facts(rows)
