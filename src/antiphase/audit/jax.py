"""Audits of `antiphase.jax`: canaries (artificial examples) in your data, with the real clipping, batches and noise.

release = antiphase.audit.jax.drive(plan, directory, loss, params, (x, y), canaries=500)
found = antiphase.audit.evaluate(plan, release)
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import optax  # type: ignore[import-untyped]
from jax.sharding import NamedSharding, PartitionSpec

import antiphase.jax as apj
from antiphase._plan import Plan
from antiphase._run import Run
from antiphase._secret import Secret
from antiphase.audit._release import Release
from antiphase.audit._simulation import canary_places, coin_generator, fair_coins, released_matrix

WEIGHT = 1000.0
MULTIPLE = 32


def canary_loss(loss: Callable[..., Any]) -> Callable[..., Any]:
    """Return the loss of one example as a function ({"model": ..., "canary": ...}, example, vector, weight) -> scalar.

    The gradient of this loss with respect to the array "canary" (the canary leaf) is the example's own vector.
    """

    def whole(params: Any, example: Any, vector: jax.Array, weight: jax.Array) -> jax.Array:
        return weight * loss(params["model"], *example) + vector @ params["canary"]

    return whole


def drive(
    plan: Plan,
    directory: str | Path,
    loss: Callable[..., Any],
    params: Any,
    data: tuple[Any, ...],
    *,
    canaries: int,
    quiet: int = 64,
    examples: int | None = None,
    secret: Secret | None = None,
    source: Literal["host", "device"] = "host",
    mesh: jax.sharding.Mesh | None = None,
    microbatch: int | None = None,
) -> Release:
    """Train with the clipping, batches and noise of antiphase.jax, and return what was released.

    Some of the examples are canaries. They contribute only to an extra array of parameters, the canary leaf, in which
    each canary has its own entry.

    Args:
        plan: plan to train with.
        directory: directory of the run; must be empty.
        loss: loss of one example, (params, *example) -> scalar.
        params: parameters of the model.
        data: arrays with the examples along the first axis. They are repeated if they hold fewer than `examples`.
        canaries: number of canary examples.
        quiet: number of entries of the canary leaf that no canary uses.
        examples: number of examples, including canaries; by default, the number in the plan's problem.
        secret: secret of the run; None for a fresh one.
        source: source of the noise, "host" or "device".
        mesh: if given, the canary leaf is sharded over the first axis of this mesh, and all other leaves are
            replicated.
        microbatch: number of per-example gradients in memory at once; None for the default of `clipped_sum`.
    """
    start = time.perf_counter()
    secret = Secret.generate() if secret is None else secret
    total = examples or plan.problem.examples or canaries
    present = fair_coins(canaries, coin_generator(secret, "jax"))
    clip, width = plan.problem.clip_norm, canaries + quiet
    signs = 2.0 * present - 1.0 if plan.mechanism.adjacency == "replace" else present.astype(np.float64)
    sizes = np.zeros(total, np.float32)
    places = canary_places(canaries, total, secret)
    sizes[places] = WEIGHT * clip * signs
    direction = np.zeros(total, np.int64)
    direction[places] = np.arange(canaries)
    weights = np.ones(total, np.float32)
    weights[places] = 0.0
    repeated = tuple(np.asarray(array)[np.arange(total) % len(array)] for array in data)
    whole = {"model": params, "canary": jnp.zeros(width)}
    shardings = None if mesh is None else _shardings(mesh, whole)
    if shardings is not None:
        whole = jax.device_put(whole, shardings)
    rows, part = [], np.zeros((plan.steps, total), dtype=np.bool_)
    sums = apj.clipped_sum(canary_loss(loss), clip, microbatch=microbatch)
    leaves = apj.leaves(whole)
    with Run.open(plan, directory, leaves=leaves, examples=total, secret=secret) as run:
        optimizer = optax.chain(apj.add_correlated_noise(run, source, shardings=shardings), optax.sgd(1.0))
        state = optimizer.init(whole)

        @jax.jit
        def step(params: Any, state: Any, example: Any, vectors: Any, weights: Any, mask: Any) -> tuple[Any, Any, Any]:
            total = sums(params, (example, vectors, weights), mask)
            updates, state = optimizer.update(total, state, params)
            moved = optax.apply_updates(params, jax.tree.map(lambda u: 1e-3 * u, updates))
            return -updates["canary"], moved, state

        for batch in apj.batches(run, (repeated, sizes, weights, direction), multiple=MULTIPLE):
            example, size, weight, along = batch.data
            vectors = np.zeros((len(size), width), np.float32)
            vectors[np.arange(len(size)), along] = size  # also in rows of padding, which the mask must remove
            part[batch.step, batch.indices] = True
            noisy, whole, state = step(whole, state, example, vectors, weight, batch.mask)
            apj.commit(run, state, whole, batch.indices)
            rows.append(np.asarray(noisy, np.float64))
    released = released_matrix(rows, clip)
    kind = f"{source}, sharded" if mesh is not None else source
    return Release(
        released[:, :canaries],
        present,
        part[:, places],
        released[:, canaries:],
        source=f"antiphase.jax, {kind}",
        seconds=time.perf_counter() - start,
        single_run=True,
    )


def _shardings(mesh: jax.sharding.Mesh, tree: Any) -> Any:
    rows = PartitionSpec(mesh.axis_names[0])  # type: ignore[no-untyped-call]
    whole = PartitionSpec()  # type: ignore[no-untyped-call]
    return {
        "model": jax.tree.map(lambda _: NamedSharding(mesh, whole), tree["model"]),
        "canary": NamedSharding(mesh, rows),
    }
