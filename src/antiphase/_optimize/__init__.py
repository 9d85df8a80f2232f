"""Optimisers that find the best strategy of a family for a given workload and participation."""

from antiphase._optimize.amplified import (
    AmplifiedProblem,
    BLTFamily,
    EvaluatedPoint,
    Family,
    NoiseEstimator,
    ToeplitzFamily,
    blt_starts,
    descend,
    evaluate_point,
    quick_amplified_blt,
    toeplitz_starts,
)
from antiphase._optimize.banded_error import BandedError
from antiphase._optimize.dense import MAX_DENSE_STEPS
from antiphase._optimize.dispatch import optimize
from antiphase._optimize.lower_bound import prefix_sum_bound
from antiphase._optimize.participation_limits import worst_case_limits
from antiphase._optimize.solution import SearchLimits, Solution

__all__ = [
    "MAX_DENSE_STEPS",
    "AmplifiedProblem",
    "BLTFamily",
    "BandedError",
    "EvaluatedPoint",
    "Family",
    "NoiseEstimator",
    "SearchLimits",
    "Solution",
    "ToeplitzFamily",
    "blt_starts",
    "descend",
    "evaluate_point",
    "optimize",
    "prefix_sum_bound",
    "quick_amplified_blt",
    "toeplitz_starts",
    "worst_case_limits",
]
