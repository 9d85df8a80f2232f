"""Write a set of plans and half-finished runs with the current version: `python -m tests.stored.write DIRECTORY`.

The sets under version control were written by the versions that their directories name, and are never written again.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from pathlib import Path

import antiphase as ap
from tests.stored.cases import EXAMPLES, LEAVES, PARTICIPATIONS, STEPS, STOP, STRATEGIES, plan_for, take_steps
from tests.stored.frameworks import flower_run, jax_run, torch_run


def write(directory: Path) -> None:
    """All of it, and what must come out when it is resumed, in expected.json."""
    expected: dict[str, dict] = {"plans": {}, "runs": {}, "frameworks": {}}
    plans = {f"strategy-{name}": plan_for(strategy) for name, strategy in STRATEGIES.items()}
    for name, participation in PARTICIPATIONS.items():
        strategy = STRATEGIES["identity" if name == "poisson" else "toeplitz"]
        plans[f"participation-{name}"] = plan_for(strategy, participation)
    plans["extended"] = plan_for(STRATEGIES["blt"]).extend(20)
    budget = ap.Budget(4.0, 1e-5)
    plans["planned"] = ap.plan(ap.Problem(steps=24, budget=budget, examples=60, batch_size=10))
    schedule = ap.Momentum(0.9, [0.1] * 8 + [0.05] * 8, weight_decay=0.1)
    plans["planned-momentum"] = ap.plan(
        ap.Problem(steps=16, budget=budget, participation=ap.FixedEpochs(4, 4), workload=schedule, objective="max")
    )
    bins = ap.Problem(steps=16, budget=budget, participation=ap.BallsInBins(4, 4), adjacency="add-or-remove")
    plans["planned-bins"] = ap.plan(bins, ["toeplitz"])
    (directory / "plans").mkdir(parents=True)
    for name, plan in plans.items():
        plan.save(directory / "plans" / f"{name}.json")
        expected["plans"][name] = {"fingerprint": plan.fingerprint, "epsilon": plan.guarantee.value}
    for name, plan in plans.items():
        if name.startswith("strategy-") or name in ("participation-cyclic-poisson", "participation-balls-in-bins"):
            for dtype in ("float32", "float64"):
                expected["runs"][f"{name}-{dtype}"] = _run(directory / "runs" / f"{name}-{dtype}", plan, dtype)
    for name, work in {
        "torch-host": lambda d, stop: torch_run(d, "host", stop),
        "torch-device": lambda d, stop: torch_run(d, "device", stop),
        "jax-host": lambda d, stop: jax_run(d, "host", stop),
        "jax-device": lambda d, stop: jax_run(d, "device", stop),
        "flower": lambda d, stop: flower_run(d, min(stop, 3) if stop < STEPS else 6),
    }.items():
        (directory / "frameworks" / name).mkdir(parents=True)
        work(directory / "frameworks" / name, STOP)
        with tempfile.TemporaryDirectory() as other:
            resumed = Path(other) / "resumed"
            shutil.copytree(directory / "frameworks" / name, resumed)
            expected["frameworks"][name] = work(resumed, STEPS)
    (directory / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")


def _run(directory: Path, plan: ap.Plan, dtype: str) -> dict:
    """A run that stopped after some steps, with a stored noise state and a publication."""
    examples = EXAMPLES if plan.problem.participation != ap.MinSeparation(4) else None
    with ap.Run.open(plan, directory, leaves=LEAVES, examples=examples, dtype=dtype) as run:
        before = take_steps(run, STOP - 1)
        run.save()
        run.publish("first model")
        before += take_steps(run, STOP)
    with tempfile.TemporaryDirectory() as other:
        resumed = Path(other) / "resumed"
        shutil.copytree(directory, resumed)
        with ap.Run.open(plan, resumed, leaves=LEAVES, examples=examples, dtype=dtype) as run:
            after = take_steps(run, STEPS)
            guarantee = run.report().guarantee
    return {"examples": examples, "noise": before + after, "epsilon": guarantee and guarantee.value}


if __name__ == "__main__":
    write(Path(sys.argv[1]))
