"""Which kind of Gram matrix each strategy has."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from antiphase._sensitivity._gram import BandedGram, BlockGram, DenseGram, Gram, TreeGram
from antiphase._sensitivity._toeplitz import SymmetricGram, ToeplitzGram, coefficients
from antiphase.strategies import BLT, Banded, BandedInverse, Dense, Fourier, Identity, Stamped, Strategy, Toeplitz, Tree


def gram(strategy: Strategy) -> Gram:
    """X = C^T C of any strategy; one that is not known here is taken as a dense matrix."""
    build = _BUILDERS.get(type(strategy))
    return DenseGram(strategy.encoder()) if build is None else build(strategy)


def _toeplitz(strategy: Identity | BLT | BandedInverse) -> Gram:
    return ToeplitzGram(coefficients(strategy), strategy.steps)


def _scaled(strategy: Toeplitz) -> Gram:
    scales = strategy.column_scales() if strategy.column_normalized else None
    return ToeplitzGram(strategy.coefficients, strategy.steps, scales)


_BUILDERS: dict[type[Strategy], Callable[[Any], Gram]] = {
    Identity: _toeplitz,
    Dense: lambda strategy: DenseGram(strategy.matrix),
    Banded: lambda strategy: BandedGram(strategy.columns),
    Toeplitz: _scaled,
    BLT: _toeplitz,
    BandedInverse: _toeplitz,
    Tree: lambda strategy: TreeGram(strategy.steps),
    Fourier: lambda strategy: SymmetricGram(strategy.gram_column()),
    Stamped: lambda strategy: BlockGram(gram(strategy.strategy), strategy.repeats),
}
