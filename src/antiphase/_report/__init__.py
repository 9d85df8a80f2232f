"""The report: what a plan or a run promises, for people to read and programs to check."""

from antiphase._report.content import Content, gather
from antiphase._report.html_page import html
from antiphase._report.markdown_page import markdown
from antiphase._report.plain_text import plain
from antiphase._report.reading import Source, check_not_federated, read

__all__ = ["Content", "Source", "check_not_federated", "gather", "html", "markdown", "plain", "read"]
