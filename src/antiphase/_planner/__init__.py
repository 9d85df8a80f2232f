"""The planner: tries the mechanisms that fit a problem and chooses the one with the least error."""

from antiphase._planner.advice import affordable_copies
from antiphase._planner.families import FAMILIES
from antiphase._planner.pipelines import PIPELINES
from antiphase._planner.planner import plan
from antiphase._planner.published_strategies import published

__all__ = ["FAMILIES", "PIPELINES", "affordable_copies", "plan", "published"]
