"""The demo: private training on handwritten digits, with correlated noise and with DP-SGD."""

from antiphase._demo.comparison import SEEDS, Comparison, compare
from antiphase._demo.demo_page import as_html, command
from antiphase._demo.demo_report import as_markdown, as_text

__all__ = ["SEEDS", "Comparison", "as_html", "as_markdown", "as_text", "command", "compare"]
