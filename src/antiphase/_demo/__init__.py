"""The demo: a classifier of handwritten digits, trained privately with and without correlated noise."""

from antiphase._demo._comparison import SEEDS, Comparison, compare
from antiphase._demo._page import as_markdown, as_text

__all__ = ["SEEDS", "Comparison", "as_markdown", "as_text", "compare"]
