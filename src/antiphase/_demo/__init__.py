"""The demo: private training on handwritten digits, with and without correlated noise."""

from antiphase._demo.comparison import SEEDS, Comparison, compare
from antiphase._demo.demo_report import as_markdown, as_text

__all__ = ["SEEDS", "Comparison", "as_markdown", "as_text", "compare"]
