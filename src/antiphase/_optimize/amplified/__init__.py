"""Optimisers for strategies under privacy amplification by balls-in-bins sampling."""

from antiphase._optimize.amplified.families import BLTFamily, Family, ToeplitzFamily
from antiphase._optimize.amplified.noise_estimate import NoiseEstimator
from antiphase._optimize.amplified.optimizer import (
    AmplifiedProblem,
    EvaluatedPoint,
    amplified_banded,
    amplified_blt,
    amplified_toeplitz,
    blt_starts,
    descend,
    evaluate_point,
    quick_amplified_blt,
    toeplitz_starts,
)

__all__ = [
    "AmplifiedProblem",
    "BLTFamily",
    "EvaluatedPoint",
    "Family",
    "NoiseEstimator",
    "ToeplitzFamily",
    "amplified_banded",
    "amplified_blt",
    "amplified_toeplitz",
    "blt_starts",
    "descend",
    "evaluate_point",
    "quick_amplified_blt",
    "toeplitz_starts",
]
