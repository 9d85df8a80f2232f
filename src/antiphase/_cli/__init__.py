"""The command-line program `antiphase`. Each command has its own module; `app` combines them."""

from antiphase._cli.app import main

__all__ = ["main"]
