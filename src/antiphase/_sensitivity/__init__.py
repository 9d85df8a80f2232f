"""Sensitivity: the worst case of ||C u|| over what one example can contribute."""

from antiphase._sensitivity.columns import column_norms
from antiphase._sensitivity.dispatch import measured, sensitivity
from antiphase._sensitivity.theorem_page import page

__all__ = ["column_norms", "measured", "page", "sensitivity"]
