"""The guarantee of a federated run, derived from who took part."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import final

from antiphase import _check
from antiphase._accounting import Mechanism, epsilon, group_epsilon, zcdp
from antiphase._bound import Bound, rounded_up
from antiphase._errors import InvalidArgument
from antiphase._participation import MinSeparation
from antiphase._plan import Plan
from antiphase._run import NO_BATCHES, PrivacyReport, epsilon_with_tail
from antiphase._secret import Secret
from antiphase.flower._cohort import Dropouts
from antiphase.flower._force import DEVIATION
from antiphase.flower._participants import Achieved
from antiphase.flower._session import Session

DROPOUTS: dict[Dropouts, str] = {
    "zero": "a client that was asked to train and failed, or did not reply in time, took part with a zero update; its "
    "place was not given to another one.",
    "replace": "a client that failed or did not reply in time was replaced by another one. The statement assumes that "
    "crashes, kills and delays of clients do not depend on their data; an out-of-memory kill may.",
}


@final
@dataclass(frozen=True)
class FederatedReport:
    """What a federated run promises, from its ledgers.

    **Guarantee**: `guarantee` covers all models released so far, for each client whose identity lasted, under the run's
    adjacency. Separation and participations are what happened, which is known only afterwards: that this may be used
    rests on the assumption that who takes part, and when, does not depend on the clients' data. Clients that look at
    the models before they decide whether to reply break it; `run.guarantee` holds for them too.

    Args:
        run: the report on the run: releases, publications, remarks; its guarantee is for the participation enforced,
            and None where the directory was put back to an older state.
        planned: the participation that was planned.
        achieved: the one that happened; None before the first release.
        clients: how many different ones took part.
        dropouts: what became of clients that failed or stayed silent: "zero" or "replace" (see `DPFTRL`).
        guarantee: epsilon for one client; None before the first release, for a simulation with scaled noise, and where
            the directory was put back to an older state.
        zcdp: rho for one client.
        group: epsilon for all devices of one user together, where asked for.
        counts: what happened to replies. They depend on the data and are not private: for the operator's eyes.
        remarks: what a reader must know besides.
    """

    run: PrivacyReport
    planned: MinSeparation
    achieved: MinSeparation | None
    clients: int
    dropouts: Dropouts
    guarantee: Bound | None
    zcdp: Bound | None
    group: Bound | None
    counts: dict[str, int]
    remarks: tuple[str, ...]

    @property
    def statement(self) -> str:
        """The guarantee in words, in the order recommended for publication.

        Reference: Ponomareva et al. 2023, section 5.3; Choquette-Choo et al. 2023 (amplified banded), App. K.1.
        """
        run, value = self.run, self.guarantee
        claim = "No guarantee is stated." if value is None else _claim(value, self.zcdp, run.delta)
        lines = [
            "DP setting: central; the server is trusted to run the mechanism.",
            f"Covered: all clients that keep to the protocol, in one run of {run.steps_run} releases; not how its "
            "settings were chosen.",
            "Output: every model that left the server, also those sent to clients.",
            f"Unit of privacy: {run.unit}.",
            f"Adjacency: {run.adjacency}.",
            f"Participation: planned {_words(self.planned)}; achieved {_words(self.achieved)}; "
            "kept by the server's record and a timer on the clients.",
            f"Dropouts: {DROPOUTS[self.dropouts]}",
            f"Formal statement: {claim}",
            "Arithmetic: the statement is for real numbers; noise and sums are rounded to floating point, and what the "
            "exact bits of a model may reveal is not covered.",
            *self.remarks,
        ]
        return "\n".join(lines)


def report(
    directory: str | Path, *, devices_per_user: int | None = None, secret: Secret | None = None
) -> FederatedReport:
    """The report on the federated run in a directory, from its ledgers; no server may be running on it.

    Args:
        directory: that of `DPFTRL`.
        devices_per_user: also state the guarantee of a user with so many devices, each a client of its own.
        secret: the one given to `DPFTRL`, if any.
    """
    if devices_per_user is not None:
        _check.positive_integer("report", "devices_per_user", devices_per_user, "1 is the guarantee of one client")
    path = Path(directory)
    if not (path / "run" / "plan.json").exists():
        raise InvalidArgument(f"There is no federated run in {path}.", hint="give the directory of DPFTRL")
    plan = Plan._load(path / "run" / "plan.json", DEVIATION)
    session = Session.open(plan, path, {}, secret=secret)
    try:
        return _report(session, plan, devices_per_user)
    finally:
        session.close()


def achieved_mechanism(plan: Plan, releases: int, achieved: Achieved) -> Mechanism:
    """The mechanism of the releases made, under the participation that happened.

    Nobody came twice: one participation, and no separation smaller than the run.
    """
    separation = releases if achieved.separation is None else achieved.separation
    happened = MinSeparation(separation, max(achieved.participations, 1))
    return replace(plan.mechanism, participation=happened).first(releases)


def _report(session: Session, plan: Plan, devices: int | None) -> FederatedReport:
    achieved, releases, run = session.participants.achieved, session.state.release, session.run.report()
    planned = MinSeparation(session.settings["planned"]["separation"], session.settings["planned"]["limit"])
    mechanism = achieved_mechanism(plan, releases, achieved) if releases else None
    scaled = session.settings["noise_scale"] != 1.0
    accounted = None if scaled or session.forgotten is not None else mechanism
    guarantee, group = None, None
    if accounted is not None:
        guarantee = epsilon_with_tail(session.run, partial(epsilon, accounted), run.delta)
    if accounted is not None and devices is not None:
        group = epsilon_with_tail(session.run, partial(group_epsilon, accounted, devices), run.delta)
    if session.forgotten is not None:
        run = replace(run, guarantee=None)
    happened = None if mechanism is None else mechanism.participation
    assert happened is None or isinstance(happened, MinSeparation)
    return FederatedReport(
        run=run,
        planned=planned,
        achieved=happened,
        clients=achieved.clients,
        dropouts=session.dropouts,
        guarantee=guarantee,
        zcdp=None if accounted is None else zcdp(accounted),
        group=group,
        counts=dict(session.totals),
        remarks=tuple(_remarks(session, plan, run, guarantee, group, devices)),
    )


def _remarks(
    session: Session,
    plan: Plan,
    run: PrivacyReport,
    guarantee: Bound | None,
    group: Bound | None,
    devices: int | None,
) -> list[str]:
    # Who took part is checked at every reply, so that the run itself makes no batches.
    settings, remarks = session.settings, [text for text in run.remarks if text != NO_BATCHES]
    if guarantee is not None and run.guarantee is not None:
        remarks.append(
            "Separation and participations were observed: the statement assumes that who takes part, and when, does "
            "not depend on the clients' data. Where clients may have looked at the models before they decided whether "
            f"to reply, it is that of the participation enforced: epsilon = {rounded_up(run.guarantee.value)}."
        )
        planned = MinSeparation(settings["planned"]["separation"], settings["planned"]["limit"])
        before = epsilon(replace(plan.mechanism, participation=planned), plan.problem.budget.delta).value
        if guarantee.value > before * (1.0 + 1e-9):
            remarks.append(f"Epsilon is above the planned {before:.4g}: clients were let in more often than planned.")
    if settings["noise_scale"] != 1.0:
        remarks.append(
            f"A simulation: the noise was scaled by {settings['noise_scale']:.4g} to match its few clients. The run is "
            "not private, and no guarantee can be stated for it."
        )
    if settings["identity"] == "pseudonym":
        remarks.append("Clients are known by a pseudonym on their disk: one that loses it counts as a new client.")
    else:
        remarks.append(
            "Clients are known by their authentication keys: these count only if the SuperLink authenticated its "
            "SuperNodes; otherwise each restart of a client made it a new one."
        )
    if "dropouts" not in settings:
        remarks.append(
            "The run was begun by a version that did not record what becomes of dropouts and always replaced them; it "
            "keeps that rule."
        )
    if settings["raw_metrics"]:
        remarks.append("Metrics of clients were released raw: no guarantee covers them.")
    if session.totals["false-claim"]:
        remarks.append(
            f"{session.totals['false-claim']} replies claimed participations or tasks that were not there, and were "
            "rejected."
        )
    if session.forgotten is not None:
        remarks.append(
            f"The directory was put back to an older state: a client was asked for release {session.forgotten} in a "
            "way that the ledger does not know. What was released since is not in the record, and noise may have been "
            "used twice. No guarantee can be stated."
        )
    if group is not None:
        remarks.append(f"For a user with {devices} devices, each a client: epsilon {rounded_up(group.value)}.")
    return remarks


def _claim(value: Bound, rho: Bound | None, delta: float) -> str:
    assert rho is not None
    return (
        f"rho = {rounded_up(rho.value, 6)} zCDP; epsilon = {rounded_up(value.value)} at delta = {delta:g} "
        f"({value.kind}, {value.method})."
    )


def _words(participation: MinSeparation | None) -> str:
    if participation is None:
        return "none"
    count = participation.max_participations
    if count == 1:
        return "once"
    times = "" if count is None else f", at most {count} times"
    return f"at least {participation.separation} releases apart{times}"
