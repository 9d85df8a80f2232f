"""Privacy accounting: computes the guarantee of a mechanism, and the noise needed to meet a privacy budget."""

from antiphase._accounting.budget import Budget, check_delta
from antiphase._accounting.calibration import Calibration, calibrate, seeded_calibration
from antiphase._accounting.certificate import certified, drawn_like, restated
from antiphase._accounting.composition import compose
from antiphase._accounting.gaussian import epsilon as gaussian_epsilon
from antiphase._accounting.gaussian import shift
from antiphase._accounting.group_privacy import group_epsilon
from antiphase._accounting.guarantee import delta, epsilon, epsilon_after, gdp, zcdp
from antiphase._accounting.mechanism import Mechanism
from antiphase._accounting.theorem_page import page
from antiphase._accounting.theorems import Adjacency, check_adjacency
from antiphase._accounting.verification import verify, verify_claim
from antiphase._montecarlo import MonteCarlo

__all__ = [
    "Adjacency",
    "Budget",
    "Calibration",
    "Mechanism",
    "MonteCarlo",
    "calibrate",
    "certified",
    "check_adjacency",
    "check_delta",
    "compose",
    "delta",
    "drawn_like",
    "epsilon",
    "epsilon_after",
    "gaussian_epsilon",
    "gdp",
    "group_epsilon",
    "page",
    "restated",
    "seeded_calibration",
    "shift",
    "verify",
    "verify_claim",
    "zcdp",
]
