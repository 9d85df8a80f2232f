"""Statistics of the training benchmarks: confidence intervals, differences paired by seed, and rank correlations.

The results file has the noise of each mechanism in directions with several values of h = curvature x learning rate. A
prediction ranks the mechanisms by a function of this noise.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache

import numpy as np
from scipy.stats import spearmanr
from scipy.stats import t as student_t

import antiphase as ap
from antiphase._objective import training_objective
from antiphase._planner import rate_for_error
from benchmarks._measure import print_table
from benchmarks._training_cells import CURVATURES, Kept, Line, Row, Task, noise_by_curvature

LEAST_FOR_RANKS = 4  # smallest number of mechanisms for a rank correlation
RESAMPLES = 400
RATE_RULE = 0.01  # in `last_iterate_rate_rule`, h is this constant times the learning rate


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Return the mean, and half the width of its 95 % confidence interval."""
    half = student_t.ppf(0.975, len(values) - 1) * np.std(values, ddof=1) / np.sqrt(len(values))
    return float(np.mean(values)), float(half)


def by_seed(kept: Kept, row: str, epsilon: float) -> dict[int, float]:
    """Return a dict from seed to accuracy for a row and epsilon."""
    return {line["seed"]: line["accuracy"] for line in kept.find(stage="final", row=row, epsilon=epsilon)}


def paired(kept: Kept, first: str, second: str, epsilon: float) -> tuple[float, float, int] | None:
    """Return the mean difference in accuracy of two rows, paired by seed: (mean, half width, number of seeds).

    Returns None if fewer than two seeds were run for both rows.
    """
    one, two = by_seed(kept, first, epsilon), by_seed(kept, second, epsilon)
    common = sorted(one.keys() & two.keys())
    if len(common) < 2:
        return None
    return (*interval([one[seed] - two[seed] for seed in common]), len(common))


# ---- predictions


def rms_without_curvature(plan: Line, rate: float) -> float:
    """Return the rms noise in the model over the steps, as if gradients did not depend on the parameters."""
    return plan["rms"][0]


def last_iterate_mixture(plan: Line, rate: float) -> float:
    """Return the noise at the last step for curvatures h log-uniform on [1e-3, 1], with weights sqrt(h)."""
    return mixture(plan, 1e-3, 1.0, 0.5)


def last_iterate_rate_rule(plan: Line, rate: float) -> float:
    """Return the noise at the last step in a direction with h = 0.01 x learning rate."""
    known = np.array(CURVATURES[1:])
    return float(np.exp(np.interp(np.log(RATE_RULE * rate), np.log(known), np.log(plan["last"][1:]))))


def mixture(plan: Line, low: float, high: float, power: float) -> float:
    """Return sqrt(sum_i w_i last_i^2) over all h_i from `low` to `high`, with w_i proportional to h_i^power."""
    h, last = np.array(CURVATURES), np.array(plan["last"])
    inside = (h >= low * (1 - 1e-9)) & (h <= high * (1 + 1e-9))
    weights = h[inside] ** power
    return float(np.sqrt(weights @ last[inside] ** 2 / weights.sum()))


def least_regret(plan: Line, known: Sequence[Line]) -> float:
    """Return the largest value over all h of (noise at the last step) / (smallest such noise of all mechanisms)."""
    least = np.min([one["last"] for one in known], axis=0)
    return float(np.max(np.array(plan["last"]) / least))


def planner_default(plan: Line, rate: float, plain: Line) -> float:
    """Return the planner's default objective for a mechanism, interpolated between the stored curvatures.

    Args:
        plan: the stored noise of the mechanism for every h in CURVATURES.
        rate: largest learning rate x clipping norm.
        plain: the same as `plan`, for independent noise.
    """
    objective, flat = training_objective(rate), 0

    def at_end(line: Line) -> float:
        known = np.log(CURVATURES[1:])
        squares = np.exp(2.0 * np.interp(np.log(objective.values), known, np.log(line["last"][1:])))
        return float(objective.shares @ squares)

    weight = objective.trajectory * at_end(plain) / plain["rms"][flat] ** 2
    return float(np.sqrt(at_end(plan) + weight * plan["rms"][flat] ** 2))


def expected_rate(task: Task, plans: Sequence[Line], epsilon: float) -> float:
    """Return the learning rate that the planner predicts for the smallest rms error of `plans` and clipping norm 1."""
    rate = rate_for_error(task.problem(epsilon), min(plan["rms"][0] for plan in plans))
    assert rate is not None
    return rate


@cache
def independent_noise(task: Task) -> Line:
    """Return the noise of DP-SGD for every h in CURVATURES, for noise_std 1."""
    plain = ap.Mechanism(ap.strategies.Identity(task.steps), ap.Poisson(0.5), 1.0)
    rms, last = noise_by_curvature(task, plain)
    return {"rms": rms, "last": last}


PREDICTIONS: dict[str, Callable[[Line, float], float]] = {
    "rms, h = 0": rms_without_curvature,
    "last, mixture": last_iterate_mixture,
    "last, 0.01 rate": last_iterate_rate_rule,
}


PLANNER, REGRET = "planner's default", "least regret"


def rank_correlation(
    kept: Kept, names: Sequence[str], epsilon: float, prediction: str, task: Task | None = None
) -> tuple[float, int]:
    """Return Spearman's rank correlation of accuracy with minus the predicted loss, and the number of mechanisms.

    Args:
        kept: the results.
        names: the rows to compare.
        epsilon: the column of the table.
        prediction: a key of `PREDICTIONS`, or `PLANNER`, or `REGRET`, or a key of `Made.predicted`.
        task: the task; required for `PLANNER` only.
    """
    rates = [line["rate"] for name in names for line in kept.find(stage="final", row=name, epsilon=epsilon, seed=0)]
    found = {name: kept.find(stage="plan", row=name, epsilon=epsilon) for name in names}
    plans = {name: lines[0] for name, lines in found.items() if lines and by_seed(kept, name, epsilon)}
    losses, accuracies = [], []
    for name, plan in plans.items():
        if prediction in PREDICTIONS:
            loss = PREDICTIONS[prediction](plan, float(np.median(rates)))
        elif prediction == REGRET:
            loss = least_regret(plan, list(plans.values()))
        elif prediction == PLANNER and task is not None:
            loss = planner_default(plan, expected_rate(task, list(plans.values()), epsilon), independent_noise(task))
        elif prediction in plan["predicted"]:
            loss = plan["predicted"][prediction]
        else:
            continue
        losses.append(loss)
        accuracies.append(np.mean(list(by_seed(kept, name, epsilon).values())))
    if len(losses) < LEAST_FOR_RANKS:
        return float("nan"), len(losses)
    return float(-spearmanr(losses, accuracies).statistic), len(losses)


def attainable_rank_correlation(kept: Kept, names: Sequence[str], epsilon: float) -> float:
    """Estimate the largest rank correlation that a prediction can reach, given how few seeds were run.

    The result is the mean rank correlation of the measured accuracies with the accuracies of resampled seeds. This is
    about what a second measurement would reach if it were used as a prediction. Rows with the same number of seeds use
    the same resampled seeds, since the training data of a seed are the same in all rows. Returns NaN if there are too
    few rows.
    """
    measured = [np.array(list(found.values())) for name in names if (found := by_seed(kept, name, epsilon))]
    if len(measured) < LEAST_FOR_RANKS:
        return float("nan")
    rng, found = np.random.default_rng(0), []
    means = [float(np.mean(values)) for values in measured]
    for _ in range(RESAMPLES):
        chosen = {count: rng.integers(count, size=count) for count in {len(values) for values in measured}}
        again = [float(np.mean(values[chosen[len(values)]])) for values in measured]
        found.append(spearmanr(means, again).statistic)
    return float(np.mean(found))


# ---- tables


def print_tables(task: Task, rows: dict[str, Row], kept: Kept) -> None:
    """Print accuracies, a comparison of the planner's choice with the best fixed row, and rank correlations."""
    epsilons = list(task.first_rates)
    columns = ["mechanism", *(f"epsilon {epsilon:g}" for epsilon in epsilons)]
    for group in ("amplified", "unamplified"):
        mine = {name: row for name, row in rows.items() if row.group == group}
        table = [[row.title, *(_cell(kept, name, epsilon) for epsilon in epsilons)] for name, row in mine.items()]
        print_table(f"{task.name}, {group}: accuracy in percent, 95 % intervals", columns, table)
        _print_choice(mine, epsilons, kept)
        _print_ranks(task, group, list(mine), kept)
    _print_ranks(task, "all", list(rows), kept)
    _print_predictions(task, rows, kept)


def _print_ranks(task: Task, group: str, names: list[str], kept: Kept) -> None:
    epsilons, table = list(task.first_rates), []
    columns = ["prediction", *(f"epsilon {epsilon:g}" for epsilon in epsilons)]
    for prediction in (*PREDICTIONS, REGRET, PLANNER):
        found = [rank_correlation(kept, names, epsilon, prediction, task) for epsilon in epsilons]
        table.append([prediction, *("" if np.isnan(value) else f"{value:.2f} ({n})" for value, n in found)])
    most = [attainable_rank_correlation(kept, names, epsilon) for epsilon in epsilons]
    table.append(["about the largest attainable", *("" if np.isnan(value) else f"{value:.2f}" for value in most)])
    print_table(f"{task.name}, {group}: rank correlation of prediction and accuracy (mechanisms)", columns, table)


def _print_predictions(task: Task, rows: dict[str, Row], kept: Kept) -> None:
    """Print predicted losses next to accuracies, and predicted learning rates next to tuned ones.

    Losses are relative to the smallest loss.
    """
    for epsilon in task.first_rates:
        found = {name: kept.find(stage="plan", row=name, epsilon=epsilon) for name in rows}
        plans = {name: lines[0] for name, lines in found.items() if lines and by_seed(kept, name, epsilon)}
        if len(plans) < LEAST_FOR_RANKS:
            continue
        rate = expected_rate(task, list(plans.values()), epsilon)
        losses = {name: planner_default(plan, rate, independent_noise(task)) for name, plan in plans.items()}
        table = []
        for name in sorted(losses, key=lambda name: losses[name]):
            own = rate_for_error(replace(task.problem(epsilon), clip_norm=task.clip_norm), plans[name]["rms"][0])
            tuned = kept.find(stage="final", row=name, epsilon=epsilon)[0]["rate"]
            ratio, buffers = losses[name] / min(losses.values()), str(plans[name]["memory_copies"])
            cell = _cell(kept, name, epsilon)
            words = [rows[name].title, rows[name].group, buffers]
            table.append([*words, f"{ratio:.3f}", cell, f"{own:.2g}", f"{tuned:g}"])
        columns = ["mechanism", "group", "buffers", "predicted", "accuracy", "predicted rate", "tuned rate"]
        print_table(f"{task.name}, epsilon {epsilon:g}: predicted loss / least, and accuracy", columns, table)


def _cell(kept: Kept, name: str, epsilon: float) -> str:
    values = list(by_seed(kept, name, epsilon).values())
    if len(values) < 2:
        return ""
    mean, half = interval(values)
    return f"{100 * mean:.1f} ± {100 * half:.1f} ({len(values)})"


def best_fixed(rows: dict[str, Row], kept: Kept, epsilon: float) -> str | None:
    """Return the row with the highest mean accuracy. The planner's choice is excluded."""
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
        columns = ["the planner's choice", "epsilon", "best fixed row", "percentage points behind it", "seeds"]
        print_table("Best fixed row minus the planner's choice, paired by seed", columns, table)


def print_differences(task: Task, rows: dict[str, Row], against: str, kept: Kept) -> None:
    """Print the difference of every row to the row `against` of its group, in percentage points, paired by seed."""
    table = []
    for name, row in rows.items():
        if row.group == rows[against].group and name != against:
            found = [paired(kept, name, against, epsilon) for epsilon in task.first_rates]
            cells = ["" if one is None else f"{100 * one[0]:+.2f} ± {100 * one[1]:.2f} ({one[2]})" for one in found]
            table.append([row.title, *cells])
    columns = ["mechanism", *(f"epsilon {epsilon:g}" for epsilon in task.first_rates)]
    title = f"{task.name}: percentage points above {rows[against].title}, paired by seed (number of seeds)"
    print_table(title, columns, table)
