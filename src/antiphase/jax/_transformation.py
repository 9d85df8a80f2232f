"""`add_correlated_noise` and `simulate_noise`: Optax transformations that add a plan's noise."""

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
from antiphase._lattice import Lattice
from antiphase._noise import Canonical, canonical, check_sizes
from antiphase._plan import Plan
from antiphase._run import Run, dtype_of, leaves_of, own_leaves_of, set_noise_source, transport_of
from antiphase._traceback import without_locals
from antiphase.jax._clip import LARGEST_NORM, SMALLEST_NORM, wide_dtype
from antiphase.jax._correlator import JaxCorrelator, correlator
from antiphase.jax._device_noise import SOURCE as DEVICE_SOURCE
from antiphase.jax._device_noise import (
    DeviceKey,
    check_addresses,
    check_device_noise,
    check_generator,
    stacked_sharding,
    standard_normals,
)
from antiphase.jax._host_noise import HostNoise, check_shardings, host_dtype, replicated_noise, sharded_noise
from antiphase.jax._lattice_sum import check_x64, released_values
from antiphase.jax._leaves import check_leaves, trained_arrays
from antiphase.jax._processes import with_one_source
from antiphase.jax._state import (
    NoiseState,
    PrivateNoiseState,
    initial_hash,
    is_refused,
    next_hash,
    refused_hash,
    run_id_words,
)
from antiphase.strategies import Strategy

Source = Literal["host", "device"]
UPDATES = "updates"
CheckTree = Callable[[Any, str], None]
RequestKey = Callable[[NoiseState], tuple[jax.Array, Any]]  # returns a step's key, and True if the run allows the step


def add_correlated_noise(
    run: Run, source: Source = "host", *, shardings: Any = None
) -> optax.GradientTransformationExtraArgs:
    """Return an Optax transformation that adds the plan's noise to the sum of the clipped gradients.

    In step t it adds clip_norm * noise_std * (N z)_t. Here z holds independent standard normals, and N is the noising
    matrix of the plan's mechanism.

    Put it first in the chain, and put anything that divides by the batch size after it. With `optax.MultiSteps`, set
    use_grad_mean=False. `optax.MultiSteps` computes an update after each micro-batch, but keeps only the update after
    the last one. The noise depends only on the run and on `NoiseState.step`, which a discarded update does not
    increase. Discarded updates therefore use up no noise.

    Updates in half precision raise `Refused`: they are rounded so coarsely that one example can change the sum by more
    than `clip_norm`. Float64 updates raise `Refused` if the run's noise is float32, because the low bits of the sum
    would have no noise.

    A lattice is a grid on which sums and noise are exact integers (docs/lattice-noise.md). If the plan has a lattice,
    the updates must be the int64 sums of `clipped_sum(..., lattice=plan.mechanism.lattice)`. The noise is added
    exactly, so the guarantee covers every bit of the noisy sum. This sum is then converted to the dtype of the
    parameters, or to float32 if the parameters have half precision or are not passed to `update`. A plan with a lattice
    needs source="host", one process and jax_enable_x64, and cannot be used inside `optax.MultiSteps`.

    **Guarantee**: over the steps of the plan, the noise has the distribution of the plan's mechanism, up to rounding to
    the run's dtype. With source="host", the run generates the noise with AES. With source="device", the noise comes
    from Threefry with a 64-bit key, which is statistically sound but not cryptographic. Device draws lie between -7.7
    and 7.4 standard deviations (float64: within 11.6), and the guarantee assumes that they are normal. The report
    states the source and this assumption. With either source, the run must allow every step. It does not allow a step
    before the previous one is committed, a step after the end of the plan, or a step from a state whose history differs
    from the run's ledger. A run keeps the source that it started with.

    If several processes share the run (see `open_run`), the first call is collective: every process must make it, with
    the same source, and if one process raises an error, all do. Later calls, for example to make the optimizer again,
    do not communicate. They raise `Refused` if the source is different.

    Args:
        run: a run opened with leaves=antiphase.jax.leaves(params), or with `open_run`.
        source: "host" fetches the noise from the run. "device" fetches a key and generates the noise on the device of
            the gradients. "device" needs a streaming strategy (one whose noise is computed step by step from a few
            buffers), and keeps these buffers in the optimizer state.
        shardings: a tree of NamedSharding with the structure of the parameters. If given, each device holds only its
            own shard of the noise and of the noise state. Required if JAX has several processes.

    >>> import antiphase as ap, tempfile
    >>> problem = ap.Problem(steps=4, budget=ap.Budget(8.0, 1e-5), participation=ap.FixedEpochs(2, 2))
    >>> params = {"w": jnp.zeros(3)}
    >>> from antiphase.jax import leaves
    >>> with ap.Run.open(ap.plan(problem, ["blt"]), tempfile.mkdtemp(), leaves=leaves(params)) as run:
    ...     optimizer = optax.chain(add_correlated_noise(run), optax.scale(1 / 100), optax.sgd(0.1))
    ...     updates, state = optimizer.update({"w": jnp.ones(3)}, optimizer.init(params), params)
    >>> updates["w"].shape, int(state[0].step)
    ((3,), 1)
    """
    _check_run(run)
    recorded = DEVICE_SOURCE if source == "device" else "host"
    return with_one_source(
        run, source, lambda: _transformation_for(run, source, shardings), lambda: set_noise_source(run, recorded)
    )


def _transformation_for(run: Run, source: Source, shardings: Any) -> optax.GradientTransformationExtraArgs:
    if run.plan.mechanism.lattice is not None:
        return _lattice_noise(run, run.plan.mechanism.lattice, source, shardings)
    leaf_shardings = None if shardings is None else check_shardings(shardings)
    _check_processes(leaf_shardings)
    owned, run_id, dtype = leaves_of(run), run_id_words(run.run_id), host_dtype(dtype_of(run))
    _check_clip_norm(run.plan)

    def check(tree: Any, what: str) -> None:
        check_leaves(owned, tree, what)
        if what == UPDATES:
            _check_precision(tree, dtype)
            _not_mapped(jax.lax.stop_gradient(tree))  # called only because it raises an error under vmap

    if source == "device":
        _check_device_dtype(run, dtype)
        made = _canonical(run.plan, dtype)
        recursion = correlator(made.strategy, jnp.dtype(dtype))
        check_addresses(made.strategy.rows, len(owned))
        check_generator()
        _check_device_noise(run.plan, dtype)
        keys, mesh_of = DeviceKey(run), None if leaf_shardings is None else leaf_shardings[0]
        scale = made.noise_std * run.plan.problem.clip_norm

        def request_key(state: NoiseState) -> tuple[jax.Array, jax.Array]:
            check_generator()
            keys.check(state)
            return keys.request(state, mesh_of)

        return _device(made.strategy, scale, recursion, request_key, None, run_id, dtype, check, leaf_shardings)
    if source != "host":
        raise invalid(
            "add_correlated_noise", "source", "'host' or 'device'", source, "use 'host', unless it is too slow"
        )
    mechanism, clip_norm = run.plan.mechanism, run.plan.problem.clip_norm
    check_sizes(mechanism.strategy, mechanism.noise_std, dtype, clip_norm=clip_norm)
    noise = HostNoise(run, dtype, list(own_leaves_of(run).values()))

    def init(params: Any) -> NoiseState:
        check(params, "parameters")
        return NoiseState(*_initial(run_id, params), ())

    @without_locals
    def update(updates: Any, state: NoiseState, params: Any = None, **given: Any) -> tuple[Any, NoiseState]:
        _check_update(state, run.steps, given, on_device=False)
        check(updates, UPDATES)
        noise.check(state)
        request = (noise, list(owned.values()), state, dtype)
        if leaf_shardings is None:
            made = replicated_noise(*request, jax.tree.leaves(updates))
        else:
            made = sharded_noise(*request, leaf_shardings)
        noisy, history_hash = _sum(updates, made, clip_norm, state.history_hash)
        return noisy, state._replace(step=state.step + 1, history_hash=history_hash)

    return optax.GradientTransformationExtraArgs(init, update)


def _lattice_noise(run: Run, lattice: Lattice, source: Source, shardings: Any) -> optax.GradientTransformationExtraArgs:
    """Return the transformation for a plan with a lattice. It adds integer noise from the host to integer sums."""
    if source != "host":
        raise Refused(
            f"The plan has a lattice, and noise on a lattice is made on the host. Got source={source!r}.",
            hint="use source='host', or plan without lattice=True",
        )
    if transport_of(run).size > 1:
        raise Refused(
            "Lattice noise is not supported with several JAX processes.",
            hint="use one process, or plan without lattice=True",
        )
    check_x64()
    leaf_shardings = None if shardings is None else check_shardings(shardings)
    owned, run_id = leaves_of(run), run_id_words(run.run_id)
    noise = HostNoise(run, np.dtype(np.int64), list(own_leaves_of(run).values()))

    def init(params: Any) -> NoiseState:
        check_leaves(owned, params, "parameters")
        return NoiseState(*_initial(run_id, params), ())

    @without_locals
    def update(updates: Any, state: NoiseState, params: Any = None, **given: Any) -> tuple[Any, NoiseState]:
        check_x64()
        _check_update(state, run.steps, given, on_device=False)
        check_leaves(owned, updates, UPDATES, integers=True)
        _check_integers(updates)
        _not_mapped(updates)  # called only because it raises an error under vmap
        noise.check(state)
        request = (noise, list(owned.values()), state, np.dtype(np.int64))
        leaves, tree = jax.tree.flatten(updates)
        shared = leaf_shardings
        made = replicated_noise(*request, leaves) if shared is None else sharded_noise(*request, shared)
        # int64 addition wraps modulo 2^64, as in Run.release.
        released = [leaf + array for leaf, array in zip(leaves, made, strict=True)]
        history_hash = refused_hash(next_hash(state.history_hash, released), made)
        kinds = [jnp.float32] * len(leaves) if params is None else [wide_dtype(p) for p in trained_arrays(params)]
        values = [jnp.where(is_refused(made), jnp.nan, v) for v in released_values(lattice, released, kinds)]
        return jax.tree.unflatten(tree, values), state._replace(step=state.step + 1, history_hash=history_hash)

    return optax.GradientTransformationExtraArgs(init, update)


def _check_integers(updates: Any) -> None:
    """Raise `Refused` unless all updates are int64, as the sums of `clipped_sum` with a lattice are."""
    for leaf in jax.tree.leaves(updates):
        if jnp.result_type(leaf) != jnp.int64:
            raise Refused(
                f"The plan has a lattice, so the updates must be exact sums in int64. They are "
                f"{jnp.result_type(leaf)}.",
                hint="sum gradients with clipped_sum(..., lattice=plan.mechanism.lattice), and put nothing before "
                "add_correlated_noise",
            )


def simulate_noise(plan: Plan, key: jax.Array, dtype: Any = jnp.float32) -> optax.GradientTransformationExtraArgs:
    """Return an Optax transformation that adds noise with the plan's distribution, from a `jax.random` key.

    Use it to study accuracy without a run. `jax.vmap` over keys simulates several runs at once.

    **Guarantee**: none. Anyone who knows the key can compute the noise.

    Args:
        plan: a plan with a streaming strategy, as for source="device" of `add_correlated_noise`.
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
        leaves = trained_arrays(params)
        check_addresses(strategy.rows, len(leaves))
        where: Sequence[NamedSharding | None] = leaf_shardings or [None] * len(leaves)
        buffers = [_zeros(recursion.buffer_count, leaf, dtype, at) for leaf, at in zip(leaves, where, strict=True)]
        # The public and the private part of the state need separate arrays: a jitted function may donate the whole
        # state, and JAX cannot donate one array twice.
        private = PrivateNoiseState(*_initial(run_id, params), buffers, key)
        return NoiseState(*_initial(run_id, params), private)

    @without_locals
    def update(updates: Any, state: NoiseState, params: Any = None, **given: Any) -> tuple[Any, NoiseState]:
        if jax.dtypes.canonicalize_dtype(dtype) != dtype:
            raise Refused(
                f"The noise is {dtype}, but JAX would draw it in {jax.dtypes.canonicalize_dtype(dtype)}.",
                hint="enable jax_enable_x64 for the whole program, not only while add_correlated_noise is called",
            )
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
    """Return the step, run id and history hash (a hash of the noisy sums so far) of a new state."""
    return jnp.zeros((), jnp.int32), jnp.array(run_id), initial_hash(trained_arrays(params))


def _next_noise(
    recursion: JaxCorrelator, key: jax.Array, state: NoiseState, leaves: list[Any], dtype: Any
) -> tuple[list[jax.Array], list[jax.Array]]:
    """Return the noise of a step and the new buffers, each as one array per leaf."""
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
    """Return `count` zero buffers for a leaf, with the sharding `at`.

    The leaf's own sharding is used instead if its mesh axes are explicit and either `at` is None or JAX is tracing.
    """
    shape, stacked = (count, *jnp.shape(leaf)), stacked_sharding(leaf)
    if isinstance(leaf, jax.core.Tracer):
        zeros = jnp.zeros(shape, dtype, out_sharding=stacked)
        if at is None or stacked is not None:
            return zeros
        return jax.lax.with_sharding_constraint(zeros, _stacked(at))  # type: ignore[no-untyped-call]
    at = leaf.sharding if at is None and stacked is not None else at
    return jnp.zeros(shape, dtype, device=None if at is None else _stacked(at))


def _stacked(at: Any) -> NamedSharding:
    """Return the sharding of a stack of arrays, each with the sharding `at`."""
    return NamedSharding(at.mesh, PartitionSpec(None, *at.spec))  # type: ignore[no-untyped-call]


def _sum(updates: Any, noise: list[jax.Array], scale: float, history_hash: jax.Array) -> tuple[Any, jax.Array]:
    """Return updates + scale * noise, in the dtypes of the updates, and the new history hash."""
    leaves, tree = jax.tree.flatten(updates)
    added = [(leaf + scale * made).astype(leaf.dtype) for leaf, made in zip(leaves, noise, strict=True)]
    return jax.tree.unflatten(tree, added), refused_hash(next_hash(history_hash, added), noise)


def _check_run(run: Any) -> None:
    if not isinstance(run, Run):
        raise invalid(
            "add_correlated_noise",
            "run",
            "a Run",
            type(run).__name__,
            "pass Run.open(plan, directory, leaves=leaves(params))",
        )
    if jax.process_count() != transport_of(run).size:
        raise Refused(
            f"JAX has {jax.process_count()} processes, but the run is shared by {transport_of(run).size}.",
            hint="open the run with antiphase.jax.open_run in every process, after jax.distributed.initialize",
        )


def _check_processes(leaf_shardings: list[NamedSharding] | None) -> None:
    """Raise `Refused` if there are several processes, but no shardings that assign shards to processes."""
    if jax.process_count() > 1 and leaf_shardings is None:
        raise Refused(
            "With several processes, add_correlated_noise must know how the parameters are sharded.",
            hint="pass shardings=jax.tree.map(lambda p: p.sharding, params)",
        )


def _check_device_dtype(run: Run, dtype: np.dtype[Any]) -> None:
    """Raise `Refused` if JAX would not draw in the run's dtype, because the report states the range of its draws."""
    if dtype.name != dtype_of(run):
        raise Refused(
            f"The run's noise is {dtype_of(run)}, but JAX would make it on the device in {dtype}.",
            hint='enable jax_enable_x64 before making any array, or open a new run with dtype="float32"',
        )


def _check_clip_norm(plan: Plan) -> None:
    """Raise `InvalidArgument` if the plan's clipping norm is out of range for float32."""
    hint = "scale the loss and the clipping norm by the same factor"
    real("add_correlated_noise", "plan's clip_norm", plan.problem.clip_norm, SMALLEST_NORM, LARGEST_NORM, hint)


def _check_precision(updates: Any, dtype: Any) -> None:
    """Raise `Refused` if updates are in half precision, or have higher precision than the noise."""
    for leaf in jax.tree.leaves(updates):
        kind = jnp.result_type(leaf)
        if kind.itemsize < 4:
            raise Refused(
                f"The updates are {kind}. In half precision, one example can change the sum by more than the clipping "
                "norm.",
                hint="sum gradients in float32, as clipped_sum does; apply_updates casts to the parameters' dtype",
            )
        if jnp.promote_types(kind, dtype) != dtype:
            raise Refused(
                f"The updates are {kind}, but the noise is {dtype}, so the low bits of the noisy sum would have no "
                "noise.",
                hint='open the run with Run.open(..., dtype="float64") and enable jax_enable_x64',
            )


@jax.custom_batching.custom_vmap
def _not_mapped(updates: Any) -> Any:
    """Return the updates. Raise `Refused` if `jax.vmap` maps over them: each would get the same noise."""
    return updates


@_not_mapped.def_vmap
def _refuse_map(axis_size: int, in_batched: list[Any], updates: Any) -> Any:
    raise Refused(
        f"jax.vmap maps add_correlated_noise over {axis_size} gradients. All would get the same noise, so their "
        "differences would have no noise.",
        hint="sum the gradients before adding noise; to train several models, open a run for each",
    )


def _check_buffers(buffers: Sequence[Any], count: int, leaves: list[Any], dtype: Any) -> None:
    """Raise `Refused` if the buffers belong to another plan. With too few, JAX would read out of bounds silently."""
    wanted = [((count, *jnp.shape(leaf)), np.dtype(dtype)) for leaf in leaves]
    found = [(jnp.shape(held), np.dtype(held.dtype)) for held in buffers]
    if found != wanted:
        raise Refused(
            f"The noise needs buffers of shapes {[shape for shape, _ in wanted]} and dtype {np.dtype(dtype)}. "
            f"The state has {[(shape, kind.name) for shape, kind in found]} and belongs to another plan or dtype.",
            hint="if you extended a plan of the tree family, the longer plan needs more buffers: replay the run's "
            "steps from optimizer.init, which costs no privacy if the outputs are the same",
        )


def _check_update(state: NoiseState, steps: int, given: dict[str, Any], *, on_device: bool) -> None:
    """Raise `Refused` for extra arguments, a state for the other noise source, or a step after the end of the plan."""
    if given:
        raise Refused(
            f"The optimizer was called with extra arguments, which get no noise: {', '.join(given)}.",
            hint="do not use transformations that need the loss or gradients without noise, such as reduce_on_plateau "
            "or a line search",
        )
    if isinstance(state.private, PrivateNoiseState) != on_device:
        raise Refused(
            "The optimizer state was made for a different noise source, or its private part is missing.",
            hint="add the private part with antiphase.jax.join, and use the source that the run started with",
        )
    if not isinstance(state.step, jax.core.Tracer) and int(state.step) >= steps:
        raise Refused(
            f"All {steps} steps of the plan have been taken.",
            hint="extend the plan with Plan.extend if its strategy allows it, or plan a new run",
        )
