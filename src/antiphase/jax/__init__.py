"""JAX integration: noise as an Optax transformation, sums of clipped gradients, private batches, and checkpoints.

    run = ap.Run.open(plan, directory, leaves=apj.leaves(params), examples=len(x))
    optimizer = optax.chain(apj.add_correlated_noise(run), optax.scale(1 / batch_size), optax.sgd(0.1))

Pass the optimizer the *sum* of the clipped gradients of the step's batch. The transformations after
`add_correlated_noise` divide by the batch size, as `optax.scale` does above. docs/jax.md has a complete training loop.
"""

from importlib.util import find_spec as _find_spec
from typing import TYPE_CHECKING as _TYPE_CHECKING

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
from antiphase.jax._example_keys import example_keys  # noqa: E402
from antiphase.jax._leaves import leaves  # noqa: E402
from antiphase.jax._processes import open_run  # noqa: E402
from antiphase.jax._split import join, split  # noqa: E402
from antiphase.jax._state import NoiseState  # noqa: E402
from antiphase.jax._transformation import add_correlated_noise, simulate_noise  # noqa: E402

__all__ = [
    "NoiseState",
    "add_correlated_noise",
    "batches",
    "clipped_sum",
    "commit",
    "curvatures",
    "example_keys",
    "join",
    "leaves",
    "load",
    "open_run",
    "pad",
    "report",
    "save",
    "simulate_noise",
    "split",
]

if not _TYPE_CHECKING:
    from antiphase._errors import Refused as _Refused

    class _RemovedName(_Refused, ImportError):
        """Error for a removed name.

        It is an ImportError, because `from antiphase.jax import add_noise` would replace an AttributeError by an error
        without the hint.
        """

    def __getattr__(name: str) -> object:
        if name == "add_noise":
            raise _RemovedName(
                "antiphase.jax.add_noise was renamed, because optax.add_noise is another function, without privacy.",
                hint="use antiphase.jax.add_correlated_noise",
            )
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
