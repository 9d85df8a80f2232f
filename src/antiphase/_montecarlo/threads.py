"""One thread for each product of matrices.

Products here are small and many, and run on joblib's threads already. Threads of the linear algebra library on top of
these wait for each other, on a busy machine ten times as long as they work.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from functools import cache
from typing import Any


def single_threaded() -> AbstractContextManager[Any]:
    """Within it the linear algebra of NumPy and SciPy uses one thread."""
    limit: AbstractContextManager[Any] = _controller().limit(limits=1)
    return limit


@cache
def _controller() -> Any:
    import scipy.linalg  # noqa: F401  # has a library of its own, which must be loaded to be found
    from threadpoolctl import ThreadpoolController  # type: ignore[import-untyped]

    return ThreadpoolController()
