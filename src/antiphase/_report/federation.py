"""The part of a report for federated runs: releases, participations and drop-outs, without the clients' identities."""

from __future__ import annotations

from typing import Any

from antiphase._bound import Bound, digits_up, rounded_up
from antiphase._federated import CAUSES, FederatedReport, participation_text
from antiphase._report.tables import Table

MOST_ROWS = 24


def comparison(report: FederatedReport) -> Table:
    """Return a table that compares the plan with the run."""
    run, achieved, planned, delta = report.run, report.achieved, report.planned, digits_up(report.run.delta)
    most, happened = planned.largest_count(run.steps_planned), max(report.participations, default=0)
    rows = (
        ("releases", f"{run.steps_planned:,}", f"{run.steps_run:,}"),
        ("participation of a client", participation_text(planned), participation_text(achieved)),
        (
            "smallest separation",
            f"{planned.separation:,}",
            f"{min(report.gaps):,}" if report.gaps else "no client took part twice",
        ),
        ("most participations of a client", f"{most:,}", f"{happened:,}"),
        ("clients that took part", "", f"{report.clients:,}"),
        (f"epsilon at delta {delta}, achieved participation", "", _bound(report.guarantee)),
        (
            f"epsilon at delta {delta}, enforced participation",
            _bound(run.planned),
            _bound(run.guarantee),
        ),
    )
    return Table("From the plan and from the authenticated ledgers", ("", "planned", "ran"), rows)


def participations(report: FederatedReport) -> Table:
    """Return a table with the number of clients for each number of participations."""
    return Table("How often clients took part", ("participations", "clients"), _grouped(report.participations))


def separations(report: FederatedReport) -> Table:
    """Return a table of the distances, in releases, between consecutive participations of a client."""
    caption = "Distance between a client's participation and its previous one"
    return Table(caption, ("releases apart", "participations"), _grouped(report.gaps))


def replies(report: FederatedReport) -> Table:
    """Return a table with the number of replies for each outcome. No guarantee covers these counts."""
    rows = []
    for cause, count in sorted(report.counts.items(), key=lambda item: (-item[1], item[0])):
        if count:
            within = sum(bool(release.counts.get(cause)) for release in report.releases)
            meaning = CAUSES[cause].meaning if cause in CAUSES else ""
            rows.append((cause, f"{count:,}", f"{within:,}", meaning))
    columns = ("cause", "replies", "in releases", "meaning")
    return Table("Replies by outcome", columns, tuple(rows), text_columns=(3,))


def json_data(report: FederatedReport, with_counts: bool) -> dict[str, Any]:
    """Return the federated part of a report as JSON data."""
    data: dict[str, Any] = {
        "releases": report.run.steps_run,
        "clients": report.clients,
        "dropouts": report.dropouts,
        "planned": _participation(report.planned),
        "achieved": None if report.achieved is None else _participation(report.achieved),
        "epsilon_enforced": None if report.run.guarantee is None else report.run.guarantee.value,
        "epsilon_group": None if report.group is None else report.group.value,
        "zcdp": None if report.zcdp is None else report.zcdp.value,
        "clients_by_participations": [[times, clients] for times, clients in report.participations.items()],
        "participations_by_separation": [[gap, times] for gap, times in report.gaps.items()],
        "clients_by_release": [release.clients for release in report.releases],
    }
    if with_counts:
        data["not_private"] = {
            "counts": report.counts,
            "counts_by_release": [release.counts for release in report.releases],
        }
    return data


def _participation(participation: Any) -> dict[str, int | None]:
    return {"separation": participation.separation, "max_participations": participation.max_participations}


def _grouped(counts: dict[int, int]) -> tuple[tuple[str, str], ...]:
    """Return the rows of a histogram. If it has many rows, neighbouring rows are added up.

    >>> _grouped({n: 1 for n in range(1, 31)})[:2]
    (('1 to 2', '2'), ('3 to 4', '2'))
    """
    rows = sorted(counts.items())
    size = max(1, -(-len(rows) // MOST_ROWS))
    groups = [rows[i : i + size] for i in range(0, len(rows), size)]
    ends = [(group[0][0], group[-1][0], sum(count for _, count in group)) for group in groups]
    return tuple((f"{a:,}" if a == b else f"{a:,} to {b:,}", f"{count:,}") for a, b, count in ends)


def _bound(bound: Bound | None) -> str:
    return "not stated" if bound is None else f"{rounded_up(bound.value)} ({bound.kind})"
