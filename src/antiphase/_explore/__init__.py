"""The explorer: a page on this machine that shows how a plan changes with its settings.

It needs a server, because every number comes from the planner, which cannot run inside a web page.
"""

from antiphase._explore.server import Explorer

__all__ = ["Explorer"]
