"""The explorer: a page on this machine that shows how a plan changes with its settings.

A server rather than a self-contained file: every number comes from the planner, which a page alone could not run.
"""

from antiphase._explore.server import Explorer

__all__ = ["Explorer"]
