"""Final losses of our ports of jax_privacy's examples, compared with jax_privacy at the same epsilon.

Both libraries use the same data. With each library, a model is trained several times, with new batches and noise.
jax_privacy's examples use a fixed strategy: four bands for logistic regression, and DP-SGD for the line and the
transformer. In our ports, the planner chooses the strategy.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import math
import os
import statistics
import sys
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import numpy as np

from benchmarks._measure import peer, print_table, sized

EXAMPLES = Path(__file__).parents[1] / "examples" / "jax_privacy"
REPEATS = sized(int(os.environ.get("REPEATS", "5")), 1)
LOGISTIC = {
    "users": sized(3000, 60),
    "features": sized(20, 3),
    "epsilon": 1.0,
    "batch_size": sized(300, 20),
    "iterations": sized(200, 6),
}
LINE = {
    "train_size": sized(4000, 60),
    "batch_size": sized(200, 20),
    "num_epochs": sized(10, 2),
    "epsilon": 1.0,
    "learning_rate": 0.02,
}
TRANSFORMER = {
    "sequences": sized(1000, 40),
    "length": sized(16, 4),
    "width": sized(16, 8),
    "layers": 1,
    "vocabulary": 10,
    "epsilon": 8.0,
    "batch_size": sized(100, 10),
    "iterations": sized(100, 3),
    "learning_rate": 0.5,
}


def example(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def ours(name: str, settings: dict[str, Any]) -> list[float]:
    losses = []
    for _ in range(REPEATS):
        with tempfile.TemporaryDirectory() as directory, contextlib.redirect_stdout(io.StringIO()):
            losses.append(float(example(name).main(Path(directory) / "run", **settings)))
        print(f"{name}: {losses[-1]:.4f}", file=sys.stderr)
    return losses


def theirs(kind: str, arrays: dict[str, Any], **settings: Any) -> list[float]:
    """Train several times with jax_privacy on `arrays`, and return the final losses."""
    with tempfile.TemporaryDirectory() as directory:
        np.savez(Path(directory) / "data.npz", **arrays)
        options = [f"{name}={value}" for name, value in settings.items()]
        found = peer("jax_ports", kind, str(Path(directory) / "data.npz"), str(REPEATS), *options)
    print(f"jax_privacy, {kind}: {list(found)}", file=sys.stderr)
    return list(found) or [math.nan]


def main() -> None:
    rows = []

    def add(title: str, mine: list[float], other: list[float]) -> None:
        spread = [statistics.stdev(side) if len(side) > 1 else 0.0 for side in (mine, other)]
        shown = [f"{statistics.mean(side):.4f} ± {s:.4f}" for side, s in zip((mine, other), spread, strict=True)]
        rows.append([title, *shown])

    _, x, y = example("dp_logistic_regression").create_benchmark(LOGISTIC["users"], LOGISTIC["features"])
    budget = {"epsilon": LOGISTIC["epsilon"], "delta": 1e-5}
    steps = {"iterations": LOGISTIC["iterations"], "batch_size": LOGISTIC["batch_size"]}
    other = theirs("logistic", {"x": x, "y": y}, bands=sized(4, 2), learning_rate=0.2, **budget, **steps)
    add("logistic regression", ours("dp_logistic_regression", LOGISTIC), other)

    x, y = example("jax_api_example").load_data(LINE["train_size"])
    steps = {"iterations": LINE["num_epochs"] * LINE["train_size"] // LINE["batch_size"]}
    options = {"bands": 1, "learning_rate": LINE["learning_rate"], "batch_size": LINE["batch_size"]}
    add("a line", ours("jax_api_example", LINE), theirs("line", {"x": x, "y": y}, **options, **steps, **budget))

    module = example("dp_sgd_transformer")
    text = module.load_text_data(TRANSFORMER["sequences"], TRANSFORMER["length"], TRANSFORMER["vocabulary"])
    names = ("vocabulary", "width", "layers", "length")
    params = module.init_model_params(*(TRANSFORMER[name] for name in names))
    arrays = {f"param{i}": np.asarray(leaf) for i, leaf in enumerate(jax.tree.leaves(params))}
    test = module.load_text_data(500, TRANSFORMER["length"], TRANSFORMER["vocabulary"])[-250:]
    same = {name: TRANSFORMER[name] for name in ("layers", "learning_rate", "batch_size", "iterations")}
    budget["epsilon"] = TRANSFORMER["epsilon"]
    other = theirs("transformer", {"text": text, "test": test, **arrays}, bands=1, **same, **budget)
    add("transformer", ours("dp_sgd_transformer", TRANSFORMER), other)
    columns = ["example", "antiphase", "jax_privacy"]
    print_table(f"Final loss, mean and standard deviation of {REPEATS} trainings", columns, rows)


if __name__ == "__main__":
    main()
