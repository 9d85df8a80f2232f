"""Compare tree aggregation, BandMF and BLT at the same epsilon over several seeds.

    python compare.py                    # writes curves.svg, prints three tables

Only the noise is compared, so users take part in a fixed order, in this process, without Flower's engine. Each
mechanism is calibrated to the same user-level (epsilon, delta). The last two tables show the privacy cost of other
report goals (clients per round) and numbers of rounds.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from digits.task import Model, accuracy, fresh_model, of_user, trained

import antiphase as ap
from antiphase.flower import SGD, cohort, extrapolate
from antiphase.flower._clip import clip_factor, norm

COLORS = {"tree aggregation": "#888", "BandMF": "#c60", "BLT": "#06c"}
# McMahan, Xu and Zhang 2024, App. F: the BLT for separation 400 that trained production models.
DECAY = [0.9999999999921251, 0.9944453083640997, 0.8985923474607591, 0.4912001418098778]
SCALE = [0.0070314825502323835, 0.10613806907600574, 0.1898159060327625, 0.1966594748073734]
GOAL, ROUNDS, TREE_NOISE, BLT_NOISE = 6500, 2000, 7.0, 7.379
HEAD = f"{'':18}{'population':>11}{'goal':>8}{'rounds':>8}{'separation':>12}{'participations':>16}{'rho':>9}"


def mechanisms(rounds: int, participation: ap.MinSeparation, workload: ap.Momentum, budget: ap.Budget):
    """Return each mechanism with the smallest noise that meets the budget."""
    wanted = {"steps": rounds, "participation": participation, "workload": workload}
    strategies = {
        "tree aggregation": ap.strategies.Tree(rounds),
        "BandMF": ap.optimize("banded", bands=participation.separation, **wanted).strategy,
        "BLT": ap.optimize("blt", **wanted).strategy,
    }
    return {n: ap.calibrate(s, participation, budget).mechanism for n, s in strategies.items()}


def curve(mechanism: ap.Mechanism, optimizer: SGD, users: int, goal: int, clip: float, seed: int) -> list[float]:
    """Return the accuracy after each release. Users take part in the same order in every pass."""
    names, start = ("weights", "bias"), fresh_model()
    model = dict(zip(names, start, strict=True))
    leaves, state = {name: value.shape for name, value in model.items()}, optimizer.init(model)
    stream = ap.NoiseStream(mechanism, leaves, ap.Secret.insecure(seed), f"compare {seed}")
    order, found = np.random.default_rng(seed).permutation(users), []
    for release in range(mechanism.strategy.steps):
        total = [clip * noise.astype(np.float64) for noise in stream.next()]
        for user in np.take(order, range(release * goal, (release + 1) * goal), mode="wrap"):
            after = trained(list(model.values()), *of_user(int(user), users))
            update = [a - b for a, b in zip(after, model.values(), strict=True)]
            factor = clip_factor(norm(update), clip)
            total = [t + factor * u for t, u in zip(total, update, strict=True)]
        mean = {name: value / goal for name, value in zip(names, total, strict=True)}
        model, state = optimizer.step(release, model, mean, state)
        weights: Model = list(model.values())
        found.append(accuracy(weights))
    return found


def drawing(curves: dict[str, np.ndarray]) -> str:
    """Return an SVG chart with the mean over seeds as a thick line and each seed as a thin line."""
    width, height, left = 640, 360, 40
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif">']
    for tick in np.linspace(0.0, 1.0, 6):
        y = height - 30 - tick * (height - 50)
        parts.append(f'<path d="M{left} {y:.0f}H{width}" stroke="#ddd"/><text x="4" y="{y + 4:.0f}">{tick:.1f}</text>')
    for i, (name, values) in enumerate(curves.items()):
        for line, thick, strength in [*((row, 1, 0.25) for row in values), (values.mean(axis=0), 3, 1.0)]:
            x = left + np.arange(len(line)) * (width - left - 10) / max(len(line) - 1, 1)
            points = " ".join(f"{a:.1f},{height - 30 - b * (height - 50):.1f}" for a, b in zip(x, line, strict=True))
            style = f'fill="none" stroke="{COLORS[name]}" stroke-width="{thick}" stroke-opacity="{strength}"'
            parts.append(f'<polyline points="{points}" {style}/>')
        parts.append(f'<text x="{width - 150}" y="{height - 60 - 20 * i}" fill="{COLORS[name]}">{name}</text>')
    parts.append(f'<text x="{width / 2:.0f}" y="{height - 6}">release (accuracy on held-out digits)</text></svg>')
    return "\n".join(parts)


def production(rounds: int) -> dict[str, tuple[ap.strategies.Strategy, float]]:
    """Return the strategies of production runs, with their noise for GOAL clients."""
    blt = ap.strategies.BLT(DECAY, SCALE, rounds)
    return {"tree, noise 7": (ap.strategies.Tree(rounds), TREE_NOISE), "BLT, noise 7.379": (blt, BLT_NOISE)}


def by_goal() -> list[str]:
    """Return a table of the privacy cost of other report goals.

    With a larger goal, the noise grows in proportion and the separation shrinks.

    Reference: McMahan, Xu and Zhang 2024, Fig. 9.
    """
    lines = [HEAD]
    for name, (strategy, noise) in production(ROUNDS).items():
        for population in (1_000_000, 3_000_000, 10_000_000):
            mechanism = ap.Mechanism(strategy, cohort(population, GOAL, ROUNDS), noise)
            for row in extrapolate(mechanism, GOAL, population, [3250, 6500, 13000, 26000]):
                numbers = f"{row.goal:8}{row.rounds:8}{row.separation:12}{row.participations:16}{row.zcdp.value:9.4f}"
                lines.append(f"{name:18}{population:11}{numbers}")
    return lines


def by_rounds() -> list[str]:
    """Return a table of the privacy cost of more rounds at a fixed separation.

    Reference: McMahan, Xu and Zhang 2024, Fig. 10.
    """
    lines = [HEAD]
    for separation in (100, 400, 1000):
        for rounds in (500, 1000, 2000, 4000):
            for name, (strategy, noise) in production(rounds).items():
                participation = cohort(separation * GOAL, GOAL, rounds)
                rho = ap.zcdp(ap.Mechanism(strategy, participation, noise)).value
                numbers = f"{rounds:8}{participation.separation:12}{participation.max_participations:16}{rho:9.4f}"
                lines.append(f"{name:18}{separation * GOAL:11}{GOAL:8}{numbers}")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    for name, default in {"users": 240, "goal": 20, "rounds": 48, "seeds": 5}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--epsilon", type=float, default=2.0)
    parser.add_argument("--output", type=Path, default=Path("curves.svg"))
    given = parser.parse_args()
    participation, budget = cohort(given.users, given.goal, given.rounds), ap.Budget(given.epsilon, 1e-3)
    rates = 0.3 * ap.schedules.linear(given.rounds)
    curves = {}
    print(f"{participation}, {budget}")
    for name, mechanism in mechanisms(given.rounds, participation, ap.Momentum(0.9, rates), budget).items():
        optimizer = SGD(tuple(rates), momentum=0.9)
        seeds = range(given.seeds)
        curves[name] = np.array([curve(mechanism, optimizer, given.users, given.goal, 0.5, seed) for seed in seeds])
        last = curves[name][:, -1]
        print(f"{name:18} accuracy {last.mean():.3f} +- {last.std():.3f} over {given.seeds} seeds")
    given.output.write_text(drawing(curves))
    print(f"\n{given.output}\n", *by_goal(), "", *by_rounds(), sep="\n")


if __name__ == "__main__":
    main()
