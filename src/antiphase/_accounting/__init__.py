"""Privacy accounting: what a mechanism guarantees, and how much noise a budget needs."""

from antiphase._accounting._budget import Budget
from antiphase._accounting._calibrate import Calibration, calibrate
from antiphase._accounting._compose import compose
from antiphase._accounting._group import group_epsilon
from antiphase._accounting._guarantee import delta, epsilon, gdp, zcdp
from antiphase._accounting._mechanism import Mechanism
from antiphase._accounting._page import page
from antiphase._accounting._stopped import stopped
from antiphase._accounting._theorems import Adjacency, check_adjacency

__all__ = [
    "Adjacency",
    "Budget",
    "Calibration",
    "Mechanism",
    "calibrate",
    "check_adjacency",
    "compose",
    "delta",
    "epsilon",
    "gdp",
    "group_epsilon",
    "page",
    "stopped",
    "zcdp",
]
