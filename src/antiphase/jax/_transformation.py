"""The noise as an Optax transformation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import optax  # type: ignore[import-untyped]
from jax.sharding import NamedSharding, PartitionSpec

from antiphase._check import refuse
from antiphase._errors import Refused
from antiphase._plan import Plan
from antiphase._run import Run
from antiphase.jax._correlator import Correlator, correlator
from antiphase.jax._host import HostNoise, check_shardings, host_dtype, sharded, whole
from antiphase.jax._leaves import check_leaves
from antiphase.jax._link import device_key, dtype_of, leaves_of
from antiphase.jax._rows import check_addresses, normals
from antiphase.jax._state import Hidden, NoiseState, run_words

Source = Literal["host", "device"]
Check = Callable[[Any, str], None]


def add_noise(run: Run, source: Source = "host", *, shardings: Any = None) -> optax.GradientTransformation:
    """Adds clip_norm noise_std (N z)_t to the sum of the clipped gradients of step t.

    Noise is a function of the run and of `NoiseState.step`, which moves on with the state: an update that is computed
    and thrown away, as `optax.MultiSteps` does for each micro-batch, uses nothing up. Put it first in a chain, and
    everything that divides by the batch size after it. With `optax.MultiSteps` pass use_grad_mean=False.

    **Guarantee**: over the steps of the plan the noise added is that of the plan's mechanism, up to rounding to the
    run's dtype. From "host" it is that of `run.noise`, from AES. On "device" it is from Threefry with a 64-bit
    key: statistically sound, but not what a cipher promises, and `report` says so. Beyond the last step of the plan the
    updates are NaN, or the call raises where it can.

    Args:
        run: opened with leaves=antiphase.jax.leaves(params).
        source: "host" asks the run in every step; "device" makes noise where the gradients are, for streaming
            strategies, with state in the optimizer's state.
        shardings: a tree of NamedSharding like the parameters: each device gets its own part of the noise and of the
            state alone.

    >>> import antiphase as ap, tempfile
    >>> problem = ap.Problem(steps=4, budget=ap.Budget(8.0, 1e-5), participation=ap.FixedEpochs(2, 2))
    >>> params = {"w": jnp.zeros(3)}
    >>> from antiphase.jax import leaves
    >>> with ap.Run.open(ap.plan(problem, ["blt"]), tempfile.mkdtemp(), leaves=leaves(params)) as run:
    ...     optimizer = optax.chain(add_noise(run), optax.scale(1 / 100), optax.sgd(0.1))
    ...     updates, state = optimizer.update({"w": jnp.ones(3)}, optimizer.init(params), params)
    >>> updates["w"].shape, int(state[0].step)
    ((3,), 1)
    """
    if not isinstance(run, Run):
        raise refuse(
            "add_noise", "run", "a Run", type(run).__name__, "Run.open(plan, directory, leaves=leaves(params))"
        )
    placed = None if shardings is None else check_shardings(shardings)
    owned, words, dtype = leaves_of(run), run_words(run.run_id), host_dtype(dtype_of(run))

    def check(tree: Any, what: str) -> None:
        check_leaves(owned, tree, what)

    if source == "device":
        return _device(run.plan, jnp.asarray(device_key(run)), words, jnp.dtype(dtype), check, placed)
    if source != "host":
        raise refuse("add_noise", "source", "'host' or 'device'", source, "'host' is AES")
    noise, clip_norm = HostNoise(run, dtype), run.plan.problem.clip_norm

    def init(params: Any) -> NoiseState:
        check(params, "parameters")
        return NoiseState(jnp.zeros((), jnp.int32), jnp.asarray(words), ())

    def update(updates: Any, state: NoiseState, params: Any = None) -> tuple[Any, NoiseState]:
        check(updates, "updates")
        _check_step(state.step, run.steps)
        where = (noise, list(owned.values()), state.step, state.run, dtype)
        made = whole(*where) if placed is None else sharded(*where, placed)
        return _sum(updates, made, clip_norm), state._replace(step=state.step + 1)

    return optax.GradientTransformation(init, update)


def simulate_noise(plan: Plan, key: jax.Array, dtype: Any = jnp.float32) -> optax.GradientTransformation:
    """The noise of a plan from a key of `jax.random`, without run, secret or ledger: for studies of accuracy.

    **Guarantee**: none; whoever knows the key knows the noise. Its distribution is that of the plan. It can be mapped
    over keys with `jax.vmap`.

    Args:
        plan: its strategy must stream.
        key: such as jax.random.key(0).
        dtype: of noise and state.
    """
    words = jax.random.key_data(key) if jnp.issubdtype(key.dtype, jax.dtypes.prng_key) else key
    if words.shape != (2,):
        raise refuse("simulate_noise", "key", "a threefry2x32 key", f"{words.shape} words", "jax.random.key(0)")
    return _device(plan, words, np.zeros(4, np.uint32), jnp.dtype(dtype), lambda tree, what: None, None)


def _device(
    plan: Plan, key: jax.Array, words: Any, dtype: jnp.dtype, check: Check, placed: list[NamedSharding] | None
) -> optax.GradientTransformation:
    strategy, scale = plan.mechanism.strategy, plan.problem.clip_norm * plan.mechanism.noise_std
    made_by = correlator(strategy, dtype)

    def init(params: Any) -> NoiseState:
        check(params, "parameters")
        leaves = jax.tree.leaves(params)
        check_addresses(strategy.rows, len(leaves))
        where: Sequence[NamedSharding | None] = placed or [None] * len(leaves)
        buffers = [_zeros(made_by.rows, leaf, dtype, at) for leaf, at in zip(leaves, where, strict=True)]
        return NoiseState(jnp.zeros((), jnp.int32), jnp.asarray(words), Hidden(key, buffers))

    def update(updates: Any, state: NoiseState, params: Any = None) -> tuple[Any, NoiseState]:
        check(updates, "updates")
        _check_step(state.step, strategy.steps)
        noise, hidden = _next(made_by, state, jax.tree.leaves(updates), dtype)
        noise = [jnp.where(state.step < strategy.steps, array, jnp.nan) for array in noise]
        return _sum(updates, noise, scale), state._replace(step=state.step + 1, hidden=hidden)

    return optax.GradientTransformation(init, update)


def _next(
    made_by: Correlator, state: NoiseState, leaves: list[Any], dtype: jnp.dtype
) -> tuple[list[jax.Array], Hidden]:
    """The noise of a step for all leaves, and what is remembered after it."""
    key, count = state.hidden.key, len(leaves)
    noise, buffers = [], []
    for i, (leaf, held) in enumerate(zip(leaves, state.hidden.buffers, strict=True)):

        def draw(row: Any, i: int = i, leaf: Any = leaf) -> jax.Array:
            return normals(key, count, i, row, leaf, dtype)

        made, kept = made_by.step(held, state.step, draw)
        noise.append(made)
        buffers.append(kept)
    return noise, Hidden(key, buffers)


def _zeros(rows: int, leaf: Any, dtype: jnp.dtype, at: NamedSharding | None) -> jax.Array:
    if at is None:
        return jnp.zeros((rows, *jnp.shape(leaf)), dtype)
    spec = PartitionSpec(None, *at.spec)  # type: ignore[no-untyped-call]
    return jnp.zeros((rows, *jnp.shape(leaf)), dtype, device=NamedSharding(at.mesh, spec))


def _sum(updates: Any, noise: list[jax.Array], scale: float) -> Any:
    """updates + scale noise, added in the wider dtype and given back in the dtype of the updates."""
    leaves, tree = jax.tree.flatten(updates)
    added = [(leaf + scale * made).astype(leaf.dtype) for leaf, made in zip(leaves, noise, strict=True)]
    return jax.tree.unflatten(tree, added)


def _check_step(step: Any, steps: int) -> None:
    """Refuse a step past the end where it is known; inside a compiled program it is not."""
    if not isinstance(step, jax.core.Tracer) and int(step) >= steps:
        raise Refused(
            f"The plan has {steps} steps, and all have been taken.",
            hint="Plan.extend goes on where the strategy allows it; else plan a new run",
        )
