"""How tight the lower bounds on epsilon from audits are, and how often the noise test detects wrong noise.

An audit trains with canaries (artificial examples), each of which is present or absent at random. The score of a canary
is large if the released values suggest that the canary is present. Lower bounds on epsilon follow from the scores.

- threshold: bounds without assumptions from 10,000 runs, for noise with epsilon 1, 2, 4 and 8. These bounds are
  compared with the bound for the best threshold on the scores, and with jax_privacy's bounds for the same scores.
- participation: bounds for every participation, without assumptions (from 10,000 scores), and for scores that are
  assumed to be Gaussian (from 100,000 scores).
- one_run: many canaries in one run, with the published theorems, compared with jax_privacy on the same scores.
- power: how often the noise test detects wrong noise.

python -m benchmarks.audit [table ...]

This benchmark simulates releases. `benchmarks.audit_engines` audits real training code.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

import antiphase as ap
from antiphase._check import Array
from antiphase._montecarlo import MonteCarlo
from antiphase.audit import (
    Scores,
    counting_bound,
    gaussian_bound,
    noise_power,
    one_run_bounds,
    reference_scores,
    scale_power,
    scores,
    simulate,
)
from antiphase.audit._counting import counted_epsilon
from benchmarks._measure import TINY, peer, print_table, sized

DELTA, CONFIDENCE = 1e-5, 0.95
EPSILONS = sized((1.0, 2.0, 4.0, 8.0), (4.0,))
RUNS, MANY = sized(10_000, 400), sized(100_000, 1000)
REPETITIONS = sized(10, 2)
STEPS = 16
ONE_RUN = ("one run", "one run, trade-off", "Gaussian")  # bounds of jax_privacy
BANDED = ap.strategies.Toeplitz([1.0, 0.5, 0.25], STEPS)
CASES: dict[str, tuple[Any, Any, Any, int | None]] = {
    "single": (BANDED, ap.SingleParticipation(), "zero-out", None),
    "every step": (ap.strategies.Identity(STEPS), ap.EveryStep(), "zero-out", None),
    "fixed epochs, BLT": (ap.strategies.BLT([0.9, 0.5], [0.1, 0.2], STEPS), ap.FixedEpochs(4, 4), "zero-out", None),
    "shuffled epochs": (BANDED, ap.ShuffledEpochs(4, 4), "zero-out", None),
    "min separation": (BANDED, ap.MinSeparation(4), "zero-out", None),
    "min separation, replace": (BANDED, ap.MinSeparation(4), "replace", None),
    "Poisson": (ap.strategies.Identity(STEPS), ap.Poisson(0.25), "zero-out", None),
    "cyclic Poisson": (BANDED, ap.CyclicPoisson(4, 0.5), "zero-out", None),
    "fixed size, replace": (BANDED, ap.FixedSize(4, 50), "replace", 400),
    "balls in bins": (BANDED, ap.BallsInBins(4, 4), "zero-out", None),
    "Poisson min separation": (BANDED, ap.PoissonMinSeparation(4, 0.5), "zero-out", None),
}
if TINY:
    CASES = {name: CASES[name] for name in ("min separation", "Poisson")}


def gaussian_scores(rng: np.random.Generator, mu: float, count: int) -> tuple[Array, Array]:
    """Return scores of a Gaussian mechanism, with the canary present and with the canary absent."""
    z = rng.standard_normal((2, count))
    return mu * z[0] + mu**2 / 2, mu * z[1] - mu**2 / 2


def as_scores(ratios: Array, present: Array, mu: float) -> Scores:
    """Return `Scores` for the log-likelihood ratios of a Gaussian mechanism with sensitivity / noise_std = mu."""
    return Scores(ratios, (ratios + mu**2 / 2) / mu, np.full(len(ratios), mu), present)


def best_threshold(samples: list[tuple[Array, Array]], mu: float) -> float:
    """Return the mean bound for the best threshold, as if this threshold were known in advance.

    Half of the failure probability goes to each of the two error rates (false positives and false negatives).
    """
    best = 0.0
    for at in np.linspace(-(mu**2), mu**2 / 2 + 5 * mu, 120):
        counts = [(int((i >= at).sum()), len(i), int((o >= at).sum()), len(o)) for i, o in samples]
        best = max(best, float(np.mean([counted_epsilon(c, DELTA, 1 - CONFIDENCE, 0.5) for c in counts])))
    return best


def peers(samples: list[tuple[Array, Array]]) -> list[dict[str, float]]:
    """Return the bounds of jax_privacy on the given scores."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "scores.npz"
        arrays = {}
        for i, (inside, outside) in enumerate(samples):
            arrays |= {f"in{i}": inside, f"out{i}": outside}
        np.savez(path, **arrays)
        found = peer("audit", str(path), str(DELTA), str(1 - CONFIDENCE))
    return [found] * len(samples) if isinstance(found, dict) else found


def mean_of(rows: list[dict[str, float]], name: str) -> str:
    """Return the mean of the bound `name` of jax_privacy."""
    return f"{np.mean([row[name] for row in rows]):.3f}"


def threshold() -> None:
    rng, rows = np.random.default_rng(1), []
    for epsilon in EPSILONS:
        given = ap.calibrate(ap.strategies.Identity(1), ap.EveryStep(), ap.Budget(epsilon, DELTA)).mechanism
        mu = ap.gdp(given).value
        samples = [gaussian_scores(rng, mu, RUNS // 2) for _ in range(REPETITIONS)]
        reference = gaussian_scores(rng, mu, sized(400_000, 20_000))
        ours = [counting_bound(i, o, DELTA, reference=reference).measured_epsilon_at_least for i, o in samples]
        held = [counting_bound(i, o, DELTA).measured_epsilon_at_least for i, o in samples]
        best, theirs = best_threshold(samples, mu), peers(samples[: sized(5, 1)])
        flags = np.arange(RUNS) < RUNS // 2
        formed = [
            gaussian_bound(given, as_scores(np.concatenate(pair), flags, mu), DELTA)[0].measured_epsilon_at_least
            for pair in samples
        ]
        rows.append(
            [
                f"{epsilon:g}",
                f"{np.mean(ours):.3f}",
                f"{100 * np.mean(ours) / best:.0f} %",
                f"{100 * np.mean(ours) / epsilon:.0f} %",
                f"{np.mean(held):.3f}",
                f"{best:.3f}",
                mean_of(theirs, "thresholds, Bonferroni"),
                mean_of(theirs, "thresholds, split"),
                mean_of(theirs, "thresholds, many splits"),
                f"{np.mean(formed):.3f}",
                mean_of(theirs, "Gaussian"),
            ]
        )
    columns = ["claim", "ours", "of the best", "of the claim", "held out", "best", "Bonferroni", "split", "many splits"]
    columns += ["Gaussian", "theirs"]
    print_table(f"{RUNS:,} runs, mean of {REPETITIONS}; Bonferroni, splits, theirs: jax_privacy", columns, rows)


def participation() -> None:
    rows = []
    for name, (strategy, given, adjacency, examples) in CASES.items():
        cells = [name]
        for epsilon in EPSILONS:
            sampling = MonteCarlo(samples=sized(1 << 16, 1 << 14), seed=1)
            made = ap.calibrate(strategy, given, ap.Budget(epsilon, DELTA), adjacency, examples, sampling).mechanism
            release = simulate(made, canaries=MANY, quiet=2, secret=ap.Secret.insecure(round(10 * epsilon)))
            found = scores(made, release)
            reference = reference_scores(made, found.signals, sized(400_000, 20_000), seed=2)
            few = found.inside[: RUNS // 2], found.outside[: RUNS // 2]
            counted = counting_bound(*few, DELTA, reference=reference).measured_epsilon_at_least
            formed = gaussian_bound(made, found, DELTA)[0].measured_epsilon_at_least
            cells.append(f"{100 * counted / epsilon:.0f} / {100 * formed / epsilon:.0f}")
        rows.append(cells)
        print(cells, file=sys.stderr, flush=True)
    columns = ["participation", *(f"epsilon {epsilon:g}" for epsilon in EPSILONS)]
    print_table(f"percent of the claim: {RUNS:,} scores without assumptions / {MANY:,} Gaussian", columns, rows)


def one_run() -> None:
    rng, rows = np.random.default_rng(3), []
    for epsilon in EPSILONS:
        given = ap.calibrate(ap.strategies.Identity(1), ap.EveryStep(), ap.Budget(epsilon, DELTA)).mechanism
        mu = ap.gdp(given).value
        for canaries in sized((1000, 10_000), (200,)):
            reference = gaussian_scores(rng, mu, sized(100_000, 20_000))
            ours, samples = [], []
            for _ in range(sized(10 if canaries <= 1000 else 2, 1)):
                present = rng.random(canaries) < 0.5
                ratios = mu * rng.standard_normal(canaries) + np.where(present, mu**2 / 2, -(mu**2) / 2)
                samples.append((ratios[present], ratios[~present]))
                found = [
                    *one_run_bounds(ratios, present, DELTA, CONFIDENCE, reference=reference),
                    counting_bound(*samples[-1], DELTA, reference=reference, assumes="independent canaries"),
                    gaussian_bound(given, as_scores(ratios, present, mu), DELTA)[0],
                ]
                ours.append([bound.measured_epsilon_at_least for bound in found])
            theirs = peers(samples) if canaries <= 2000 else []
            cells = [f"{value:.3f}" for value in np.mean(ours, axis=0)]
            cells += [mean_of(theirs, name) if theirs else "" for name in ONE_RUN]
            rows.append([f"{epsilon:g}", f"{canaries:,}", *cells])
    columns = ["claim", "canaries", "binomial", "trade-off", "independent", "Gaussian"]
    columns += ["their binomial", "their trade-off", "their Gaussian"]
    print_table("one run, mean of 10 (2 with 10,000); last three: jax_privacy on the same scores", columns, rows)


def power() -> None:
    rows = [
        [f"{values:,}", *(f"{100 * scale_power(values, scale):.1f} %" for scale in (0.99, 0.98, 0.95, 0.9))]
        for values in (1000, 4000, 16_000, 64_000, 256_000)
    ]
    columns = ["values", "1 % small", "2 % small", "5 % small", "10 % small"]
    print_table("power of the part scale at level 0.01, exact", columns, rows)
    given = ap.Mechanism(BANDED, ap.EveryStep(), 1.0)
    C = BANDED.encoder()
    N = np.linalg.inv(C)
    wrong = {
        "C transposed": np.linalg.inv(C.T),
        "not correlated": np.eye(STEPS),
        "step before": np.vstack([np.zeros(STEPS), N[:-1]]),
        "two steps swapped": N[[0, 1, 3, 2, *range(4, STEPS)]],
        "5 % small": 0.95 * N,
        "right": N,
    }
    rows = []
    for name, actual in wrong.items():
        sizes = sized((64, 256, 1024, 4096), (64,))
        found = [noise_power(given, actual, size, repetitions=sized(100, 5)) for size in sizes]
        rows.append([name, *(f"{100 * value:.0f} %" for value in found)])
    print_table(f"{STEPS} steps, level 0.01, by directions", ["noise", *map(str, sizes)], rows)


TABLES = {
    "threshold": threshold,
    "participation": participation,
    "one_run": one_run,
    "power": power,
}

if __name__ == "__main__":
    for table in sys.argv[1:] or TABLES:
        TABLES[table]()
