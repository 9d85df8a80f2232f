"""The report on a federated run: its guarantee, computed from who took part."""

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
from antiphase.flower._enforced_plan import DEVIATION
from antiphase.flower._participants import Achieved
from antiphase.flower._session import Session

DROPOUTS: dict[Dropouts, str] = {
    "zero": "a client that was asked to train and failed, or did not reply in time, took part with a zero update and "
    "was not replaced.",
    "replace": "a client that failed or did not reply in time was replaced by another one. The statement assumes that "
    "crashes, kills and delays of clients do not depend on their data. Running out of memory may.",
}


@final
@dataclass(frozen=True)
class FederatedReport:
    """The guarantee of a federated run, computed from its ledgers.

    **Guarantee**: `guarantee` covers all models released so far, for each client that kept its identity, under the
    run's adjacency. It uses the separation and the participations that were achieved, which are known only afterwards.
    This assumes that who takes part, and when, does not depend on the clients' data. Clients that look at the models
    before they decide whether to reply violate it; `run.guarantee` holds even then.

    Args:
        run: report of the underlying run: releases, publications, remarks. Its guarantee is for the participation that
            the server enforced, and None if the directory was restored from an older copy.
        planned: planned participation.
        achieved: achieved participation; None before the first release.
        clients: number of different clients that took part.
        dropouts: the rule for clients that failed or stayed silent: "zero" or "replace" (see `DPFTRL`).
        guarantee: epsilon for one client. None before the first release, for a simulation with scaled noise, and if
            the directory was restored from an older copy.
        zcdp: rho for one client.
        group: epsilon for all devices of one user together, if requested.
        counts: what happened to replies. They depend on the clients' data and are not private; do not publish them.
        remarks: further facts that a reader must know.
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
        """The guarantee in words, for publication.

        Reference: Ponomareva et al. 2023, section 5.3; Choquette-Choo et al. 2023 (amplified banded), App. K.1.
        """
        run, value = self.run, self.guarantee
        claim = "No guarantee is stated." if value is None else _claim(value, self.zcdp, run.delta)
        lines = [
            "DP setting: central; the server is trusted to run the mechanism.",
            f"Covered: all clients that follow the protocol, in one run of {run.steps_run} releases. Not covered: how "
            "the settings were chosen.",
            "Output: every model that left the server, including those sent to clients.",
            f"Unit of privacy: {run.unit}.",
            f"Adjacency: {run.adjacency}.",
            f"Participation: planned {_words(self.planned)}; achieved {_words(self.achieved)}; "
            "enforced by the server's record and a timer on each client.",
            f"Dropouts: {DROPOUTS[self.dropouts]}",
            f"Formal statement: {claim}",
            "Arithmetic: the statement is for real numbers. Noise and sums are rounded to floating point; what the "
            "exact bits of a model may reveal is not covered.",
            *self.remarks,
        ]
        return "\n".join(lines)


def report(
    directory: str | Path, *, devices_per_user: int | None = None, secret: Secret | None = None
) -> FederatedReport:
    """Return the report on the federated run in a directory. No server may be running on it.

    Args:
        directory: the directory of `DPFTRL`.
        devices_per_user: also state the guarantee for a user with this many devices, each a separate client.
        secret: the secret passed to `DPFTRL`, if any.
    """
    if devices_per_user is not None:
        _check.positive_integer("report", "devices_per_user", devices_per_user, "use 1 for the guarantee of one client")
    path = Path(directory)
    if not (path / "run" / "plan.json").exists():
        raise InvalidArgument(f"There is no federated run in {path}.", hint="pass the directory of DPFTRL")
    plan = Plan._load(path / "run" / "plan.json", DEVIATION)
    session = Session.open(plan, path, {}, secret=secret)
    try:
        return _report(session, plan, devices_per_user)
    finally:
        session.close()


def achieved_mechanism(plan: Plan, releases: int, achieved: Achieved) -> Mechanism:
    """Return the mechanism of the releases made, under the participation that was achieved.

    If no client took part twice, that is a single participation, with the length of the run as separation.
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
    # Who takes part is checked at every reply; that the run itself makes no batches needs no remark.
    settings, remarks = session.settings, [text for text in run.remarks if text != NO_BATCHES]
    if guarantee is not None and run.guarantee is not None:
        remarks.append(
            "The statement uses the achieved participation. It assumes that who takes part, and when, does not depend "
            "on the clients' data. If clients may have looked at the models before they decided whether to reply, rely "
            f"on the enforced participation instead: epsilon = {rounded_up(run.guarantee.value)}."
        )
        planned = MinSeparation(settings["planned"]["separation"], settings["planned"]["limit"])
        before = epsilon(replace(plan.mechanism, participation=planned), plan.problem.budget.delta).value
        if guarantee.value > before * (1.0 + 1e-9):
            remarks.append(f"Epsilon is above the planned {before:.4g}: clients took part more often than planned.")
    if settings["noise_scale"] != 1.0:
        remarks.append(
            f"This is a simulation: the noise was scaled by {settings['noise_scale']:.4g} to match its few clients. "
            "The run is not private, and no guarantee can be stated for it."
        )
    if settings["identity"] == "pseudonym":
        remarks.append(
            "Clients are identified by a pseudonym on their disk. A client that loses it counts as a new client."
        )
    else:
        remarks.append(
            "Clients are identified by their authentication keys. This is valid only if the SuperLink authenticated "
            "its SuperNodes; otherwise each restart made a client a new one."
        )
    if "dropouts" not in settings:
        remarks.append(
            "The run was started by a version that always replaced clients that dropped out and did not record this "
            "rule. The run keeps it."
        )
    if settings["raw_metrics"]:
        remarks.append("Metrics of clients were released raw; no guarantee covers them.")
    if session.totals["false-claim"]:
        remarks.append(
            f"{session.totals['false-claim']} replies claimed participations or tasks that did not exist, and were "
            "rejected."
        )
    if session.forgotten is not None:
        remarks.append(
            f"The directory was restored from an older copy: a client has a task for release {session.forgotten} that "
            "is not in the ledger. Later releases are not recorded here, and noise may have been used twice. No "
            "guarantee can be stated."
        )
    if group is not None:
        remarks.append(
            f"For a user with {devices} devices, each a separate client: epsilon = {rounded_up(group.value)}."
        )
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
