"""The import contracts in pyproject.toml hold, and they notice an import that breaks them."""

import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def lint_imports(folder: Path) -> subprocess.CompletedProcess[str]:
    """import-linter on the copy of the package in `folder`."""
    code = (
        f"import sys; sys.path.insert(0, {str(folder)!r})\n"
        "from importlinter.cli import lint_imports_command as run; run(['--no-cache', '--no-logo'])"
    )
    return subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=False)


@pytest.fixture
def package(tmp_path: Path) -> Path:
    shutil.copytree(ROOT / "src" / "antiphase", tmp_path / "antiphase", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def test_layers_hold(package):
    result = lint_imports(package)
    assert result.returncode == 0, result.stdout


@pytest.mark.parametrize(
    ("lower", "line"),
    [
        ("_workload.py", "from antiphase.strategies import Identity"),
        ("strategies/_base.py", "def late():\n    import antiphase._cli"),
        ("_errors.py", "import antiphase"),
    ],
    ids=["up one layer", "inside a function", "the whole package"],
)
def test_an_import_upwards_is_noticed(package, lower, line):
    with (package / "antiphase" / lower).open("a") as file:
        file.write(f"\n\n{line}\n")
    result = lint_imports(package)
    assert result.returncode == 1
    assert "Layers BROKEN" in result.stdout


def test_a_module_without_a_layer_is_noticed(package):
    (package / "antiphase" / "_stray.py").write_text('"""A module nobody placed."""\n')
    result = lint_imports(package)
    assert result.returncode == 1
    assert "antiphase._stray" in result.stdout


@pytest.mark.parametrize(
    ("module", "line"),
    [
        ("_error/tree.py", "def late():\n    from antiphase._kernels.tree import full_moments"),
        ("_planner/__init__.py", "from antiphase.strategies import _base"),
        ("_planner/__init__.py", "from antiphase._optimize.dense import optimizer"),
    ],
    ids=["inside a function", "a module of a public package", "a nested package"],
)
def test_an_import_past_another_packages_init_is_noticed(package, module, line):
    with (package / "antiphase" / module).open("a") as file:
        file.write(f"\n\n{line}\n")
    result = lint_imports(package)
    assert result.returncode == 1
    assert "Layers KEPT" in result.stdout
    assert "Illegal imports of protected package" in result.stdout


def test_every_package_has_a_contract_of_its_own():
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    packages = {path.parent.name for path in (ROOT / "src" / "antiphase").glob("*/__init__.py")}
    assert {each["name"] for each in contracts if each["type"] == "protected"} == packages
