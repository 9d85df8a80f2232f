"""JAX is imported by those who ask for it, and whoever lacks it is told what to install."""

import subprocess
import sys

import pytest

import antiphase.jax as apj


@pytest.mark.parametrize("missing", ["jax", "optax"])
def test_without_jax_the_error_says_what_to_install(missing):
    code = f"import sys; sys.modules[{missing!r}] = None\nimport antiphase, antiphase.jax"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.returncode == 1
    assert f"Not installed: {missing}." in result.stderr
    assert "hint: pip install antiphase[jax]" in result.stderr


def test_the_public_names_are_all_documented():
    for name in apj.__all__:
        assert getattr(apj, name).__doc__
