"""The candidates of a plan by family, for the chart of their errors."""

from __future__ import annotations

from collections.abc import Iterator

from antiphase._plan import Candidate, Plan

PREFIXES = ("identity", "tree", "fourier", "toeplitz", "banded inverse", "banded", "blt", "dense")


def by_family(plan: Plan) -> Iterator[tuple[Candidate, bool]]:
    """All candidates but the one that was chosen, best first, and whether it is the best of another family."""
    seen = {family_of(candidate.name) for candidate in plan.candidates[:1]}
    for candidate in plan.candidates[1:]:
        family = family_of(candidate.name)
        yield candidate, family not in seen
        seen.add(family)


def family_of(name: str) -> str:
    """The family of a candidate, by its name.

    >>> family_of("banded inverse (4 bands)"), family_of("tree, online, x 4"), family_of("blt (2 buffers)")
    ('banded-inverse', 'stamped', 'blt')
    """
    if ", x " in name or " x " in name:
        return "stamped"
    return next((p for p in PREFIXES if name.startswith(p)), "identity").replace(" ", "-")
