"""The `antiphase` program: commands, general options and error handling."""

from __future__ import annotations

import errno
import io
import os
import sys
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from antiphase import AntiphaseError, __version__
from antiphase._cli.account import account
from antiphase._cli.audit import audit
from antiphase._cli.bench import bench
from antiphase._cli.demo import demo
from antiphase._cli.doctor import doctor
from antiphase._cli.explore import explore
from antiphase._cli.flower import flower
from antiphase._cli.memory import limit_memory
from antiphase._cli.output import print_message
from antiphase._cli.plan import plan
from antiphase._cli.report import report
from antiphase._cli.reproduce import reproduce
from antiphase._cli.verify import verify


class _Commands(TyperGroup):
    """Command group that prints expected errors as message and hint, and exits with code 1.

    Expected errors come from the library, the file system and memory allocation. Any other error is a bug and is shown
    with its traceback.
    """

    def invoke(self, ctx: Any) -> Any:
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()  # if the disk is full, the error may be raised only here
            return result
        except (AntiphaseError, OSError, MemoryError) as error:
            if (
                ctx.params["debug"] or getattr(error, "errno", None) == errno.EPIPE
            ):  # click exits silently if the pipe was closed
                raise
            message, hint = _explained(error)
            print_message(f"error: {message}", "", f"hint: {hint}")
            _drop_stdout()
            raise typer.Exit(1) from error


def _explained(error: AntiphaseError | OSError | MemoryError) -> tuple[str, str]:
    """Return the message and the hint for an error."""
    if isinstance(error, AntiphaseError):
        return error.message, error.hint
    if isinstance(error, MemoryError):
        return f"There is not enough memory: {error or 'an allocation failed'}.", "use fewer steps or parameters"
    if error.filename is not None:
        return f"{error.filename}: {error.strerror}", "pass a path that exists and that you can access"
    return f"The output cannot be written: {error.strerror or error}", "free some disk space, or write to another disk"


def _drop_stdout() -> None:
    """Discard buffered output that cannot be written. Otherwise Python would try to write it again at exit."""
    try:
        sys.stdout.flush()
    except OSError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(__version__)
        raise typer.Exit


app = typer.Typer(name="antiphase", cls=_Commands, no_args_is_help=True, pretty_exceptions_enable=False)
app.command()(demo)
app.command()(plan)
app.command()(explore)
app.command()(account)
app.command()(verify)
app.command()(report)
app.command()(audit)
app.command()(reproduce)
app.command()(bench)
app.command()(doctor)
app.add_typer(flower, name="flower")


@app.callback()
def general(
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of errors.")] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Differentially private training with correlated noise."""


def main() -> None:
    """Run the program with the command-line arguments of the process."""
    limit_memory()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # escape characters that the terminal cannot encode
    app(prog_name="antiphase")
