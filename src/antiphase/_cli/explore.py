"""`antiphase explore`: a page on this machine that shows how a plan changes with its settings."""

from __future__ import annotations

import os
import tempfile
import webbrowser
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from antiphase._cli.output import print_message


def explore(
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 for any free port.")] = 0,
    open_page: Annotated[bool, typer.Option("--open/--no-open", help="Open the page in your browser.")] = True,
) -> None:
    """Open a page on which you change steps, batches, budget and memory, and see which mechanism is best and why.

    A server on this machine serves the page, and only this machine can reach it. Open the printed address, which
    contains a token that the page needs. The page needs no network. Press Ctrl+C to stop the server.

    Example: antiphase explore --no-open
    """
    from antiphase._explore import Explorer

    explorer = Explorer(port)
    try:
        typer.echo(explorer.address)
        print_message("Open this address in a browser on this machine. Press Ctrl+C to stop.")
        with _redirect(explorer.address) as page:
            if open_page:
                webbrowser.open(page.as_uri())
            explorer.serve()
    except KeyboardInterrupt:
        print_message("stopped")
    finally:
        explorer.release()


@contextmanager
def _redirect(address: str) -> Iterator[Path]:
    """Yield a file that redirects to the address and that only its owner can read.

    Every user of the machine can see the arguments of a browser's process, so the token must not be one of them.
    """
    descriptor, name = tempfile.mkstemp(prefix="antiphase-", suffix=".html")
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(f'<!doctype html><meta http-equiv="refresh" content="0;url={address}"><title>Antiphase</title>')
        yield Path(name)
    finally:
        Path(name).unlink(missing_ok=True)
