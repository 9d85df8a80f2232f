"""Time of private training steps in JAX, for 2 million parameters.

The first table shows the time to generate noise on the device, for models with leaves of several shapes. The second
shows the time of whole jitted steps. Our steps are compared with the same step without noise, with plain Optax (the
gradient of the mean loss), and with jax_privacy. All variants alternate in turns, so that other load on the machine
affects them alike. Ratios are medians over the turns. A step with noise includes its commit. The noise is generated on
the device, or on the host (the CPU). On the host, a background thread generates it while the device computes the
gradient.
"""

from __future__ import annotations

import math
import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import antiphase as ap
import antiphase.jax as apj
from antiphase.strategies import BLT, Strategy, Toeplitz
from benchmarks._measure import TINY, print_table, readable, sized

WIDTH = sized(1000, 8)
BATCH, MICROBATCH = sized(64, 8), sized(16, 4)
STEPS = sized(400, 20)
TURNS = sized(int(os.environ.get("TURNS", "9")), 1)
PARAMETERS = sized(2_000_000, 512)
STRATEGIES: dict[str, Strategy] = {
    "toeplitz-16": Toeplitz.square_root(STEPS, sized(16, 3)),
    "blt-4": BLT([0.9999, 0.97, 0.8, 0.3], [0.01, 0.05, 0.1, 0.2], STEPS),
}
Step = Callable[[], float]


def shapes() -> dict[str, tuple[tuple[int, ...], ...]]:
    """Return the leaf shapes of several models, all with about PARAMETERS parameters."""
    side = math.isqrt(PARAMETERS // 2)
    return {
        "one flat leaf": ((PARAMETERS,),),
        "two axes, wide": ((side // 2, PARAMETERS // (side // 2)),),
        "two axes, tall": ((PARAMETERS // (side // 2), side // 2),),
        "last axis of 2": ((PARAMETERS // 2, 2),),
        "four axes (a convolution)": ((4, 4, PARAMETERS // 256, 16),),
        "many leaves": tuple((sized(200, 4), PARAMETERS // (sized(200, 4) * 20)) for _ in range(20)),
    }


def plan_for(strategy: Strategy) -> ap.Plan:
    participation = ap.MinSeparation(STEPS)
    mechanism = ap.Mechanism(strategy, participation, 3.0)
    guarantee = ap.epsilon(mechanism, 1e-6)
    budget = ap.Budget(guarantee.value, 1e-6)
    problem = ap.Problem(steps=strategy.steps, budget=budget, participation=participation)
    return ap.Plan(problem, mechanism, guarantee, error=1.0)


def noise_step(strategy: Strategy, leaves: tuple[tuple[int, ...], ...]) -> Step:
    """Return a function that times one step of device noise."""
    noise = apj.simulate_noise(plan_for(strategy), jax.random.key(0))
    gradient = [jnp.zeros(shape) for shape in leaves]
    update = jax.jit(noise.update, donate_argnums=1)
    held = [noise.init(gradient)]

    def step() -> float:
        start = time.perf_counter()
        _, held[0] = jax.block_until_ready(update(gradient, held[0]))
        return time.perf_counter() - start

    return step


def compare_shapes() -> None:
    for name, strategy in STRATEGIES.items():
        sides = {shape: noise_step(strategy, leaves) for shape, leaves in shapes().items()}
        times = in_turns(sides)
        flat, *_ = times
        rows = [
            [shape, readable(statistics.median(times[shape])), f"{ratio(times, shape, flat):.2f}"] for shape in times
        ]
        print_table(f"Device noise, {name}, {PARAMETERS:,} float32 parameters", ["leaves", "step", "x flat leaf"], rows)
    print("goal: at most 1.3 x the flat leaf\n")


def loss(params: Any, x: jax.Array) -> jax.Array:
    return jnp.square(jnp.tanh(x @ params["first"]) @ params["second"]).mean()


def start() -> tuple[Any, jax.Array, np.ndarray[Any, Any]]:
    rng = np.random.default_rng(0)
    params = {
        name: jnp.asarray(rng.normal(size=(WIDTH, WIDTH)) / WIDTH**0.5, jnp.float32) for name in ("first", "second")
    }
    return params, jnp.asarray(rng.normal(size=(BATCH, WIDTH)), jnp.float32), np.ones(BATCH, bool)


def timed(advance: Callable[[], Any]) -> Step:
    def step() -> float:
        begin = time.perf_counter()
        advance()
        return time.perf_counter() - begin

    return step


def plain_step(clipped: bool) -> Step:
    """Return a function that times one step without noise.

    If `clipped` is False, the step uses the gradient of the mean loss, as in plain Optax.
    """
    params, x, mask = start()
    total = apj.clipped_sum(loss, 1.0, microbatch=MICROBATCH)
    gradient = (
        (lambda p: total(p, (x,), mask)) if clipped else jax.grad(lambda p: jax.vmap(loss, (None, 0))(p, x).mean())
    )
    optimizer = optax.chain(optax.scale(1 / BATCH), optax.sgd(0.1, momentum=0.9))
    held = [(params, optimizer.init(params))]

    @jax.jit
    def update(params: Any, state: Any) -> Any:
        updates, state = optimizer.update(gradient(params), state)
        return optax.apply_updates(params, updates), state

    def advance() -> None:
        held[0] = jax.block_until_ready(update(*held[0]))

    return timed(advance)


def private_step(strategy: Strategy, source: str, runs: list[ap.Run]) -> Step:
    """Return a function that times one private step with noise from `source`. Appends its run to `runs`."""
    params, x, mask = start()
    run = ap.Run.open(
        plan_for(strategy),
        tempfile.mkdtemp(),
        leaves=apj.leaves(params),
        examples=BATCH * STEPS,
        background_noise=source == "host",
    )
    runs.append(run)
    total = apj.clipped_sum(loss, 1.0, microbatch=MICROBATCH)
    optimizer = optax.chain(apj.add_correlated_noise(run, source), optax.scale(1 / BATCH), optax.sgd(0.1, momentum=0.9))
    held = [(params, optimizer.init(params))]

    @jax.jit
    def update(params: Any, state: Any) -> Any:
        updates, state = optimizer.update(total(params, (x,), mask), state)
        return optax.apply_updates(params, updates), state

    def advance() -> None:
        batch = run.batch(run.committed)  # with the host source, the background thread starts here
        held[0] = update(*held[0])
        apj.commit(run, held[0][1], held[0][0], batch.indices[batch.mask])

    return timed(advance)


class Peer:
    """Runs training steps of jax_privacy in its own interpreter. With --tiny, it is not run."""

    def __init__(self) -> None:
        python = os.environ.get("PEER", ".venv-peer/bin/python")
        self._process: subprocess.Popen[str] | None = None
        if not TINY:
            script = Path(__file__).parent / "_peer" / "jax_steps.py"
            command = [python, str(script), str(WIDTH), str(BATCH), str(MICROBATCH)]
            self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def step(self, name: str) -> float:
        if self._process is None:
            return math.nan
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{name}\n")
        self._process.stdin.flush()
        return float(self._process.stdout.readline())

    def close(self) -> None:
        if self._process is not None:
            self._process.communicate()


def in_turns(sides: dict[str, Step]) -> dict[str, list[float]]:
    """Return the times of all variants, which alternate in turns. Two warm-up turns, which compile, are not counted."""
    times: dict[str, list[float]] = {name: [] for name in sides}
    for turn in range(TURNS + 2):
        for name, step in sides.items():
            found = step()
            if turn >= 2:
                times[name].append(found)
    return times


def ratio(times: dict[str, list[float]], one: str, other: str) -> float:
    """Return the median over the turns of the time of `one` divided by the time of `other`."""
    return statistics.median(a / b for a, b in zip(times[one], times[other], strict=True))


def sides_of(name: str, peer: Peer, runs: list[ap.Run]) -> Iterator[tuple[str, Step]]:
    yield "clipped, without noise", plain_step(clipped=True)
    yield "plain Optax", plain_step(clipped=False)
    for source in ("host", "device"):
        yield f"antiphase, {source} source", private_step(STRATEGIES[name], source, runs)
    yield "jax_privacy, without noise", lambda: peer.step("none")
    yield "jax_privacy", lambda: peer.step(name)


def compare_steps() -> None:
    for name in STRATEGIES:
        peer, runs = Peer(), []
        times = in_turns(dict(sides_of(name, peer, runs)))
        base = "clipped, without noise"
        rows = [
            [side, readable(statistics.median(found)), f"{ratio(times, side, base):.2f}"]
            for side, found in times.items()
        ]
        title = f"A whole step, {name}, {2 * WIDTH**2:,} parameters, {BATCH} examples"
        print_table(title, ["step", "time", f"x {base}"], rows)
        peer.close()
        for run in runs:
            run.close()
    print("goal with the host source: at most 1.10 x the step without noise\n")


if __name__ == "__main__":
    compare_shapes()
    compare_steps()
