"""A plan: the mechanism chosen for a problem, with its guarantee and what it was chosen from."""

from __future__ import annotations

import json
import re
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, final

import numpy as np

from antiphase import _check
from antiphase._accounting import Mechanism, epsilon, verify
from antiphase._bound import Bound
from antiphase._check import Array
from antiphase._durable import OWNER_ONLY, write_output
from antiphase._errors import Corrupted, InvalidArgument, NotEnoughMemory, Refused
from antiphase._participation import BallsInBins, FixedEpochs, Participation, ShuffledEpochs
from antiphase._problem import Problem
from antiphase._record import fingerprint, from_json, parse_json, record, to_json
from antiphase.strategies._extensible import is_extensible

FORMAT = 1
CURVE_POINTS = 33
OTHER_MACHINE = 2e-3  # by which a sampled epsilon may differ there


@final
@record
class Candidate:
    """One row of the table of mechanisms that were tried.

    Args:
        name: family and size, such as "banded (16 bands)".
        error: expected error, noise_std x error of the strategy, for clipping norm 1.
        noise_std: noise for the strategy at its own scale.
        noise_multiplier: the effective noise multiplier.
        epsilon: at the budget's delta.
        kind: how far epsilon can be trusted.
        memory_copies: model-sized buffers.
        seconds: to optimise and calibrate.
        participation: the sampler it needs, in words.
        per_step: standard deviation of the noise in the model after each of `curve_steps`, for clipping norm 1; empty
            where it was not computed.
    """

    name: str
    error: float
    noise_std: float
    noise_multiplier: float
    epsilon: float
    kind: str
    memory_copies: int
    seconds: float
    participation: str
    per_step: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "per_step", tuple(self.per_step))


@final
@record
class Plan:
    """What to run: strategy, noise, sampler and guarantee, tied together so that they cannot disagree.

    **Guarantee**: running `mechanism` for all its steps, with batches from its participation's own sampler, is
    (`guarantee.value`, `problem.budget.delta`)-differentially private under `mechanism.adjacency`.

    Args:
        problem: what was asked for.
        mechanism: strategy, participation, noise and adjacency.
        guarantee: epsilon at the budget's delta.
        error: expected error, for clipping norm 1, under the problem's objective.
        candidates: every mechanism that was tried, best first.
        notes: what a reader should know besides.
        root: fingerprint of the plan this one extends; empty for a first plan. Noise keys depend on it, so that an
            extended run goes on with the same noise.
    """

    problem: Problem
    mechanism: Mechanism
    guarantee: Bound
    error: float
    candidates: tuple[Candidate, ...] = ()
    root: str = ""
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "candidates", tuple(self.candidates))
        object.__setattr__(self, "notes", tuple(self.notes))
        if self.guarantee.kind == "estimate":
            raise _check.refuse("Plan", "guarantee", "a proved bound", "an estimate", "verify it first")
        points = len(curve_steps(self.steps))
        for candidate in self.candidates:
            if len(candidate.per_step) not in (0, points):
                got = f"{len(candidate.per_step)} for {candidate.name!r}"
                raise _check.refuse("Plan", "candidates", f"of {points} errors each, or none", got, "see curve_steps")

    @property
    def steps(self) -> int:
        """n."""
        return self.mechanism.strategy.steps

    @property
    def pareto(self) -> tuple[Candidate, ...]:
        """The candidates that no other beats in both error and memory, least error first."""
        front: list[Candidate] = []
        for candidate in sorted(self.candidates, key=lambda c: (c.error, c.memory_copies)):
            if not front or candidate.memory_copies < front[-1].memory_copies:
                front.append(candidate)
        return tuple(front)

    @property
    def fingerprint(self) -> str:
        """SHA-256 over everything that the guarantee and the noise depend on."""
        return fingerprint([self.problem, self.mechanism, self.root])

    def save(self, path: str | Path) -> None:
        """Write readable JSON; the file is whole or not there. Symbolic links are followed."""
        data = {"format": FORMAT, "fingerprint": self.fingerprint, "plan": to_json(self)}
        try:
            write_output(Path(path), _readable(data).encode(), OWNER_ONLY)
        except OSError as error:
            raise InvalidArgument(
                f"The plan cannot be written to {path}: {error.strerror}.",
                hint="choose a directory that exists and that you can write to",
            ) from error

    @classmethod
    def load(cls, path: str | Path) -> Plan:
        """Read a plan; its version and fingerprint must fit, and its guarantee is derived again.

        Raises `Corrupted` where the file was cut short, where problem, mechanism or root were edited, or where the
        stated guarantee is better than the mechanism's. Another machine may round a sampled guarantee to a slightly
        larger one, by less than 0.2 %: then the stated one must pass a verification with fresh samples.
        """
        data = _read(Path(path))
        try:
            plan = from_json(data["plan"])
        except InvalidArgument as error:
            raise Corrupted(f"The plan {path} cannot be read: {error.message}", hint="make it again") from error
        if not isinstance(plan, Plan) or plan.fingerprint != data["fingerprint"]:
            raise Corrupted(
                f"The plan {path} does not match its fingerprint.", hint="it was edited; make the plan again instead"
            )
        try:
            derived = epsilon(plan.mechanism, plan.problem.budget.delta)
        except MemoryError as error:
            raise NotEnoughMemory(
                f"There is not enough memory to derive the guarantee of the plan {path} for {plan.steps:,} steps.",
                hint="use a machine with more memory, or plan for fewer steps",
            ) from error
        if derived.value <= plan.guarantee.value * (1 + 1e-9):
            return replace(plan, guarantee=derived)
        try:
            if derived.kind == "confident" and derived.value <= (1.0 + OTHER_MACHINE) * plan.guarantee.value:
                return replace(plan, guarantee=replace(verify(plan), value=plan.guarantee.value))
        except Refused:
            pass
        raise Corrupted(
            f"The plan {path} states epsilon {plan.guarantee.value}, but its mechanism gives {derived.value}.",
            hint="it was edited, or made by a version with another accountant; make the plan again",
        )

    def extend(self, steps: int) -> Plan:
        """The same C and noise for more steps, with the guarantee derived for the whole longer run.

        Possible for Identity, Toeplitz without column normalisation, BLT, BandedInverse and the online Tree, which
        must be extended before its last step is taken, since that step closes the tree.

        Args:
            steps: the new total number of steps.
        """
        strategy = self.mechanism.strategy
        n = _check.positive_integer("Plan.extend", "steps", steps)
        if not is_extensible(strategy):
            raise Refused(
                f"A plan with {type(strategy).__name__} cannot be extended: its matrix depends on the number of steps.",
                hint="plan with family toeplitz, blt, banded-inverse or tree, or start a new run and compose",
            )
        if n <= self.steps:
            raise _check.refuse("Plan.extend", "steps", f"more than {self.steps}", n, "a shorter run just stops early")
        longer = replace(
            self.mechanism,
            strategy=replace(strategy, steps=n),  # type: ignore[type-var]  # strategies are records
            participation=_for_more_steps(self.mechanism.participation, n),
        )
        given = self.problem.participation
        problem = replace(self.problem, steps=n, participation=given and _for_more_steps(given, n))
        return replace(
            self,
            problem=problem,
            mechanism=longer,
            guarantee=epsilon(longer, problem.budget.delta),
            candidates=(),
            notes=(),
            root=self.root or self.fingerprint,
        )


def curve_steps(steps: int) -> Array:
    """The steps for which a candidate keeps its error: at most 33, evenly spread, the first and the last among them.

    >>> curve_steps(5).tolist(), len(curve_steps(1000))
    ([1, 2, 3, 4, 5], 33)
    """
    return np.unique(np.linspace(1, steps, min(steps, CURVE_POINTS)).round().astype(np.int64))


def in_words(participation: Participation) -> str:
    """A participation for a person to read.

    >>> from antiphase import CyclicPoisson
    >>> in_words(CyclicPoisson(groups=12, rate=1 / 3))
    'CyclicPoisson, groups 12, rate 0.3333'
    """
    values = ((f.name, getattr(participation, f.name)) for f in fields(participation))  # type: ignore[arg-type]
    parts = (f"{name.replace('_', ' ')} {_short(value)}" for name, value in values if value not in (None, False))
    return ", ".join([type(participation).__name__, *parts])


def _short(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else f"{value}"


def stored_fingerprint(path: Path) -> str:
    """The fingerprint that a plan file states; it is not checked against the plan."""
    return str(_read(path)["fingerprint"])


def _for_more_steps(participation: Participation, steps: int) -> Participation:
    """The same promise over more epochs, where it counts epochs."""
    if isinstance(participation, (FixedEpochs, ShuffledEpochs, BallsInBins)):
        return replace(participation, epochs=max(participation.epochs, -(-steps // participation.steps_per_epoch)))
    return participation


def _readable(data: dict[str, Any]) -> str:
    """JSON with a list of numbers on one line."""
    text = json.dumps(data, indent=1, allow_nan=False)
    return re.sub(r"\[[^][{}\"]*\]", lambda numbers: " ".join(numbers[0].split()), text) + "\n"


def _read(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise Corrupted(f"There is no plan at {path}.", hint="Plan.save, or antiphase plan --output, writes one")
    try:
        data = parse_json(path.read_bytes())
        version = data["format"]
        data["plan"], data["fingerprint"]
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise Corrupted(f"The plan {path} cannot be read: {error}.", hint="it was cut short, or is no plan") from error
    if type(version) is not int or version != FORMAT:
        raise Corrupted(
            f"The plan {path} has format {_check.shown(version)}; this version reads format {FORMAT}.",
            hint="make the plan again",
        )
    return data
