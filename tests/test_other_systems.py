"""Systems that lack something: no file locks (Windows), no place for compiled code."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import antiphase as ap

PACKAGE = Path(ap.__file__).parent

WINDOWS = """
import os, sys
sys.modules["fcntl"] = None
sys.modules["resource"] = None
for name in ("O_NOFOLLOW", "O_DIRECTORY", "fchmod", "sysconf"):
    delattr(os, name)
"""
ON_WINDOWS = """
import antiphase as ap
budget = ap.Budget(2.0, 1e-5)
plan = ap.plan(ap.Problem(24, budget, participation=ap.MinSeparation(6)), ["identity", "toeplitz"])
plan.save("plan.json")
assert ap.Plan.load("plan.json").guarantee.value <= 2.0
stream = ap.NoiseStream(plan, [(3,)], ap.Secret.insecure(1), "run")
stream.next()
stream.save("state")
try:
    ap.Run.open(plan, "run", leaves=[(3,)])
except ap.Refused as error:
    print(error)
from antiphase._cli import main
sys.argv = ["antiphase", "account", "plan.json", "--json"]
main()
"""


def python(code, cwd, **environment):
    command, variables = [sys.executable, "-c", code], {**os.environ, **environment}
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=cwd, env=variables)


@pytest.mark.integration
def test_without_file_locks_plans_work_and_runs_say_what_is_missing(tmp_path):
    result = python(WINDOWS + ON_WINDOWS, tmp_path)
    assert result.returncode == 0, result.stderr
    assert "Runs cannot be opened on this system: locking their directories needs Python's 'fcntl'" in result.stdout
    assert "WSL" in result.stdout
    assert '"epsilon": ' in result.stdout
    assert not list((tmp_path / "run").rglob("*"))


@pytest.mark.integration
def test_clients_can_be_imported_without_file_locks(tmp_path):
    """A client of a federation may be a Windows machine until it takes part."""
    code = WINDOWS + "import antiphase.flower._timer as t, antiphase as ap, pathlib\n"
    code += "try:\n    t.locked_timer(pathlib.Path('client')).__enter__()\nexcept ap.Refused as e:\n    print(e)\n"
    result = python(code, tmp_path)
    assert "fcntl" in result.stdout, result.stderr


KERNELS = """
import warnings
import antiphase as ap
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    mechanism = ap.Mechanism(ap.strategies.Toeplitz([1.0, 0.5], 24), ap.MinSeparation(6), 3.0)
    stream = ap.NoiseStream(mechanism, [(3,)], ap.Secret.insecure(1), "run")
    noise = stream.next()[0].tobytes().hex()
print(sum("cannot be cached on disk" in str(one.message) for one in caught), noise)
print(ap.__file__)
"""


@pytest.mark.integration
def test_without_a_place_for_compiled_code_it_is_compiled_again_with_one_warning(tmp_path):
    """The same noise, bit for bit; a file in the place of the cache's directory keeps even root from writing there."""
    copy = tmp_path / "package" / "antiphase"
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__", "torch", "jax", "flower"))
    (copy / "_kernels" / "__pycache__").write_text("no directory")
    nowhere = {"NUMBA_CACHE_DIR": "/dev/null/cache", "HOME": "/dev/null", "XDG_CACHE_HOME": "/dev/null"}
    options = {"PYTHONPATH": str(copy.parent), "PYTHONDONTWRITEBYTECODE": "1"}
    bare = python(KERNELS, tmp_path, **nowhere, **options)
    assert bare.returncode == 0, bare.stderr
    kept = python(KERNELS, tmp_path)
    assert str(copy) in bare.stdout
    assert bare.stdout.split()[:2] == ["1", kept.stdout.split()[1]]
    assert kept.stdout.split()[0] == "0"


def test_every_kernel_that_is_cached_can_do_without():
    """By the decorator that falls back."""
    bare = [path.name for path in (PACKAGE / "_kernels").glob("*.py") if "njit(cache" in path.read_text()]
    assert bare == []
