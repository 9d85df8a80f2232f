"""The mechanism of a stream, and the fingerprint that its noise keys are derived from.

The noise of a mechanism is noise_std N z, where N is the noising matrix of its strategy and z is white noise. The keys
that generate z depend on the *root*: the fingerprint of the first plan or mechanism of a run. Plans that differ in any
way, even only in the number of steps, have different roots. So two runs with the same secret and run id share no noise
if their plans differ. The only exceptions are extensions. An extended plan has the root of the plan that it extends,
and an extended stream keeps its root.

A run can be extended if the first rows of the longer N are the old N followed by zeros. Then everything released so far
is what the longer mechanism would have released, and the guarantee of the longer mechanism holds for the whole run.
The condition holds for Identity, Toeplitz without column normalisation, BLT and BandedInverse. For the online tree, it
holds if the old number of steps is a power of two. Otherwise the last row of the old N differs from the same row of the
longer N, so the tree can be extended only before its last step (see `tree.py`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Protocol, final

from antiphase._check import invalid
from antiphase._errors import Refused
from antiphase._record import fingerprint
from antiphase.strategies import Strategy, Tree


class MechanismLike(Protocol):
    """The attributes of a mechanism that a stream uses."""

    @property
    def strategy(self) -> Strategy:
        """The strategy, which defines the matrices C and N."""

    @property
    def noise_std(self) -> float:
        """Factor that multiplies N z. C is used as it is, not normalised to sensitivity 1."""


@final
@dataclass(frozen=True)
class Origin:
    """A mechanism, its fingerprint, and the fingerprint that its noise keys are derived from."""

    mechanism: MechanismLike
    fingerprint: str
    root: str


def origin_of(plan_or_mechanism: Any, first: Any = None) -> Origin:
    """Return the origin of a plan or mechanism. If it extends another plan or mechanism, `first` is the other one."""
    mechanism = getattr(plan_or_mechanism, "mechanism", plan_or_mechanism)
    if not isinstance(getattr(mechanism, "strategy", None), Strategy) or not hasattr(mechanism, "noise_std"):
        raise invalid("NoiseStream", "plan", "a Plan or a Mechanism", plan_or_mechanism, "create one with ap.plan")
    name = getattr(plan_or_mechanism, "fingerprint", None) or fingerprint(mechanism)
    root = getattr(plan_or_mechanism, "root", "") or name
    if first is not None:
        start = origin_of(first)
        check_extends(mechanism, start.mechanism)
        root = start.root
    return Origin(mechanism, name, root)


def check_extends(longer: MechanismLike, shorter: MechanismLike) -> None:
    """Raise `Refused` unless `longer` is `shorter` with more steps."""
    kind = type(shorter.strategy).__name__
    if not shorter.strategy.is_extensible:
        raise Refused(
            f"A stream with {kind} cannot be extended, because its matrix depends on the number of steps.",
            hint="start a new run and compose the guarantees of both runs",
        )
    steps = longer.strategy.steps
    same = type(longer.strategy) is type(shorter.strategy) and steps >= shorter.strategy.steps
    same = same and getattr(longer, "lattice", None) == getattr(shorter, "lattice", None)
    if not same or longer.noise_std != shorter.noise_std or longer.strategy != _with_steps(shorter.strategy, steps):
        raise Refused(
            f"A stream with {kind} can be extended only with the same {kind} and noise_std for more steps.",
            hint="create the longer plan with Plan.extend, or start a new run",
        )


def check_last_step(longer: Strategy, shorter: Strategy, step: int) -> None:
    """Raise `Refused` if the last step of the shorter tree has been released, and the longer tree changes its noise.

    `step` is the next step to release. Strategies other than trees are accepted.
    """
    if isinstance(shorter, Tree) and isinstance(longer, Tree) and step == shorter.steps < longer.steps:
        last = step - 1
        if shorter.completed_level(last) != longer.completed_level(last):
            raise Refused(
                f"All {shorter.steps} steps of the tree have been released, so the tree can no longer be extended.",
                hint="start a new run and compose the guarantees of both runs; next time, extend the tree before its "
                "last step, or use a power of two as the number of steps",
            )


def _with_steps(strategy: Strategy, steps: int) -> Strategy:
    return replace(strategy, steps=steps)  # type: ignore[type-var]  # strategies are records
