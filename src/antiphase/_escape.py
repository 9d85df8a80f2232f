"""Escaping of untrusted text (units, labels, paths, names in a plan file) for terminals and Markdown.

HTML pages use `html.escape`; `json.dumps` escapes on its own.
"""

from __future__ import annotations

import re
import unicodedata

# Control characters, bidirectional marks, line separators and lone surrogates.
_UNSAFE_CATEGORIES = {"Cc", "Cf", "Cs", "Zl", "Zp"}
_MARKDOWN = re.compile(r"[\\`*_\[\]<>|~&]|:(?=//)|(?<=www)\.|@")
_LINE_START = re.compile(r"^(\s*)([#=]|[+-](?=[\s+-]|$)|\d+(?=[.)](?:\s|$)))")


def terminal_text(text: str) -> str:
    r"""The text as one line that is safe to print: control characters become escape sequences.

    >>> print(terminal_text("a\x1b[31mb\nc\u202ed"))
    a\x1b[31mb\nc\u202ed
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(_visible(c) if unicodedata.category(c) in _UNSAFE_CATEGORIES else c for c in text)


def markdown_text(text: str) -> str:
    r"""One line of Markdown that renders as `text`, without markup, HTML, links, table cells, headings or lists.

    >>> print(markdown_text("# <b>a_b</b> [c](d)\n|"))
    \# \<b\>a\_b\</b\> \[c\](d)\\n\|
    """
    escaped = _MARKDOWN.sub(r"\\\g<0>", terminal_text(text))
    start = _LINE_START.match(escaped)
    if start is None:
        return escaped
    mark = f"\\{start[2]}" if not start[2].isdigit() else f"{start[2]}\\"
    return start[1] + mark + escaped[start.end() :]


def _visible(character: str) -> str:
    return character.encode("unicode_escape").decode()
