"""Which kind of Gram matrix each strategy has."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from antiphase._check import invalid
from antiphase._sensitivity.gram import BandedGram, BlockGram, DenseGram, Gram, TreeGram
from antiphase._sensitivity.toeplitz import SymmetricGram, ToeplitzGram, coefficients
from antiphase.strategies import BLT, Banded, BandedInverse, Dense, Fourier, Identity, Stamped, Strategy, Toeplitz, Tree

SMALLEST, LARGEST = 1e-270, 1e270  # squares beyond these have lost digits


def gram(strategy: Strategy) -> Gram:
    """X = C^T C of any strategy; one that is not known here is taken as a dense matrix."""
    build = _BUILDERS.get(type(strategy))
    return DenseGram(strategy.encoder()) if build is None else build(strategy)


def _toeplitz(strategy: Identity | BLT | BandedInverse) -> Gram:
    return ToeplitzGram(coefficients(strategy), strategy.steps)


def _scaled(strategy: Toeplitz) -> Gram:
    if not strategy.column_normalized:
        return ToeplitzGram(strategy.coefficients, strategy.steps)
    scales = strategy.column_scales()  # from the last column's, |c_0|, up to the first one's
    check_square(float(scales[-1] ** 2))
    check_square(float(scales[0] ** 2))
    return ToeplitzGram(strategy.coefficients, strategy.steps, scales)


def check_square(value: float) -> None:
    """Refuse a squared norm that has lost digits to underflow or overflow."""
    if not SMALLEST <= value <= LARGEST:
        raise invalid(
            "sensitivity",
            "strategy",
            "of a scale whose squares are floating-point numbers",
            "C",
            "divide C by its norm",
        )


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
