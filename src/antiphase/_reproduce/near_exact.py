"""Reproductions of Choquette-Choo et al. 2025 (near-exact amplification): Figures 2, 3, 5, 24 to 26, 28 and 29.

Our accounting is certified Monte Carlo: from random samples, it derives upper bounds on epsilon, not only estimates.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cache
from typing import Any

import antiphase as ap
from antiphase._bound import rounded_up
from antiphase._montecarlo import MonteCarlo, single_threaded
from antiphase._optimize import (
    AmplifiedProblem,
    BLTFamily,
    NoiseEstimator,
    SearchLimits,
    blt_starts,
    descend,
    evaluate_point,
)
from antiphase._report import Chart, series
from antiphase._reproduce.banded_noise import error, noise, powers, strategy
from antiphase._reproduce.reproduction import Picture, Row, claimed, drawn, printed, reproduction, timed

DELTA = 1e-5
STEPS, EPOCHS = 2048, 16
COARSE = MonteCarlo(slack=0.2)  # requires about 1 % more noise than the finest setting


@cache
def bins_noise(epsilon: float, steps: int, epochs: int, bands: int, sampling: MonteCarlo = COARSE) -> float:
    """Return the noise standard deviation for balls-in-bins sampling and columns of norm 1."""
    found = ap.calibrate(
        strategy(steps, bands, False),
        ap.BallsInBins(epochs, steps // epochs),
        ap.Budget(epsilon, DELTA),
        sampling=sampling,
    )
    return found.mechanism.noise_std


def plain_noise(epsilon: float, epochs: int) -> float:
    """Return the noise standard deviation without amplification, if every example takes part once per epoch.

    The columns of C must have norm 1, and the columns for the steps of one example must be orthogonal.
    """
    return noise(epsilon, DELTA, epochs, epochs, 1)


def _rmse(epsilon: float, bands: int, sampled: str) -> float:
    level = (
        noise(epsilon, DELTA, STEPS, EPOCHS, bands)
        if sampled == "Poisson"
        else bins_noise(epsilon, STEPS, EPOCHS, bands)
    )
    return level * error(STEPS, bands, False)


def _epsilons(full: bool) -> tuple[float, ...]:
    return (0.5, 1.0, 2.0, 4.0, 8.0, 16.0) if full else (1.0, 8.0)


@reproduction("near-exact-amplification-figure-2", "Amplification of DP-SGD and of a 64-banded strategy", sizes=True)
def figure_2(full: bool) -> Iterator[Row | Picture]:
    """2048 steps, 16 epochs, delta = 1e-5. The charts show how much amplification reduces the rms error, in percent."""
    at = _epsilons(full)
    saved = {}
    for bands, title in ((1, "(a) DP-SGD"), (64, "(b) 64 bands")):
        lines = []
        for sampled in ("Poisson", "balls-in-bins"):
            gains = [_saved(e, bands, sampled) for e in at]
            saved[bands, sampled] = gains
            lines.append(series(sampled, at, gains))
            yield drawn(f"{title}, {sampled}, epsilon {_list(at)}", ", ".join(f"{g:.1f} %" for g in gains))
        yield Chart(f"{title}: rms error saved by amplification", "epsilon", "percent", tuple(lines), log_x=True)
    small = saved[1, "Poisson"][0] - saved[1, "balls-in-bins"][0]
    large = max(a - b for a, b in zip(saved[1, "Poisson"], saved[1, "balls-in-bins"], strict=True))
    yield claimed(f"(a) epsilon {at[0]:g}", "similar", f"{small:.1f} points apart", abs(small) < 10, PROVED_NOTE)
    yield claimed("(a) larger epsilon", "Poisson substantially better", f"up to {large:.1f} points", large > 10)
    pairs = list(zip(saved[64, "Poisson"], saved[64, "balls-in-bins"], strict=True))
    ahead = [e for e, (p, b) in zip(at, pairs, strict=True) if b > p]
    text = f"ahead at epsilon {_list(ahead)}"
    yield claimed(
        "(b) balls-in-bins against Poisson", "better below epsilon 16", text, set(ahead) >= {e for e in at if e < 16}
    )


PROVED_NOTE = "the gap closes as epsilon decreases; our value is a proved bound for C = I, the paper's an estimate"


def _saved(epsilon: float, bands: int, sampled: str) -> float:
    without = plain_noise(epsilon, EPOCHS) * error(STEPS, bands, False)
    return 100.0 * (1.0 - _rmse(epsilon, bands, sampled) / without)


def _list(values: tuple[float, ...] | list[float]) -> str:
    return ", ".join(f"{v:g}" for v in values)


@cache
def _best(epsilon: float, sampled: str) -> tuple[int, float]:
    """Return the best number of bands and its error."""
    found = {b: _rmse(epsilon, b, sampled) for b in powers(64 if sampled == "Poisson" else 128)}
    bands = min(found, key=lambda b: found[b])
    return bands, found[bands]


@reproduction("near-exact-amplification-figure-3a", "Gain from amplification with the best number of bands", sizes=True)
def figure_3a(full: bool) -> Iterator[Row | Picture]:
    """As in Figure 2, but with the best number of bands for each epsilon, compared with 128 bands without sampling."""
    at = _epsilons(full)
    gains = {}
    for sampled in ("Poisson", "balls-in-bins"):
        gains[sampled] = [
            100.0 * (1.0 - _best(e, sampled)[1] / (plain_noise(e, EPOCHS) * error(STEPS, 128, False))) for e in at
        ]
        yield drawn(f"{sampled}, epsilon {_list(at)}", ", ".join(f"{g:.1f} %" for g in gains[sampled]))
    lines = tuple(series(name, at, values) for name, values in gains.items())
    yield Chart("Rms error saved by amplification, best bands", "epsilon", "percent", lines, log_x=True)
    least = min(gains["balls-in-bins"])
    yield claimed("balls-in-bins", "always improves", f"by at least {least:.2f} %", least > 0)
    low = [p - b for e, p, b in zip(at, gains["Poisson"], gains["balls-in-bins"], strict=True) if e <= 4]
    text = f"{min(low):.1f} to {max(low):.1f} points"
    yield claimed(
        "epsilon up to 4: Poisson minus balls-in-bins", "Poisson slightly ahead", text, min(low) > -1, SLACK_NOTE
    )
    if full:
        last = gains["Poisson"][-1]
        yield claimed("epsilon 16: Poisson", "worse than no amplification", f"{last:.1f} %", last < 0)


SLACK_NOTE = "our bound is certified, which needs about 1 % more noise in this figure"


@reproduction("near-exact-amplification-figure-26", "The best number of bands behind Figure 3a", sizes=True)
def figure_26(full: bool) -> Iterator[Row | Picture]:
    """Only powers of two are tried."""
    at = _epsilons(full)
    bands = {sampled: [_best(e, sampled)[0] for e in at] for sampled in ("Poisson", "balls-in-bins")}
    for sampled, found in bands.items():
        yield drawn(f"{sampled}, epsilon {_list(at)}", ", ".join(map(str, found)))
    lines = tuple(series(name, at, found) for name, found in bands.items())
    yield Chart("Best number of bands", "epsilon", "bands", lines, log_x=True, log_y=True)
    more = all(b >= p for p, b in zip(bands["Poisson"], bands["balls-in-bins"], strict=True))
    yield claimed(
        "balls-in-bins against Poisson", "at least as many bands", "at least as many" if more else "fewer", more
    )


@reproduction("near-exact-amplification-figure-5", "Gain by sampling probability, 128 steps, epsilon = 1", sizes=True)
def figure_5(full: bool) -> Iterator[Row | Picture]:
    """The chart shows the rms error of balls-in-bins relative to Poisson, each with its best number of bands."""
    bins = (64, 32, 16, 8, 4) if full else (16, 8)
    ratios = []
    for b in bins:
        epochs = 128 // b
        poisson = min(noise(1.0, DELTA, 128, epochs, m) * error(128, m, False) for m in powers(b))
        balls = min(bins_noise(1.0, 128, epochs, m) * error(128, m, False) for m in powers(b))
        ratios.append(balls / poisson)
        yield drawn(f"probability 1/{b}", f"balls-in-bins {balls / epochs:.4g}, Poisson {poisson / epochs:.4g}")
    at = [1.0 / b for b in bins]
    yield Chart(
        "Balls-in-bins relative to Poisson",
        "sampling probability",
        "ratio",
        (series("rms error", at, ratios),),
        log_x=True,
    )
    yield drawn("ratio", ", ".join(f"{r:.3f}" for r in ratios))


CIFAR = ap.FixedEpochs(20, 100)
# Values of epsilon, and for each of them, the printed noise multipliers. POISSON and BINS also have the printed bands.
TARGETS = (0.5, 1.0, 2.0, 4.0, 8.0)
POISSON = (("1.018", 2), ("0.778", 4), ("0.606", 8), ("0.481", 16), ("0.388", 32))
BINS = (("2.829", 16), ("2.071", 32), ("1.455", 64), ("0.802", 64), ("0.470", 64))
BLTS = ("2.609", "1.598", "1.079", "0.694", "0.448")
TOEPLITZ = ("2.003", "1.182", "0.864", "0.639", "0.445")


@reproduction("near-exact-amplification-figure-28", "Noise multipliers of the CIFAR-10 experiments", sizes=True)
def figure_28(full: bool) -> Iterator[Row | Picture]:
    """2000 steps, 20 epochs, C scaled to sensitivity 1. Without `--full`, balls-in-bins has only one row."""
    for target, (value, bands) in zip(TARGETS, POISSON, strict=True):
        found = noise(target, DELTA, 2000, 20, bands) / math.sqrt(20)
        yield printed(f"BandMF + Poisson, {bands} bands, epsilon {target:g}", value, found, _at(value, bands))
    for target, (value, bands) in zip(TARGETS, BINS, strict=True):
        if full or target == 1.0:
            yield printed(
                f"BandMF + balls-in-bins, {bands} bands, epsilon {target:g}", value, _banded(target, bands, full), ROOM
            )
    if full:
        for family, values, options in (("blt", BLTS, {"buffers": 4}), ("toeplitz", TOEPLITZ, {})):
            for target, value in zip(TARGETS, values, strict=True):
                yield printed(
                    f"optimised {family}, epsilon {target:g}", value, _optimized(family, target, options), SEARCH
                )


ROOM = "the paper calibrates to delta = 8e-6, to verify the result at delta = 1e-5; its matrix also differs from ours"
SEARCH = "a different search finds a different matrix, and noise multipliers of different matrices are not comparable"


def _at(value: str, bands: int) -> str:
    """Return a note that explains why the last digit differs. The note states the epsilon at the printed noise."""
    rounds, rate = ap.strategies.Identity(-(-2000 // bands)), bands / 100
    bound = ap.epsilon(ap.Mechanism(rounds, ap.Poisson(rate), float(value) * math.sqrt(20)), DELTA)
    return (
        f"at the printed noise, epsilon is at most {rounded_up(bound.value)}; ours is at most 0.04 % below the budget"
    )


def _banded(target: float, bands: int, full: bool) -> float:
    found = ap.optimize("banded", steps=2000, participation=CIFAR, bands=bands, max_iterations=60).strategy
    sampling = MonteCarlo(slack=0.1) if full else COARSE
    made = ap.calibrate(found, ap.BallsInBins(20, 100), ap.Budget(target, DELTA), sampling=sampling)
    return made.mechanism.noise_std / ap.sensitivity(found, CIFAR).value


def _optimized(family: str, target: float, options: dict[str, int]) -> float:
    bins, budget = ap.BallsInBins(20, 100), ap.Budget(target, DELTA)
    found = ap.optimize(family, steps=2000, participation=bins, budget=budget, **options).strategy  # type: ignore[arg-type]
    made = ap.calibrate(found, bins, budget, sampling=COARSE)
    return made.mechanism.noise_std / ap.sensitivity(found, CIFAR).value


@reproduction("near-exact-amplification-figure-29", "Number of bands in the CIFAR-10 experiments", sizes=True)
def figure_29(full: bool) -> Iterator[Row]:
    """The table shows the power of two with the smallest rms error. Balls-in-bins is included only with `--full`."""
    for target, (_, bands) in zip(TARGETS, POISSON, strict=True):
        errors = {b: noise(target, DELTA, 2000, 20, b) * error(2000, b, False) for b in powers(64)}
        yield _bands_row(f"Poisson, epsilon {target:g}", bands, errors)
    if not full:
        return
    for target, (_, bands) in zip(TARGETS, BINS, strict=True):
        errors = {b: bins_noise(target, 2000, 20, b) * error(2000, b, False) for b in (8, 16, 32, 64)}
        yield _bands_row(f"balls-in-bins, epsilon {target:g}", bands, errors)


def _bands_row(what: str, paper: int, errors: dict[int, float]) -> Row:
    best = min(errors, key=lambda b: errors[b])
    more = 100.0 * (errors[paper] / errors[best] - 1.0)
    note = "" if best == paper else f"{paper} bands have {more:.2f} % more error here"
    return Row(what, str(paper), str(best), best == paper, None, note)


def _optimized_under_bins(family: str, epsilon: float, epochs: int, per_epoch: int, **options: Any) -> ap.Solution:
    return ap.optimize(
        family,
        steps=epochs * per_epoch,
        participation=ap.BallsInBins(epochs, per_epoch),
        budget=ap.Budget(epsilon, DELTA),
        **options,
    )


@reproduction("near-exact-amplification-figure-3b", "Optimised Toeplitz and BLT against the best banded", sizes=True)
def figure_3b(full: bool) -> Iterator[Row | Picture]:
    """2048 steps, 16 epochs. The baseline is banded with Poisson sampling. Without `--full`: only BLT, epsilon 2."""
    at = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0) if full else (2.0,)
    families: dict[str, tuple[str, dict[str, int]]] = {"BLT, 3 buffers": ("blt", {"buffers": 3})}
    if full:
        families["Toeplitz"] = ("toeplitz", {})
    gains = {}
    for name, (family, options) in families.items():
        losses = [_optimized_under_bins(family, e, EPOCHS, STEPS // EPOCHS, **options).loss for e in at]
        gains[name] = [100.0 * (1.0 - v / _best(e, "Poisson")[1]) for e, v in zip(at, losses, strict=True)]
        for e, gain in zip(at, gains[name], strict=True):
            yield drawn(f"{name}, epsilon {e:g}: rms error saved", f"{gain:.1f} %")
    if full:
        lines = tuple(series(name, at, values) for name, values in gains.items())
        yield Chart("Rms error saved against banded with Poisson sampling", "epsilon", "percent", lines, log_x=True)
    middle = [g for values in gains.values() for e, g in zip(at, values, strict=True) if 1.0 < e < 16.0]
    ahead = sum(g > 0 for g in middle)
    said = "better for most epsilon that are not extreme"
    yield claimed("optimised C", said, f"ahead in {ahead} of {len(middle)}", 2 * ahead > len(middle), CERTIFIED_NOTE)


CERTIFIED_NOTE = "our noise is a certified bound, about 1 % above an estimate"
# Columns: iterations per epoch, epochs, and the paper's seconds with 131,072 samples.
SECONDS = (
    (32, 16, 376.88),
    (32, 32, 384.44),
    (32, 64, 311.55),
    (64, 16, 383.19),
    (64, 32, 323.56),
    (64, 64, 658.95),
    (128, 16, 389.37),
    (128, 32, 770.18),
    (128, 64, 3594.55),
)


@reproduction("near-exact-amplification-figure-24", "Seconds to optimise C under amplification", sizes=True)
def figure_24(full: bool) -> Iterator[Row]:
    """Epsilon is 1. The paper's times are for 300 iterations on a V100. Without `--full`, there is only one row."""
    times = {}
    for per_epoch, epochs, paper in SECONDS if full else SECONDS[:1]:
        found = _optimized_under_bins("toeplitz", 1.0, epochs, per_epoch)
        times[per_epoch, epochs] = found.seconds
        what = f"{per_epoch} iterations per epoch, {epochs} epochs"
        yield drawn(what, f"{found.seconds:.1f} s", f"the paper: {paper} s, on another machine")
    if full:
        growth = times[32, 64] / times[32, 16]
        yield timed("four times the epochs", "less than four times", f"{growth:.1f} times")


@reproduction(
    "near-exact-amplification-figure-25",
    "Rms error lost by using few samples in each iteration of the search",
    sizes=True,
)
def figure_25(full: bool) -> Iterator[Row | Picture]:
    """A BLT with 3 buffers, 2048 steps, 16 epochs. Baseline: the most samples. Without `--full`: only epsilon 1."""
    at = (0.5, 1.0, 2.0, 4.0) if full else (1.0,)
    counts = [1 << i for i in ((7, 9, 11, 13, 15) if full else (9, 13))]
    lost = {}
    for epsilon in at:
        errors = [_error_found_with(samples, epsilon) for samples in counts]
        lost[epsilon] = [100.0 * (e / errors[-1] - 1.0) for e in errors]
        text = ", ".join(f"{v:+.2f} %" for v in lost[epsilon])
        yield drawn(f"epsilon {epsilon:g}, samples {', '.join(f'{c:,}' for c in counts)}", text)
    lines = tuple(series(f"epsilon {e:g}", counts, values) for e, values in lost.items())
    yield Chart("Rms error above that of the most samples", "samples per iteration", "percent", lines, log_x=True)
    column = counts.index(1 << 9)
    small = max(values[column] for e, values in lost.items() if e <= 2.0)
    yield claimed("512 samples, epsilon up to 2", "similar", f"at most {small:.2f} % more", small < 2.0)
    if full:
        large = lost[4.0][column]
        yield claimed("512 samples, epsilon 4", "about 10 % more", f"{large:.2f} %", 5.0 < large < 15.0, TILTED_NOTE)


TILTED_NOTE = "our samples are drawn where the privacy loss is close to epsilon, so using few of them costs less"


def _error_found_with(samples: int, epsilon: float) -> float:
    """Return the rms error, with calibrated noise, of the strategy found by a search with this many samples."""
    bins = ap.BallsInBins(EPOCHS, STEPS // EPOCHS)
    problem = AmplifiedProblem(STEPS, bins, ap.PrefixSum(), "rms", ap.Budget(epsilon, DELTA))
    starts, points = blt_starts(problem, 3)
    estimator = NoiseEstimator(problem.budget, samples, 1)
    with single_threaded():
        first = evaluate_point(problem, starts[0], points[0], estimator)
        end = descend(problem, BLTFamily(STEPS, problem.workload, "rms"), first, estimator, SearchLimits())
    made = ap.calibrate(end.strategy, bins, problem.budget, sampling=COARSE)
    return made.mechanism.noise_std * ap.error(end.strategy, problem.workload).rms
