"""The server, which makes the plan, trains, and prints the guarantee."""

from __future__ import annotations

from pathlib import Path

from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp

import antiphase as ap
from antiphase.flower import DPFTRL, report
from digits.task import accuracy, fresh_model

app = ServerApp()


def plan_for(config: dict) -> ap.Plan:
    rounds, separation = int(config["rounds"]), int(config["separation"])
    rates = ap.schedules.linear(rounds) * float(config["learning-rate"])
    problem = ap.Problem(
        steps=rounds,
        budget=ap.Budget(float(config["epsilon"]), float(config["delta"])),
        participation=ap.MinSeparation(separation),
        workload=ap.Momentum(float(config["momentum"]), rates),
        clip_norm=float(config["clip-norm"]),
        memory_copies=4,
        unit="user",
    )
    return ap.plan(problem, families=["blt"])


def evaluate(releases: int, arrays: ArrayRecord) -> MetricRecord:
    value = accuracy(arrays.to_numpy_ndarrays())
    print(f"after {releases} releases: accuracy {value:.3f} on held-out digits", flush=True)
    return MetricRecord({"accuracy": value})


@app.main()
def main(grid: Grid, context: Context) -> None:
    config = context.run_config
    directory = Path(str(config["directory"])).expanduser() / "server"
    path = directory.with_name("plan.json")
    if not path.exists():  # a resumed run keeps its plan
        directory.mkdir(parents=True, exist_ok=True)
        plan_for(config).save(path)
    strategy = DPFTRL(ap.Plan.load(path), directory, goal=int(config["goal"]), oversampling=1.2)
    stop = min(int(config["stop"]), strategy.plan.steps)
    strategy.start(
        grid, ArrayRecord(fresh_model()), num_rounds=stop, timeout=float(config["timeout"]), evaluate_fn=evaluate
    )
    print(report(directory).statement, flush=True)
