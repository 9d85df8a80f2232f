"""Plans: the mechanism chosen for a problem, its guarantee, and the candidates it was chosen from."""

from antiphase._plan.candidate import Candidate, curve_steps, display_name
from antiphase._plan.plan import Plan, in_words, stored_fingerprint, with_derived_guarantee

__all__ = [
    "Candidate",
    "Plan",
    "curve_steps",
    "display_name",
    "in_words",
    "stored_fingerprint",
    "with_derived_guarantee",
]
