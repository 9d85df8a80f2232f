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
BETWEEN_MACHINES = 2e-3  # between sampled epsilons derived on different machines
BETWEEN_SAMPLES = 1e-2  # between two sampled epsilons of the same mechanism
ABOVE_BUDGET = 1e-8  # rounding may put a guarantee above the budget by this much


@final
@record
class Plan:
    """The mechanism to run, its guarantee and the problem it solves, in one record so that they cannot disagree.

    A plan whose fields contradict each other raises; see `contradictions`. An original plan is within its budget. An
    extended plan states the epsilon of the longer run, which may exceed the budget.

    **Guarantee**: running `mechanism` for all its steps, with batches from its participation's own sampler, is
    (`guarantee.value`, `problem.budget.delta`)-differentially private under `mechanism.adjacency`, with ideal Gaussian
    noise, for plans made by `plan`, `extend` and `load`. `Run.report` states what holds for the noise of an actual run.
    If you build a plan by hand, `guarantee` is your own claim; `load` and `Run.open` recompute it and raise if the
    claim is better than what the mechanism gives.

    Args:
        problem: the problem that the plan solves.
        mechanism: strategy, participation, noise and adjacency.
        guarantee: bound on epsilon at the budget's delta.
        error: expected error under the problem's objective, for clipping norm 1; an extended plan keeps the error of
            the original. Informational: no guarantee depends on it.
        candidates: all mechanisms that were tried, best first. Informational.
        notes: advice for the user. Informational.
        root: fingerprint of the original plan if this plan extends one, else empty. Noise keys depend on it, so that an
            extended run continues with the same noise.
        deviation: explanation of why the mechanism differs from what the problem asks for, if a server enforces another
            participation or adds other noise; empty otherwise. The guarantee is that of the mechanism, whether or not
            it is within the budget.
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
            raise _check.invalid("Plan", "guarantee", "a proved bound", "an estimate", "verify the estimate first")
        points = len(curve_steps(self.steps))
        for candidate in self.candidates:
            if len(candidate.per_step) not in (0, points):
                got = f"{len(candidate.per_step)} for {candidate.name!r}"
                raise _check.invalid(
                    "Plan",
                    "candidates",
                    f"candidates with {points} values of per_step, or none",
                    got,
                    "compute per_step at the steps that curve_steps returns",
                )
        found = contradictions(self)
        if found:
            raise InvalidArgument(
                f"The plan contradicts itself: {'; '.join(found)}.",
                hint="make the plan with antiphase.plan(problem), or pass a problem and a mechanism that agree",
            )

    @property
    def steps(self) -> int:
        """Number of steps, n."""
        return self.mechanism.strategy.steps

    @property
    def pareto(self) -> tuple[Candidate, ...]:
        """The Pareto front: candidates that no other beats in both error and memory, smallest error first."""
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
        """SHA-256 digest of what the fingerprint omits and no check recomputes: error, candidates, notes, deviation."""
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
        """Read a plan, check its format and fingerprint, and recompute its guarantee.

        Raises `Corrupted` if the file was truncated, if problem, mechanism or root were edited, if they contradict each
        other, or if the stated guarantee is better than what the mechanism gives. Error, candidates and notes are not
        authenticated: whoever can write the file can change them. A sampled guarantee is certified again with the
        entropy stored in the file, so the result is the same every time. Whoever wrote the file chose that entropy.
        Before you rely on a plan from someone else, call `verify`, which draws fresh entropy.
        """
        return cls._load(path)

    @classmethod
    def _load(cls, path: str | Path, deviation: str = "") -> Plan:
        """Load a plan; `deviation` is used for server plans written before plans had that field."""
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
                f"There is not enough memory to compute the guarantee of the plan {path} for {plan.steps:,} steps.",
                hint="use a machine with more memory, or plan for fewer steps",
            ) from error
        if derived.value <= plan.guarantee.value * (1 + _tolerance(plan.mechanism)):
            return replace(plan, guarantee=derived)
        raise Corrupted(
            f"The plan {path} states epsilon {plan.guarantee.value}, but its mechanism gives {derived.value}.",
            hint="the file was edited, or written by a version with a different accountant; make the plan again",
        )

    def extend(self, steps: int) -> Plan:
        """Return the plan extended to more steps, with the same C and noise and the guarantee of the whole longer run.

        Works for Identity, Toeplitz without column normalization, BLT, BandedInverse and the online Tree. Extend a Tree
        before its last step, because that step completes the tree.

        Args:
            steps: new total number of steps.
        """
        strategy = self.mechanism.strategy
        n = _check.positive_integer("Plan.extend", "steps", steps)
        if not strategy.is_extensible:
            raise Refused(
                f"A plan with {type(strategy).__name__} cannot be extended: its matrix depends on the number of steps.",
                hint="plan with the family identity, toeplitz, blt, banded-inverse or tree, or start a new run and "
                "account for both with compose",
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
    | problem.examples | mechanism.examples, if both are given |
    | problem.participation * | mechanism.participation; if None, that one must fit steps and batch size |
    | problem.budget.epsilon * | at least the guarantee, unless the plan extends another |
    | problem.memory_copies * | at least those of the strategy, unless the plan extends another |
    | candidates[0] * | the mechanism: noise, participation, memory, error |
    | root | empty, or a fingerprint |

    A plan that states a deviation from the problem may differ in the rows with an asterisk.

    Budget.delta, unit, clipping norm, workload and objective appear only once, in the problem. This function does not
    check whether the mechanism has the guarantee, because that may take minutes: `Plan.load` and `Run.open` do.
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
    if plan.deviation:
        return found
    return [*found, *_unsuitable_participation(plan), *_exceeded_limits(plan), *_wrong_first_candidate(plan)]


def _unsuitable_participation(plan: Plan) -> Iterator[str]:
    """If the problem names no participation, check the chosen one against its steps, examples and batch size."""
    problem, participation = plan.problem, plan.mechanism.participation
    if problem.participation is None:
        try:
            replace(problem, participation=participation)
        except InvalidArgument as error:
            yield f"mechanism.participation is {participation}, which does not fit the problem ({error.message})"


def _exceeded_limits(plan: Plan) -> Iterator[str]:
    """Yield the limits of the problem that the mechanism exceeds; an extended plan may exceed them."""
    if plan.root:
        return
    bound, budget = plan.guarantee, plan.problem.budget
    if bound.value > budget.epsilon * (1.0 + (BETWEEN_MACHINES if bound.kind == "confident" else ABOVE_BUDGET)):
        yield f"problem.budget.epsilon is {budget.epsilon}, but guarantee.value is {bound.value}"
    allowed, used = plan.problem.memory_copies, plan.mechanism.strategy.memory_copies
    if allowed is not None and used > allowed:
        yield f"problem.memory_copies is {allowed}, but mechanism.strategy uses {used}"


def _wrong_first_candidate(plan: Plan) -> Iterator[str]:
    """Yield the fields in which the first candidate differs from the mechanism."""
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
    """Return `value` if it is a Plan, else raise."""
    if not isinstance(value, Plan):
        hint = "make one with antiphase.plan(problem), or read one with Plan.load(path)"
        raise _check.invalid(owner, "plan", "a Plan", type(value).__name__, hint)
    return value


def with_derived_guarantee(plan: Plan) -> Plan:
    """Return the plan with its guarantee recomputed from the mechanism.

    Raises if the stated guarantee is better than that of the mechanism, as it may be in a plan built by hand. A sampled
    guarantee is compared up to sampling error: this catches made-up numbers, but is not a second certificate.
    """
    derived = restated(plan.mechanism, plan.guarantee, plan.problem.budget.delta)
    share = BETWEEN_SAMPLES if derived.kind == "confident" else _tolerance(plan.mechanism)
    if derived.value > plan.guarantee.value * (1.0 + share):
        raise InvalidArgument(
            f"The plan states epsilon {plan.guarantee.value}, but its mechanism gives {derived.value} at delta "
            f"{plan.problem.budget.delta}.",
            hint="pass guarantee=antiphase.epsilon(mechanism, delta), or add noise",
        )
    return replace(plan, guarantee=derived)


def _tolerance(mechanism: Mechanism) -> float:
    """Return the fraction by which a stated epsilon may be below the recomputed one, which then replaces it.

    Some plans were written before sensitivities were rounded up; epsilon grows as a small power of the sensitivity.
    """
    reduction = mechanism.reduction
    return 1e-9 + 4.0 * (reduction.sensitivity.value / reduction.nominal - 1.0)


def in_words(participation: Participation) -> str:
    """Describe a participation in words.

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
    """Return the fingerprint stated in a plan file without checking it against the plan."""
    return str(_read(path)["fingerprint"])


def _readable(data: dict[str, Any]) -> str:
    """Return indented JSON with every list of numbers on one line."""
    text = json.dumps(data, indent=1, allow_nan=False)
    return re.sub(r"\[[^][{}\"]*\]", lambda numbers: " ".join(numbers[0].split()), text) + "\n"


def _upgraded(data: Any, deviation: str) -> Any:
    """Convert the JSON of a plan written by any version to the current form."""
    if not isinstance(data, dict):
        return data
    if deviation:
        data = {"deviation": deviation} | data
    candidates = data.get("candidates")
    return data | {"candidates": [upgraded(c) for c in candidates]} if isinstance(candidates, list) else data


def _read(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise Corrupted(f"There is no plan at {path}.", hint="write one with Plan.save or `antiphase plan --output`")
    try:
        data = parse_json(path.read_bytes())
        version = data["format"]
        data["plan"], data["fingerprint"]
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise Corrupted(
            f"The plan {path} cannot be read: {error}.", hint="the file is truncated or not a plan; make the plan again"
        ) from error
    if type(version) is not int or version != FORMAT:
        raise Corrupted(
            f"The plan {path} has format {_check.shown(version)}; this version reads format {FORMAT}.",
            hint="make the plan again",
        )
    return data
