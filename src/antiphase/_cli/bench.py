"""`antiphase bench`: what a plan costs on this machine."""

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

SECONDS = 3.0  # for each thing that is measured
BYTES = 4  # of a float32


def bench(
    path: Annotated[Path, typer.Argument(help="A plan written by antiphase plan --output.")],
    parameters: Annotated[int, typer.Option(min=1, help="Size of the model.")] = 1_000_000,
    replan: Annotated[bool, typer.Option(help="Measure planning too.")] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Print the numbers for a program to read.")] = False,
) -> None:
    """Measure planning, a step of noise and a batch of a plan on this machine.

    PATH is a plan written by antiphase plan --output.

    Noise is float32, added to a gradient in place; the floor is noise without correlation, which DP-SGD needs too.

    Example: antiphase bench plan.json --parameters 4000000
    """
    plan = ap.Plan.load(path)
    _check_memory(BYTES * parameters * (plan.mechanism.strategy.memory_copies + 3))  # gradient, noise and a block of it
    with progress_bar() as tell:
        copies = plan.mechanism.strategy.memory_copies
        found: dict[str, float] = {"parameters": parameters, "memory_bytes": BYTES * parameters * copies}
        tell("noise", 0.1)
        found |= {"noise_seconds": _noise(plan.mechanism, parameters)}
        tell("noise without correlation", 0.4)
        plain = ap.Mechanism(Identity(plan.steps), plan.mechanism.participation, 1.0)
        found |= {"floor_seconds": _noise(plain, parameters)}
        if plan.problem.examples is not None:
            tell("batches", 0.6)
            found |= {"batch_seconds": _batches(plan, plan.problem.examples)}
        if replan:
            found |= {"plan_seconds": _planning(plan, lambda name, share: tell(name, 0.7 + 0.3 * share))}
    if as_json:
        print_json(found)
    else:
        _print(plan, found)


def _check_memory(needed: int) -> None:
    if needed > physical_memory():
        raise NotEnoughMemory(
            f"The noise for so many parameters needs {needed / 1e9:,.0f} GB. This machine has "
            f"{physical_memory() / 1e9:,.0f} GB.",
            hint="measure fewer parameters with --parameters; the time of a step grows in proportion",
        )


def _noise(mechanism: ap.Mechanism, parameters: int) -> float:
    """The mean time of a step, the first (which compiles) left out, over whole blocks of steps made ahead."""
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


def _planning(plan: ap.Plan, tell: Callable[[str, float], None]) -> float:
    start = perf_counter()
    ap.plan(plan.problem, progress=tell)
    return perf_counter() - start


def _print(plan: ap.Plan, found: dict[str, float]) -> None:
    strategy = type(plan.mechanism.strategy).__name__
    rows = [
        ("plan", f"{strategy}, {plan.steps:,} steps"),
        ("model", f"{found['parameters']:,} parameters"),
        ("noise, a step", f"{1e3 * found['noise_seconds']:.3g} ms"),
        ("the floor", f"{1e3 * found['floor_seconds']:.3g} ms, noise without correlation"),
        ("noise, all steps", f"{found['noise_seconds'] * plan.steps:.3g} s"),
        ("noise memory", f"{found['memory_bytes'] / 1e6:,.0f} MB, {plan.mechanism.strategy.memory_copies} copies"),
    ]
    if "batch_seconds" in found:
        rows.append(("batch, a step", f"{1e3 * found['batch_seconds']:.3g} ms"))
    if "plan_seconds" in found:
        rows.append(("planning", f"{found['plan_seconds']:.3g} s"))
    print_facts(rows)
