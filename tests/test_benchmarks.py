"""Every benchmark still runs: at a tiny size, without jax_privacy, as `make bench` starts it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
NAMES = sorted(path.stem for path in (ROOT / "benchmarks").glob("[a-z]*.py"))
FRAMEWORKS = {
    "audit",
    "findings",
    "findings_feedback",
    "flower",
    "jax_ports",
    "jax_steps",
    "torch_noise",
    "training",
    "training_federated",
}  # import jax, flwr or torch


def tiny(name):
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "PEER": "no-such-interpreter"}
    command = [sys.executable, "-m", f"benchmarks.{name}", "--tiny"]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.integration] if name in FRAMEWORKS else []) for name in NAMES]
)
def test_benchmark_runs(name):
    kept = {path: path.read_bytes() for path in (ROOT / "benchmarks").glob("*.jsonl")}
    result = tiny(name)
    assert result.returncode == 0, result.stderr
    assert len(result.stdout.splitlines()) >= 3, "it prints a table"
    assert {path: path.read_bytes() for path in (ROOT / "benchmarks").glob("*.jsonl")} == kept, "results of full size"


def test_frameworks_are_those_that_exist():
    assert set(NAMES) >= FRAMEWORKS
