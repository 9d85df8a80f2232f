"""Monte Carlo accounting for balls-in-bins, and optimisation under amplification.

- plain: plain Monte Carlo sampling, compared with jax_privacy, for 2000 steps, 100 bins (steps of an epoch) and 20
  epochs. jax_privacy keeps every sample in memory and loops over the samples. So jax_privacy is run with fewer samples,
  and its time and memory are scaled up.
- certified: proved upper bounds for deltas that are too small for plain sampling, with the same steps, bins and epochs.
- descent: time to optimise a strategy under amplification, for 2048 steps and 16 epochs.
- optimised: the table of docs/amplification.md, for 2048 steps and 16 epochs.

python -m benchmarks.montecarlo [table ...]
"""

from __future__ import annotations

import math
import sys
import time
from pathlib import Path

from antiphase import BallsInBins, Budget, CyclicPoisson, FixedEpochs, PrefixSum, calibrate, error
from antiphase._check import Array
from antiphase._montecarlo import bins_gram, epsilon
from antiphase._montecarlo.balls_in_bins import bins_pair
from antiphase._montecarlo.certificate import certify, plan_run
from antiphase._montecarlo.pilot import Effort
from antiphase._montecarlo.plain_sampling import plain_means
from antiphase._montecarlo.samples import randomness, single_threaded
from antiphase._montecarlo.verification import log_inverse_share
from antiphase._optimize import (
    AmplifiedProblem,
    BLTFamily,
    EvaluatedPoint,
    Family,
    NoiseEstimator,
    ToeplitzFamily,
    blt_starts,
    evaluate_point,
    optimize,
    toeplitz_starts,
)
from antiphase.strategies import Strategy, Toeplitz
from benchmarks._measure import peer, print_table, readable, sized

STEPS, BINS, EPOCHS = sized((2000, 100, 20), (24, 12, 2))
SAMPLES, PEER_SAMPLES = sized(1 << 20, 1 << 14), 1 << 12
PLAIN_BANDS = sized(32, 4)
CASES = sized(((16, 2.829), (32, 2.071), (64, 1.455)), ((4, 4.0),))
DELTAS = sized((1e-5, 1e-8, 1e-10), (1e-5,))
SLACK = sized(0.04, 0.2)
LONG = AmplifiedProblem(
    sized(2048, 24), BallsInBins(*sized((16, 128), (2, 12))), PrefixSum(), "rms", Budget(1.0, sized(1e-5, 1e-3))
)
STEPS_OF_DESCENT, FEW_SAMPLES = sized(300, 2), 1 << 11
BASELINE = sized((1, 2, 3, 4, 5, 6, 8, 12, 16, 24, 32, 48, 64), (1, 4))
TOEPLITZ_BANDS, BANDED_BANDS = sized(256, 24), sized(64, 4)
EPSILONS = sized((1.0, 2.0, 4.0, 8.0), (2.0,))


def reset_peak() -> int:
    """Reset the peak memory of this process, and return its current memory in bytes."""
    Path("/proc/self/clear_refs").write_text("5")
    return peak()


def peak() -> int:
    """Return the peak memory of this process since the last reset, in bytes."""
    return 1024 * int(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0])


def plain() -> None:
    noise, bands = 16.0, PLAIN_BANDS
    pair = bins_pair(bins_gram(Toeplitz.square_root(STEPS, bands), BallsInBins(EPOCHS, BINS)), noise)
    plain_means(pair, 0.5, 1 << 14, randomness(0), -1)
    before, start = reset_peak(), time.perf_counter()
    found = plain_means(pair, 0.5, SAMPLES, randomness(1), -1)
    ours, memory = time.perf_counter() - start, peak() - before
    theirs = peer("montecarlo", *map(str, (STEPS, BINS, noise, PEER_SAMPLES, bands)))
    scale = SAMPLES / PEER_SAMPLES
    rows = [
        ["antiphase", readable(ours), f"{memory / 1e6:,.0f} MB", f"{found[0].value:.4g}, {found[1].value:.4g}"],
        [
            f"jax_privacy, {PEER_SAMPLES} samples times {scale:,.0f}",
            readable(theirs["seconds"] * scale),
            f"{theirs['memory'] * scale / 1e6:,.0f} MB",
            ", ".join(f"{x:.4g}" for x in theirs.get("deltas", ())),
        ],
    ]
    columns = ["", "time", "more memory", "delta at epsilon 0.5"]
    print_table(f"{SAMPLES:,} samples, both directions, {bands} bands", columns, rows)
    ratio = theirs["seconds"] * scale / ours
    print(f"{ratio:,.0f} times faster (goal: at least 10)")
    print(f"{theirs['memory'] * scale / max(memory, 1):,.0f} times less memory (goal: at least 10)\n")


def certified() -> None:
    rows = []
    for bands, noise in CASES:
        found = optimize(
            "banded", steps=STEPS, participation=FixedEpochs(EPOCHS, BINS), bands=bands, max_iterations=200
        )
        strategy, noise_std = found.strategy, noise * math.sqrt(EPOCHS)
        pair = bins_pair(bins_gram(strategy, BallsInBins(EPOCHS, BINS)), noise_std)
        for delta in DELTAS:
            start = time.perf_counter()
            claim = epsilon(strategy, BallsInBins(EPOCHS, BINS), noise_std, delta)
            searched, start = time.perf_counter() - start, time.perf_counter()
            effort = Effort(1 << 22, log_inverse_share(delta, 1), randomness(None, 0))
            pilots = pair.pilots(claim.value, effort)
            goal = (1.0 + SLACK) * max(pilot.estimate for pilot in pilots)
            runs = plan_run(pilots[0], goal, effort), plan_run(pilots[1], goal, effort)
            limits = certify(runs, effort, randomness(None, 1))
            seconds = time.perf_counter() - start
            worst = max(limits, key=lambda limit: limit.value)
            samples = " + ".join(f"{limit.samples:,}" for limit in limits)
            slack = f"{worst.value / worst.estimate - 1:.1%}"
            rows.append(
                [
                    f"{bands}",
                    f"{delta:.0e}",
                    f"{claim.value:.4f}",
                    samples,
                    slack,
                    readable(seconds),
                    readable(searched),
                ]
            )
    columns = ["bands", "delta", "epsilon", "samples", "slack on delta", "certified delta", "epsilon searched"]
    print_table("Certified bounds for the noise in Fig. 28 of the paper on near-exact amplification", columns, rows)
    print("goal for each bound: slack at most 5 % in under 30 s on 2 cores")


def descent() -> None:
    """Time a descent. Each step minimises the tangent, then estimates noise_std and its gradient with new samples.

    The tangent is an objective without samples. At the current strategy, its gradient is that of the true objective
    (see `antiphase._optimize.amplified.optimizer`).
    """
    starts, points = blt_starts(LONG, 3)
    toeplitz = ToeplitzFamily(LONG.steps, LONG.workload, LONG.objective, iterations=4)
    families: dict[str, tuple[Family, EvaluatedPoint]] = {
        "blt, 3 buffers": (BLTFamily(LONG.steps, LONG.workload, LONG.objective), _first(starts[0], points[0])),
        f"toeplitz, {TOEPLITZ_BANDS} bands": (toeplitz, _first(toeplitz_starts(LONG, 4)[-1], None)),
    }
    rows = []
    for name, (family, first) in families.items():
        trial, start = first, time.perf_counter()
        with single_threaded():
            for step in range(STEPS_OF_DESCENT):
                goal = family.minimize_tangent(trial.point, trial.noise.weights)
                estimator = NoiseEstimator(LONG.budget, FEW_SAMPLES, step)
                trial = evaluate_point(LONG, family.strategy(goal), goal, estimator, trial.noise)
        seconds = time.perf_counter() - start
        rows.append([name, f"{math.exp(first.log_loss):.2f}", f"{math.exp(trial.log_loss):.2f}", readable(seconds)])
    print_table(f"{STEPS_OF_DESCENT} steps, {FEW_SAMPLES:,} samples each", ["", "loss before", "after", "time"], rows)
    print("goal: under 60 s on 2 cores; the paper reports 375 to 1060 s on a V100\n")


def _first(strategy: Strategy, point: Array | None) -> EvaluatedPoint:
    if point is None:
        assert isinstance(strategy, Toeplitz)
        point = ToeplitzFamily(LONG.steps, LONG.workload, LONG.objective).point(strategy.coefficients, TOEPLITZ_BANDS)
    return evaluate_point(LONG, strategy, point, NoiseEstimator(LONG.budget, FEW_SAMPLES, 1))


def optimised() -> None:
    """Compare strategies optimised under balls-in-bins with the best banded strategy under cyclic Poisson sampling."""
    n, epochs, bins = LONG.steps, LONG.participation.epochs, LONG.participation.steps_per_epoch
    banded = {
        bands: optimize("banded", steps=n, participation=FixedEpochs(epochs, bins), bands=bands, max_iterations=100)
        for bands in BASELINE
    }
    errors = {bands: error(found.strategy, LONG.workload).rms for bands, found in banded.items()}
    rows = []
    for epsilon_ in EPSILONS:
        budget = Budget(epsilon_, LONG.budget.delta)
        losses = {
            bands: calibrate(found.strategy, CyclicPoisson(bands, bands / bins), budget).mechanism.noise_std
            * errors[bands]
            for bands, found in banded.items()
        }
        best = min(losses, key=lambda bands: losses[bands])
        row = [f"{epsilon_:g}", f"{losses[best]:.3f} ({best})"]
        for family, options in (("blt", {"buffers": 3}), ("toeplitz", {}), ("banded", {"bands": BANDED_BANDS})):
            found = optimize(family, steps=n, participation=LONG.participation, budget=budget, **options)
            row.append(f"{found.loss:.3f} ({100 * (found.loss / losses[best] - 1):+.1f} %, {found.seconds:.0f} s)")
        rows.append(row)
    columns = ["epsilon", "cyclic Poisson, banded (bands)", "BLT, 3 buffers", "Toeplitz", f"banded, {BANDED_BANDS}"]
    print_table(f"rms error of the prefix sum at delta = {LONG.budget.delta:g}", columns, rows)


TABLES = {"plain": plain, "certified": certified, "descent": descent, "optimised": optimised}

if __name__ == "__main__":
    for table in sys.argv[1:] or TABLES:
        TABLES[table]()
