"""The best mechanism of every family, found again for its error at every step."""

from __future__ import annotations

from dataclasses import dataclass

from antiphase._errors import AntiphaseError
from antiphase._plan import Plan
from antiphase._planner import plan as find

SECONDS = 20.0
PREFIXES = ("identity", "tree", "fourier", "toeplitz", "banded inverse", "banded", "blt", "dense")


@dataclass(frozen=True)
class FamilyCurves:
    """A plan beside the best of the other families.

    Args:
        chosen: name of the plan's own mechanism.
        others: name and plan of the best of each other family.
        left_out: families that would take too long to find again.
    """

    chosen: str
    others: tuple[tuple[str, Plan], ...]
    left_out: tuple[str, ...]


def best_of_families(plan: Plan, seconds: float) -> FamilyCurves:
    """Plan every family again that took little time, cheapest first.

    Args:
        plan: with its table of candidates, which says how long each took.
        seconds: for all together.
    """
    cost: dict[str, float] = {}
    for candidate in plan.candidates:
        family = family_of(candidate.name)
        cost[family] = cost.get(family, 0.0) + candidate.seconds
    chosen = plan.candidates[0].name if plan.candidates else type(plan.mechanism.strategy).__name__
    own = family_of(chosen) if plan.candidates else ""
    names = {candidate.name for candidate in plan.candidates}
    others, left_out, spent = [], [], 0.0
    for family in sorted(cost.keys() - {own}, key=lambda f: cost[f]):
        spent += cost[family]
        if spent > seconds:
            left_out.append(family)
            continue
        found = _planned(plan, family)
        if found is not None and found.candidates[0].name in names:
            others.append((found.candidates[0].name, found))
    others.sort(key=lambda item: item[1].error)
    return FamilyCurves(chosen, tuple(others), tuple(left_out))


def family_of(name: str) -> str:
    """The family of a candidate, by its name.

    >>> family_of("banded inverse (4 bands)"), family_of("tree, online, x 4"), family_of("blt (2 buffers)")
    ('banded-inverse', 'stamped', 'blt')
    """
    if ", x " in name or " x " in name:
        return "stamped"
    return next((p for p in PREFIXES if name.startswith(p)), "identity").replace(" ", "-")


def _planned(plan: Plan, family: str) -> Plan | None:
    try:
        return find(plan.problem, [family])
    except AntiphaseError:
        return None
