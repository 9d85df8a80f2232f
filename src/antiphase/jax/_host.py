"""Noise from the run on the host: AES, asked for by step from inside a compiled program."""

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
from antiphase.jax._mark import mark_bytes
from antiphase.jax._refusals import forget, must_not_raise, remember
from antiphase.jax._state import NoiseState, check_run

Index = tuple[slice, ...]


@final
class HostNoise:
    """The noise of a step from a run, as often as devices ask for it; made once.

    Args:
        run: open; it decides which steps may be taken.
        dtype: of the arrays given out.
    """

    def __init__(self, run: Run, dtype: np.dtype[Any]) -> None:
        self._run, self._dtype = run, dtype
        self._lock = threading.Lock()  # devices ask from threads of their own
        self._leaves = list(leaves_of(run).values())
        self._made: tuple[tuple[int, int], list[NDArray[Any]]] | None = None

    def check(self, state: NoiseState) -> None:
        """Raise the refusal of a step before it is taken, where the state is known: outside of a compiled program."""
        where = (state.step, state.run, state.mark)
        if not any(isinstance(part, jax.core.Tracer) for part in where):
            with self._lock:
                check_step(self._run, self._allowed(*where))

    def read(self, step: Any, run_id: Any, mark: Any) -> list[NDArray[Any]]:
        """All leaves of a step, for clipping norm 1; the same however often it is read.

        Where it is refused and must not raise: NaN.
        """
        try:
            made = self._read(step, run_id, mark)
        except Exception as error:
            if not must_not_raise():
                raise
            remember(self._run, int(np.asarray(step)), error)
            return [np.full(leaf.global_shape, np.nan, self._dtype) for leaf in self._leaves]
        forget(self._run, int(np.asarray(step)))
        return made

    def _allowed(self, step: Any, run_id: Any, mark: Any) -> int:
        """The step, where the state is one of this run and goes on from what its ledger has."""
        t = int(np.asarray(step))
        check_run(run_id, self._run.run_id)
        set_noise_source(self._run, "host")  # refused once the run is closed
        check_lineage(self._run, t, mark_bytes(mark))
        return t

    def _read(self, step: Any, run_id: Any, mark: Any) -> list[NDArray[Any]]:
        with self._lock:
            t = self._allowed(step, run_id, mark)
            asked = (t, self._run.committed)
            if self._made is None or self._made[0] != asked or not awaits_commit(self._run, t):  # the run wants to know
                self._made = (asked, [array.astype(self._dtype) for array in self._run.noise(t)])
            return self._made[1]


def whole(noise: HostNoise, leaves: list[Leaf], state: NoiseState, dtype: Any) -> list[jax.Array]:
    """All leaves of a step, inside or outside of a compiled program."""
    shapes: list[Any] = [jax.ShapeDtypeStruct(leaf.global_shape, dtype) for leaf in leaves]  # type: ignore[no-untyped-call]
    return list(io_callback(noise.read, shapes, state.step, state.run, state.mark))


def sharded(
    noise: HostNoise, leaves: list[Leaf], state: NoiseState, dtype: Any, shardings: list[NamedSharding]
) -> list[jax.Array]:
    """All leaves of a step, each device given its own part alone."""
    return [
        _shards(_reader(noise, i, leaf.global_shape, sharding), leaf, state, dtype, sharding)
        for i, (leaf, sharding) in enumerate(zip(leaves, shardings, strict=True))
    ]


def check_shardings(shardings: Any) -> list[NamedSharding]:
    """The shardings of the leaves in order."""
    found = jax.tree.leaves(shardings, is_leaf=lambda part: isinstance(part, jax.sharding.Sharding))
    if not found or not all(isinstance(part, NamedSharding) for part in found):
        raise InvalidArgument(
            "The 'shardings' parameter of add_noise must be a tree of NamedSharding, one for each array.",
            hint="jax.tree.map(lambda p: p.sharding, params)",
        )
    return found


def _shards(read: Callable[..., Any], leaf: Leaf, state: NoiseState, dtype: Any, sharding: NamedSharding) -> jax.Array:
    mesh, spec = sharding.mesh, sharding.spec
    shape: Any = jax.ShapeDtypeStruct(sharding.shard_shape(leaf.global_shape), dtype)  # type: ignore[no-untyped-call]

    def ask(*where: jax.Array) -> jax.Array:
        place = jax.lax.axis_index(mesh.axis_names)
        return io_callback(read, shape, place, *where)

    rule = PartitionSpec()  # type: ignore[no-untyped-call]
    made = jax.shard_map(ask, mesh=mesh, in_specs=(rule,) * 3, out_specs=spec, check_vma=False)
    return made(state.step, state.run, state.mark)


def _reader(noise: HostNoise, leaf: int, shape: tuple[int, ...], sharding: NamedSharding) -> Callable[..., Any]:
    """What gives the device at a place of the mesh its part of a leaf."""
    parts = sharding.devices_indices_map(shape)
    by_place: list[Index] = [parts[device] for device in sharding.mesh.devices.flat]

    def read(place: Any, *where: Any) -> NDArray[Any]:
        return np.array(noise.read(*where)[leaf][by_place[int(np.asarray(place))]])

    return read


def host_dtype(run_dtype: str) -> np.dtype[Any]:
    """The dtype of the run, or float32 where JAX has no float64."""
    return np.dtype(jnp.zeros(0, jax.dtypes.canonicalize_dtype(run_dtype)).dtype)
