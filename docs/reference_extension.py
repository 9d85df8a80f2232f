"""Tells mkdocstrings how to read this project's source: `@record` makes a dataclass, and doctests are code.

mkdocstrings reads the source with Griffe, without importing it. It loads this extension from mkdocs.yml.
"""

from __future__ import annotations

import re
from typing import Any

from griffe import Attribute, Class, ExprCall, ExprName, Extension, Object

DOCTEST = re.compile(r"^>>> .*(?:\n.+)*", re.MULTILINE)


class ReferenceExtension(Extension):
    """Shows the signatures of the constructors of records, and shows the examples in docstrings as code."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        """Put each doctest of the docstring into a fenced block, because Markdown would read `>>>` as a quotation."""
        if obj.docstring:
            obj.docstring.value = DOCTEST.sub(r"```pycon\n\g<0>\n```", obj.docstring.value)

    def on_class_instance(self, *, cls: Class, **_: Any) -> None:
        """Replace `@record`, with or without a tag, by `@dataclass`, so that Griffe writes the `__init__` signature."""
        for decorator in cls.decorators:
            if str(decorator.value).partition("(")[0] == "record":
                decorator.value = ExprName("dataclass", parent="dataclasses")

    def on_attribute_instance(self, *, attr: Attribute, **_: Any) -> None:
        """Show the default of a field that is written `optional(default)`."""
        if isinstance(attr.value, ExprCall) and str(attr.value.function) == "optional":
            attr.value = attr.value.arguments[0]
