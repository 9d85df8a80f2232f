"""Statistics of measured cells: intervals, differences paired by seed, and rank correlations with predictions."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from scipy.stats import spearmanr
from scipy.stats import t as student_t

from benchmarks._measure import print_table
from benchmarks._training_cells import CURVATURES, Kept, Line, Row, Task

LEAST_FOR_RANKS = 4
RATE_RULE = 0.01  # curvature per learning rate, for a prediction with one direction


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Mean and half the width of its 95 % interval."""
    half = student_t.ppf(0.975, len(values) - 1) * np.std(values, ddof=1) / np.sqrt(len(values))
    return float(np.mean(values)), float(half)


def by_seed(kept: Kept, row: str, epsilon: float) -> dict[int, float]:
    """Accuracy of every seed that was run."""
    return {line["seed"]: line["accuracy"] for line in kept.find(stage="final", row=row, epsilon=epsilon)}


def paired(kept: Kept, first: str, second: str, epsilon: float) -> tuple[float, float, int] | None:
    """Mean and half width of the accuracy of the first row minus the second, over the seeds of both."""
    one, two = by_seed(kept, first, epsilon), by_seed(kept, second, epsilon)
    common = sorted(one.keys() & two.keys())
    if len(common) < 2:
        return None
    return (*interval([one[seed] - two[seed] for seed in common]), len(common))


# ---- predictions


def rms_without_curvature(plan: Line, rate: float) -> float:
    """Root mean square over the steps of the noise in the model, as if gradients did not depend on it."""
    return plan["rms"][0]


def last_iterate_mixture(plan: Line, rate: float) -> float:
    """Noise at the last step over curvatures log-uniform on [1e-3, 1] with weights sqrt(h)."""
    return mixture(plan, 1e-3, 1.0, 0.5)


def last_iterate_rate_rule(plan: Line, rate: float) -> float:
    """Noise at the last step in the direction of curvature 0.01 x the learning rate."""
    known = np.array(CURVATURES[1:])
    return float(np.exp(np.interp(np.log(RATE_RULE * rate), np.log(known), np.log(plan["last"][1:]))))


def mixture(plan: Line, low: float, high: float, power: float) -> float:
    """sqrt(sum_i w_i last_i^2) with w_i proportional to h_i^power."""
    h, last = np.array(CURVATURES), np.array(plan["last"])
    inside = (h >= low * (1 - 1e-9)) & (h <= high * (1 + 1e-9))
    weights = h[inside] ** power
    return float(np.sqrt(weights @ last[inside] ** 2 / weights.sum()))


PREDICTIONS: dict[str, Callable[[Line, float], float]] = {
    "rms, h = 0": rms_without_curvature,
    "last, mixture": last_iterate_mixture,
    "last, 0.01 rate": last_iterate_rate_rule,
}


def rank_correlation(kept: Kept, names: Sequence[str], epsilon: float, prediction: str) -> tuple[float, int]:
    """Spearman's correlation of predicted loss (smaller is better) with accuracy, and the number of mechanisms."""
    losses, accuracies = [], []
    rates = [line["rate"] for name in names for line in kept.find(stage="final", row=name, epsilon=epsilon, seed=0)]
    for name in names:
        plans, runs = kept.find(stage="plan", row=name, epsilon=epsilon), by_seed(kept, name, epsilon)
        if not plans or not runs:
            continue
        if prediction in PREDICTIONS:
            loss = PREDICTIONS[prediction](plans[0], float(np.median(rates)))
        elif prediction in plans[0]["predicted"]:
            loss = plans[0]["predicted"][prediction]
        else:
            continue
        losses.append(loss)
        accuracies.append(np.mean(list(runs.values())))
    if len(losses) < LEAST_FOR_RANKS:
        return float("nan"), len(losses)
    return float(-spearmanr(losses, accuracies).statistic), len(losses)


# ---- tables


def print_tables(task: Task, rows: dict[str, Row], kept: Kept) -> None:
    """Accuracies, the best fixed row against the planner's choice, and rank correlations."""
    epsilons = list(task.first_rates)
    columns = ["mechanism", *(f"epsilon {epsilon:g}" for epsilon in epsilons)]
    for group in ("amplified", "unamplified"):
        mine = {name: row for name, row in rows.items() if row.group == group}
        table = [[row.title, *(_cell(kept, name, epsilon) for epsilon in epsilons)] for name, row in mine.items()]
        print_table(f"{task.name}, {group}: accuracy in percent, 95 % intervals", columns, table)
        _print_choice(mine, epsilons, kept)
        own = {key for line in kept.find(stage="plan") if line["row"] in mine for key in line["predicted"]}
        table = []
        for prediction in (*PREDICTIONS, *sorted(own)):
            found = [rank_correlation(kept, list(mine), epsilon, prediction) for epsilon in epsilons]
            table.append([prediction, *("" if np.isnan(value) else f"{value:.2f} ({n})" for value, n in found)])
        print_table(f"{task.name}, {group}: rank correlation of prediction and accuracy (mechanisms)", columns, table)


def _cell(kept: Kept, name: str, epsilon: float) -> str:
    values = list(by_seed(kept, name, epsilon).values())
    if len(values) < 2:
        return ""
    mean, half = interval(values)
    return f"{100 * mean:.1f} ± {100 * half:.1f} ({len(values)})"


def best_fixed(rows: dict[str, Row], kept: Kept, epsilon: float) -> str | None:
    """The row with the highest mean accuracy that is not the planner's choice."""
    means = {
        name: float(np.mean(list(by_seed(kept, name, epsilon).values())))
        for name, row in rows.items()
        if not row.chosen and by_seed(kept, name, epsilon)
    }
    return max(means, key=lambda name: means[name]) if means else None


def _print_choice(rows: dict[str, Row], epsilons: list[float], kept: Kept) -> None:
    table = []
    for name, row in rows.items():
        if not row.chosen:
            continue
        for epsilon in epsilons:
            best = best_fixed(rows, kept, epsilon)
            found = None if best is None else paired(kept, best, name, epsilon)
            if best is not None and found is not None:
                mean, half, seeds = (100 * found[0], 100 * found[1], found[2])
                words = f"{mean:.2f} ± {half:.2f}, at most {mean + half:.2f}"
                table.append([row.title, f"{epsilon:g}", rows[best].title, words, str(seeds)])
    if table:
        columns = ["the planner's choice", "epsilon", "best fixed row", "points behind it", "seeds"]
        print_table("Best fixed row minus the planner's choice, paired by seed", columns, table)


def print_differences(task: Task, rows: dict[str, Row], against: str, kept: Kept) -> None:
    """Every row minus one row of its group, in points, paired by seed."""
    table = []
    for name, row in rows.items():
        if row.group == rows[against].group and name != against:
            found = [paired(kept, name, against, epsilon) for epsilon in task.first_rates]
            cells = ["" if one is None else f"{100 * one[0]:+.2f} ± {100 * one[1]:.2f} ({one[2]})" for one in found]
            table.append([row.title, *cells])
    columns = ["mechanism", *(f"epsilon {epsilon:g}" for epsilon in task.first_rates)]
    print_table(f"{task.name}: points above {rows[against].title}, paired by seed (seeds)", columns, table)
