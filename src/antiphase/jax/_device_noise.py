"""Generates noise on the device.

At each step, a host callback asks the run for permission and returns a key. The device draws the standard normals z
with this key. Before the first step, `check_device_noise` checks that the device computes the plan's noise correctly.
"""

from __future__ import annotations

import math
import threading
from functools import lru_cache
from typing import Any, final

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import io_callback
from jax.sharding import NamedSharding, PartitionSpec
from numpy.typing import NDArray

from antiphase._check import Array, invalid
from antiphase._errors import InvalidArgument, Refused
from antiphase._noise import canonical, check_noise
from antiphase._run import Run, check_lineage, check_step, dtype_of, record_noise_read, secret_of
from antiphase.jax._correlator import correlator
from antiphase.jax._deferred_errors import clear_error, defer_error, explained, must_defer
from antiphase.jax._state import NoiseState, check_run_id, hash_bytes
from antiphase.strategies import Strategy

SOURCE = "Threefry of JAX on the device with a 64-bit key"  # stored in the ledger and shown in the report
GENERATOR = "threefry2x32"
ADDRESS_LIMIT = 1 << 31  # (rows of z) times (number of leaves, i.e. parameter arrays) must stay below this limit

KeyWords = np.ndarray[Any, np.dtype[np.uint32]]


def device_key(run: Run) -> KeyWords:
    """Return the Threefry key of a run's device noise, as two 32-bit words. It is independent of the host's keys."""
    root = run.plan.root or run.plan.fingerprint
    data = secret_of(run).derive("device noise", "jax", run.run_id, root, dtype_of(run), length=8)
    return np.frombuffer(data, dtype="<u4").astype(np.uint32)


@final
class DeviceKey:
    """Gives compiled programs the device key at each step that the run allows.

    Programs receive the key from a host callback, so the key is neither a constant of a program nor part of any state.

    Args:
        run: an open run, which decides which steps are allowed.
    """

    def __init__(self, run: Run) -> None:
        self._run, self._key = run, device_key(run)
        self._lock = threading.Lock()  # each device runs the callback in its own thread

    def check(self, state: NoiseState) -> None:
        """Raise an error if the run does not allow the step. Does nothing under `jax.jit`, where values are traced."""
        position = _positions(state)
        if not any(isinstance(value, jax.core.Tracer) for value in position):
            with self._lock:
                check_step(self._run, self._allowed(*position))

    def read(self, step: Any, run_id: Any, history_hash: Any, *private: Any) -> tuple[KeyWords, np.bool_]:
        """Return (key, True) if the run allows the next step of the state with the values in the arguments.

        Otherwise raise an error, or return (zeros, False) if the error must be deferred (see `must_defer`).
        """
        t = int(np.asarray(step))
        try:
            with self._lock:
                record_noise_read(self._run, SOURCE, self._allowed(step, run_id, history_hash, *private))
        except Exception as caught:
            error = explained(self._run, t, caught)
            if not must_defer():
                raise error from caught
            defer_error(self._run, t, error)
            return np.zeros_like(self._key), np.bool_(False)
        clear_error(self._run, t)
        return self._key.copy(), np.bool_(True)

    def _allowed(self, step: Any, run_id: Any, history_hash: Any, *private: Any) -> int:
        """Return the step of a state.

        Raises an error unless the parts of the state belong to the same step and run, and the state was computed from
        the outputs in the run's ledger.
        """
        t = int(np.asarray(step))
        check_run_id(run_id, self._run.run_id)
        if not all(map(np.array_equal, (step, run_id, history_hash), private)):
            raise InvalidArgument(
                f"The optimizer state is at step {t}, but its private part belongs to another step or run.",
                hint="use antiphase.jax.join to combine the two parts of the same split",
            )
        check_lineage(self._run, t, hash_bytes(history_hash))
        return t

    def request(self, state: NoiseState, mesh_of: NamedSharding | None) -> tuple[jax.Array, jax.Array]:
        """Return the result of `read` for a step, called in a host callback (with a mesh: on every device)."""
        key: Any = jax.ShapeDtypeStruct(self._key.shape, self._key.dtype)  # type: ignore[no-untyped-call]
        allowed: Any = jax.ShapeDtypeStruct((), np.bool_)  # type: ignore[no-untyped-call]
        position = _positions(state)

        def call_host(*position: jax.Array) -> Any:
            return io_callback(self.read, (key, allowed), *position)

        if mesh_of is None:
            return call_host(*position)
        replicated = PartitionSpec()  # type: ignore[no-untyped-call]
        made = jax.shard_map(
            call_host,
            mesh=mesh_of.mesh,
            in_specs=(replicated,) * len(position),
            out_specs=(replicated, replicated),
            check_vma=False,
        )
        return made(*position)


def _positions(state: NoiseState) -> tuple[Any, ...]:
    """Return the step, run id and history hash of a state, then the same values of its private part."""
    return tuple(x for part in (state, state.private) for x in (part.step, part.run_id, part.history_hash))


def check_generator() -> None:
    """Raise `Refused` if a JAX setting changes the numbers that a key generates. Replays would get other noise."""
    if not jax.config.jax_threefry_partitionable:  # type: ignore[attr-defined]
        raise Refused(
            "Device noise needs jax_threefry_partitionable=True, the default, because JAX draws different random "
            "numbers with jax_threefry_partitionable=False.",
            hint="leave jax_threefry_partitionable at its default, or use source='host', which ignores this setting",
        )


def check_addresses(rows: int, leaves: int) -> None:
    """Raise `InvalidArgument` if `standard_normals` has too few addresses for all rows of z and all leaves."""
    if rows * leaves >= ADDRESS_LIMIT:
        raise invalid(
            "add_correlated_noise",
            "source",
            f"'host' for {rows} rows of noise and {leaves} leaves",
            "'device'",
            "on the device, rows times leaves must be below 2^31",
        )


def standard_normals(
    key: jax.Array, leaves: int, leaf: int, row: jax.Array, like: jax.Array, dtype: jnp.dtype
) -> jax.Array:
    """Return a row of z for one leaf. The values depend only on (key, leaf, row).

    The address of the row is row * leaves + leaf, and Threefry encrypts this address with the key. Encryption is
    one-to-one, so no two pairs of row and leaf share a stream.

    Each entry is the sum of two draws, divided by sqrt(2). A single float32 draw of `jax.random.normal` lies between
    -5.42 and 5.22 standard deviations. With noise in this range and a small noise multiplier, some noisy sums would be
    possible only if a certain example took part. These sums would reveal the example. The scaled sum of two draws lies
    between -7.66 and 7.38 (float64: within 11.6). It is not proved how much this limited range adds to delta, so
    reports state the assumption that the draws are normal.

    Args:
        key: key of two 32-bit words.
        leaves: number of leaves.
        leaf: index of the leaf, from 0.
        row: index of the row of z.
        like: an array with the shape of the leaf and, on an explicit mesh, its sharding.
        dtype: dtype of the noise.
    """
    address = row * leaves + leaf
    here = jax.random.fold_in(jax.random.wrap_key_data(key, impl=GENERATOR), address)
    both = jax.random.normal(here, (2, *jnp.shape(like)), dtype, out_sharding=stacked_sharding(like))
    return (both[0] + both[1]) * jnp.asarray(math.sqrt(0.5), dtype)


def stacked_sharding(like: Any) -> NamedSharding | None:
    """Return the sharding of a stack of arrays like `like`, or None to let the compiler choose."""
    at = jax.typeof(like).sharding
    if at.mesh.empty or not at.mesh.are_all_axes_explicit:
        return None
    return NamedSharding(at.mesh, PartitionSpec(None, *at.spec))  # type: ignore[no-untyped-call]


@lru_cache(maxsize=32)
def check_device_noise(strategy: Strategy, noise_std: float, dtype: np.dtype[Any], clip_norm: float) -> None:
    """Raise `Refused` if a compiled program on this device does not compute the plan's noise correctly in this dtype.

    The result is cached, so a plan that passed is not compiled and checked again.

    Args:
        strategy: strategy matrix C of the plan.
        noise_std: `noise_std` of the plan.
        dtype: dtype of the noise and its state.
        clip_norm: clipping norm of the plan, which the noise is multiplied by.
    """
    made = canonical(strategy, noise_std, dtype)
    recursion, scale = correlator(made.strategy, jnp.dtype(dtype)), made.noise_std * clip_norm

    def respond(z: Array, steps: int) -> NDArray[Any]:
        def step(carried: tuple[jax.Array, jax.Array], t: Any) -> tuple[tuple[jax.Array, jax.Array], jax.Array]:
            buffers, rows = carried
            noise, buffers = recursion.step(buffers, t, lambda row: rows[row])
            return (buffers, rows), scale * noise

        with jax.ensure_compile_time_eval():  # the caller may be tracing another program
            start = jnp.zeros((recursion.buffer_count, z.shape[1]), dtype), jnp.asarray(z, dtype)
            return np.asarray(jax.jit(lambda start: jax.lax.scan(step, start, jnp.arange(steps))[1])(start))

    check_noise(strategy, noise_std, dtype, respond, clip_norm=clip_norm)
