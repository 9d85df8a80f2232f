"""`import antiphase` loads little: each heavy package is imported where it is used."""

import json
import subprocess
import sys

HEAVY = {
    "cryptography",
    "dp_accounting",
    "flwr",
    "jax",
    "jinja2",
    "joblib",
    "matplotlib",
    "numba",
    "opacus",
    "optax",
    "rich",
    "scipy",
    "torch",
    "typer",
}


def loaded(statement: str) -> set[str]:
    """The top-level modules in a fresh interpreter after `statement`."""
    code = f"import json, sys; {statement}; print(json.dumps(sorted({{m.partition('.')[0] for m in sys.modules}})))"
    result = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=True)
    return set(json.loads(result.stdout))


def test_importing_the_package_loads_no_heavy_package():
    assert loaded("import antiphase") & HEAVY == set()


def test_the_check_sees_a_heavy_package():
    assert loaded("import scipy") & HEAVY == {"scipy"}


def test_making_records_loads_no_heavy_package():
    statement = (
        "import antiphase as ap; ap.strategies.Toeplitz.square_root(8); ap.strategies.BLT([0.9], [0.1], 8); "
        "ap.MinSeparation(2); ap.from_json(ap.to_json(ap.Momentum(0.9)))"
    )
    assert loaded(statement) & HEAVY == set()
