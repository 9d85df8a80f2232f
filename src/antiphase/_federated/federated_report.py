"""The report on a federated run. The guarantee is computed from the ledger's record of which clients took part."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import final

from antiphase import _check
from antiphase._accounting import Mechanism, epsilon, group_epsilon, zcdp
from antiphase._bound import Bound, digits_up, rounded_up
from antiphase._federated.history import Dropouts, ReleaseRecord
from antiphase._federated.participants import Achieved
from antiphase._federated.reading import FederatedRecord, read_federated
from antiphase._participation import MinSeparation
from antiphase._plan import Plan
from antiphase._run import NO_BATCHES, PrivacyReport
from antiphase._secret import Secret

DROPOUTS: dict[Dropouts, str] = {
    "zero": "a client that was asked to train and failed, or did not reply in time, took part with a zero update and "
    "was not replaced.",
    "replace": "a client that failed or did not reply in time was replaced by another one. The statement assumes that "
    "crashes, kills and delays of clients do not depend on their data. Running out of memory may depend on the data.",
}

ROUNDED = (
    "the statement is for real numbers. Noise and sums are rounded to floating point, and the statement does not cover "
    "what the exact bits of a model may reveal."
)
EXACT = (
    "lattice noise. Noise and sums are exact integers on a grid, and the statement covers every bit of the released "
    "models."
)


@final
@dataclass(frozen=True)
class FederatedReport:
    """Report on a federated run, with the guarantee computed from its ledgers.

    **Guarantee**: `guarantee` covers all models released so far, for each client that kept its identity, under the
    run's adjacency. It uses the separation (smallest distance between two releases with the same client) and the number
    of participations that were achieved. Both are known only after training. The guarantee assumes that who takes part,
    and when, does not depend on the clients' data. A client violates this assumption if it looks at the models before
    it decides whether to reply. `run.guarantee` holds even then.

    Args:
        run: report of the underlying run, with releases, publications and remarks. `run.guarantee` is for the
            participation that the server enforced. `run.guarantee` is None if the directory was restored from an older
            copy.
        planned: planned participation.
        achieved: achieved participation; None before the first release.
        clients: number of different clients that took part.
        dropouts: rule for clients that failed or did not reply, "zero" or "replace" (see `DPFTRL`).
        guarantee: epsilon for one client. None before the first release, for a simulation that scales the noise to a
            small number of clients, and if the directory was restored from an older copy.
        zcdp: zCDP parameter rho for one client, with ideal Gaussian noise. None if `guarantee` is None.
        group: epsilon for all devices of one user together; None if not requested.
        participations: for each number of participations, the number of clients that took part that many times.
        gaps: for each distance, in releases, between two consecutive participations of a client, how often it occurred.
        releases: for each release, the number of clients that took part and the counts of replies.
        exact: True if noise and sums were exact integers on a grid, called the lattice.
        no_lattice: reason why the run has no lattice; empty if the run has a lattice or did not record the reason.
        counts: number of replies of each kind, such as "accepted" and "failed". The numbers depend on the clients'
            data, and the guarantee does not cover them, so do not publish them.
        remarks: further sentences that a reader of the report must know.
    """

    run: PrivacyReport
    planned: MinSeparation
    achieved: MinSeparation | None
    clients: int
    dropouts: Dropouts
    guarantee: Bound | None
    zcdp: Bound | None
    group: Bound | None
    participations: dict[int, int]
    gaps: dict[int, int]
    releases: tuple[ReleaseRecord, ...]
    exact: bool
    no_lattice: str
    counts: dict[str, int]
    remarks: tuple[str, ...]

    @property
    def statement(self) -> str:
        """The guarantee in words, for publication.

        Reference: Ponomareva et al. 2023, section 5.3; Choquette-Choo et al. 2023 (amplified banded), App. K.1.
        """
        return "\n".join([*(f"{term}: {text}" for term, text in self.items), *self.remarks])

    @property
    def items(self) -> tuple[tuple[str, str], ...]:
        """The items of the statement as pairs (term, text). The remarks are not included."""
        run, value = self.run, self.guarantee
        claim = "No guarantee is stated." if value is None else _claim(value, self.zcdp, run.delta)
        return (
            ("DP setting", "central; the server is trusted to run the mechanism."),
            (
                "Covered",
                f"all clients that follow the protocol, in one run of {run.steps_run} releases. Not covered: the "
                "choice of the settings (hyperparameter tuning).",
            ),
            ("Output", "every model that left the server, including those sent to clients."),
            ("Unit of privacy", f"{run.unit}."),
            ("Adjacency", f"{run.adjacency}."),
            (
                "Participation",
                f"planned {participation_text(self.planned)}; achieved {participation_text(self.achieved)}; "
                "enforced by the server's record and a timer on each client.",
            ),
            ("Dropouts", DROPOUTS[self.dropouts]),
            ("Formal statement", claim),
            ("Arithmetic", _arithmetic(self.exact, self.no_lattice)),
        )


def report(
    directory: str | Path, *, devices_per_user: int | None = None, secret: Secret | None = None
) -> FederatedReport:
    """Return the report on the federated run in a directory. Nothing is changed, and the server may be running.

    Args:
        directory: directory passed to `DPFTRL`.
        devices_per_user: if given, also state the guarantee for a user with this many devices, each a separate client.
        secret: secret passed to `DPFTRL`, if any.
    """
    if devices_per_user is not None:
        _check.positive_integer("report", "devices_per_user", devices_per_user, "use 1 for the guarantee of one client")
    return report_on(read_federated(Path(directory), secret), devices_per_user)


def achieved_mechanism(plan: Plan, releases: int, achieved: Achieved) -> Mechanism:
    """Return the mechanism of the first `releases` releases, with the participation that was achieved.

    If no client took part twice, the separation is the number of releases.
    """
    separation = releases if achieved.separation is None else achieved.separation
    happened = MinSeparation(separation, max(achieved.participations, 1))
    return replace(plan.mechanism, participation=happened).first(releases)


def report_on(record: FederatedRecord, devices: int | None = None) -> FederatedReport:
    """Return the report on a federated run whose directory was read with `read_federated`.

    Args:
        record: contents of the directory.
        devices: number of devices of a user. If given, the report also states the guarantee for such a user.
    """
    history, releases, plan, run = record.history, record.releases, record.run.plan, record.run.report()
    achieved, settings = history.participants.achieved, history.settings
    planned = MinSeparation(settings["planned"]["separation"], settings["planned"]["limit"])
    mechanism = achieved_mechanism(plan, releases, achieved) if releases else None
    scaled = settings["noise_scale"] != 1.0
    accounted = None if scaled or history.forgotten is not None else mechanism
    guarantee, group = None, None
    if accounted is not None:
        guarantee = record.run.epsilon_with_tail(partial(epsilon, accounted), run.delta)
    if accounted is not None and devices is not None:
        group = record.run.epsilon_with_tail(partial(group_epsilon, accounted, devices), run.delta)
    if history.forgotten is not None:
        run = replace(run, guarantee=None)
    happened = None if mechanism is None else mechanism.participation
    assert happened is None or isinstance(happened, MinSeparation)
    return FederatedReport(
        run=run,
        planned=planned,
        achieved=happened,
        clients=achieved.clients,
        dropouts=history.dropouts,
        guarantee=guarantee,
        zcdp=None if accounted is None else zcdp(accounted),
        group=group,
        participations=history.participants.clients_by_count,
        gaps=dict(sorted(history.participants.gaps.items())),
        releases=tuple(history.releases),
        exact=plan.mechanism.lattice is not None,
        no_lattice=history.no_lattice,
        counts=dict(history.totals),
        remarks=tuple(_remarks(record, plan, run, guarantee, group, devices)),
    )


def _remarks(
    record: FederatedRecord,
    plan: Plan,
    run: PrivacyReport,
    guarantee: Bound | None,
    group: Bound | None,
    devices: int | None,
) -> list[str]:
    # Drop the remark that nobody checked who participated. In a federated run, the server checks this at every reply.
    history, settings = record.history, record.history.settings
    remarks = [text for text in run.remarks if text != NO_BATCHES]
    if guarantee is not None and run.guarantee is not None:
        remarks.append(
            "The statement uses the achieved participation. It assumes that who takes part, and when, does not depend "
            "on the clients' data. If clients may have looked at the models before they decided whether to reply, use "
            f"the guarantee for the enforced participation instead: epsilon = {rounded_up(run.guarantee.value)}."
        )
        planned = MinSeparation(settings["planned"]["separation"], settings["planned"]["limit"])
        before = epsilon(replace(plan.mechanism, participation=planned), plan.problem.budget.delta).value
        if guarantee.value > before * (1.0 + 1e-9):
            remarks.append(f"Epsilon is above the planned {before:.4g}: clients took part more often than planned.")
    if settings["noise_scale"] != 1.0:
        remarks.append(
            f"This is a simulation: the noise was scaled by {settings['noise_scale']:.4g} to match the small number of "
            "clients. "
            "The run is not private, and no guarantee can be stated for it."
        )
    if settings["identity"] == "pseudonym":
        remarks.append(
            "Clients are identified by a pseudonym on their disk. A client that loses its pseudonym counts as a new "
            "client."
        )
    else:
        remarks.append(
            "Clients are identified by their authentication keys. This is valid only if the SuperLink authenticated "
            "its SuperNodes. Otherwise, every client counted as a new client after each restart."
        )
    if "dropouts" not in settings:
        remarks.append(
            "The run was started by an older version of antiphase, which always replaced clients that dropped out, "
            "and did not record this rule. The run continues to replace such clients."
        )
    if settings["raw_metrics"]:
        remarks.append("Metrics from clients were released without noise; no guarantee covers them.")
    if history.totals["false-claim"]:
        remarks.append(
            f"{history.totals['false-claim']} replies were rejected: they claimed participations or tasks that did not "
            "exist."
        )
    if history.forgotten is not None:
        remarks.append(
            f"The directory was restored from an older copy: a client received a task for release {history.forgotten}, "
            "and this task is not in the ledger. Releases made after the copy are not recorded here, and the same "
            "noise may have been used twice. No guarantee can be stated."
        )
    if record.torn:
        remarks.append(
            f"The ledgers end in {record.torn} bytes that are not authentic. These bytes come from a crash or from a "
            "write in progress. Nothing that was sent relies on them."
        )
    if group is not None:
        remarks.append(
            f"For a user with {devices} devices, each a separate client: epsilon = {rounded_up(group.value)}."
        )
    return remarks


def _arithmetic(exact: bool, why_not: str) -> str:
    """Describe the kind of noise, and whether the statement covers the exact bits of models."""
    if exact:
        return EXACT
    return f"{ROUNDED} The noise is not on a lattice: {why_not}" if why_not else ROUNDED


def _claim(value: Bound, rho: Bound | None, delta: float) -> str:
    assert rho is not None
    return (
        f"epsilon = {rounded_up(value.value)} at delta = {digits_up(delta)} ({value.kind}, {value.method}); with ideal "
        f"Gaussian noise, which is unbounded, rho = {rounded_up(rho.value, 6)} zCDP."
    )


def participation_text(participation: MinSeparation | None) -> str:
    """Return a participation in words."""
    if participation is None:
        return "none"
    count = participation.max_participations
    if count == 1:
        return "once"
    times = "" if count is None else f", at most {count} times"
    return f"at least {participation.separation} releases apart{times}"
