"""Limits memory, so that a command that needs too much memory ends with an error message instead of being killed."""

from __future__ import annotations

import os
import sys


def physical_memory() -> int:
    """Return the physical memory in bytes, or sys.maxsize if the system does not report it."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return sys.maxsize


def limit_memory() -> None:
    """Make allocations beyond the physical memory raise `MemoryError`. Otherwise Linux would kill the process."""
    try:
        import resource
    except ImportError:  # Windows
        return
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    most = physical_memory()
    if hard == resource.RLIM_INFINITY or most < hard:
        resource.setrlimit(resource.RLIMIT_DATA, (most, hard))
