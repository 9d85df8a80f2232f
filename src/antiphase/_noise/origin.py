"""Which mechanism a stream serves, and whose noise it goes on with.

Keys depend on the *root*: the fingerprint of the first plan or mechanism of a run. A different number of steps is a
different root, so two runs that share secret and run id but not the plan share no noise. An extended plan names the
plan it extends as its root, and a stream that is extended keeps its own: then, and only then, z stays the same.

Extension is right where the longer N, cut to the old steps, is the old N with zeros beside it: then all that was
released is what the longer mechanism would have released, and its guarantee holds for the whole run. This is so
for Identity, Toeplitz without column normalisation, BLT and BandedInverse. For the online tree it is so for every
step but the last of a tree whose number of steps is not a power of two (see `_tree`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Protocol, final

from antiphase._check import invalid
from antiphase._errors import Refused
from antiphase._record import fingerprint
from antiphase.strategies import Strategy, Tree


class Served(Protocol):
    """What a stream reads off a mechanism."""

    @property
    def strategy(self) -> Strategy:
        """C and N."""

    @property
    def noise_std(self) -> float:
        """The standard deviation of z for C at its own scale."""


@final
@dataclass(frozen=True)
class Origin:
    """A mechanism with the fingerprints that name it and its noise."""

    mechanism: Served
    fingerprint: str
    root: str


def origin_of(plan_or_mechanism: Any, first: Any = None) -> Origin:
    """The mechanism of a plan or the mechanism itself; `first` is the one it extends, if any."""
    mechanism = getattr(plan_or_mechanism, "mechanism", plan_or_mechanism)
    if not isinstance(getattr(mechanism, "strategy", None), Strategy) or not hasattr(mechanism, "noise_std"):
        raise invalid("NoiseStream", "plan", "a Plan or a Mechanism", plan_or_mechanism, "ap.plan(problem) makes one")
    name = getattr(plan_or_mechanism, "fingerprint", None) or fingerprint(mechanism)
    root = getattr(plan_or_mechanism, "root", "") or name
    if first is not None:
        start = origin_of(first)
        check_extends(mechanism, start.mechanism)
        root = start.root
    return Origin(mechanism, name, root)


def check_extends(longer: Served, shorter: Served) -> None:
    """Refuse unless `longer` is `shorter` with more steps."""
    kind = type(shorter.strategy).__name__
    if not shorter.strategy.is_extensible:
        raise Refused(
            f"A stream with {kind} cannot be extended: its matrix depends on the number of steps.",
            hint="start a new run and compose the two",
        )
    steps = longer.strategy.steps
    same = type(longer.strategy) is type(shorter.strategy) and steps >= shorter.strategy.steps
    if not same or longer.noise_std != shorter.noise_std or longer.strategy != _with_steps(shorter.strategy, steps):
        raise Refused(
            f"A stream with {kind} can go on only with the same {kind} and noise_std for more steps.",
            hint="Plan.extend makes such a plan; anything else is a new run",
        )


def check_last_step(longer: Strategy, shorter: Strategy, step: int) -> None:
    """Refuse to extend a tree that its last step has closed."""
    if isinstance(shorter, Tree) and isinstance(longer, Tree) and step == shorter.steps < longer.steps:
        last = step - 1
        if shorter.completed_level(last) != longer.completed_level(last):
            raise Refused(
                f"The last of {shorter.steps} steps has closed the tree: its noise cannot carry a longer sum.",
                hint="extend before the last step, or use a power of two; otherwise start a new run and compose",
            )


def _with_steps(strategy: Strategy, steps: int) -> Strategy:
    return replace(strategy, steps=steps)  # type: ignore[type-var]  # strategies are records
