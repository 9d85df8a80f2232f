"""Sensitivity: the worst case of ||C u|| over what one example can contribute."""

from antiphase._sensitivity._columns import column_norms
from antiphase._sensitivity._page import page
from antiphase._sensitivity._sensitivity import measured, sensitivity

__all__ = ["column_norms", "measured", "page", "sensitivity"]
