"""Opens runs that several JAX processes share, such as the hosts of a TPU pod, and keeps the processes consistent."""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, final

import jax
import numpy as np
from jax.experimental import multihost_utils

from antiphase._errors import Refused
from antiphase._noise import Leaf
from antiphase._plan import Plan
from antiphase._run import Run, Transport, open_shared, transport_of
from antiphase._secret import Secret
from antiphase.jax._leaves import leaves, trained_arrays

T = TypeVar("T")


@final
class JaxProcesses(Transport):
    """Sends objects between the processes of `jax.distributed`, with collectives on their devices."""

    def __init__(self) -> None:
        self.rank, self.size = jax.process_index(), jax.process_count()
        self.noise_source: str | None = None  # set in all processes by the same call of `with_one_source`

    def broadcast(self, value: Any) -> Any:
        """Return rank 0's `value` on every rank."""
        return self.all_gather(value if self.rank == 0 else None)[0]

    def all_gather(self, value: Any) -> list[Any]:
        """Return the values of all ranks, in rank order."""
        data = np.frombuffer(pickle.dumps(value), np.uint8)
        sizes = np.asarray(multihost_utils.process_allgather(np.array([data.size]))).reshape(-1)
        padded = np.pad(data, (0, int(sizes.max()) - data.size))
        rows = np.asarray(multihost_utils.process_allgather(padded)).reshape(self.size, -1)
        return [pickle.loads(row[:size].tobytes()) for row, size in zip(rows, sizes, strict=True)]


def open_run(
    plan: Plan,
    directory: str | Path,
    params: Any,
    *,
    examples: int | None = None,
    secret: Secret | None = None,
    dtype: str | None = None,
    background_noise: bool = False,
) -> Run:
    """Open a run for a parameter tree, in one process or in all processes of `jax.distributed` together.

    With one process, this is Run.open(plan, directory, leaves=antiphase.jax.leaves(params), ...). With several
    processes, every process must call `open_run` at the same point of the program. Process 0 writes the ledger. Each
    process generates noise only for the shards on its own devices. `commit` and `run.publish` are then collective:
    every process must call them, and if one process raises an error, all do. `report` works on process 0 only.

    **Guarantee**: the noise is bit for bit the same as with one process, and it is added exactly once. This holds for
    any number of processes and any sharding of the parameters.

    Args:
        plan: plan to run; the same in every process. A plan with a lattice (integer noise) needs one process.
        directory: run directory. Either all processes can access it, or all are given the same `secret`.
        params: parameter tree. With several processes, each array must be sharded or replicated over all devices.
        examples: size of the data set; required if the guarantee relies on random batches.
        secret: secret that the noise is derived from, as for `Run.open`; the same in every process.
        dtype: dtype of the noise, as for `Run.open`.
        background_noise: True to make the next step's noise in a background thread, as for `Run.open`.

    >>> import antiphase as ap, jax.numpy as jnp, tempfile
    >>> problem = ap.Problem(steps=4, budget=ap.Budget(8.0, 1e-5), participation=ap.FixedEpochs(2, 2))
    >>> with open_run(ap.plan(problem, ["blt"]), tempfile.mkdtemp(), {"w": jnp.zeros(3)}) as run:
    ...     run.steps
    4
    """
    named = leaves(params)
    options: dict[str, Any] = {"examples": examples, "secret": secret}
    if jax.process_count() == 1:
        return Run.open(plan, directory, leaves=named, dtype=dtype, background_noise=background_noise, **options)
    if plan.mechanism.lattice is not None:
        raise Refused(
            f"Lattice noise is not supported with several JAX processes. JAX has {jax.process_count()}.",
            hint="use one process, or plan without lattice=True",
        )
    regions = map(own_region, named.values(), trained_arrays(params))
    own = dict(zip(named, regions, strict=True))
    return open_shared(
        plan,
        directory,
        JaxProcesses(),
        leaves=named,
        own_leaves=own,
        dtype=dtype or "float32",
        background_noise=background_noise,
        keep_source=True,
        **options,
    )


def own_region(leaf: Leaf, array: Any) -> Leaf:
    """Return the smallest box (one slice per axis) of a leaf that holds all shards on this process's devices.

    Args:
        leaf: the whole leaf.
        array: a global array, sharded over the devices of all processes.
    """
    if not isinstance(array, jax.Array) or len(array.sharding.device_set) < jax.device_count():
        raise Refused(
            "With several processes, every parameter must be sharded or replicated over the devices of all processes.",
            hint="make a mesh of jax.devices(), and place the parameters on it with jax.device_put",
        )
    shape = leaf.global_shape
    shards = array.sharding.addressable_devices_indices_map(shape).values()
    boxes = [[part.indices(size)[:2] for part, size in zip(index or (), shape, strict=True)] for index in shards]
    ends = [(min(start for start, _ in pairs), max(stop for _, stop in pairs)) for pairs in zip(*boxes, strict=True)]
    return Leaf(shape, tuple(ends))


def agree(run: Run, check: Callable[[], Any]) -> Any:
    """Return check(). If it raises in one of the processes that share the run, raise an error in all of them."""
    return transport_of(run).run_on_all(check)


def with_one_source(run: Run, source: str, make: Callable[[], T], record: Callable[[], None]) -> T:
    """Return make() and call `record`. If several processes share the run, all must use the same noise source.

    Only the first call is collective: if the processes pass different sources, or one of them raises an error, all
    raise an error. Later calls do not communicate, and raise `Refused` for a different source.

    Args:
        run: open run.
        source: noise source, as for `add_correlated_noise`.
        make: function that makes what this process needs. It must not communicate.
        record: function that records the source in the ledger, with `set_noise_source`.
    """
    processes = transport_of(run)
    if not isinstance(processes, JaxProcesses):
        made = make()
        record()
        return made
    agreed = processes.noise_source
    if agreed is None:
        made = processes.run_on_all(make)
        processes.check_same(source, "noise source", "pass the same source to add_correlated_noise in every process")
        processes.noise_source = source  # before `record`, which may fail in one process only
    elif source == agreed:
        made = make()
    else:
        raise Refused(
            f"The processes that share the run use the noise source {agreed!r}. Got {source!r} instead.",
            hint=f"pass source={agreed!r} to add_correlated_noise, or start a new run",
        )
    record()
    return made


def shared_digest(run: Run, step: int, arrays: list[Any]) -> bytes:
    """Return a digest of arrays that may be sharded over several processes; the same in every process.

    If every process has all entries of all arrays, this is the same digest as for a run in one process. Otherwise, each
    process computes a digest of its own shards, and the result is a hash of these digests. A replay then needs the same
    number of processes and the same shardings.
    """
    transport = transport_of(run)
    if transport.size == 1 or all(map(is_whole, arrays)):
        return run.digest(step, [np.asarray(whole(array)) for array in arrays])
    own = [part for array in arrays for part in ([whole(array)] if is_whole(array) else own_shards(array))]
    return hashlib.sha256(b"".join(transport.all_gather(run.digest(step, [np.asarray(part) for part in own])))).digest()


def is_whole(array: Any) -> bool:
    """Return whether this process has all entries of an array."""
    return not isinstance(array, jax.Array) or array.is_fully_addressable or array.is_fully_replicated


def whole(array: Any) -> Any:
    """Return all entries of an array, on the devices of this process. `is_whole` must be true for the array."""
    return array.addressable_data(0) if isinstance(array, jax.Array) and not array.is_fully_addressable else array


def own_shards(array: jax.Array) -> list[Any]:
    """Return this process's shards of an array, each once, in the order of `shard_places`."""
    shards = {place_of(shard.index): shard.data for shard in array.addressable_shards}
    return [shards[place] for place in sorted(shards)]


def shard_places(array: jax.Array) -> list[tuple[int, ...]]:
    """Return the start indices of this process's shards, in sorted order."""
    return sorted({place_of(shard.index) for shard in array.addressable_shards})


def place_of(index: tuple[slice, ...]) -> tuple[int, ...]:
    """Return the start index of a shard along each axis."""
    return tuple(part.start or 0 for part in index)
