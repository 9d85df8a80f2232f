"""How much memory there is, so that a command that needs more says so instead of being killed."""

from __future__ import annotations

import os
import sys


def physical_memory() -> int:
    """Bytes of the machine, or as many as can be addressed where the system does not say."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return sys.maxsize


def limit_memory() -> None:
    """Let allocations beyond the memory of the machine raise MemoryError; Linux would kill the process later on."""
    try:
        import resource
    except ImportError:  # Windows
        return
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    most = physical_memory()
    if hard == resource.RLIM_INFINITY or most < hard:
        resource.setrlimit(resource.RLIMIT_DATA, (most, hard))
