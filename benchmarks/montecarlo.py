"""Amplification by sampling: plain samples beside jax_privacy's, and certified delta where plain samples do not reach.

All at 2000 steps, 100 bins, 20 epochs. The peer keeps every sample of a call in memory and loops over them, so it is
run with fewer samples and scaled up.
"""

from __future__ import annotations

import math
import resource
import time

from antiphase import BallsInBins, FixedEpochs
from antiphase._montecarlo import bins_gram, epsilon
from antiphase._montecarlo._bins import bins_pair
from antiphase._montecarlo._certify import certify, plan_run
from antiphase._montecarlo._pilot import Effort
from antiphase._montecarlo._plain import plain_means
from antiphase._montecarlo._samples import randomness
from antiphase._montecarlo._verify import failure_share
from antiphase._optimize import optimize
from antiphase.strategies import Toeplitz
from benchmarks._measure import peer, print_table, readable

STEPS, BINS, EPOCHS = 2000, 100, 20
SAMPLES, PEER_SAMPLES = 1 << 20, 1 << 9
CASES = ((16, 2.829), (32, 2.071), (64, 1.455))
DELTAS = (1e-5, 1e-8, 1e-10)
SLACK = 0.04


def peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def plain() -> None:
    noise, bands = 16.0, 32
    pair = bins_pair(bins_gram(Toeplitz.square_root(STEPS, bands), BallsInBins(EPOCHS, BINS)), noise)
    plain_means(pair, 0.5, 1 << 14, randomness(0), -1)
    before, start = peak(), time.perf_counter()
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
            ", ".join(f"{x:.4g}" for x in theirs["deltas"]),
        ],
    ]
    print_table(
        f"{SAMPLES:,} samples, both directions, 32 bands", ["", "time", "more memory", "delta at epsilon 0.5"], rows
    )
    ratio = theirs["seconds"] * scale / ours
    print(
        f"{ratio:,.0f} times faster (goal: at least 10); memory {theirs['memory'] * scale / max(memory, 1):,.0f} times"
    )
    print("smaller (goal: at least 10)\n")


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
            effort = Effort(1 << 22, -math.log(failure_share(delta, 1)), randomness(None, 0))
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
    print_table("Certified at the noise of near-exact amplification, Fig. 28", columns, rows)
    print("goal: slack at most 5 % in under 30 s each on 2 cores")


if __name__ == "__main__":
    plain()
    certified()
