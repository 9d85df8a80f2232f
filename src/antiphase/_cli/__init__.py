"""The command line: one file a command, joined in `_app`."""

from antiphase._cli.app import main

__all__ = ["main"]
