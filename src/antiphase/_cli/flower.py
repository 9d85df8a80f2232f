"""`antiphase flower new`: create a private Flower app from a template."""

from __future__ import annotations

import keyword
import re
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from antiphase._cli.output import print_message
from antiphase._errors import InvalidArgument, Refused

NAME = re.compile(r"[a-z][a-z0-9]*([_-][a-z0-9]+)*")
LONGEST_NAME = 60
RESERVED = {"antiphase", "flwr", "flower", "numpy", "torch", "task", "test", "tests", "pytest", "ray", "tomllib"}

flower = typer.Typer(no_args_is_help=True)


class Framework(StrEnum):
    """Framework of a new app."""

    numpy = "numpy"
    torch = "torch"


@flower.callback()
def group() -> None:
    """Federated learning with Flower.

    Example: antiphase flower new my-app
    """


@flower.command()
def new(
    path: Annotated[Path, typer.Argument(help="Directory to create. Its last part is the name of the app.")],
    framework: Annotated[Framework, typer.Option(help="Framework of the model.")] = Framework.numpy,
) -> None:
    """Create a Flower app with differential privacy: client, server, pyproject.toml, README and tests.

    The app runs without changes, both in a simulation and with a SuperLink and SuperNodes. Replace the model and the
    data in task.py with your own.

    Example: antiphase flower new my-app --framework torch
    """
    name = path.absolute().name
    if not NAME.fullmatch(name) or len(name) > LONGEST_NAME or keyword.iskeyword(name) or name in RESERVED:
        raise InvalidArgument(
            "The name of an app must consist of lower-case letters, digits, - and _, and must not be the name of a "
            f"package that the app imports. Got {name!r} instead.",
            hint="choose another name, such as my-app",
        )
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise Refused(f"{path} already exists.", hint="choose another directory, or remove this one")
    for file, text in _files(name, framework).items():
        (path / file).parent.mkdir(parents=True, exist_ok=True)
        (path / file).write_text(text)
    print_message(
        f"created {path}. Its README.md says how to run it, for example:",
        "",
        f"  cd {path}",
        "  export FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION=1",
        '  flwr run . --stream --federation-config "num-supernodes=5"',
    )


def _files(name: str, framework: Framework) -> dict[str, str]:
    """Return the files of a new app, by path."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    package = name.replace("-", "_")
    templates = {
        "pyproject.toml": "pyproject.toml",
        "README.md": "README.md",
        ".gitignore": "gitignore",
        f"{package}/__init__.py": "__init__.py",
        f"{package}/client_app.py": "client_app.py",
        f"{package}/server_app.py": "server_app.py",
        f"{package}/task.py": f"task_{framework.value}.py",
        "tests/test_app.py": "test_app.py",
    }
    # These templates are not HTML, so nothing is escaped. The values are a checked name and a flag.
    environment = Environment(
        loader=PackageLoader("antiphase._cli", "templates/flower"),
        autoescape=False,
        undefined=StrictUndefined,
        keep_trailing_newline=True,
    )
    values = {"name": name, "package": package, "torch": framework is Framework.torch}
    return {file: environment.get_template(f"{source}.jinja").render(values) for file, source in templates.items()}
