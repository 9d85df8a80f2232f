"""The ports of Opacus's examples run at a small size, and docs/opacus.md states correctly how many lines changed."""

import importlib.util
import re
from pathlib import Path

import pytest

from tests.torch.training import HOOKS

ROOT = Path(__file__).parents[2]
SMALL = {
    "mnist": ["--examples", "80", "--batch-size", "40", "--epochs", "1"],
    "char_lstm": ["--examples", "80", "--batch-size", "40", "--epochs", "2", "--hidden-size", "16", "--delta", "1e-3"],
    "imdb": ["--examples", "80", "--batch-size", "40", "--epochs", "2"],
    "cifar10": ["--examples", "80", "--batch-size", "40", "--epochs", "2", "--size", "8"],
    "mnist_lightning": ["--examples", "80", "--batch-size", "40", "--epochs", "1"],
}
pytestmark = [
    pytest.mark.filterwarnings(HOOKS),
    pytest.mark.filterwarnings("ignore::UserWarning:lightning.*"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]


def example(name):
    spec = importlib.util.spec_from_file_location(name, ROOT / "examples" / "opacus" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", SMALL)
def test_a_port_of_an_opacus_example(tmp_path, name, capsys):
    if name == "mnist_lightning":
        pytest.importorskip("lightning")
    accuracy = example(name).main([*SMALL[name], "--directory", str(tmp_path / "run")])
    assert 0 <= accuracy <= 1
    assert "Test accuracy" in capsys.readouterr().out
    assert (tmp_path / "run" / "plan.json").exists()


def test_per_layer_clipping_of_cifar10(tmp_path):
    options = [*SMALL["cifar10"][:-4], "--epochs", "1", "--size", "8", "--clip_per_layer"]
    example("cifar10").main([*options, "--directory", str(tmp_path / "run")])


def test_the_documented_numbers_of_changed_lines():
    text = (ROOT / "docs" / "opacus.md").read_text()
    stated = dict(re.findall(r"^\| `examples/opacus/(\w+)\.py` .*\| (\d+) \|$", text, re.MULTILINE))
    counted = {
        path.stem: str(sum(line.endswith("# Antiphase") for line in path.read_text().splitlines()))
        for path in (ROOT / "examples" / "opacus").glob("*.py")
    }
    assert stated == counted
    assert set(counted) == set(SMALL)
