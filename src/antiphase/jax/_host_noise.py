"""Noise made by the run on the host (AES), fetched by host callbacks from inside a compiled program."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, final

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import io_callback
from jax.sharding import NamedSharding, PartitionSpec
from numpy.typing import NDArray

from antiphase._errors import InvalidArgument
from antiphase._noise import Leaf
from antiphase._run import Run, awaits_commit, check_lineage, check_step, leaves_of, set_noise_source
from antiphase.jax._deferred_errors import clear_error, defer_error, must_defer
from antiphase.jax._state import NoiseState, check_run_id, hash_bytes

Index = tuple[slice, ...]


@final
class HostNoise:
    """The noise of a run's steps. A step's noise is made once and can be read by any number of devices.

    Args:
        run: an open run, which decides which steps are allowed.
        dtype: dtype of the arrays returned.
    """

    def __init__(self, run: Run, dtype: np.dtype[Any]) -> None:
        self._run, self._dtype = run, dtype
        self._lock = threading.Lock()  # each device calls back from its own thread
        self._leaves = list(leaves_of(run).values())
        self._made: tuple[tuple[int, int], list[NDArray[Any]]] | None = None

    def check(self, state: NoiseState) -> None:
        """Raise if the step is not allowed. Does nothing inside a compiled program, where the state is unknown."""
        position = (state.step, state.run_id, state.history_hash)
        if not any(isinstance(value, jax.core.Tracer) for value in position):
            with self._lock:
                check_step(self._run, self._allowed(*position))

    def read(self, step: Any, run_id: Any, history_hash: Any) -> list[NDArray[Any]]:
        """Return a step's noise for all leaves, for clipping norm 1; the same however often it is read.

        If the run does not allow the step, raise, or return NaN if the error must be deferred.
        """
        try:
            made = self._read(step, run_id, history_hash)
        except Exception as error:
            if not must_defer():
                raise
            defer_error(self._run, int(np.asarray(step)), error)
            return [np.full(leaf.global_shape, np.nan, self._dtype) for leaf in self._leaves]
        clear_error(self._run, int(np.asarray(step)))
        return made

    def _allowed(self, step: Any, run_id: Any, history_hash: Any) -> int:
        """Return the step if the state belongs to this run and continues what the ledger has."""
        t = int(np.asarray(step))
        check_run_id(run_id, self._run.run_id)
        set_noise_source(self._run, "host")  # raises once the run is closed
        check_lineage(self._run, t, hash_bytes(history_hash))
        return t

    def _read(self, step: Any, run_id: Any, history_hash: Any) -> list[NDArray[Any]]:
        with self._lock:
            t = self._allowed(step, run_id, history_hash)
            wanted = (t, self._run.committed)
            # Read again after a commit, even of the same step, so that the run counts it as a replay.
            if self._made is None or self._made[0] != wanted or not awaits_commit(self._run, t):
                self._made = (wanted, [array.astype(self._dtype) for array in self._run.noise(t)])
            return self._made[1]


def replicated_noise(noise: HostNoise, leaves: list[Leaf], state: NoiseState, dtype: Any) -> list[jax.Array]:
    """Return a step's noise for all leaves, whole arrays, inside or outside of a compiled program."""
    shapes: list[Any] = [jax.ShapeDtypeStruct(leaf.global_shape, dtype) for leaf in leaves]  # type: ignore[no-untyped-call]
    return list(io_callback(noise.read, shapes, state.step, state.run_id, state.history_hash))


def sharded_noise(
    noise: HostNoise, leaves: list[Leaf], state: NoiseState, dtype: Any, shardings: list[NamedSharding]
) -> list[jax.Array]:
    """Return a step's noise for all leaves; each device fetches its own shard only."""
    return [
        _fetch_shards(_shard_reader(noise, i, leaf.global_shape, sharding), leaf, state, dtype, sharding)
        for i, (leaf, sharding) in enumerate(zip(leaves, shardings, strict=True))
    ]


def check_shardings(shardings: Any) -> list[NamedSharding]:
    """Return the shardings of the leaves, in order."""
    found = jax.tree.leaves(shardings, is_leaf=lambda part: isinstance(part, jax.sharding.Sharding))
    if not found or not all(isinstance(part, NamedSharding) for part in found):
        raise InvalidArgument(
            "The 'shardings' parameter of add_noise must be a tree with a NamedSharding for each array.",
            hint="jax.tree.map(lambda p: p.sharding, params)",
        )
    return found


def _fetch_shards(
    read: Callable[..., Any], leaf: Leaf, state: NoiseState, dtype: Any, sharding: NamedSharding
) -> jax.Array:
    mesh, spec = sharding.mesh, sharding.spec
    shape: Any = jax.ShapeDtypeStruct(sharding.shard_shape(leaf.global_shape), dtype)  # type: ignore[no-untyped-call]

    def call_host(*position: jax.Array) -> jax.Array:
        device = jax.lax.axis_index(mesh.axis_names)
        return io_callback(read, shape, device, *position)

    replicated = PartitionSpec()  # type: ignore[no-untyped-call]
    made = jax.shard_map(call_host, mesh=mesh, in_specs=(replicated,) * 3, out_specs=spec, check_vma=False)
    return made(state.step, state.run_id, state.history_hash)


def _shard_reader(noise: HostNoise, leaf: int, shape: tuple[int, ...], sharding: NamedSharding) -> Callable[..., Any]:
    """Return a callback that gives a device of the mesh, by its index, its shard of a leaf."""
    shards = sharding.devices_indices_map(shape)
    by_device: list[Index] = [shards[device] for device in sharding.mesh.devices.flat]

    def read(device: Any, *position: Any) -> NDArray[Any]:
        return np.array(noise.read(*position)[leaf][by_device[int(np.asarray(device))]])

    return read


def host_dtype(run_dtype: str) -> np.dtype[Any]:
    """Return the dtype of the run, or float32 if JAX has float64 disabled."""
    return np.dtype(jnp.zeros(0, jax.dtypes.canonicalize_dtype(run_dtype)).dtype)
