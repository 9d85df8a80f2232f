"""Asks the run for permission to make the noise of a step on the device, and for the key to it."""

from __future__ import annotations

import threading
from typing import Any, final

import jax
import numpy as np
from jax.experimental import io_callback
from jax.sharding import NamedSharding, PartitionSpec

from antiphase._errors import InvalidArgument
from antiphase._run import Run, check_lineage, check_step, record_noise_read, set_noise_source
from antiphase.jax._keys import SOURCE, device_key
from antiphase.jax._mark import mark_bytes
from antiphase.jax._refusals import forget, must_not_raise, remember
from antiphase.jax._state import NoiseState, check_run

Words = np.ndarray[Any, np.dtype[np.uint32]]


@final
class DeviceKey:
    """The key of a run's noise, given out step by step, so that no step is taken that the run does not know of.

    A compiled program takes the key as an answer of the host: it is neither in the program nor in any state.

    Args:
        run: open; it decides which steps may be taken. From now on all of its noise is made on the device.
    """

    def __init__(self, run: Run) -> None:
        set_noise_source(run, SOURCE)
        self._run, self._key = run, device_key(run)
        self._lock = threading.Lock()  # devices ask from threads of their own

    def check(self, state: NoiseState) -> None:
        """Raise the refusal of a step before it is taken, where the state is known: outside of a compiled program."""
        where = _where(state)
        if not any(isinstance(part, jax.core.Tracer) for part in where):
            with self._lock:
                check_step(self._run, self._allowed(*where))

    def read(self, step: Any, run_id: Any, mark: Any, *held: Any) -> tuple[Words, np.bool_]:
        """The key and True, where the state of the optimizer stands at a step that the run allows.

        Where it is refused and must not raise: zeros and False.
        """
        t = int(np.asarray(step))
        try:
            with self._lock:
                record_noise_read(self._run, SOURCE, self._allowed(step, run_id, mark, *held))
        except Exception as error:
            if not must_not_raise():
                raise
            remember(self._run, t, error)
            return np.zeros_like(self._key), np.bool_(False)
        forget(self._run, t)
        return self._key.copy(), np.bool_(True)

    def _allowed(self, step: Any, run_id: Any, mark: Any, *held: Any) -> int:
        """The step, where the state is whole, one of this run, and goes on from what its ledger has."""
        t = int(np.asarray(step))
        check_run(run_id, self._run.run_id)
        if not all(map(np.array_equal, (step, run_id, mark), held)):
            raise InvalidArgument(
                f"The state is that of step {t}, its private part that of another step or run.",
                hint="put a state together with antiphase.jax.join, from the two parts of one split",
            )
        check_lineage(self._run, t, mark_bytes(mark))
        return t

    def ask(self, state: NoiseState, mesh_of: NamedSharding | None) -> tuple[jax.Array, jax.Array]:
        """The key for the step of a state, and whether it may be used; on every device of the mesh."""
        key: Any = jax.ShapeDtypeStruct(self._key.shape, self._key.dtype)  # type: ignore[no-untyped-call]
        allowed: Any = jax.ShapeDtypeStruct((), np.bool_)  # type: ignore[no-untyped-call]
        where = _where(state)

        def ask(*where: jax.Array) -> Any:
            return io_callback(self.read, (key, allowed), *where)

        if mesh_of is None:
            return ask(*where)
        rule = PartitionSpec()  # type: ignore[no-untyped-call]
        made = jax.shard_map(
            ask, mesh=mesh_of.mesh, in_specs=(rule,) * len(where), out_specs=(rule, rule), check_vma=False
        )
        return made(*where)


def _where(state: NoiseState) -> tuple[Any, ...]:
    """Step, run and mark of a state and of its private part."""
    return tuple(x for part in (state, state.hidden) for x in (part.step, part.run, part.mark))
