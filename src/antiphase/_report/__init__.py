"""The report: what a plan or a run promises, for people to read and programs to check."""

from antiphase._report._content import Content, gather
from antiphase._report._markdown import markdown
from antiphase._report._page import html
from antiphase._report._plain import plain
from antiphase._report._reading import Source, check_not_federated, read

__all__ = ["Content", "Source", "check_not_federated", "gather", "html", "markdown", "plain", "read"]
