"""The examples for JAX run as they stand, at a small size."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def output_of(name, *arguments):
    command = [sys.executable, "-W", "error", str(ROOT / "examples" / name), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)


def accuracy_in(result):
    assert result.returncode == 0, result.stderr
    return float(result.stdout.split("accuracy ")[1].split("%")[0])


DIGITS = ("--epochs", 2, "--batch-size", 150, "--epsilon", 8)


def test_digits(tmp_path):
    result = output_of("digits_optax.py", "--directory", tmp_path, *DIGITS)
    assert accuracy_in(result) > 20.0
    assert "epsilon 7.99" in result.stdout or "epsilon 8.000" in result.stdout


@pytest.mark.slow
def test_digits_started_again_end_the_same(tmp_path):
    first, again = (accuracy_in(output_of("digits_optax.py", "--directory", tmp_path, *DIGITS)) for _ in range(2))
    assert again == first


@pytest.mark.slow
def test_teacher_images(tmp_path):
    size = ("--examples", 2000, "--epochs", 2, "--steps-per-epoch", 20, "--epsilon", 8)
    assert accuracy_in(output_of("teacher_images.py", "--directory", tmp_path, *size)) > 20.0


@pytest.mark.slow
@pytest.mark.parametrize("name", ["digits_optax.py", "teacher_images.py"])
def test_they_say_how_to_be_used(name):
    result = output_of(name, "--help")
    assert result.returncode == 0
    assert f"python examples/{name}" in result.stdout
