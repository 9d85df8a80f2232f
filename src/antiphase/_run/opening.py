"""Opens a run directory for writing: creates a run, resumes one, or resumes one with an extended plan."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from antiphase import _check
from antiphase._durable import DirectoryLock
from antiphase._errors import Corrupted, InvalidArgument, Refused
from antiphase._ledger import Entry, Ledger
from antiphase._noise import check_host_noise, check_last_step, check_lattice, named
from antiphase._participation import Deterministic
from antiphase._plan import Plan, stored_fingerprint, with_derived_guarantee
from antiphase._record import to_json
from antiphase._run.digests import KEYED
from antiphase._run.directory import (
    FORMAT,
    Header,
    check_layout,
    check_no_run,
    clear_temporary,
    clear_unfinished,
    fresh_run_id,
    made_directory,
    own_secret,
    read_header,
    write_header,
)
from antiphase._run.history import History, read_history
from antiphase._run.journal import Journal
from antiphase._run.noise_replay import saved_states
from antiphase._secret import Secret, require_secret


@dataclass(frozen=True)
class OpenDirectory:
    """A run directory that this process has locked.

    Args:
        plan: plan of the run, with a newly computed guarantee.
        path: absolute path of the directory.
        header: header of the run: its id and other properties that never change.
        secret: secret of the run.
        journal: ledger and history of the run.
    """

    plan: Plan
    path: Path
    header: Header
    secret: Secret
    journal: Journal


def open_directory(plan: Plan, directory: str | Path, given: Header, secret: Secret | None) -> OpenDirectory:
    """Lock a run directory, then create the run or resume it.

    Args:
        plan: plan to run.
        directory: run directory; created if it is missing.
        given: header for a new run. If the directory already holds a run, its header must equal `given` except for the
            run id.
        secret: secret of the run. If None, a new run generates a secret and stores it in the directory, and any other
            run uses the stored secret.
    """
    plan = with_derived_guarantee(plan)
    path = made_directory(directory)
    lock = DirectoryLock(path)
    try:
        check_layout(path)
        stored = read_header(path)
        if stored is None:
            _check_examples(plan, given.examples)
            check_no_run(path)
        else:
            stored.check(given)
        own = own_secret(path, create=stored is None) if secret is None else require_secret("Run.open", secret)
        if stored is None:
            clear_unfinished(path)
            plan.save(path / "plan.json")
            journal = _new_journal(plan, path, given, own, lock)
            write_header(path, given)
        else:
            journal = _stored_journal(plan, path, stored, own, lock)
        clear_temporary(path)
        return OpenDirectory(plan, path, stored or given, own, journal)
    except BaseException:
        lock.release()
        raise


def _new_journal(plan: Plan, path: Path, header: Header, secret: Secret, lock: DirectoryLock) -> Journal:
    journal = Journal(History(), Ledger(path, secret, header.run_id, create=True), lock)
    journal.append({"kind": "open", "digests": KEYED, **_identity(plan, header)})
    journal.flush()
    return journal


def _stored_journal(plan: Plan, path: Path, header: Header, secret: Secret, lock: DirectoryLock) -> Journal:
    ledger = Ledger(path, secret, header.run_id, create=False)
    history, last = read_history(ledger.public.entries())
    journal = Journal(history, ledger, lock)
    if last.get("header") != header.fingerprint:
        raise Corrupted(
            "The header run.json differs from the header in the ledger.", hint="restore run.json from a copy"
        )
    if last["plan"] != plan.fingerprint:
        _extend(plan, path, header, secret, journal, last)
    elif stored_fingerprint(path / "plan.json") != plan.fingerprint:
        plan.save(path / "plan.json")  # a process crashed after it wrote the ledger entry but before it wrote this file
    return journal


def _identity(plan: Plan, header: Header) -> Entry:
    """Return the fields of a ledger entry that identify plan and header.

    The ledger authenticates these fields, so the files plan.json and run.json can be checked against them.
    """
    return {
        "steps": plan.steps,
        "plan": plan.fingerprint,
        "details": plan.details,
        "header": header.fingerprint,
    }


def _extend(plan: Plan, path: Path, header: Header, secret: Secret, journal: Journal, last: Entry) -> None:
    """Continue the run with a longer plan, which must be an extension of the plan in the ledger entry `last`."""
    before = Plan._load(path / "plan.json", plan.deviation)
    if before.fingerprint != last["plan"]:
        raise Corrupted(
            "The file plan.json is not the plan of this run.",
            hint="if the process ended while it was extending the run, open the run with the extended plan; "
            "otherwise restore plan.json from a copy",
        )
    if plan.steps <= before.steps or before.extend(plan.steps).fingerprint != plan.fingerprint:
        raise InvalidArgument(
            f"The run already has a plan of {before.steps} steps, and the given plan is not an extension of it.",
            hint="resume with the run's own plan, or with plan.extend(steps), where plan is the run's own plan",
        )
    check_last_step(plan.mechanism.strategy, before.mechanism.strategy, journal.history.committed)
    if header.examples is not None and not header.sampler(plan, before.steps, secret).extendable:
        raise Refused(
            "The batches of this participation depend on the number of steps, so the run cannot be extended.",
            hint="start a new run in a new directory; antiphase.compose computes the guarantee of both",
        )
    for state in saved_states(path / "private"):
        state.unlink()  # saved states belong to the shorter plan; the noise is replayed from the secret
    journal.append({"kind": "extend", **_identity(plan, header)})
    journal.flush()
    plan.save(path / "plan.json")


def _check_examples(plan: Plan, examples: int | None) -> None:
    """Raise `InvalidArgument` if the number of examples of a new run does not match the plan's problem.

    This is checked even if the guarantee does not depend on the number of examples.
    """
    if examples is not None and plan.problem.examples not in (None, examples):
        raise InvalidArgument(
            f"The plan's problem has {plan.problem.examples} examples. Got examples={examples} instead.",
            hint="make a plan for the number of examples in the data set",
        )


def new_header(plan: Plan, leaves: Any, dtype: DTypeLike | None, examples: int | None) -> Header:
    """Return the header of a new run after checking every field. Nothing is written.

    If `dtype` is None, the dtype is int64 for a plan with a lattice (noise in exact integers), otherwise float32.
    """
    mechanism = plan.mechanism
    if examples is not None:
        examples = _check.positive_integer("Run.open", "examples", examples)
    elif not isinstance(mechanism.participation, Deterministic):
        raise InvalidArgument(
            f"The guarantee needs random batches ({type(mechanism.participation).__name__}) drawn by the run itself.",
            hint="open the run with examples=len(data_set) and take every batch from run.batch(step)",
        )
    if mechanism.examples is not None and examples != mechanism.examples:
        raise InvalidArgument(
            f"The plan accounts for {mechanism.examples} examples. Got examples={examples} instead.",
            hint="make a plan for the number of examples in the data set",
        )
    regions = named(leaves)
    if sum(math.prod(leaf.global_shape) for leaf in regions.values()) == 0:
        raise _check.invalid(
            "Run.open",
            "leaves",
            "the shapes of at least one parameter",
            f"{len(regions)} leaves, all of them empty" if regions else "no leaves",
            "an exhausted generator yields no shapes; pass a list, such as [p.shape for p in parameters]",
        )
    described = [[name, to_json(leaf)] for name, leaf in regions.items()]
    name = _dtype_name(plan, dtype)
    if mechanism.lattice is not None:
        check_lattice(mechanism, regions)
    else:
        check_host_noise(mechanism, name, clip_norm=plan.problem.clip_norm)
    return Header(FORMAT, fresh_run_id(), plan.root or plan.fingerprint, described, name, examples)


def _dtype_name(plan: Plan, dtype: DTypeLike | None) -> str:
    """Return the name of the noise dtype. Raises `InvalidArgument` if the plan's noise cannot have this dtype."""
    is_lattice = plan.mechanism.lattice is not None
    allowed = ("int64",) if is_lattice else ("float32", "float64")
    if dtype is None:
        return allowed[0]
    try:
        name = np.dtype(dtype).name
    except TypeError:
        name = _check.shown(dtype)
    if name in allowed:
        return name
    if is_lattice:
        hint = "omit dtype, or make a plan without lattice=True to get floating-point noise"
        raise _check.invalid("Run.open", "dtype", "int64 for a plan with a lattice", name, hint)
    raise _check.invalid("Run.open", "dtype", "float32 or float64", name, "use float32 for bfloat16 gradients too")
