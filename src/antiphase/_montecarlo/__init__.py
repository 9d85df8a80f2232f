"""Amplification by Monte Carlo: estimates, confidence limits and verified claims for any non-negative C."""

from antiphase._montecarlo.amplification import (
    LARGEST_EPSILON,
    calibrate,
    delta,
    dominating_pair,
    epsilon,
    estimate,
    verify,
)
from antiphase._montecarlo.min_separation import is_separated
from antiphase._montecarlo.modes import bins_gram, is_causal
from antiphase._montecarlo.settings import Sampling, check_sampling

__all__ = [
    "LARGEST_EPSILON",
    "Sampling",
    "bins_gram",
    "calibrate",
    "check_sampling",
    "delta",
    "dominating_pair",
    "epsilon",
    "estimate",
    "is_causal",
    "is_separated",
    "verify",
]
