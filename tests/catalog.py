"""Every strategy, workload and deterministic participation at a given small size, for the contract suites."""

from collections.abc import Iterator

import numpy as np

import antiphase as ap
from antiphase.strategies import (
    BLT,
    Banded,
    BandedInverse,
    Dense,
    Fourier,
    Identity,
    Stamped,
    Strategy,
    Toeplitz,
    Tree,
)


def random_banded(rng: np.random.Generator, steps: int, bands: int, signed: bool) -> Banded:
    columns = rng.normal(size=(steps, bands)) if signed else rng.random((steps, bands))
    columns[:, 0] = 0.5 + rng.random(steps)
    j, r = np.ogrid[:steps, :bands]
    return Banded(np.where(j + r < steps, columns, 0.0))


def random_lower(rng: np.random.Generator, steps: int) -> Dense:
    return Dense(np.tril(rng.normal(size=(steps, steps)), -1) + np.diag(0.5 + rng.random(steps)))


def every_strategy(steps: int, seed: int = 0) -> Iterator[tuple[str, Strategy]]:
    rng = np.random.default_rng(seed)
    bands = min(3, steps)
    yield "identity", Identity(steps)
    yield "dense-lower", random_lower(rng, steps)
    yield "dense-tall", Dense(rng.normal(size=(steps + 2, steps)))
    yield "banded", random_banded(rng, steps, bands, signed=False)
    yield "banded-signed", random_banded(rng, steps, bands, signed=True)
    yield "toeplitz", Toeplitz(np.array([1.0, 0.6, 0.2])[:bands], steps)
    yield "toeplitz-signed", Toeplitz(np.array([1.0, -0.6, 0.2])[:bands], steps)
    yield "toeplitz-rising", Toeplitz(np.array([1.0, 0.2, 0.6])[:bands], steps)
    yield "toeplitz-normalized", Toeplitz(np.array([1.0, 0.6, 0.2])[:bands], steps, column_normalized=True)
    yield "toeplitz-full", Toeplitz.square_root(steps)
    yield "toeplitz-full-normalized", Toeplitz(Toeplitz.square_root(steps).coefficients, steps, column_normalized=True)
    yield "blt", BLT([0.95, 0.4], [0.2, 0.3], steps)
    yield "blt-decay-one", BLT([1.0, 0.3], [0.1, 0.2], steps)
    yield "blt-signed", BLT([0.9, 0.5], [0.4, -0.6], steps)
    yield "banded-inverse", BandedInverse(np.array([1.0, -0.5, -0.125])[:bands], steps)
    yield "banded-inverse-signed", BandedInverse(np.array([1.0, 0.4, -0.3])[:bands], steps)
    yield "geometric", BandedInverse.geometric(0.8, steps)
    yield "tree-online", Tree(steps, decoder="online")
    yield "tree-full", Tree(steps, decoder="full")
    yield "fourier-direct", Fourier(steps, decoder="direct")
    yield "fourier-optimal", Fourier(steps, decoder="optimal")
    for repeats in (2, 3):
        if steps % repeats == 0:
            yield f"stamped-{repeats}-tree", Stamped(Tree(steps // repeats, decoder="online"), repeats)
            yield f"stamped-{repeats}-fourier", Stamped(Fourier(steps // repeats, decoder="optimal"), repeats)
            yield f"stamped-{repeats}-dense", Stamped(random_lower(rng, steps // repeats), repeats)


def every_workload(steps: int, seed: int = 0) -> Iterator[tuple[str, ap.PrefixSum | ap.Momentum]]:
    rng = np.random.default_rng(seed)
    yield "prefix", ap.PrefixSum()
    yield "momentum", ap.Momentum(0.9)
    yield "no-momentum", ap.Momentum(0.0)
    yield "weight-decay", ap.Momentum(0.9, weight_decay=0.1)
    yield "constant-rate", ap.Momentum(0.5, np.full(steps, 0.3))
    yield "schedule", ap.Momentum(0.8, rng.random(steps) + 0.1, weight_decay=0.3)
    yield "schedule-without-momentum", ap.Momentum(0.0, rng.random(steps) + 0.1)
