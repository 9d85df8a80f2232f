"""Each row of the table of planted mistakes in docs/torch.md names a test that exists and checks the row's verdict."""

import importlib
import inspect
import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "torch.md"
ROWS = re.findall(r"^\| (.+) \| (.+) \| `(test_\w+)\.py::(test_\w+)(?:\[(.+)\])?` \|$", PAGE.read_text(), re.MULTILINE)
# verdict -> strings of which a test of this verdict must contain at least one
EVIDENCE = {
    "check": ("check_independence", "check(tmp_path"),
    "refused": ("pytest.raises(ap.Refused", "pytest.raises(ap.InvalidArgument"),
    "refused or warned": ("pytest.raises(ap.Refused",),
    "harmless": ("<= CLIP",),
}


def cases(test):
    """Return the names of the cases of a parametrized test."""
    values = [value for mark in getattr(test, "pytestmark", []) if mark.name == "parametrize" for value in mark.args[1]]
    return {value if isinstance(value, str) else getattr(value, "__name__", "") for value in values}


def test_there_are_at_least_thirty():
    assert len(ROWS) >= 30
    assert len({(file, test, case) for *_, file, test, case in ROWS}) == len(ROWS)


@pytest.mark.parametrize(("mistake", "verdict", "file", "name", "case"), ROWS, ids=lambda text: text[:40])
def test_a_planted_mistake_has_a_test(mistake, verdict, file, name, case):
    test = getattr(importlib.import_module(f"tests.torch.{file}"), name)
    assert any(words in inspect.getsource(test) for words in EVIDENCE[verdict]), mistake
    assert not case or case in cases(test), mistake
