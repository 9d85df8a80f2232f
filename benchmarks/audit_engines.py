"""Audits of engines: how often correct engines are flagged, and how often planted mistakes are detected.

An engine is one way to train with a plan, such as a NumPy loop, PyTorch, JAX or Flower.

- alarms: how many audits of correct engines were flagged. Each audit has its own secret and run id.
- planted: how often each planted mistake of each engine was detected, by which part of the audit, and how long it took.

python -m benchmarks.audit_engines [--results FILE] [--repetitions N] [--only TEXT] [table ...]

Every audit is added to FILE (JSON lines) when it ends. Audits that are already in the file are not repeated, so a long
measurement can be stopped and continued. Without --results, nothing is stored. --repetitions is the number of audits of
each engine or mistake. --only restricts the audits to names that contain TEXT, such as "torch". Tables are printed in
Markdown, as docs/audit.md shows them.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

from antiphase.audit._counting import lower_limit, upper_limit
from benchmarks._measure import TINY, sized

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=4")

ALARMS, PLANTED, SLOW_PLANTED = sized(40, 2), sized(10, 1), sized(3, 1)
FIRST_SEED = {"alarms": 1000, "planted": 11}
TWO_PROCESSES = "torch, two processes"
Findings = Callable[[Path, int], tuple[str, ...]]


@dataclass(frozen=True)
class Subject:
    """A correct engine, or an engine with a mistake.

    Args:
        engine: name of the engine.
        name: name of the mistake; empty for a correct engine.
        findings: function of (directory, seed) that audits the engine and returns the findings.
        seen_by: text that a finding must contain, so that the mistake counts as detected.
        repetitions: number of audits.
        tries: number of runs in one audit; more than 1 for mistakes that have an effect only in some runs.
    """

    engine: str
    name: str
    findings: Findings
    seen_by: str = ""
    repetitions: int = 1
    tries: int = 1


@dataclass
class Results:
    """The audits that were made. They are stored in a file of JSON lines if `path` is given."""

    path: Path | None
    rows: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.path is not None and self.path.exists():
            self.rows = [json.loads(line) for line in self.path.read_text().splitlines()]

    def add(self, row: dict[str, Any]) -> None:
        """Add one audit."""
        self.rows.append(row)
        if self.path is not None:
            with self.path.open("a") as file:
                file.write(json.dumps(row) + "\n")

    def of(self, table: str, subject: Subject) -> list[dict[str, Any]]:
        """Return the audits of a subject."""
        key = (table, subject.engine, subject.name)
        return [row for row in self.rows if (row["table"], row["engine"], row["name"]) == key]


def right_engines(repetitions: int) -> list[Subject]:
    """Return the engines without mistakes. With --tiny, return only the NumPy loop."""
    from tests.audit.engines import numpy_audits

    plans = {**numpy_audits.PLANS, "balls in bins": numpy_audits.bins_plan()}
    names = ["min separation"] if TINY else list(plans)

    def numpy(directory: Path, seed: int) -> tuple[str, ...]:
        given = plans[names[seed // 10 % len(names)]]  # successive audits use different participations
        return found(numpy_audits.audit(directory, given, seed=seed))

    engines: dict[str, Findings] = {"NumPy loop": numpy}
    if not TINY:
        from tests.audit.engines import flower_audits, jax_audits, torch_audits

        def torch_mode(mode: str) -> Findings:
            return lambda directory, seed: found(torch_audits.audit(directory, seed=seed, mode=mode))

        engines |= {
            "torch, hooks": torch_mode("hooks"),
            "torch, ghost": torch_mode("ghost"),
            "torch, functorch": torch_mode("functorch"),
            "JAX, host": lambda directory, seed: found(jax_audits.audit(directory, seed=seed)),
            "Flower": lambda directory, seed: found(flower_audits.audit(directory, seed=seed)),
        }
    return [Subject(name, "", audit, repetitions=repetitions) for name, audit in engines.items()]


def mistakes(repetitions: int) -> list[Subject]:
    """Return the planted mistakes of each engine. With --tiny, return only one mistake of the NumPy loop."""
    from tests.audit.engines import planted_numpy

    if TINY:
        return [_planted("NumPy loop", "no noise", planted_numpy.BUGS["no noise"], planted_numpy.made, 1)]
    from tests.audit.engines import planted_flower, planted_jax, planted_torch

    def same(bug: Any) -> Any:
        return bug

    modules = {
        "NumPy loop": (planted_numpy.BUGS, planted_numpy.made),
        "torch": (planted_torch.BUGS, same),
        "JAX": (planted_jax.BUGS, planted_jax.made),
        "Flower": (planted_flower.BUGS, same),
    }
    return [
        _planted(engine, name, bug, made, repetitions)
        for engine, (bugs, made) in modules.items()
        for name, bug in bugs.items()
    ]


def _planted(engine: str, name: str, bug: Any, made: Callable[[Any], Any], repetitions: int) -> Subject:
    return Subject(
        engine,
        name,
        lambda directory, seed: made(bug).findings(directory, seed=seed),
        bug.seen_by,
        repetitions,
        bug.tries,
    )


def found(audit: Any) -> tuple[str, ...]:
    """Return the findings of an audit."""
    return tuple(audit.findings)


def measure(table: str, subjects: list[Subject], results: Results) -> None:
    """Make all audits that are missing. The first audits of all subjects come before the second ones, and so on."""
    for i in range(max(subject.repetitions for subject in subjects)):
        seed = FIRST_SEED[table] + 10 * i
        for subject in subjects:
            if i >= subject.repetitions or any(row["seed"] == seed for row in results.of(table, subject)):
                continue
            start, seen = time.perf_counter(), list[str]()
            for j in range(subject.tries):
                with (
                    tempfile.TemporaryDirectory() as directory,
                    patch("antiphase._run.opening.fresh_run_id", lambda seed=seed, j=j: f"{seed + j:032x}"),
                ):
                    seen += subject.findings(Path(directory) / "run", seed + j)
            results.add(
                {
                    "table": table,
                    "engine": subject.engine,
                    "name": subject.name,
                    "seed": seed,
                    "findings": sorted(set(seen)),
                    "seconds": round(time.perf_counter() - start, 3),
                }
            )


def two_processes(repetitions: int, results: Results) -> list[Subject]:
    """Audit DDP and FSDP in two processes, without and with mistakes. Return the audited subjects."""
    from antiphase.audit import Release, evaluate
    from tests.audit.engines.models import plan
    from tests.audit.engines.processes import SCENARIOS, SEEN_BY

    def not_called(directory: Path, seed: int) -> tuple[str, ...]:
        raise NotImplementedError

    subjects = [Subject(TWO_PROCESSES, name, not_called, SEEN_BY[name], repetitions) for name in SCENARIOS]
    for i in range(repetitions):
        seed = FIRST_SEED["planted"] + 10 * i
        if any(row["seed"] == seed for row in results.of("planted", subjects[-1])):
            continue
        with tempfile.TemporaryDirectory() as directory:
            start = time.perf_counter()
            module = "tests.audit.engines.processes"
            subprocess.run([sys.executable, "-W", "ignore", "-m", module, directory, str(seed)], check=True)
            each = (time.perf_counter() - start) / len(SCENARIOS)
            for subject in subjects:
                begun = time.perf_counter()
                release = Release.load(Path(directory) / f"{subject.name}.npz")
                findings = sorted(evaluate(plan(), release).findings)
                row = {"table": "planted", "engine": subject.engine, "name": subject.name, "seed": seed}
                seconds = round(each + time.perf_counter() - begun, 3)
                results.add({**row, "findings": findings, "seconds": seconds})
    return subjects


def rate_with_limits(hits: int, trials: int) -> str:
    """Return a rate in percent with its two-sided 95 % Clopper-Pearson interval."""
    low, high = float(lower_limit(hits, trials, 0.025)), float(upper_limit(hits, trials, 0.025))
    return f"{100 * hits / trials:.1f} % ({100 * low:.1f} to {100 * high:.1f} %)"


def part_of(finding: str) -> str:
    """Return the part of the audit that a finding names.

    >>> part_of("noise: scale departs from the claim."), part_of("Measured epsilon of at least 1018, but ...")
    ('noise: scale', 'bound on epsilon')
    """
    if finding.startswith("Measured epsilon"):
        return "bound on epsilon"
    return finding.removesuffix(" departs from the claim.")


def print_alarms(subjects: list[Subject], results: Results) -> None:
    print("| engine | audits | flagged | rate (95 % interval) | by | seconds each |\n|---|---|---|---|---|---|")
    total = Counter[str]()
    for subject in subjects:
        rows = results.of("alarms", subject)
        flagged = [row for row in rows if row["findings"]]
        by = Counter(part_of(text) for row in flagged for text in row["findings"])
        seconds = sum(row["seconds"] for row in rows) / max(len(rows), 1)
        total += Counter({"audits": len(rows), "flagged": len(flagged)})
        if rows:
            named = ", ".join(f"{part} {count}" for part, count in by.most_common())
            rate = rate_with_limits(len(flagged), len(rows))
            print(f"| {subject.engine} | {len(rows)} | {len(flagged)} | {rate} | {named} | {seconds:.1f} |")
    if total["audits"]:
        rate = rate_with_limits(total["flagged"], total["audits"])
        print(f"| all | {total['audits']} | {total['flagged']} | {rate} | | |")


def print_planted(subjects: list[Subject], results: Results) -> None:
    print("| engine | mistake | seen by | flagged | by that part | seconds each |\n|---|---|---|---|---|---|")
    for subject in subjects:
        rows = results.of("planted", subject)
        if not rows:
            continue
        flagged = sum(bool(row["findings"]) for row in rows)
        seen = sum(any(subject.seen_by in text for text in row["findings"]) for row in rows)
        seconds = sum(row["seconds"] for row in rows) / len(rows)
        name = subject.name + (f" ({subject.tries} audits)" if subject.tries > 1 else "")
        part = subject.seen_by or "nothing: a right engine"
        counted = f"{seen} of {len(rows)}" if subject.seen_by else ""
        print(f"| {subject.engine} | {name} | {part} | {flagged} of {len(rows)} | {counted} | {seconds:.1f} |")


def main() -> None:
    """Measure, and print the tables."""
    parser = argparse.ArgumentParser()
    parser.add_argument("tables", nargs="*", choices=["alarms", "planted", []])
    parser.add_argument("--results", type=Path)
    parser.add_argument("--repetitions", type=int)
    parser.add_argument("--only", default="")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    results, tables = Results(given.results), given.tables or ["alarms", "planted"]

    def wanted(subjects: list[Subject]) -> list[Subject]:
        return [subject for subject in subjects if given.only in f"{subject.engine}: {subject.name}"]

    if "alarms" in tables and (subjects := wanted(right_engines(given.repetitions or ALARMS))):
        measure("alarms", subjects, results)
        print_alarms(subjects, results)
    if "planted" in tables:
        subjects = wanted(mistakes(given.repetitions or PLANTED))
        if subjects:
            measure("planted", subjects, results)
        if not TINY and given.only in TWO_PROCESSES:
            subjects += two_processes(given.repetitions or SLOW_PLANTED, results)
        print_planted(subjects, results)


if __name__ == "__main__":
    main()
