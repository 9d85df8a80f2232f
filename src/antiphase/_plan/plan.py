"""The `Plan` class: the mechanism chosen for a problem, its guarantee, and the candidates it was chosen from."""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import fields, replace
from fractions import Fraction
from pathlib import Path
from typing import Any, final

from antiphase import _check
from antiphase._accounting import Mechanism, epsilon, restated
from antiphase._bound import Bound, digits_up, rounded_up
from antiphase._durable import OWNER_ONLY, write_output
from antiphase._errors import Corrupted, InvalidArgument, NotEnoughMemory, Refused
from antiphase._escape import terminal_text
from antiphase._participation import Participation
from antiphase._plan.candidate import Candidate, curve_steps, digestible, upgraded
from antiphase._problem import Problem
from antiphase._record import fingerprint, from_json, json_digest, parse_json, record, to_json

FORMAT = 1
# Largest relative differences between epsilons.
BETWEEN_MACHINES = 2e-3  # between the epsilons that two machines compute from samples with the same entropy
BETWEEN_SAMPLES = 1e-2  # between two epsilons of one mechanism from independent samples
ABOVE_BUDGET = 1e-8  # between the budget's epsilon and a guarantee that is above it because of rounding


@final
@record
class Plan:
    """The mechanism to run, its guarantee and the problem it solves, in one record so that they cannot disagree.

    If the fields contradict each other (see `contradictions`), the constructor raises `InvalidArgument`. An original
    plan is within its budget. An extended plan states the epsilon of the longer run, which may exceed the budget.

    **Guarantee**: for plans made by `plan`, `extend` and `load`, running `mechanism` for all its steps is
    (`guarantee.value`, `problem.budget.delta`)-differentially private under `mechanism.adjacency`. This assumes ideal
    Gaussian noise and batches from the participation's own sampler. `Run.report` states the guarantee for the noise of
    an actual run. If you build a plan by hand, `guarantee` is your own claim. `load` and `Run.open` compute the
    guarantee again, and raise an error if the claim is better than the guarantee of the mechanism.

    Args:
        problem: the problem that the plan solves.
        mechanism: strategy, participation, noise and adjacency.
        guarantee: bound on epsilon at the budget's delta.
        error: expected error under the problem's objective, for clipping norm 1; an extended plan keeps the error of
            the original plan. No guarantee depends on it.
        candidates: all mechanisms that were tried, the chosen one first. No guarantee depends on them.
        notes: advice for the user. No guarantee depends on it.
        root: fingerprint of the original plan if this plan extends one, else empty. Noise keys depend on the root, so
            that an extended run continues with the same noise. The root is not authenticated: whoever writes a plan
            file can put the fingerprint of any known plan there, even of a plan with different coefficients or a
            different noise_std. `Run.open` still never repeats noise, because every new run has a new run id, and a
            resumed run must extend its own plan. With `NoiseStream`, use a new run id for a plan from someone else.
        deviation: why the mechanism differs from the problem, if a server enforces a different participation or adds
            different noise; otherwise empty. With a deviation, `guarantee` is still the guarantee of the mechanism, but
            it may exceed the budget.
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
        _check_fields(self)
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

    def __repr__(self) -> str:
        return (
            f"<Plan: {type(self.mechanism.strategy).__name__}, {self.steps} steps, "
            f"epsilon {rounded_up(self.guarantee.value)} at delta {digits_up(self.problem.budget.delta)}>"
        )

    def __str__(self) -> str:
        """Return a summary of a few lines. `save` writes everything. Control characters in texts are escaped."""
        problem, mechanism = self.problem, self.mechanism
        name = self.candidates[0].name if self.candidates else type(mechanism.strategy).__name__
        copies = mechanism.strategy.memory_copies
        lines = [
            f"Plan: {terminal_text(name)}, {self.steps} steps, {in_words(mechanism.participation)}",
            f"  guarantee: epsilon {rounded_up(self.guarantee.value)} at delta {digits_up(problem.budget.delta)} "
            f"({self.guarantee.kind}), {mechanism.adjacency}, for one {terminal_text(problem.unit)}",
            f"  noise: standard deviation {mechanism.noise_std:.6g} x clip_norm {problem.clip_norm:g}, "
            f"{copies} model-sized buffer{'' if copies == 1 else 's'}",
            f"  expected error ({_objective_name(problem.objective)}): {self.error:.4g}, "
            f"best of {len(self.candidates)} candidates",
        ]
        lattice = mechanism.lattice
        if lattice is not None:
            lines.append(
                f"  lattice: integers in units of 2^{lattice.exponent}, clipping norm {lattice.norm} units, up to "
                f"{lattice.entries} parameters"
            )
        lines += [f"  note: {terminal_text(note)}" for note in self.notes]
        if self.deviation:
            lines.append(f"  deviation: {terminal_text(self.deviation)}")
        return "\n".join(lines)

    @property
    def steps(self) -> int:
        """Number of steps, n."""
        return self.mechanism.strategy.steps

    @property
    def pareto(self) -> tuple[Candidate, ...]:
        """The Pareto front: candidates that no other candidate beats in both error and memory, by increasing error."""
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
        """SHA-256 digest of error, candidates, notes and deviation, which the fingerprint does not cover."""
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

        Raises `Corrupted` if the file was truncated, or if its problem, mechanism or root were edited or contradict
        each other. Also raises `Corrupted` if the guarantee stated in the file is better than the recomputed one. The
        error, candidates and notes are not authenticated: anyone who can write the file can change them. A guarantee
        based on samples is certified again with the entropy (seed of the samples) stored in the file, so the result is
        the same every time. The author of the file could have chosen that entropy. Before you rely on a plan from
        someone else, call `verify`, which draws fresh entropy.
        """
        return cls._load(path)

    @classmethod
    def _load(cls, path: str | Path, deviation: str = "") -> Plan:
        """Load a plan. If its file has no deviation, as in server plans of older versions, use `deviation`."""
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
        """Return the plan extended to more steps, with the same strategy and noise.

        The guarantee of the new plan covers the whole longer run if the decision to extend does not depend on the
        outputs. If this decision might depend on the outputs, plan for the largest number of steps from the start, and
        stop early.

        Plans with these strategies can be extended: Identity, Toeplitz without column normalization, BLT,
        BandedInverse, and Tree with the online decoder. Extend a Tree before its last step, because that step completes
        the tree.

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
        rates = getattr(self.problem.workload, "learning_rates", None)
        if rates is not None and len(rates) < n:
            raise Refused(
                f"The plan cannot be extended: its workload has learning rates for {self.steps:,} steps only.",
                hint="plan with a constant learning rate, or start a new run and account for both with compose",
            )
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


def _check_fields(plan: Plan) -> None:
    """Check the types of a plan's fields, and store lists as tuples.

    A run could be opened with fields of other types, but its plan file could not be read again.
    """
    for name, kind in (("problem", Problem), ("mechanism", Mechanism), ("guarantee", Bound)):
        value = getattr(plan, name)
        if not isinstance(value, kind):
            hint = "make the plan with antiphase.plan(problem)"
            raise _check.invalid("Plan", name, f"a {kind.__name__}", type(value).__name__, hint)
    if not math.isfinite(plan.guarantee.value):
        hint = "add noise: an infinite epsilon guarantees nothing"
        raise _check.invalid("Plan", "guarantee", "a finite epsilon", plan.guarantee.value, hint)
    largest, hint = sys.float_info.max, "pass 0.0 if it is not known; no guarantee depends on it"
    error = _check.real("Plan", "error", plan.error, -largest, largest, hint)
    if type(plan.error) is not int:  # integers stay integers, because ledgers contain digests of them
        object.__setattr__(plan, "error", error)
    for name in ("root", "deviation"):
        object.__setattr__(plan, name, _check.text("Plan", name, getattr(plan, name), f"omit {name}"))
    notes = (_check.text("Plan", "notes", note, "pass a tuple of strings") for note in _items("notes", plan.notes))
    object.__setattr__(plan, "notes", tuple(notes))
    candidates = _items("candidates", plan.candidates)
    if not all(isinstance(candidate, Candidate) for candidate in candidates):
        raise _check.invalid("Plan", "candidates", "a tuple of candidates", plan.candidates, "omit candidates")
    object.__setattr__(plan, "candidates", candidates)


def _items(name: str, given: Any) -> tuple[Any, ...]:
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise _check.invalid("Plan", name, "a tuple", given, f"omit {name}")
    return tuple(given)


def contradictions(plan: Plan) -> list[str]:
    """Return descriptions of all fields that contradict each other; an empty list for a consistent plan.

    | field | must be |
    |---|---|
    | problem.steps | equal to the number of steps of the strategy |
    | problem.adjacency | equal to mechanism.adjacency |
    | problem.examples | equal to mechanism.examples, if both are given |
    | problem.participation * | equal to mechanism.participation; or None, if mechanism.participation fits the problem |
    | problem.budget.epsilon * | at least the guarantee, unless the plan extends another plan |
    | problem.memory_copies * | at least mechanism.strategy.memory_copies, unless the plan extends another plan |
    | candidates[0] * | equal to the mechanism in noise_std, participation and memory_copies, and to the plan in error |
    | root | empty, or a fingerprint |
    | mechanism.strategy | extensible and with two steps or more, if there is a root |
    | candidates | empty, if there is a root |
    | mechanism.lattice | given if and only if problem.lattice is true; fits the clipping norm and parameters |

    Rows with an asterisk do not apply to a plan that states a deviation (a reason why its mechanism differs from its
    problem).

    Budget.delta, unit, clipping norm, workload and objective appear only once, in the problem, so they cannot
    contradict anything. This function does not check whether the mechanism has the stated guarantee, because that may
    take minutes: `Plan.load` and `Run.open` check it.
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
    found += _impossible_extension(plan)
    found += _wrong_lattice(plan)
    if plan.deviation:
        return found
    return [*found, *_unsuitable_participation(plan), *_exceeded_limits(plan), *_wrong_first_candidate(plan)]


def _impossible_extension(plan: Plan) -> Iterator[str]:
    """Yield reasons why a plan with a root (the fingerprint of the plan it extends) cannot come from `Plan.extend`."""
    strategy = plan.mechanism.strategy
    if plan.root and not strategy.is_extensible:
        yield f"root names a plan that this plan extends, but a {type(strategy).__name__} strategy cannot be extended"
    if plan.root and plan.steps < 2:
        yield "root names a plan that this plan extends, but this plan has fewer than 2 steps"
    if plan.root and plan.candidates:
        yield "root names a plan that this plan extends, but an extended plan has no candidates"


def _wrong_lattice(plan: Plan) -> Iterator[str]:
    """Yield reasons why the lattice of the mechanism does not fit the problem."""
    problem, lattice = plan.problem, plan.mechanism.lattice
    if problem.lattice != (lattice is not None):
        yield f"problem.lattice is {problem.lattice}, but mechanism.lattice is {lattice}"
    elif lattice is not None:
        if Fraction(lattice.norm) * Fraction(2) ** lattice.exponent > Fraction(problem.clip_norm):
            yield f"problem.clip_norm is {problem.clip_norm}, but mechanism.lattice allows {lattice.clip_norm}"
        if problem.parameters is not None and problem.parameters > lattice.entries:
            yield f"problem.parameters is {problem.parameters}, but mechanism.lattice allows at most {lattice.entries}"


def _unsuitable_participation(plan: Plan) -> Iterator[str]:
    """Yield a contradiction if the participation does not fit the problem's steps, examples or batch size.

    This is checked only for problems that name no participation.
    """
    problem, participation = plan.problem, plan.mechanism.participation
    if problem.participation is None:
        try:
            replace(problem, participation=participation)
        except InvalidArgument as error:
            yield f"mechanism.participation is {participation}, which does not fit the problem ({error.message})"


def _exceeded_limits(plan: Plan) -> Iterator[str]:
    """Yield descriptions of the problem's limits that the mechanism exceeds. An extended plan may exceed them."""
    if plan.root:
        return
    bound, budget = plan.guarantee, plan.problem.budget
    if bound.value > budget.epsilon * (1.0 + (BETWEEN_MACHINES if bound.kind == "confident" else ABOVE_BUDGET)):
        yield f"problem.budget.epsilon is {budget.epsilon}, but guarantee.value is {bound.value}"
    allowed, used = plan.problem.memory_copies, plan.mechanism.strategy.memory_copies
    if allowed is not None and used > allowed:
        yield f"problem.memory_copies is {allowed}, but mechanism.strategy uses {used}"


def _wrong_first_candidate(plan: Plan) -> Iterator[str]:
    """Yield descriptions of the fields in which the first candidate differs from the mechanism."""
    if not plan.candidates:
        return
    mechanism, first = plan.mechanism, plan.candidates[0]
    for name, stated, where, made in (
        ("noise_std", first.noise_std, "mechanism.noise_std", mechanism.noise_std),
        ("participation", first.participation, "mechanism.participation", mechanism.participation),
        ("memory_copies", first.memory_copies, "that of mechanism.strategy", mechanism.strategy.memory_copies),
        ("error", first.error, "the error of the plan", plan.error),
    ):
        if stated != made:
            yield f"candidates[0].{name} is {stated}, but {where} is {made}"


def require_plan(owner: str, value: object) -> Plan:
    """Return `value`. Raises `InvalidArgument` if it is not a Plan."""
    if not isinstance(value, Plan):
        hint = "make one with antiphase.plan(problem), or read one with Plan.load(path)"
        raise _check.invalid(owner, "plan", "a Plan", type(value).__name__, hint)
    return value


def with_derived_guarantee(plan: Plan) -> Plan:
    """Return the plan with its guarantee computed again from the mechanism.

    Raises `InvalidArgument` if the stated guarantee is better than the guarantee of the mechanism. This can happen in a
    plan built by hand. A guarantee based on samples is compared up to sampling error. This check detects made-up
    numbers, but it does not certify the guarantee again.
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
    """Return the fraction by which a stated epsilon may be below the computed one before an error is raised.

    Older versions did not round sensitivities up, so the epsilon in their plans may be slightly too small. The
    tolerance is proportional to the effect of this rounding on the sensitivity.
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


def _objective_name(objective: object) -> str:
    return objective if isinstance(objective, str) else type(objective).__name__


def _short(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else f"{value}"


def stored_fingerprint(path: Path) -> str:
    """Return the fingerprint stated in a plan file. It is not checked against the plan."""
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
