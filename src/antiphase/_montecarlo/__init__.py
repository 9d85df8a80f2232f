"""Amplification by Monte Carlo: estimates, confidence limits and verified claims for any non-negative C."""

from antiphase._montecarlo._amplification import (
    calibrate,
    delta,
    dominating_pair,
    epsilon,
    estimate,
    verify,
)
from antiphase._montecarlo._modes import bins_gram
from antiphase._montecarlo._verify import Options

__all__ = ["Options", "bins_gram", "calibrate", "delta", "dominating_pair", "epsilon", "estimate", "verify"]
