"""`add_noise` and `simulate_noise`: the noise as Optax transformations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import optax  # type: ignore[import-untyped]
from jax.sharding import NamedSharding, PartitionSpec

from antiphase._check import invalid, real
from antiphase._errors import Refused
from antiphase._noise import Canonical, canonical, check_sizes
from antiphase._plan import Plan
from antiphase._run import Run, dtype_of, leaves_of, set_noise_source
from antiphase.jax._clip import LARGEST_NORM, SMALLEST_NORM
from antiphase.jax._correlator import JaxCorrelator, correlator
from antiphase.jax._device_noise import DeviceKey, check_addresses, check_device_noise, standard_normals
from antiphase.jax._host_noise import HostNoise, check_shardings, host_dtype, replicated_noise, sharded_noise
from antiphase.jax._leaves import check_leaves
from antiphase.jax._state import NoiseState, PrivateNoiseState, initial_hash, next_hash, run_id_words
from antiphase.strategies import Strategy

Source = Literal["host", "device"]
UPDATES = "updates"
CheckTree = Callable[[Any, str], None]
RequestKey = Callable[[NoiseState], tuple[jax.Array, Any]]  # the key of a step, and whether it may be used


def add_noise(run: Run, source: Source = "host", *, shardings: Any = None) -> optax.GradientTransformationExtraArgs:
    """Add clip_norm noise_std (N z)_t to the sum of the clipped gradients of step t.

    Put it first in the chain, and put anything that divides by the batch size after it. With `optax.MultiSteps`, set
    use_grad_mean=False. The noise depends only on the run and on `NoiseState.step`, so an update that is computed and
    discarded, as `optax.MultiSteps` does for each micro-batch, uses up no noise.

    Updates in half precision are refused, because rounding can change their sum by more than the clipping norm. Float64
    updates are refused if the run's noise is float32, because the low bits of the sum would have no noise.

    **Guarantee**: over the steps of the plan, the noise is that of the plan's mechanism, up to rounding to the run's
    dtype. With "host" it is `run.noise`, from AES. With "device" it comes from Threefry with a 64-bit key, which is
    statistically sound but not a cipher. Its draws are bounded by 7.4 standard deviations (float64: 11.5); that they
    are normal is an assumption. The report states both. With either source, the run must allow every step. It
    refuses a step before the previous one is committed, a step after the end of the plan, and a state that does not
    match the outputs in its ledger. A run keeps the source that it started with.

    Args:
        run: a run opened with leaves=antiphase.jax.leaves(params).
        source: "host" fetches the noise from the run. "device" fetches a key and makes the noise where the gradients
            are, for streaming strategies; its buffers are part of the optimizer state.
        shardings: a tree of NamedSharding with the structure of the parameters. Each device then holds only its own
            shard of the noise and of the state.

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
    _check_run(run)
    leaf_shardings = None if shardings is None else check_shardings(shardings)
    owned, run_id, dtype = leaves_of(run), run_id_words(run.run_id), host_dtype(dtype_of(run))
    _check_clip_norm(run.plan)

    def check(tree: Any, what: str) -> None:
        check_leaves(owned, tree, what)
        if what == UPDATES:
            _check_precision(tree, dtype)
            _not_mapped(
                jax.lax.stop_gradient(tree)
            )  # has its effect in compiled programs too, although the result is unused

    if source == "device":
        _check_device_dtype(run, dtype)
        made = _canonical(run.plan, dtype)
        recursion = correlator(made.strategy, jnp.dtype(dtype))
        check_addresses(made.strategy.rows, len(owned))
        _check_device_noise(run.plan, dtype)  # before the run is bound to this source
        keys, mesh_of = DeviceKey(run), None if leaf_shardings is None else leaf_shardings[0]
        scale = made.noise_std * run.plan.problem.clip_norm

        def request_key(state: NoiseState) -> tuple[jax.Array, jax.Array]:
            keys.check(state)
            return keys.request(state, mesh_of)

        return _device(made.strategy, scale, recursion, request_key, None, run_id, dtype, check, leaf_shardings)
    if source != "host":
        raise invalid("add_noise", "source", "'host' or 'device'", source, "use 'host' unless it is too slow")
    mechanism, clip_norm = run.plan.mechanism, run.plan.problem.clip_norm
    check_sizes(mechanism.strategy, mechanism.noise_std, dtype, clip_norm=clip_norm)
    set_noise_source(run, "host")
    noise = HostNoise(run, dtype)

    def init(params: Any) -> NoiseState:
        check(params, "parameters")
        return NoiseState(*_initial(run_id, params), ())

    def update(updates: Any, state: NoiseState, params: Any = None, **given: Any) -> tuple[Any, NoiseState]:
        _check_update(state, run.steps, given, on_device=False)
        check(updates, UPDATES)
        noise.check(state)
        request = (noise, list(owned.values()), state, dtype)
        made = replicated_noise(*request) if leaf_shardings is None else sharded_noise(*request, leaf_shardings)
        noisy, history_hash = _sum(updates, made, clip_norm, state.history_hash)
        return noisy, state._replace(step=state.step + 1, history_hash=history_hash)

    return optax.GradientTransformationExtraArgs(init, update)


def simulate_noise(plan: Plan, key: jax.Array, dtype: Any = jnp.float32) -> optax.GradientTransformationExtraArgs:
    """Add noise with the distribution of a plan, from a `jax.random` key, to study accuracy without a run.

    It can be mapped over keys with `jax.vmap`.

    **Guarantee**: none. Anyone who knows the key can compute the noise.

    Args:
        plan: a plan with a streaming strategy.
        key: a Threefry key, such as jax.random.key(0).
        dtype: dtype of the noise and its state, float32 or float64.
    """
    words = jax.random.key_data(key) if jnp.issubdtype(key.dtype, jax.dtypes.prng_key) else key
    if words.shape != (2,):
        got = f"key data of shape {words.shape}"
        raise invalid("simulate_noise", "key", "one threefry2x32 key", got, "pass a key such as jax.random.key(0)")
    kind = host_dtype(jnp.dtype(dtype).name)
    if kind.name not in ("float32", "float64"):
        raise invalid(
            "simulate_noise", "dtype", "float32 or float64", kind.name, "half precision would round the noise away"
        )
    made = _canonical(plan, kind)
    recursion = correlator(made.strategy, jnp.dtype(kind))
    _check_device_noise(plan, kind)
    no_run_id = np.zeros(4, np.uint32)
    scale = made.noise_std * plan.problem.clip_norm
    return _device(made.strategy, scale, recursion, _own_key, words, no_run_id, kind, lambda tree, what: None, None)


def _canonical(plan: Plan, dtype: np.dtype[Any]) -> Canonical:
    return canonical(plan.mechanism.strategy, plan.mechanism.noise_std, dtype)


def _check_device_noise(plan: Plan, dtype: np.dtype[Any]) -> None:
    check_device_noise(plan.mechanism.strategy, plan.mechanism.noise_std, dtype, plan.problem.clip_norm)


def _own_key(state: NoiseState) -> tuple[jax.Array, bool]:
    return state.private.key, True


def _device(
    strategy: Strategy,
    scale: float,
    recursion: JaxCorrelator,
    request_key: RequestKey,
    key: jax.Array | None,
    run_id: Any,
    dtype: Any,
    check: CheckTree,
    leaf_shardings: list[NamedSharding] | None,
) -> optax.GradientTransformationExtraArgs:
    def init(params: Any) -> NoiseState:
        check(params, "parameters")
        leaves = jax.tree.leaves(params)
        check_addresses(strategy.rows, len(leaves))
        where: Sequence[NamedSharding | None] = leaf_shardings or [None] * len(leaves)
        buffers = [_zeros(recursion.buffer_count, leaf, dtype, at) for leaf, at in zip(leaves, where, strict=True)]
        # Separate arrays for both parts: a state may be donated, and no array can be donated twice.
        private = PrivateNoiseState(*_initial(run_id, params), buffers, key)
        return NoiseState(*_initial(run_id, params), private)

    def update(updates: Any, state: NoiseState, params: Any = None, **given: Any) -> tuple[Any, NoiseState]:
        _check_update(state, strategy.steps, given, on_device=True)
        check(updates, UPDATES)
        _check_buffers(state.private.buffers, recursion.buffer_count, jax.tree.leaves(updates), dtype)
        key, allowed = request_key(state)
        noise, buffers = _next_noise(recursion, key, state, jax.tree.leaves(updates), dtype)
        allowed = jnp.logical_and(allowed, state.step < strategy.steps)
        noise, buffers = ([jnp.where(allowed, array, jnp.nan) for array in made] for made in (noise, buffers))
        noisy, history_hash = _sum(updates, noise, scale, state.history_hash)
        private = replace(
            state.private, step=state.private.step + 1, history_hash=jnp.array(history_hash), buffers=buffers
        )
        return noisy, state._replace(step=state.step + 1, history_hash=history_hash, private=private)

    return optax.GradientTransformationExtraArgs(init, update)


def _initial(run_id: Any, params: Any) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return step, run id and history hash of a new state."""
    return jnp.zeros((), jnp.int32), jnp.array(run_id), initial_hash(params)


def _next_noise(
    recursion: JaxCorrelator, key: jax.Array, state: NoiseState, leaves: list[Any], dtype: Any
) -> tuple[list[jax.Array], list[jax.Array]]:
    """Return a step's noise and the new buffers, for all leaves."""
    count = len(leaves)
    noise, buffers = [], []
    for i, (leaf, held) in enumerate(zip(leaves, state.private.buffers, strict=True)):

        def draw(row: Any, i: int = i, leaf: Any = leaf) -> jax.Array:
            return standard_normals(key, count, i, row, leaf, dtype)

        made, kept = recursion.step(held, state.step, draw)
        noise.append(made)
        buffers.append(kept)
    return noise, buffers


def _zeros(count: int, leaf: Any, dtype: jnp.dtype, at: NamedSharding | None) -> jax.Array:
    if at is None:
        return jnp.zeros((count, *jnp.shape(leaf)), dtype)
    spec = PartitionSpec(None, *at.spec)  # type: ignore[no-untyped-call]
    return jnp.zeros((count, *jnp.shape(leaf)), dtype, device=NamedSharding(at.mesh, spec))


def _sum(updates: Any, noise: list[jax.Array], scale: float, history_hash: jax.Array) -> tuple[Any, jax.Array]:
    """Return updates + scale x noise, added in the wider dtype and cast to that of the updates, and the new hash."""
    leaves, tree = jax.tree.flatten(updates)
    added = [(leaf + scale * made).astype(leaf.dtype) for leaf, made in zip(leaves, noise, strict=True)]
    return jax.tree.unflatten(tree, added), next_hash(history_hash, added)


def _check_run(run: Any) -> None:
    if not isinstance(run, Run):
        raise invalid(
            "add_noise", "run", "a Run", type(run).__name__, "Run.open(plan, directory, leaves=leaves(params))"
        )
    if jax.process_count() > 1:
        raise Refused("JAX runs in several processes, but a run belongs to one.", hint="train in a single process")


def _check_device_dtype(run: Run, dtype: np.dtype[Any]) -> None:
    """Raise if draws would not have the run's dtype, for which the report states their bound."""
    if dtype.name != dtype_of(run):
        raise Refused(
            f"The run's noise is {dtype_of(run)}, but JAX would make it on the device in {dtype}.",
            hint='enable jax_enable_x64 before making any array, or open a new run with dtype="float32"',
        )


def _check_clip_norm(plan: Plan) -> None:
    """Raise if the clipping norm is out of range for float32."""
    hint = "scale the loss and the clipping norm by the same factor"
    real("add_noise", "plan's clip_norm", plan.problem.clip_norm, SMALLEST_NORM, LARGEST_NORM, hint)


def _check_precision(updates: Any, dtype: Any) -> None:
    """Raise if updates are in half precision, or have more precision than the noise."""
    for leaf in jax.tree.leaves(updates):
        kind = jnp.result_type(leaf)
        if kind.itemsize < 4:
            raise Refused(
                f"The updates are {kind}. With such rounding, one example can change the sum by more than the clipping "
                "norm.",
                hint="sum gradients in float32, as clipped_sum does; apply_updates casts to the parameters' dtype",
            )
        if jnp.promote_types(kind, dtype) != dtype:
            raise Refused(
                f"The updates are {kind}, but the noise is {dtype}: the low bits of their sum would have no noise.",
                hint='open the run with Run.open(..., dtype="float64") and enable jax_enable_x64',
            )


@jax.custom_batching.custom_vmap
def _not_mapped(updates: Any) -> Any:
    """Return the updates; raise if `jax.vmap` maps over them, since all would get the same noise."""
    return updates


@_not_mapped.def_vmap
def _refuse_map(axis_size: int, in_batched: list[Any], updates: Any) -> Any:
    raise Refused(
        f"jax.vmap maps add_noise over {axis_size} gradients. All would get the same noise, so their differences would "
        "have none.",
        hint="sum the gradients before adding noise; to train several models, open a run for each",
    )


def _check_buffers(buffers: Sequence[Any], count: int, leaves: list[Any], dtype: Any) -> None:
    """Raise if the state belongs to another plan: JAX would silently read past the end of smaller buffers."""
    wanted = [((count, *jnp.shape(leaf)), np.dtype(dtype)) for leaf in leaves]
    found = [(jnp.shape(held), np.dtype(held.dtype)) for held in buffers]
    if found != wanted:
        raise Refused(
            f"The noise needs buffers of shapes {[shape for shape, _ in wanted]} and dtype {np.dtype(dtype)}, but the "
            f"state has {[(shape, kind.name) for shape, kind in found]}: it belongs to another plan or dtype.",
            hint="after extending a tree, which needs more buffers, replay the run's steps from optimizer.init; this "
            "costs no privacy if they give the same outputs",
        )


def _check_update(state: NoiseState, steps: int, given: dict[str, Any], *, on_device: bool) -> None:
    """Raise for extra arguments, the state of another noise source, or a step after the end of the plan."""
    if given:
        raise Refused(
            f"The optimizer got extra arguments, to which no noise is added: {', '.join(given)}.",
            hint="do not use transformations that need the loss or raw gradients, such as reduce_on_plateau or a line "
            "search",
        )
    if isinstance(state.private, PrivateNoiseState) != on_device:
        raise Refused(
            "The optimizer state was made for another noise source, or its private part is missing.",
            hint="use antiphase.jax.join to add the private part, and keep the source that the run started with",
        )
    if not isinstance(state.step, jax.core.Tracer) and int(state.step) >= steps:
        raise Refused(
            f"All {steps} steps of the plan have been taken.",
            hint="extend the plan with Plan.extend if its strategy allows it, or plan a new run",
        )
