"""The wheel and the source distribution, installed into empty environments, where the quick start runs.

These tests download packages. Each extra is in the slow tests, since frameworks are large.
"""

import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DATA = ["antiphase/py.typed", "antiphase/_explore/page/index.html", "antiphase/_report/templates/report.css"]
TRIALS = {
    "torch": "import antiphase.torch as module; module.PrivacyEngine",
    "huggingface": "import antiphase.torch.huggingface as module; import transformers, peft",
    "lightning": "import antiphase.torch.lightning as module",
    "jax": "import antiphase.jax as module; module.add_correlated_noise",
    "keras": "import os; os.environ['KERAS_BACKEND'] = 'jax'; import keras, antiphase.jax",
    "flower": "import antiphase.flower as module; module.DPFTRL",
    "demo": "from antiphase._demo.digits import load_digits; load_digits()",
}


def quick_start() -> str:
    """The first Python block of the README."""
    return re.search(r"^```python\n(.*?)^```$", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)[1]


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The directory with the wheel and the source distribution, built as `make dist` does."""
    directory = tmp_path_factory.mktemp("dist")
    code = (
        "import sys; from setuptools import build_meta as build; to = sys.argv[1]; "  # a build replaces sys.argv
        "build.build_sdist(to); build.build_wheel(to)"
    )
    copy = tmp_path_factory.mktemp("source") / "antiphase"
    shutil.copytree(ROOT / "src", copy / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    subprocess.run([sys.executable, "-c", code, str(directory)], cwd=copy, check=True, capture_output=True)
    return directory


def install(tmp_path, *wanted: str) -> Path:
    """Return the interpreter of a new environment with these packages, in versions of constraints.txt."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv"], check=True)
    python = tmp_path / "venv" / "bin" / "python"
    pins = [f"--constraint={ROOT / name}" for name in ("constraints.txt", "constraints-integrations.txt")]
    pip = [
        sys.executable,
        "-m",
        "pip",
        "--quiet",
        "--disable-pip-version-check",
        "--python",
        str(python),
        "install",
        "--no-compile",
    ]
    subprocess.run([*pip, *pins, *wanted], check=True)
    return python


def run(python: Path, code: str, directory: Path) -> str:
    """Run code in an environment, away from the source, and return what it prints."""
    command = [str(python), "-W", "error", "-c", code]
    result = subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_both_distributions_have_the_same_code_and_data(built):
    (wheel,) = built.glob("*.whl")
    (source,) = built.glob("*.tar.gz")
    inside = set(zipfile.ZipFile(wheel).namelist())
    with tarfile.open(source) as archive:
        names = {name.partition("/src/")[2] for name in archive.getnames()}
    assert set(DATA) <= inside
    assert {name for name in inside if name.startswith("antiphase/")} <= names
    assert not any(name.startswith(("tests", "docs", "benchmarks")) for name in inside)


def test_the_quick_start_runs_without_extras(built, tmp_path):
    (wheel,) = built.glob("*.whl")
    python = install(tmp_path, str(wheel))
    printed = run(python, quick_start(), tmp_path)
    epsilon, correct = re.fullmatch(r"(\S+) (\d+)% correct\n", printed).groups()
    assert float(epsilon) <= 2.0
    assert int(correct) > 70


@pytest.mark.slow
@pytest.mark.parametrize("extra", TRIALS)
def test_each_extra_brings_what_its_integration_imports(built, tmp_path, extra):
    (wheel,) = built.glob("*.whl")
    python = install(tmp_path, f"antiphase[{extra}] @ {wheel.as_uri()}")
    result = subprocess.run([python, "-c", TRIALS[extra]], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


@pytest.mark.slow
def test_the_source_distribution_can_be_installed(built, tmp_path):
    (source,) = built.glob("*.tar.gz")
    python = install(tmp_path, str(source))
    assert run(python, "import antiphase; print(antiphase.__version__)", tmp_path).startswith("0.")
