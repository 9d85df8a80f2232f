"""Escape untrusted text (units, labels, paths, names in a plan file) for terminals, SVG and Markdown.

JSON output and the HTML templates do not need these functions: `json.dumps` and Jinja do their own escaping.
"""

from __future__ import annotations

import html
import re
import unicodedata

# Control characters, bidirectional marks, line separators and lone surrogates.
_UNSAFE_CATEGORIES = {"Cc", "Cf", "Cs", "Zl", "Zp"}
_BIDI_CONTROLS = {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}
_MARKDOWN = re.compile(r"[\\`*_\[\]<>|~&]|:(?=//)|(?<=www)\.|@")
_LINE_START = re.compile(r"^(\s*)([#=]|[+-](?=[\s+-]|$)|\d+(?=[.)](?:\s|$)))")


def terminal_text(text: str) -> str:
    r"""Return the text as one line that is safe to print: control characters become escape sequences.

    >>> print(terminal_text("a\x1b[31mb\nc\u202ed"))
    a\x1b[31mb\nc\u202ed
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(_visible(c) if unicodedata.category(c) in _UNSAFE_CATEGORIES else c for c in text)


def html_text(text: str) -> str:
    r"""Return the text as one line of HTML, for an element or an attribute, without markup or control characters.

    >>> print(html_text("<b>\u202ea"))
    &lt;b&gt;\u202ea
    """
    return html.escape(terminal_text(text))


def reorders(text: str) -> bool:
    """Return whether the text contains bidirectional controls, which can change the displayed order of characters."""
    return any(unicodedata.bidirectional(c) in _BIDI_CONTROLS for c in text)


def markdown_text(text: str) -> str:
    r"""Return one line of Markdown that renders as `text`, without markup, HTML, links, table cells, headings or lists.

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
