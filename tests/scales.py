"""Strategies at scales from 1e-300 to 1e300, for the tests that every source makes their noise or refuses to."""

from dataclasses import replace

import numpy as np

from antiphase.strategies import Banded, BandedInverse, Dense, Stamped, Strategy, Toeplitz

SCALES = (1e-300, 1e-200, 1e-100, 1e-60, 1e-44, 1e-38, 1e-30, 1e-10, 1e10, 1e30, 1e38, 1e44, 1e60, 1e100, 1e200, 1e300)
STD = 2.5  # of the noise for C at scale 1


def has_scale(strategy: Strategy) -> bool:
    """Whether C has entries of its own that can be scaled."""
    return strategy.rescaled(np.copy, np.copy) is not None


def scaled(strategy: Strategy, scale: float) -> tuple[Strategy, float]:
    """scale x C and the noise_std with which the noise is that of C with noise_std STD."""
    std, made = STD * scale, strategy
    match strategy:
        case Stamped():
            inner, std = scaled(strategy.strategy, scale)
            return replace(strategy, strategy=inner), std
        case Toeplitz():
            made = replace(strategy, coefficients=strategy.coefficients * scale)
            std = STD if strategy.column_normalized else std
        case Banded():
            made = Banded(strategy.columns * scale)
        case Dense():
            made = Dense(strategy.matrix * scale)
        case BandedInverse():
            made = replace(strategy, coefficients=strategy.coefficients / scale)
        case _:
            assert not has_scale(strategy), f"add a case for {type(strategy).__name__}"
            std = STD
    return made, std


def departure(noise: np.ndarray, strategy: Strategy, z: np.ndarray, std: float = STD) -> float:
    """How far the noise of each step is from std N z, N that of C at scale 1, relative to the step's own noise."""
    noise, wanted = np.asarray(noise, np.float64), std * strategy.solve(z)
    wrong, size = (np.sqrt(np.mean(rows**2, axis=1)) for rows in (noise - wanted, wanted))
    return float((wrong / size).max()) if np.isfinite(noise).all() else np.inf
