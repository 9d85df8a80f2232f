"""The noise as an Optax transformation."""

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
from antiphase.jax._correlator import Correlator, correlator
from antiphase.jax._device import DeviceKey
from antiphase.jax._host import HostNoise, check_shardings, host_dtype, sharded, whole
from antiphase.jax._leaves import check_leaves
from antiphase.jax._mark import first_mark, next_mark
from antiphase.jax._rows import check_addresses, normals
from antiphase.jax._self_check import check_device_noise
from antiphase.jax._state import Hidden, NoiseState, run_words
from antiphase.strategies import Strategy

Source = Literal["host", "device"]
UPDATES = "updates"
Check = Callable[[Any, str], None]
Ask = Callable[[NoiseState], tuple[jax.Array, Any]]  # the key of a step, and whether it may be used


def add_noise(run: Run, source: Source = "host", *, shardings: Any = None) -> optax.GradientTransformationExtraArgs:
    """Adds clip_norm noise_std (N z)_t to the sum of the clipped gradients of step t.

    Noise is a function of the run and of `NoiseState.step`, which moves on with the state: an update that is computed
    and thrown away, as `optax.MultiSteps` does for each micro-batch, uses nothing up. Put it first in a chain, and
    everything that divides by the batch size after it. With `optax.MultiSteps` pass use_grad_mean=False. Sums in half
    precision are refused, since rounding them can move them by more than the clipping norm, and so are sums in float64
    where the run's noise is float32, whose low bits would have no noise.

    **Guarantee**: over the steps of the plan the noise added is that of the plan's mechanism, up to rounding to the
    run's dtype. From "host" it is that of `run.noise`, from AES. On "device" it is from Threefry with a 64-bit
    key: statistically sound, but not what a cipher promises, and that its draws are normal up to their end at 7.4
    standard deviations, and beyond, is an assumption; the report says both. Either way the run is asked in
    every step, and refuses one before the last was committed, any after the last of the plan, and one from a state
    that other outputs led to than those that it has. It keeps to the source that it was begun with.

    Args:
        run: opened with leaves=antiphase.jax.leaves(params).
        source: "host" fetches the noise from the run; "device" fetches a key and makes noise where the gradients
            are, for streaming strategies, with state in the optimizer's state.
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
    _check_run(run)
    placed = None if shardings is None else check_shardings(shardings)
    owned, words, dtype = leaves_of(run), run_words(run.run_id), host_dtype(dtype_of(run))
    _check_clip_norm(run.plan)

    def check(tree: Any, what: str) -> None:
        check_leaves(owned, tree, what)
        if what == UPDATES:
            _check_precision(tree, dtype)
            _not_mapped(jax.lax.stop_gradient(tree))  # seen in compiled programs too, although nothing uses the result

    if source == "device":
        _check_device_dtype(run, dtype)
        made = _canonical(run.plan, dtype)
        made_by = correlator(made.strategy, jnp.dtype(dtype))
        check_addresses(made.strategy.rows, len(owned))
        _check_device_noise(run.plan, dtype)  # before the run is bound to this source
        keys, mesh_of = DeviceKey(run), None if placed is None else placed[0]
        scale = made.noise_std * run.plan.problem.clip_norm

        def ask(state: NoiseState) -> tuple[jax.Array, jax.Array]:
            keys.check(state)
            return keys.ask(state, mesh_of)

        return _device(made.strategy, scale, made_by, ask, None, words, dtype, check, placed)
    if source != "host":
        raise invalid("add_noise", "source", "'host' or 'device'", source, "'host' is AES")
    mechanism, clip_norm = run.plan.mechanism, run.plan.problem.clip_norm
    check_sizes(mechanism.strategy, mechanism.noise_std, dtype, clip_norm=clip_norm)
    set_noise_source(run, "host")
    noise = HostNoise(run, dtype)

    def init(params: Any) -> NoiseState:
        check(params, "parameters")
        return NoiseState(*_start(words, params), ())

    def update(updates: Any, state: NoiseState, params: Any = None, **given: Any) -> tuple[Any, NoiseState]:
        _check_update(state, run.steps, given, on_device=False)
        check(updates, UPDATES)
        noise.check(state)
        where = (noise, list(owned.values()), state, dtype)
        made = whole(*where) if placed is None else sharded(*where, placed)
        noisy, mark = _sum(updates, made, clip_norm, state.mark)
        return noisy, state._replace(step=state.step + 1, mark=mark)

    return optax.GradientTransformationExtraArgs(init, update)


def simulate_noise(plan: Plan, key: jax.Array, dtype: Any = jnp.float32) -> optax.GradientTransformationExtraArgs:
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
        raise invalid("simulate_noise", "key", "a threefry2x32 key", f"{words.shape} words", "jax.random.key(0)")
    kind = host_dtype(jnp.dtype(dtype).name)
    if kind.name not in ("float32", "float64"):
        raise invalid(
            "simulate_noise", "dtype", "float32 or float64", kind.name, "half precision rounds the noise away"
        )
    made = _canonical(plan, kind)
    made_by = correlator(made.strategy, jnp.dtype(kind))
    _check_device_noise(plan, kind)
    nobody = np.zeros(4, np.uint32)
    scale = made.noise_std * plan.problem.clip_norm
    return _device(made.strategy, scale, made_by, _own_key, words, nobody, kind, lambda tree, what: None, None)


def _canonical(plan: Plan, dtype: np.dtype[Any]) -> Canonical:
    return canonical(plan.mechanism.strategy, plan.mechanism.noise_std, dtype)


def _check_device_noise(plan: Plan, dtype: np.dtype[Any]) -> None:
    check_device_noise(plan.mechanism.strategy, plan.mechanism.noise_std, dtype, plan.problem.clip_norm)


def _own_key(state: NoiseState) -> tuple[jax.Array, bool]:
    return state.hidden.key, True


def _device(
    strategy: Strategy,
    scale: float,
    made_by: Correlator,
    ask: Ask,
    key: jax.Array | None,
    words: Any,
    dtype: Any,
    check: Check,
    placed: list[NamedSharding] | None,
) -> optax.GradientTransformationExtraArgs:
    def init(params: Any) -> NoiseState:
        check(params, "parameters")
        leaves = jax.tree.leaves(params)
        check_addresses(strategy.rows, len(leaves))
        where: Sequence[NamedSharding | None] = placed or [None] * len(leaves)
        buffers = [_zeros(made_by.rows, leaf, dtype, at) for leaf, at in zip(leaves, where, strict=True)]
        # Arrays of their own: a state may be donated, and no buffer can be donated twice.
        return NoiseState(*_start(words, params), Hidden(*_start(words, params), buffers, key))

    def update(updates: Any, state: NoiseState, params: Any = None, **given: Any) -> tuple[Any, NoiseState]:
        _check_update(state, strategy.steps, given, on_device=True)
        check(updates, UPDATES)
        _check_buffers(state.hidden.buffers, made_by.rows, jax.tree.leaves(updates), dtype)
        key, allowed = ask(state)
        noise, buffers = _next(made_by, key, state, jax.tree.leaves(updates), dtype)
        allowed = jnp.logical_and(allowed, state.step < strategy.steps)
        noise, buffers = ([jnp.where(allowed, array, jnp.nan) for array in made] for made in (noise, buffers))
        noisy, mark = _sum(updates, noise, scale, state.mark)
        hidden = replace(state.hidden, step=state.hidden.step + 1, mark=jnp.array(mark), buffers=buffers)
        return noisy, state._replace(step=state.step + 1, mark=mark, hidden=hidden)

    return optax.GradientTransformationExtraArgs(init, update)


def _start(words: Any, params: Any) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Step, run and mark of a new state."""
    return jnp.zeros((), jnp.int32), jnp.array(words), first_mark(params)


def _next(
    made_by: Correlator, key: jax.Array, state: NoiseState, leaves: list[Any], dtype: Any
) -> tuple[list[jax.Array], list[jax.Array]]:
    """The noise of a step for all leaves, and what is remembered after it."""
    count = len(leaves)
    noise, buffers = [], []
    for i, (leaf, held) in enumerate(zip(leaves, state.hidden.buffers, strict=True)):

        def draw(row: Any, i: int = i, leaf: Any = leaf) -> jax.Array:
            return normals(key, count, i, row, leaf, dtype)

        made, kept = made_by.step(held, state.step, draw)
        noise.append(made)
        buffers.append(kept)
    return noise, buffers


def _zeros(rows: int, leaf: Any, dtype: jnp.dtype, at: NamedSharding | None) -> jax.Array:
    if at is None:
        return jnp.zeros((rows, *jnp.shape(leaf)), dtype)
    spec = PartitionSpec(None, *at.spec)  # type: ignore[no-untyped-call]
    return jnp.zeros((rows, *jnp.shape(leaf)), dtype, device=NamedSharding(at.mesh, spec))


def _sum(updates: Any, noise: list[jax.Array], scale: float, mark: jax.Array) -> tuple[Any, jax.Array]:
    """updates + scale noise, added in the wider dtype and given back in the dtype of the updates; and their mark."""
    leaves, tree = jax.tree.flatten(updates)
    added = [(leaf + scale * made).astype(leaf.dtype) for leaf, made in zip(leaves, noise, strict=True)]
    return jax.tree.unflatten(tree, added), next_mark(mark, added)


def _check_run(run: Any) -> None:
    if not isinstance(run, Run):
        raise invalid(
            "add_noise", "run", "a Run", type(run).__name__, "Run.open(plan, directory, leaves=leaves(params))"
        )
    if jax.process_count() > 1:
        raise Refused("A run belongs to one process, and JAX runs in several.", hint="train with one process")


def _check_device_dtype(run: Run, dtype: np.dtype[Any]) -> None:
    """Refuse draws of another dtype than the run's: the report states where those of the run's dtype end."""
    if dtype.name != dtype_of(run):
        raise Refused(
            f"The run's noise is of {dtype_of(run)}, but JAX would make it on the device in {dtype}.",
            hint='turn on jax_enable_x64 before making arrays, or open a new run with dtype="float32"',
        )


def _check_clip_norm(plan: Plan) -> None:
    """Refuse a clipping norm that float32 would round away, or is too small for."""
    hint = "scale the loss, and the clipping norm with it"
    real("add_noise", "plan's clip_norm", plan.problem.clip_norm, SMALLEST_NORM, LARGEST_NORM, hint)


def _check_precision(updates: Any, dtype: Any) -> None:
    """Refuse half precision, which is rounded before the noise, and more bits than the noise has."""
    for leaf in jax.tree.leaves(updates):
        kind = jnp.result_type(leaf)
        if kind.itemsize < 4:
            raise Refused(
                f"The updates are of {kind}: so rounded, one example can move the sum by more than the clipping norm.",
                hint="add up in float32, as clipped_sum does; apply_updates takes care of the parameters' dtype",
            )
        if jnp.promote_types(kind, dtype) != dtype:
            raise Refused(
                f"The updates are of {kind}, the noise is of {dtype}: the low bits of their sum would have no noise.",
                hint='open the run with Run.open(..., dtype="float64"), and JAX with jax_enable_x64',
            )


@jax.custom_batching.custom_vmap
def _not_mapped(updates: Any) -> Any:
    """Refused where `jax.vmap` maps over updates: all of them would be given the same noise."""
    return updates


@_not_mapped.def_vmap
def _refuse_map(axis_size: int, in_batched: list[Any], updates: Any) -> Any:
    raise Refused(
        f"jax.vmap maps add_noise over {axis_size} gradients: each would have the same noise, their differences none.",
        hint="add the gradients up before the noise; models side by side need a run each",
    )


def _check_buffers(buffers: Sequence[Any], rows: int, leaves: list[Any], dtype: Any) -> None:
    """Refuse the state of another plan: JAX would read beyond the end of smaller buffers without a word."""
    wanted = [((rows, *jnp.shape(leaf)), np.dtype(dtype)) for leaf in leaves]
    found = [(jnp.shape(held), np.dtype(held.dtype)) for held in buffers]
    if found != wanted:
        raise Refused(
            f"The noise needs buffers of shapes {[shape for shape, _ in wanted]} and dtype {np.dtype(dtype)}. "
            f"The state has {[(shape, kind.name) for shape, kind in found]}: it is that of another plan or dtype.",
            hint="a longer tree needs more buffers: go on from optimizer.init and take the run's steps again, "
            "which costs nothing where they give the same",
        )


def _check_update(state: NoiseState, steps: int, given: dict[str, Any], *, on_device: bool) -> None:
    """Refuse what can be seen before the step: more than gradients, the state of another source, the end."""
    if given:
        raise Refused(
            f"The optimizer is given more than gradients: {', '.join(given)}. No noise protects it.",
            hint="leave out what needs the loss or raw gradients, such as reduce_on_plateau or a line search",
        )
    if isinstance(state.hidden, Hidden) != on_device:
        raise Refused(
            "The state of the optimizer is not one of this source of noise, or its private part is missing.",
            hint="join the public and the private part, and go on with the source that the run was begun with",
        )
    if not isinstance(state.step, jax.core.Tracer) and int(state.step) >= steps:
        raise Refused(
            f"The plan has {steps} steps, and all have been taken.",
            hint="Plan.extend goes on where the strategy allows it; else plan a new run",
        )
