"""The command line: one module per command, put together in `app`."""

from antiphase._cli.app import main

__all__ = ["main"]
