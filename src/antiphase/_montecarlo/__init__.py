"""Amplification by Monte Carlo: estimates, confidence limits and verified claims for any non-negative C."""

from antiphase._montecarlo._amplification import (
    LARGEST_EPSILON,
    calibrate,
    delta,
    dominating_pair,
    epsilon,
    estimate,
    verify,
)
from antiphase._montecarlo._modes import bins_gram, is_causal
from antiphase._montecarlo._sampling import Sampling, check_sampling
from antiphase._montecarlo._separated import is_separated

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
