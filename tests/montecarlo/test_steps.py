"""Random and greedy search never beat the step bounds."""

import math

import numpy as np
import pytest

from antiphase._montecarlo.power import log_factor
from antiphase._montecarlo.split import Split, split
from antiphase._montecarlo.steps import log_step_bounds
from tests.montecarlo.cases import grams

LARGEST = 9
SHAPES = {name: gram for name, gram in grams().items() if len(gram) > 1} | {
    "banded": np.array([[max(0.0, 1.0 - abs(i - j) / 4.0) for j in range(12)] for i in range(12)]),
    "negative rests": 0.9 * np.ones((8, 8)) + np.diag(np.linspace(0.05, 0.4, 8)),
}


def walk(modes: Split, core: int, size: int, choose) -> list[float]:
    """log(Z / b) at every draw beside the core; `choose` gets the allowed indices and the counts."""
    counts = np.zeros(modes.bins, dtype=int)
    counts[core] = size
    sums = []
    for _ in range(LARGEST - size):
        allowed = np.flatnonzero((counts < size) & (np.arange(modes.bins) != core))
        if len(allowed) == 0:
            break
        weights = np.exp(modes.rest[allowed] @ counts)
        sums.append(math.log(weights.sum() / modes.bins))
        counts[choose(allowed, weights, counts)] += 1
    return sums


def greedy(modes: Split, core: int, size: int):
    def choose(allowed, weights, counts):
        return max(allowed, key=lambda j: next_sum(modes, core, size, counts, j))

    return choose


def next_sum(modes: Split, core: int, size: int, counts: np.ndarray, j: int) -> float:
    after = counts.copy()
    after[j] += 1
    allowed = (after < size) & (np.arange(modes.bins) != core)
    return float(np.exp(modes.rest[allowed] @ after).sum())


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("noise", [0.4, 1.0, 3.0])
def test_no_walk_beats_the_bounds(name, noise):
    modes = split(SHAPES[name]).scaled(noise)
    bounds, rng = log_step_bounds(modes, LARGEST), np.random.default_rng(1)
    tightest = math.inf
    for size in range(1, LARGEST):
        for core in range(modes.bins):
            walks = [walk(modes, core, size, greedy(modes, core, size))]
            walks += [walk(modes, core, size, lambda allowed, w, n: rng.choice(allowed)) for _ in range(3)]
            walks += [walk(modes, core, size, lambda allowed, w, n: rng.choice(allowed, p=w / w.sum()))]
            for sums in walks:
                room = bounds[size, : len(sums)] - np.array(sums)
                assert (room >= -1e-9).all(), (size, core)
                tightest = min(tightest, room.min(initial=math.inf))
    assert tightest < 1e-6  # the first draw beside a core attains (a)


@pytest.mark.parametrize("name", SHAPES)
def test_no_walk_beats_the_bound_of_the_powers(name):
    modes, rng = split(SHAPES[name]), np.random.default_rng(2)
    for _ in range(50):
        counts, total = np.zeros(modes.bins), 0.0
        for alpha in range(1, LARGEST):
            total += math.log(np.exp(modes.rest @ counts).mean())
            assert total <= log_factor(modes, alpha)
            share = rng.random()
            means = [np.exp(modes.rest @ (counts + np.eye(modes.bins)[j])).mean() for j in range(modes.bins)]
            counts[int(np.argmax(means)) if share < 0.7 else rng.integers(modes.bins)] += 1


def test_without_the_convex_bound_the_others_hold(monkeypatch):
    monkeypatch.setattr("antiphase._montecarlo.steps.MAX_CONVEX_OPERATIONS", 0.0)
    for name in ("orthogonal", "banded", "sparse"):
        modes = split(SHAPES[name])
        bounds = log_step_bounds(modes, LARGEST)
        for size in range(1, LARGEST):
            for core in range(modes.bins):
                sums = np.array(walk(modes, core, size, greedy(modes, core, size)))
                assert (bounds[size, : len(sums)] >= sums - 1e-9).all()
