"""The examples for JAX run as they stand, at a small size."""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
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


PORTS = {
    "dp_logistic_regression": {"users": 400, "features": 5, "epsilon": 8.0, "batch_size": 50, "iterations": 40},
    "jax_api_example": {
        "train_size": 400,
        "batch_size": 50,
        "num_epochs": 5,
        "epsilon": 20.0,
        "learning_rate": 0.05,
    },
    "dp_sgd_transformer": {
        "sequences": 60,
        "length": 6,
        "width": 8,
        "layers": 1,
        "vocabulary": 5,
        "epsilon": 40.0,
        "batch_size": 20,
        "iterations": 6,
    },
}
WORSE = {"dp_logistic_regression": np.log(2), "jax_api_example": 50.0, "dp_sgd_transformer": 2.5}  # than at the start


def port(name):
    spec = importlib.util.spec_from_file_location(name, ROOT / "examples" / "jax_privacy" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", PORTS)
def test_ports_of_jax_privacys_examples(tmp_path, name, capsys):
    assert port(name).main(tmp_path, **PORTS[name]) < WORSE[name]
    epsilon = float(re.search(r"epsilon ([0-9.]+)", capsys.readouterr().out)[1])
    assert epsilon <= PORTS[name]["epsilon"] + 1e-3


def test_port_of_distributed_noise_generation(capsys):
    noisy, buffer = port("distributed_noise_generation").main(hidden_size=16, bands=3, steps=2)
    assert {shard.data.size for shard in noisy.addressable_shards} == {noisy.size // jax.device_count()}
    assert {shard.data.size for shard in buffer.addressable_shards} == {buffer.size // jax.device_count()}
    assert 0.9 < np.asarray(noisy).std() < 1.5
    assert "MiB per device" in capsys.readouterr().out


def test_the_changed_lines_are_as_many_as_the_page_says():
    page = (ROOT / "docs" / "jax-privacy.md").read_text()
    for path in sorted((ROOT / "examples" / "jax_privacy").glob("*.py")):
        changed = sum(line.rstrip().endswith("# Antiphase") for line in path.read_text().splitlines())
        assert f"| `examples/jax_privacy/{path.name}` | {changed} |" in page, (path.name, changed)
