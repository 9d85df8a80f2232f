"""The planner: tries the mechanisms that fit a problem, and chooses one with a small error and little memory."""

from antiphase._planner.advice import affordable_copies
from antiphase._planner.families import FAMILIES
from antiphase._planner.learning_rate import rate_for_error
from antiphase._planner.monte_carlo import estimated_blt
from antiphase._planner.pipelines import PIPELINES, promised
from antiphase._planner.planner import default_pipelines, plan, plans_so_far, ranked_problem
from antiphase._planner.published_strategies import published

__all__ = [
    "FAMILIES",
    "PIPELINES",
    "affordable_copies",
    "default_pipelines",
    "estimated_blt",
    "plan",
    "plans_so_far",
    "promised",
    "published",
    "ranked_problem",
    "rate_for_error",
]
