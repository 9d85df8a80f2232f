"""The papers' tables and figures, computed again and set beside what is printed."""

from antiphase._reproduce._registry import Reproduction, Result, find, known, reproduce
from antiphase._reproduce._row import Row

__all__ = ["Reproduction", "Result", "Row", "find", "known", "reproduce"]
