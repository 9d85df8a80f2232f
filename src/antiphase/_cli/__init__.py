"""The command line: one file a command, joined in `_app`."""

from antiphase._cli._app import main

__all__ = ["main"]
