"""A plan: the mechanism chosen for a problem, with its guarantee and the candidates it was chosen from."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, final

from antiphase import _check
from antiphase._accounting import Mechanism, epsilon, restated
from antiphase._bound import Bound
from antiphase._durable import OWNER_ONLY, write_output
from antiphase._errors import Corrupted, InvalidArgument, NotEnoughMemory, Refused
from antiphase._participation import Participation
from antiphase._plan.candidate import Candidate, curve_steps, digestible, upgraded
from antiphase._problem import Problem
from antiphase._record import fingerprint, from_json, json_digest, parse_json, record, to_json

FORMAT = 1
# Relative tolerances.
BETWEEN_MACHINES = 2e-3  # between the sampled epsilons that two machines derive
BETWEEN_SAMPLES = 1e-2  # between two sampled epsilons of the same mechanism
ABOVE_BUDGET = 1e-8  # by which rounding may put a guarantee above the budget


@final
@record
class Plan:
    """What to run: strategy, noise, sampler and guarantee in one record, so that they cannot disagree.

    A plan whose fields contradict each other is refused; see `contradictions`. A first plan keeps its budget; an
    extended plan states what the longer run costs, which may be more.

    **Guarantee**: running `mechanism` for all its steps, with batches from its participation's own sampler, is
    (`guarantee.value`, `problem.budget.delta`)-differentially private under `mechanism.adjacency`, with ideal Gaussian
    noise, for plans made by `plan`, `extend` and `load`. `Run.report` states what holds for the noise of a run. If you
    build a plan by hand, `guarantee` is your own claim; `load` and `Run.open` derive it again and refuse a claim that
    is better than what the mechanism gives.

    Args:
        problem: problem that the plan solves.
        mechanism: strategy, participation, noise and adjacency.
        guarantee: bound on epsilon at the budget's delta.
        error: expected error, for clipping norm 1, under the problem's objective; an extended plan keeps that of the
            first one. Information only: no guarantee rests on it.
        candidates: all mechanisms that were tried, best first. Information only.
        notes: advice for the reader. Information only.
        root: fingerprint of the plan that this one extends; empty for a first plan. Noise keys depend on it, so that an
            extended run continues with the same noise.
        deviation: why the mechanism differs from what the problem asks for, in words, if a server enforces another
            participation or adds other noise; empty otherwise. The guarantee is that of the mechanism, within the
            budget or not.
    """

    problem: Problem
    mechanism: Mechanism
    guarantee: Bound
    error: float
    candidates: tuple[Candidate, ...] = ()
    root: str = ""
    notes: tuple[str, ...] = ()
    deviation: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "candidates", tuple(self.candidates))
        object.__setattr__(self, "notes", tuple(self.notes))
        if self.guarantee.kind == "estimate":
            raise _check.invalid("Plan", "guarantee", "a proved bound", "an estimate", "verify it first")
        points = len(curve_steps(self.steps))
        for candidate in self.candidates:
            if len(candidate.per_step) not in (0, points):
                got = f"{len(candidate.per_step)} for {candidate.name!r}"
                raise _check.invalid(
                    "Plan", "candidates", f"with {points} values of per_step each, or none", got, "see curve_steps"
                )
        found = contradictions(self)
        if found:
            raise InvalidArgument(
                f"The plan contradicts itself: {'; '.join(found)}.",
                hint="make the plan with antiphase.plan(problem), or from a problem and a mechanism that agree",
            )

    @property
    def steps(self) -> int:
        """Number of steps, n."""
        return self.mechanism.strategy.steps

    @property
    def pareto(self) -> tuple[Candidate, ...]:
        """The candidates that no other candidate beats in both error and memory, least error first."""
        front: list[Candidate] = []
        for candidate in sorted(self.candidates, key=lambda c: (c.error, c.memory_copies)):
            if not front or candidate.memory_copies < front[-1].memory_copies:
                front.append(candidate)
        return tuple(front)

    @property
    def fingerprint(self) -> str:
        """SHA-256 digest of everything that the guarantee and the noise depend on."""
        return fingerprint([self.problem, self.mechanism, self.root])

    @property
    def details(self) -> str:
        """SHA-256 digest of what the fingerprint leaves out and no check derives again: error, candidates and texts."""
        candidates = [digestible(candidate) for candidate in self.candidates]
        return json_digest([to_json(self.error), candidates, to_json(self.notes), self.deviation])

    def save(self, path: str | Path) -> None:
        """Write the plan as readable JSON, atomically. Symbolic links are followed."""
        data = {"format": FORMAT, "fingerprint": self.fingerprint, "plan": to_json(self)}
        try:
            write_output(Path(path), _readable(data).encode(), OWNER_ONLY)
        except OSError as error:
            raise InvalidArgument(
                f"The plan cannot be written to {path}: {error.strerror}.",
                hint="choose a directory that exists and is writable",
            ) from error

    @classmethod
    def load(cls, path: str | Path) -> Plan:
        """Read a plan, check its version and fingerprint, and derive its guarantee again.

        Raises `Corrupted` if the file was truncated, if problem, mechanism or root were edited, if they contradict each
        other, or if the stated guarantee is better than what the mechanism gives. Error, candidates and notes are read
        as they are: nothing in a plan file authenticates them. A sampled guarantee is certified again with the entropy
        stored in the file, so the result is the same every time. Whoever wrote the file chose that entropy: before you
        rely on a plan from someone else, `verify` it, which draws fresh entropy.
        """
        return cls._load(path)

    @classmethod
    def _load(cls, path: str | Path, deviation: str = "") -> Plan:
        """Like `load`; `deviation` is for server plans written before plans had that field."""
        data = _read(Path(path))
        try:
            plan = from_json(_upgraded(data["plan"], deviation))
        except InvalidArgument as error:
            raise Corrupted(f"The plan {path} cannot be read: {error.message}", hint="make the plan again") from error
        if not isinstance(plan, Plan) or plan.fingerprint != data["fingerprint"]:
            raise Corrupted(
                f"The plan {path} does not match its fingerprint.", hint="the file was edited; make the plan again"
            )
        try:
            derived = restated(plan.mechanism, plan.guarantee, plan.problem.budget.delta)
        except MemoryError as error:
            raise NotEnoughMemory(
                f"There is not enough memory to derive the guarantee of the plan {path} for {plan.steps:,} steps.",
                hint="use a machine with more memory, or plan for fewer steps",
            ) from error
        if derived.value <= plan.guarantee.value * (1 + _tolerance(plan.mechanism)):
            return replace(plan, guarantee=derived)
        raise Corrupted(
            f"The plan {path} states epsilon {plan.guarantee.value}, but its mechanism gives {derived.value}.",
            hint="the file was edited, or written by a version with a different accountant; make the plan again",
        )

    def extend(self, steps: int) -> Plan:
        """Extend the plan to more steps with the same C and noise; the guarantee is derived for the whole longer run.

        Works for Identity, Toeplitz without column normalization, BLT, BandedInverse and the online Tree. Extend a Tree
        before its last step is taken, because that step closes the tree.

        Args:
            steps: new total number of steps.
        """
        strategy = self.mechanism.strategy
        n = _check.positive_integer("Plan.extend", "steps", steps)
        if not strategy.is_extensible:
            raise Refused(
                f"A plan with {type(strategy).__name__} cannot be extended: its matrix depends on the number of steps.",
                hint="plan with family toeplitz, blt, banded-inverse or tree, or start a new run and compose",
            )
        if n <= self.steps:
            raise _check.invalid(
                "Plan.extend", "steps", f"more than {self.steps}", n, "to run fewer steps, stop the run early"
            )
        longer = replace(
            self.mechanism,
            strategy=replace(strategy, steps=n),  # type: ignore[type-var]  # strategies are records
            participation=self.mechanism.participation.for_steps(n),
        )
        given = self.problem.participation
        problem = replace(self.problem, steps=n, participation=given and given.for_steps(n))
        return replace(
            self,
            problem=problem,
            mechanism=longer,
            guarantee=epsilon(longer, problem.budget.delta),
            candidates=(),
            notes=(),
            root=self.root or self.fingerprint,
        )


def contradictions(plan: Plan) -> list[str]:
    """Describe every pair of fields that cannot both be true; empty for a consistent plan.

    | field | agrees with |
    |---|---|
    | problem.steps | the steps of the strategy |
    | problem.adjacency | mechanism.adjacency |
    | problem.examples | mechanism.examples, where both are given |
    | problem.participation * | mechanism.participation; if left open, that one must suit steps and batch size |
    | problem.budget.epsilon * | at least the guarantee, unless the plan extends another |
    | problem.memory_copies * | at least those of the strategy, unless the plan extends another |
    | candidates[0] * | the mechanism: noise, participation, memory, error |
    | root | empty, or a fingerprint |

    A plan that states a deviation from the problem may differ in the rows with an asterisk.

    Budget.delta, unit, clipping norm, workload and objective are stated once, in the problem. Whether the mechanism has
    the guarantee is not checked here, because that may take minutes: `Plan.load` and `Run.open` derive it.
    """
    problem, mechanism = plan.problem, plan.mechanism
    promised = None if plan.deviation else problem.participation
    found = [
        f"problem.{name} is {asked}, but {where} is {made}"
        for name, asked, where, made in (
            ("steps", problem.steps, "the number of steps of mechanism.strategy", mechanism.strategy.steps),
            ("adjacency", problem.adjacency, "mechanism.adjacency", mechanism.adjacency),
            ("examples", problem.examples, "mechanism.examples", mechanism.examples),
            ("participation", promised, "mechanism.participation", mechanism.participation),
        )
        if asked != made and asked is not None and made is not None
    ]
    if plan.root and not re.fullmatch("[0-9a-f]{64}", plan.root):
        found.append(f"root is {plan.root!r}, which is not the fingerprint of a plan")
    return found if plan.deviation else [*found, *_misfits(plan), *_excesses(plan), *_other_choice(plan)]


def _misfits(plan: Plan) -> Iterator[str]:
    """If the problem leaves the participation open, the chosen one must suit its steps, examples and batch size."""
    problem, participation = plan.problem, plan.mechanism.participation
    if problem.participation is None:
        try:
            replace(problem, participation=participation)
        except InvalidArgument as error:
            yield f"mechanism.participation is {participation}, which does not suit the problem ({error.message})"


def _excesses(plan: Plan) -> Iterator[str]:
    """Limits of the problem that the mechanism exceeds; an extended plan may exceed them."""
    if plan.root:
        return
    bound, budget = plan.guarantee, plan.problem.budget
    if bound.value > budget.epsilon * (1.0 + (BETWEEN_MACHINES if bound.kind == "confident" else ABOVE_BUDGET)):
        yield f"problem.budget.epsilon is {budget.epsilon}, but guarantee.value is {bound.value}"
    allowed, used = plan.problem.memory_copies, plan.mechanism.strategy.memory_copies
    if allowed is not None and used > allowed:
        yield f"problem.memory_copies is {allowed}, but mechanism.strategy uses {used}"


def _other_choice(plan: Plan) -> Iterator[str]:
    """The first candidate must be the mechanism itself."""
    if not plan.candidates:
        return
    mechanism, first = plan.mechanism, plan.candidates[0]
    for name, stated, where, made in (
        ("noise_std", first.noise_std, "mechanism.noise_std", mechanism.noise_std),
        ("participation", first.participation, "mechanism.participation", mechanism.participation),
        ("memory_copies", first.memory_copies, "that of mechanism.strategy", mechanism.strategy.memory_copies),
        ("error", first.error, "error", plan.error),
    ):
        if stated != made:
            yield f"candidates[0].{name} is {stated}, but {where} is {made}"


def require_plan(owner: str, value: object) -> Plan:
    """`value` if it is a Plan; what a plan is made from is not one."""
    if not isinstance(value, Plan):
        hint = "make one with antiphase.plan(problem), or read one with Plan.load(path)"
        raise _check.invalid(owner, "plan", "a Plan", type(value).__name__, hint)
    return value


def with_derived_guarantee(plan: Plan) -> Plan:
    """The plan with its guarantee derived again, whatever it says of itself.

    Refuses a plan whose guarantee is better than that of its mechanism, as one built by hand may be. A sampled
    guarantee is compared within the accuracy of sampling: this catches numbers that were made up, and is no second
    certificate.
    """
    derived = restated(plan.mechanism, plan.guarantee, plan.problem.budget.delta)
    share = BETWEEN_SAMPLES if derived.kind == "confident" else _tolerance(plan.mechanism)
    if derived.value > plan.guarantee.value * (1.0 + share):
        raise InvalidArgument(
            f"The plan states epsilon {plan.guarantee.value}, but its mechanism gives {derived.value} at delta "
            f"{plan.problem.budget.delta}.",
            hint="state guarantee=antiphase.epsilon(mechanism, delta), or add noise",
        )
    return replace(plan, guarantee=derived)


def _tolerance(mechanism: Mechanism) -> float:
    """Fraction by which a stated epsilon may lie below the one derived again, which then replaces it.

    Some plans were written before sensitivities were rounded up; epsilon grows as a small power of the sensitivity.
    """
    reduction = mechanism.reduction
    return 1e-9 + 4.0 * (reduction.sensitivity.value / reduction.nominal - 1.0)


def in_words(participation: Participation) -> str:
    """A participation in readable form.

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
    """The fingerprint stated in a plan file, without checking it against the plan."""
    return str(_read(path)["fingerprint"])


def _readable(data: dict[str, Any]) -> str:
    """Indented JSON with every list of numbers on one line."""
    text = json.dumps(data, indent=1, allow_nan=False)
    return re.sub(r"\[[^][{}\"]*\]", lambda numbers: " ".join(numbers[0].split()), text) + "\n"


def _upgraded(data: Any, deviation: str) -> Any:
    """The JSON of a plan in today's form, whichever version wrote it."""
    if not isinstance(data, dict):
        return data
    if deviation:
        data = {"deviation": deviation} | data
    candidates = data.get("candidates")
    return data | {"candidates": [upgraded(c) for c in candidates]} if isinstance(candidates, list) else data


def _read(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise Corrupted(f"There is no plan at {path}.", hint="write one with Plan.save or antiphase plan --output")
    try:
        data = parse_json(path.read_bytes())
        version = data["format"]
        data["plan"], data["fingerprint"]
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise Corrupted(
            f"The plan {path} cannot be read: {error}.", hint="the file was truncated, or is not a plan"
        ) from error
    if type(version) is not int or version != FORMAT:
        raise Corrupted(
            f"The plan {path} has format {_check.shown(version)}; this version reads format {FORMAT}.",
            hint="make the plan again",
        )
    return data
