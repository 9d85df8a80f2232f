"""Examples of every strategy and workload for a given number of steps, for tests that run over all of them."""

import sys
from collections.abc import Iterable, Iterator
from dataclasses import fields, replace
from typing import Any, Literal, get_args, get_origin, get_type_hints

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

# Prefixes of names in `every_strategy`. With the strategies of NOT_CAUSAL, the noise of each step uses all of z. With
# those of OTHER_LEFT_INVERSES, the noising matrix N is a left inverse of C that is not the pseudo-inverse.
NOT_CAUSAL = ("dense-tall", "tree-full", "fourier", "stamped-2-fourier", "stamped-3-fourier")
OTHER_LEFT_INVERSES = ("tree-online", "fourier-direct", "stamped-2-tree", "stamped-3-tree")
NUMBERS = (-1.5, -0.5, 0.0, 0.25, 1.0, 1.5)  # values that `every_variant` tries for a parameter of type float


def random_banded(rng: np.random.Generator, steps: int, bands: int, signed: bool) -> Banded:
    columns = rng.normal(size=(steps, bands)) if signed else rng.random((steps, bands))
    columns[:, 0] = 0.5 + rng.random(steps)
    j, r = np.ogrid[:steps, :bands]
    return Banded(np.where(j + r < steps, columns, 0.0))


def random_lower(rng: np.random.Generator, steps: int) -> Dense:
    return Dense(np.tril(rng.normal(size=(steps, steps)), -1) + np.diag(0.5 + rng.random(steps)))


def every_strategy(steps: int, seed: int = 0) -> Iterator[tuple[str, Strategy]]:
    """Yield pairs of a name and a strategy. There are one or more strategies of every class."""
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


def every_variant(steps: int) -> Iterator[tuple[str, Strategy]]:
    """Yield the strategies of `every_strategy` with one argument of the constructor changed.

    Changes that the constructor refuses, and changes of the number of steps, are left out.
    """
    for name, strategy in every_strategy(steps):
        for change, found in _variants(strategy, range(1, steps + 1)):
            yield f"{name}-{steps}-{change}", found


def every_long_variant(steps: int) -> Iterator[tuple[str, Strategy]]:
    """Yield the strategies of `every_strategy` with one integer argument, such as a number of bands, made large."""
    for name, strategy in every_strategy(steps):
        for change, found in _variants(strategy, (11, steps // 2, steps), (int,)):
            yield f"{name}-{steps}-{change}", found


def _variants(
    strategy: Strategy, integers: Iterable[int], kinds: Iterable[type] = (np.ndarray, float, int, bool, str)
) -> Iterator[tuple[str, Strategy]]:
    for field in fields(strategy):
        value = getattr(strategy, field.name)
        if field.name == "steps" or type(value) not in kinds:
            continue
        for change, other in _others(value, get_type_hints(type(strategy))[field.name], integers):
            try:
                found = replace(strategy, **{field.name: other})
            except ap.InvalidArgument:
                continue
            if found.steps == strategy.steps:
                yield f"{field.name}-{change}", found


def _others(value: Any, declared: Any, integers: Iterable[int]) -> Iterator[tuple[str, Any]]:
    """Yield pairs of a name and another value of a field.

    Arrays get other signs, zeros and sizes. Numbers get other numbers. A string with a `Literal` type, given by
    `declared`, gets all other choices.
    """
    if isinstance(value, np.ndarray):
        start, end = value.copy(), value.copy()
        start[..., 1:], end[..., -1] = 0.0, 0.0
        yield from {
            "negative": -value,
            "start": start,
            "end": end,
            "rising": value[..., ::-1],
            "large": 4 * value,
        }.items()
    elif isinstance(value, bool):
        yield str(not value), not value
    elif isinstance(value, str):
        choices = get_args(declared) if get_origin(declared) is Literal else ()
        yield from ((choice, choice) for choice in choices if choice != value)
    else:
        numbers = NUMBERS if isinstance(value, float) else integers
        yield from ((str(number), number) for number in numbers if number != value)


def check_known(part: str) -> None:
    """Exit with a message unless `part` occurs in the name of a strategy.

    The Makefile passes STRATEGY=part to `pytest -k`, which passes if it selects no tests.
    """
    names = [name for name, _ in every_strategy(6)]
    if not any(part.lower() in name for name in names):
        sys.exit(f"STRATEGY={part} occurs in no name in tests/catalog.py.\n\nhint: the names are {', '.join(names)}")


def every_workload(steps: int, seed: int = 0) -> Iterator[tuple[str, ap.PrefixSum | ap.Momentum]]:
    """Yield pairs of a name and a workload."""
    rng = np.random.default_rng(seed)
    yield "prefix", ap.PrefixSum()
    yield "momentum", ap.Momentum(0.9)
    yield "no-momentum", ap.Momentum(0.0)
    yield "weight-decay", ap.Momentum(0.9, weight_decay=0.1)
    yield "constant-rate", ap.Momentum(0.5, np.full(steps, 0.3))
    yield "schedule", ap.Momentum(0.8, rng.random(steps) + 0.1, weight_decay=0.3)
    yield "schedule-without-momentum", ap.Momentum(0.0, rng.random(steps) + 0.1)


if __name__ == "__main__":
    check_known(sys.argv[1])
