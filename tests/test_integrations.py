"""What the integrations export is what their reference documents."""

import importlib
import re
import warnings
from pathlib import Path

import pytest

REFERENCE = Path(__file__).parents[1] / "docs" / "reference-integrations.md"


@pytest.mark.parametrize("name", ["torch", "jax", "flower", "audit"])
def test_exported_names_are_documented(name):
    with warnings.catch_warnings():  # of the frameworks
        warnings.simplefilter("ignore")
        module = importlib.import_module(f"antiphase.{name}")
    documented = re.findall(rf"^::: antiphase\.{name}\.(\S+)$", REFERENCE.read_text(), re.MULTILINE)
    assert sorted(found for found in documented if "." not in found) == sorted(module.__all__)
    for exported in module.__all__:
        first = (getattr(module, exported).__doc__ or "").partition("\n")[0]
        assert first.endswith((".", ":")), f"{exported} does not say what it is"
