"""The example that needs no engine, at a small size; the app itself is run in test_engine.py."""

import os
import subprocess
import sys
from pathlib import Path

EXAMPLE = Path(__file__).parents[2] / "examples" / "federated"


def test_comparison_of_mechanisms(tmp_path):
    small = ["--users", "24", "--goal", "4", "--rounds", "8", "--seeds", "1", "--output", str(tmp_path / "curves.svg")]
    result = subprocess.run(
        [sys.executable, "compare.py", *small],
        cwd=EXAMPLE,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert (tmp_path / "curves.svg").read_text().count("<polyline") == 6
    assert all(name in result.stdout for name in ("tree aggregation", "BandMF", "BLT", "participations"))
