"""Leave of the run to make the noise of a step on the device, and the key for it."""

from __future__ import annotations

import threading
from typing import Any, final

import jax
import numpy as np
from jax.experimental import io_callback
from jax.sharding import NamedSharding, PartitionSpec

from antiphase._errors import InvalidArgument
from antiphase._run import Run
from antiphase._run._integration import check_mark, noise_was_read, take_noise_from
from antiphase.jax._keys import SOURCE, device_key
from antiphase.jax._mark import mark_bytes
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
        take_noise_from(run, SOURCE)
        self._run, self._key = run, device_key(run)
        self._lock = threading.Lock()  # devices ask from threads of their own

    def read(self, step: Any, run_id: Any, mark: Any, *held: Any) -> Words:
        """The key, where the state of the optimizer stands at a step that the run allows."""
        with self._lock:
            check_run(run_id, self._run.run_id)
            if not all(map(np.array_equal, (step, run_id, mark), held)):
                raise InvalidArgument(
                    f"The state is that of step {int(np.asarray(step))}, its private part that of another step or run.",
                    hint="put a state together with antiphase.jax.join, from the two parts of one split",
                )
            t = int(np.asarray(step))
            check_mark(self._run, t, mark_bytes(mark))
            noise_was_read(self._run, SOURCE, t)
            return self._key.copy()

    def ask(self, state: NoiseState, mesh_of: NamedSharding | None) -> jax.Array:
        """The key for the step of a state, inside or outside of a compiled program; on every device of the mesh."""
        shape: Any = jax.ShapeDtypeStruct(self._key.shape, self._key.dtype)  # type: ignore[no-untyped-call]
        where = tuple(x for part in (state, state.hidden) for x in (part.step, part.run, part.mark))

        def ask(*where: jax.Array) -> Any:
            return io_callback(self.read, shape, *where)

        if mesh_of is None:
            return ask(*where)
        rule = PartitionSpec()  # type: ignore[no-untyped-call]
        made = jax.shard_map(ask, mesh=mesh_of.mesh, in_specs=(rule,) * len(where), out_specs=rule, check_vma=False)
        return made(*where)
