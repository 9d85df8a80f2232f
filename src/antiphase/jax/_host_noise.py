"""Host callbacks through which compiled programs get noise. The run generates this noise on the host with AES."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, final

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import io_callback
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from numpy.typing import NDArray

from antiphase._errors import InvalidArgument
from antiphase._noise import Leaf
from antiphase._run import Run, awaits_commit, check_lineage, check_step, set_noise_source, unit_noise
from antiphase.jax._deferred_errors import clear_error, defer_error, explained, must_defer
from antiphase.jax._state import REFUSED_INTEGER, NoiseState, check_run_id, hash_bytes

Index = tuple[slice, ...]


@final
class HostNoise:
    """Returns the noise of a run's steps. The noise of a step is generated once, and all devices read the same arrays.

    Args:
        run: an open run, which decides which steps are allowed.
        dtype: dtype of the arrays returned.
        regions: for each leaf (parameter array), the part that this process generates noise for.
    """

    def __init__(self, run: Run, dtype: np.dtype[Any], regions: list[Leaf]) -> None:
        self._run, self._dtype, self.regions = run, dtype, regions
        self._lock = threading.Lock()  # each device runs the callback in its own thread
        self._made: tuple[tuple[int, int], list[NDArray[Any]]] | None = None

    def check(self, state: NoiseState) -> None:
        """Raise an error if the run does not allow the step. Does nothing under `jax.jit`, where values are traced."""
        position = (state.step, state.run_id, state.history_hash)
        if not any(isinstance(value, jax.core.Tracer) for value in position):
            with self._lock:
                check_step(self._run, self._allowed(*position))

    def read(self, step: Any, run_id: Any, history_hash: Any, *_: Any) -> list[NDArray[Any]]:
        """Return the noise of a step for clipping norm 1, one array per region. Repeated reads return the same noise.

        If the run does not allow the step, raise an error. If the error must be deferred (see `must_defer`), return
        arrays of NaN instead, or of `REFUSED_INTEGER` if the noise consists of integers.
        """
        try:
            made = self._read(step, run_id, history_hash)
        except Exception as caught:
            t = int(np.asarray(step))
            error = explained(self._run, t, caught)
            if not must_defer():
                raise error from caught
            defer_error(self._run, t, error)
            refused = REFUSED_INTEGER if self._dtype.kind == "i" else np.nan
            return [np.full(leaf.shape, refused, self._dtype) for leaf in self.regions]
        clear_error(self._run, int(np.asarray(step)))
        return made

    def _allowed(self, step: Any, run_id: Any, history_hash: Any) -> int:
        """Return the step of a state.

        Raises an error unless the state belongs to this run and was computed from the outputs in the run's ledger.
        """
        t = int(np.asarray(step))
        check_run_id(run_id, self._run.run_id)
        set_noise_source(self._run, "host")  # raises if the run is closed
        check_lineage(self._run, t, hash_bytes(history_hash))
        return t

    def _read(self, step: Any, run_id: Any, history_hash: Any) -> list[NDArray[Any]]:
        with self._lock:
            t = self._allowed(step, run_id, history_hash)
            wanted = (t, self._run.committed)
            # After a commit, read the noise from the run again, even for the same step: the run must count replays.
            if self._made is None or self._made[0] != wanted or not awaits_commit(self._run, t):
                self._made = (wanted, [array.astype(self._dtype) for array in unit_noise(self._run, t)])
            return self._made[1]


def replicated_noise(
    noise: HostNoise, leaves: list[Leaf], state: NoiseState, dtype: Any, updates: Sequence[Any]
) -> list[jax.Array]:
    """Return the noise of a step, one whole array per leaf. Works inside and outside compiled programs.

    The callback runs only after the updates are computed. Until then, a background thread of the run can generate the
    noise.
    """
    shapes: list[Any] = [jax.ShapeDtypeStruct(leaf.global_shape, dtype) for leaf in leaves]  # type: ignore[no-untyped-call]
    return list(io_callback(noise.read, shapes, state.step, state.run_id, state.history_hash, *_one_entry(updates)))


def _one_entry(updates: Sequence[Any]) -> list[jax.Array]:
    """Return one entry of the updates. A callback with this argument runs only after the updates are computed."""
    for leaf in updates:
        at = jax.typeof(leaf).sharding
        is_explicit = at.mesh.axis_names and AxisType.Explicit in at.mesh.axis_types
        if jnp.size(leaf) and not is_explicit:
            return [jax.lax.stop_gradient(leaf)[(0,) * jnp.ndim(leaf)]]
    return []


def sharded_noise(
    noise: HostNoise, leaves: list[Leaf], state: NoiseState, dtype: Any, shardings: list[NamedSharding]
) -> list[jax.Array]:
    """Return the noise of a step, one sharded array per leaf. Each device fetches only its own shard."""
    return [
        _fetch_shards(_shard_reader(noise, i, leaf.global_shape, sharding), leaf, state, dtype, sharding)
        for i, (leaf, sharding) in enumerate(zip(leaves, shardings, strict=True))
    ]


def check_shardings(shardings: Any) -> list[NamedSharding]:
    """Return a list of the shardings of the leaves, in order. Raise `InvalidArgument` unless all are NamedSharding."""
    found = jax.tree.leaves(shardings, is_leaf=lambda part: isinstance(part, jax.sharding.Sharding))
    if not found or not all(isinstance(part, NamedSharding) for part in found):
        raise InvalidArgument(
            "The 'shardings' parameter of add_correlated_noise must be a tree with a NamedSharding for each array.",
            hint="pass jax.tree.map(lambda p: p.sharding, params)",
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
    """Return a callback that maps the index of a device in the mesh to the noise of the device's shard of a leaf.

    This process generates noise only for its region of the leaf, so indices are relative to the start of the region.
    """
    shards, starts = sharding.devices_indices_map(shape), [start for start, _ in noise.regions[leaf].box]

    def inside(index: Index) -> Index:
        ends = [part.indices(size)[:2] for part, size in zip(index, shape, strict=True)]
        return tuple(slice(a - start, b - start) for (a, b), start in zip(ends, starts, strict=True))

    by_device: list[Index] = [inside(shards[device]) for device in sharding.mesh.devices.flat]

    def read(device: Any, *position: Any) -> NDArray[Any]:
        return np.array(noise.read(*position)[leaf][by_device[int(np.asarray(device))]])

    return read


def host_dtype(run_dtype: str) -> np.dtype[Any]:
    """Return the dtype of the run, or float32 if JAX has float64 disabled."""
    return np.dtype(jnp.zeros(0, jax.dtypes.canonicalize_dtype(run_dtype)).dtype)
