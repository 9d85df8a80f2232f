"""The decorator `compiled` for kernels, which caches compiled code on disk."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

from numba import njit

_warned = False


def compiled(**options: Any) -> Callable[[Callable[..., Any]], Any]:
    """Return a decorator like `numba.njit` that caches compiled code on disk, if Numba finds a writable directory.

    Without a writable directory, every process that calls the kernel compiles it again, with the same results.

    Args:
        options: options of `numba.njit` other than `cache`.
    """

    def compile_(function: Callable[..., Any]) -> Any:
        made = njit(**options)(function)
        try:
            made.enable_caching()
        except AttributeError:  # with NUMBA_DISABLE_JIT, `made` is a plain function
            pass
        except (RuntimeError, OSError) as error:
            _warn(error)
        return made

    return compile_


def _warn(error: Exception) -> None:
    global _warned  # noqa: PLW0603  # warn once per process, not once per kernel
    if not _warned:
        _warned = True
        warnings.warn(
            f"Compiled code cannot be cached on disk ({error}), so every process compiles it again, which is slow. "
            "Set NUMBA_CACHE_DIR to a writable directory.",
            stacklevel=4,
        )
