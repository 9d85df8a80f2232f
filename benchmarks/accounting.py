"""Accounting for Poisson-sampled Gaussians, compared with dp_accounting's PLD accountant with default settings.

The first table calibrates the noise for epsilon 8 at delta 1e-6, with sampling probability 0.01 and 2000 steps. The
second table computes epsilon, also for deltas so small that dp_accounting overestimates epsilon or returns infinity.
The third table shows calibrations for other participations.
"""

from __future__ import annotations

import time

import dp_accounting
from dp_accounting.pld import PLDAccountant

import antiphase as ap
from antiphase._accounting import Budget, Mechanism, calibrate, epsilon
from antiphase.strategies import Identity, Toeplitz
from benchmarks._measure import print_table, readable, seconds, sized

BUDGET, RATE, STEPS = Budget(sized(8.0, 1.0), 1e-6), sized(0.01, 0.1), sized(2000, 20)
DELTAS = sized([1e-6, 1e-8, 1e-10, 1e-12, 1e-13, 1e-14, 1e-15, 1e-16, 1e-20], [1e-6, 1e-20])


def event(multiplier: float) -> dp_accounting.DpEvent:
    gaussian = dp_accounting.GaussianDpEvent(multiplier)
    return dp_accounting.SelfComposedDpEvent(dp_accounting.PoissonSampledDpEvent(RATE, gaussian), STEPS)


def theirs() -> float:
    return dp_accounting.calibrate_dp_mechanism(PLDAccountant, event, BUDGET.epsilon, BUDGET.delta)


def calibration() -> None:
    ours = calibrate(Identity(STEPS), ap.Poisson(RATE), BUDGET).mechanism.noise_std
    taken = seconds(lambda: calibrate(Identity(STEPS), ap.Poisson(RATE), BUDGET))
    start = time.perf_counter()
    other = theirs()
    other_taken = time.perf_counter() - start
    columns = ["", "noise", "time"]
    rows = [["antiphase", f"{ours:.6f}", readable(taken)], ["dp_accounting", f"{other:.6f}", readable(other_taken)]]
    print_table(f"Calibration: epsilon {BUDGET.epsilon:g}, delta 1e-6, rate {RATE}, {STEPS} steps", columns, rows)
    print(f"{other_taken / taken:.0f} times faster (goal: at least 8)")
    print(f"our noise minus theirs: {ours / other - 1:+.4%} (goal: within 0.1 %, and enough for the budget)\n")


def small_deltas() -> None:
    mechanism = Mechanism(Identity(STEPS), ap.Poisson(RATE), 0.75)
    accountant = PLDAccountant().compose(event(0.75))
    rows = [
        [f"{delta:.0e}", f"{epsilon(mechanism, delta).value:.5f}", f"{accountant.get_epsilon(delta):.5f}"]
        for delta in DELTAS
    ]
    print_table(f"epsilon: noise 0.75, rate {RATE}, {STEPS} steps", ["delta", "antiphase", "dp_accounting"], rows)


def other_calibrations() -> None:
    cases = [
        (Identity(STEPS), ap.FixedEpochs(*sized((20, 100), (2, 10))), "zero-out", None),
        (Toeplitz([1.0, 0.5, 0.25], STEPS), ap.CyclicPoisson(10, 0.1), "zero-out", None),
        (Toeplitz([1.0, 0.5, 0.25], STEPS), ap.CyclicPoisson(10, 0.1, max_batch=700), "zero-out", 50_000),
        (Toeplitz([1.0, 0.5, 0.25], STEPS), ap.FixedSize(10, 500), "replace", 50_000),
        (Identity(sized(100_000, 20)), ap.Poisson(sized(1e-3, 0.1)), "zero-out", None),
        (Identity(sized(1_000_000, 20)), ap.Poisson(sized(1e-4, 0.2)), "zero-out", None),
    ]
    rows = []
    for strategy, participation, adjacency, examples in cases:
        arguments = (strategy, participation, Budget(2.0, 1e-8), adjacency, examples)
        taken = seconds(lambda a=arguments: calibrate(*a), repeats=1)
        noise = calibrate(*arguments).mechanism.noise_std
        rows.append([str(participation), adjacency, f"{strategy.steps:,}", f"{noise:.4f}", readable(taken)])
    print_table("Calibration: epsilon 2, delta 1e-8", ["participation", "adjacency", "steps", "noise", "time"], rows)


if __name__ == "__main__":
    calibration()
    small_deltas()
    other_calibrations()
