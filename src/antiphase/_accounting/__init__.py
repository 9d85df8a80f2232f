"""Privacy accounting: what a mechanism guarantees, and how much noise a budget needs."""

from antiphase._accounting._budget import Budget
from antiphase._accounting._calibrate import Calibration, calibrate, seeded_calibration
from antiphase._accounting._certificate import certified, drawn_like, restated
from antiphase._accounting._compose import compose
from antiphase._accounting._group import group_epsilon
from antiphase._accounting._guarantee import delta, epsilon, gdp, zcdp
from antiphase._accounting._mechanism import Mechanism
from antiphase._accounting._page import page
from antiphase._accounting._stopped import stopped, stopped_epsilon
from antiphase._accounting._theorems import Adjacency, check_adjacency
from antiphase._accounting._verify import verify
from antiphase._montecarlo import Sampling

__all__ = [
    "Adjacency",
    "Budget",
    "Calibration",
    "Mechanism",
    "Sampling",
    "calibrate",
    "certified",
    "check_adjacency",
    "compose",
    "delta",
    "drawn_like",
    "epsilon",
    "gdp",
    "group_epsilon",
    "page",
    "restated",
    "seeded_calibration",
    "stopped",
    "stopped_epsilon",
    "verify",
    "zcdp",
]
