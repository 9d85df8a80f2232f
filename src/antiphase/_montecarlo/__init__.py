"""Monte Carlo accounting for amplified mechanisms: estimates, confidence limits and verified claims."""

from antiphase._montecarlo.amplification import (
    LARGEST_EPSILON,
    calibrate,
    delta,
    dominating_pair,
    epsilon,
    estimate,
    verify,
)
from antiphase._montecarlo.balls_in_bins import BinsPair, bins_pair
from antiphase._montecarlo.from_below import epsilon_from_below
from antiphase._montecarlo.min_separation import is_separated
from antiphase._montecarlo.modes import bins_gram
from antiphase._montecarlo.samples import randomness, single_threaded
from antiphase._montecarlo.settings import MonteCarlo, check_sampling
from antiphase._montecarlo.slopes import Slopes, delta_slopes

__all__ = [
    "LARGEST_EPSILON",
    "BinsPair",
    "MonteCarlo",
    "Slopes",
    "bins_gram",
    "bins_pair",
    "calibrate",
    "check_sampling",
    "delta",
    "delta_slopes",
    "dominating_pair",
    "epsilon",
    "epsilon_from_below",
    "estimate",
    "is_separated",
    "randomness",
    "single_threaded",
    "verify",
]
