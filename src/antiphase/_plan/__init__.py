"""Plans: the mechanism chosen for a problem, its guarantee, and the candidates it was chosen from."""

from antiphase._plan.candidate import Candidate, curve_steps, display_name
from antiphase._plan.plan import Plan, check_guarantee, in_words, stored_fingerprint

__all__ = ["Candidate", "Plan", "check_guarantee", "curve_steps", "display_name", "in_words", "stored_fingerprint"]
