"""Computes tables and figures of published papers, and compares the results with the published values."""

from antiphase._reproduce.catalogue import find, known, reproduce
from antiphase._reproduce.markdown_page import page, read_page, write_page
from antiphase._reproduce.reproduction import Reproduction, Result, Row, claimed, drawn, printed, timed

__all__ = [
    "Reproduction",
    "Result",
    "Row",
    "claimed",
    "drawn",
    "find",
    "known",
    "page",
    "printed",
    "read_page",
    "reproduce",
    "timed",
    "write_page",
]
