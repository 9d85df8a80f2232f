"""BLT-DP-FTRL: Figures 9 and 10, what other cohorts, separations and numbers of rounds would have cost."""

from __future__ import annotations

from collections.abc import Iterator

import antiphase as ap
from antiphase._planner._published import published
from antiphase._report._chart import Chart, series
from antiphase._reproduce._registry import Picture, reproduction
from antiphase._reproduce._row import Row, claimed, drawn
from antiphase.strategies import Tree

GOAL = 6500  # clients a round for which the noise below was used
NOISE = {100: 3.12 * GOAL / 3000, 400: 7.379, 1000: 8.681}
TREE_NOISE = 7.0


def _rho(strategy: ap.strategies.Strategy, separation: int, noise: float) -> float:
    return ap.zcdp(ap.Mechanism(strategy, ap.MinSeparation(separation), noise)).value


@reproduction("blt-dp-ftrl-figure-9", "zCDP against report goal, population and rounds at equal utility")
def figure_9(full: bool) -> Iterator[Row | Picture]:
    """Separation floor(population / goal), noise in proportion to the goal, BLT and TreeAgg of separation 400."""
    goals = (1000, 2000, 3000, 4500, 6500, 9000, 12_000)
    lines = {}
    for population in (3_000_000, 10_000_000):
        for name, noise in (("BLT", NOISE[400]), ("TreeAgg", TREE_NOISE)):
            strategy = published(400, 2000) if name == "BLT" else Tree(2000)
            values = [_rho(strategy, population // goal, noise * goal / GOAL) for goal in goals]
            lines[f"{name}, {population // 1_000_000} M clients"] = values
    yield Chart(
        "zCDP after 2000 rounds",
        "report goal",
        "zCDP",
        tuple(series(name, goals, values) for name, values in lines.items()),
        log_x=True,
        log_y=True,
    )
    for name, values in lines.items():
        yield drawn(f"{name}: zCDP at goals 1000, 6500, 12,000", f"{values[0]:.3g}, {values[4]:.3g}, {values[-1]:.3g}")
    better = all(
        b < t
        for p in (3, 10)
        for b, t in zip(lines[f"BLT, {p} M clients"], lines[f"TreeAgg, {p} M clients"], strict=True)
    )
    yield claimed("BLT against TreeAgg", "better guarantees", "smaller zCDP everywhere" if better else "not", better)
    falls = all(v[0] > v[-1] for v in lines.values())
    yield claimed("largest goal against smallest", "stronger guarantee", "smaller zCDP" if falls else "larger", falls)
    rounds = (500, 1000, 2000, 3000)
    flat = [_rho(published(400, n), 3100, NOISE[400]) for n in rounds]
    said = "more rounds need not cost more where the separation is large"
    yield claimed(
        "separation 3100, rounds 500 to 3000", said, f"zCDP {flat[0]:.4f} to {flat[-1]:.4f}", flat[-1] < 1.2 * flat[0]
    )


@reproduction("blt-dp-ftrl-figure-10", "zCDP against rounds for separations 100, 400 and 1000")
def figure_10(full: bool) -> Iterator[Row | Picture]:
    """k = ceil(n / b), noise for 6500 clients a round."""
    rounds = (200, 500, 1000, 1500, 2000, 3000, 4000)
    for separation, noise in NOISE.items():
        blts = [_rho(published(separation, n), separation, noise) for n in rounds]
        trees = [_rho(Tree(n), separation, TREE_NOISE) for n in rounds]
        yield Chart(
            f"zCDP against rounds, separation {separation}",
            "rounds",
            "zCDP",
            (series("BLT", rounds, blts), series("TreeAgg", rounds, trees)),
        )
        ratio = max(b / t for b, t in zip(blts, trees, strict=True))
        said = "BLT stronger than TreeAgg"
        yield claimed(f"separation {separation}", said, f"at most {ratio:.3f} of its zCDP", ratio < 1)
