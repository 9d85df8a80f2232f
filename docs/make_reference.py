"""Fills the reference page: each line `::: antiphase.name` becomes the signature and docstring of that name.

MkDocs calls `on_page_markdown` for every page (see `hooks` in mkdocs.yml).
"""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterator
from functools import cached_property
from typing import Any

DIRECTIVE = re.compile(r"^::: (\S+)$", re.MULTILINE)
DESCRIPTORS = (property, cached_property, classmethod, staticmethod)


def on_page_markdown(markdown: str, **_: Any) -> str:
    """The page with every directive replaced."""
    return DIRECTIVE.sub(lambda match: "\n".join(entry(match[1])), markdown)


def entry(path: str) -> Iterator[str]:
    """The Markdown of one public name and, for a class, of what it offers."""
    thing = find(path)
    yield f"### {path.removeprefix('antiphase.')}\n"
    yield f"```text\n{path}{signature(thing)}\n```\n"
    yield from prose(inspect.getdoc(thing) or "")
    if inspect.isclass(thing):
        yield from members(thing)


def find(path: str) -> Any:
    """The object behind a dotted path such as antiphase.strategies.Tree."""
    module, name = path.rsplit(".", 1)
    return getattr(importlib.import_module(module), name)


def signature(thing: Any) -> str:
    """The call as a user writes it, with annotations as they are written in the source."""
    if not callable(thing):
        return ""
    found = inspect.signature(thing)
    parameters = [p.replace(annotation=_AsWritten(p.annotation)) for p in found.parameters.values() if p.name != "self"]
    returned = found.empty if inspect.isclass(thing) else _AsWritten(found.return_annotation)
    return str(found.replace(parameters=parameters, return_annotation=returned))


def members(cls: type) -> Iterator[str]:
    """One line for each public method and property that the class itself defines."""
    for name, value in vars(cls).items():
        if not name.startswith("_") and (callable(value) or isinstance(value, DESCRIPTORS)):
            line = (inspect.getdoc(value) or "").partition("\n")[0]
            yield f"- `{name}{signature(getattr(cls, name))}`: {line}"
    yield ""


def prose(docstring: str) -> Iterator[str]:
    """The docstring as Markdown: arguments as a list, examples and drawings as code."""
    lines = iter([*docstring.splitlines(), ""])
    for line in lines:
        if line == "Args:":
            yield "Arguments:\n"
            yield from _arguments(lines)
        elif line.startswith(">>>"):
            yield "```python"
            yield line
            yield from iter(lambda: next(lines), "")
            yield "```\n"
        else:
            yield line


def _arguments(lines: Iterator[str]) -> Iterator[str]:
    for line in iter(lambda: next(lines), ""):
        started = re.match(r" {4}(\w+): (.*)", line)
        yield f"- `{started[1]}`: {started[2]}" if started else line
    yield ""


class _AsWritten:
    """An annotation that prints as its source text, not as a quoted string."""

    def __new__(cls, annotation: Any) -> Any:
        return super().__new__(cls) if isinstance(annotation, str) else annotation

    def __init__(self, annotation: str) -> None:
        self.text = annotation

    def __repr__(self) -> str:
        return self.text
