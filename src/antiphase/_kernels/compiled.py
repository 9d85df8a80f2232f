"""The decorator for kernels, which caches compiled code on disk."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

from numba import njit

_warned = False


def compiled(**options: Any) -> Callable[[Callable[..., Any]], Any]:
    """`numba.njit`, with a cache on disk wherever Numba finds a place for it.

    Without one (a package directory that cannot be written to, no home directory) the kernel is compiled in every
    process that calls it, to the same bits.

    Args:
        options: options of `numba.njit` other than `cache`.
    """

    def compile_(function: Callable[..., Any]) -> Any:
        made = njit(**options)(function)
        try:
            made.enable_caching()
        except AttributeError:  # NUMBA_DISABLE_JIT leaves the function as it is
            pass
        except (RuntimeError, OSError) as error:
            _warn(error)
        return made

    return compile_


def _warn(error: Exception) -> None:
    global _warned  # noqa: PLW0603  # once in a process, however many kernels there are
    if not _warned:
        _warned = True
        warnings.warn(
            f"Compiled code cannot be kept on disk ({error}), so every process compiles it again, which takes a while. "
            "Set NUMBA_CACHE_DIR to a directory that you can write to.",
            stacklevel=4,
        )
