"""Antiphase for JAX: noise as an Optax transformation, clipped gradient sums, the run's batches, and checkpoints.

    run = ap.Run.open(plan, directory, leaves=apj.leaves(params), examples=len(x))
    optimizer = optax.chain(apj.add_noise(run), optax.scale(1 / batch_size), optax.sgd(0.1))

The optimizer's input is the *sum* of the clipped gradients of the step's batch; divide it after the noise is added.
docs/jax.md has a complete training loop.
"""

from importlib.util import find_spec as _find_spec

_missing = [name for name in ("jax", "optax") if _find_spec(name) is None]
if _missing:
    raise ImportError(
        f"antiphase.jax needs JAX and Optax. Not installed: {', '.join(_missing)}.\n\nhint: pip install antiphase[jax]"
    )

from antiphase.jax._batches import batches, pad  # noqa: E402
from antiphase.jax._checkpoint import load, save  # noqa: E402
from antiphase.jax._clip import clipped_sum  # noqa: E402
from antiphase.jax._commit import commit, report  # noqa: E402
from antiphase.jax._curvature import curvatures  # noqa: E402
from antiphase.jax._leaves import leaves  # noqa: E402
from antiphase.jax._split import join, split  # noqa: E402
from antiphase.jax._state import NoiseState  # noqa: E402
from antiphase.jax._transformation import add_noise, simulate_noise  # noqa: E402

__all__ = [
    "NoiseState",
    "add_noise",
    "batches",
    "clipped_sum",
    "commit",
    "curvatures",
    "join",
    "leaves",
    "load",
    "pad",
    "report",
    "save",
    "simulate_noise",
    "split",
]
