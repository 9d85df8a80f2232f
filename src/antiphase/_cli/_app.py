"""The `antiphase` program: its commands, its general options and what it does with an error."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from antiphase import AntiphaseError, __version__
from antiphase._cli._account import account
from antiphase._cli._bench import bench
from antiphase._cli._demo import demo
from antiphase._cli._output import talk
from antiphase._cli._plan import plan
from antiphase._cli._report import report
from antiphase._cli._reproduce import reproduce
from antiphase._cli._verify import verify


class _Commands(TyperGroup):
    """Shows an error of the library or of the file system as its message and hint, and ends with code 1.

    Any other error is a defect and keeps its traceback.
    """

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except AntiphaseError as error:
            if ctx.params["debug"]:
                raise
            talk(f"error: {error}")
            raise typer.Exit(1) from error
        except OSError as error:
            if ctx.params["debug"] or error.filename is None:
                raise
            talk(f"error: {error.filename}: {error.strerror}\n\nhint: give a path that exists and that you may use")
            raise typer.Exit(1) from error


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(__version__)
        raise typer.Exit


app = typer.Typer(name="antiphase", cls=_Commands, no_args_is_help=True, pretty_exceptions_enable=False)
app.command()(demo)
app.command()(plan)
app.command()(account)
app.command()(verify)
app.command()(report)
app.command()(reproduce)
app.command()(bench)


@app.callback()
def general(
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Differentially private training with correlated noise."""


def main() -> None:
    """Run the program with the arguments of the process."""
    app(prog_name="antiphase")
