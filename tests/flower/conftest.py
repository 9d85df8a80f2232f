"""Flower loads typer, which asks the newest click for names that click means to drop: not ours to mend."""

import warnings

with warnings.catch_warnings():
    warnings.filterwarnings("ignore", "'click.utils", DeprecationWarning)
    import typer  # noqa: F401
