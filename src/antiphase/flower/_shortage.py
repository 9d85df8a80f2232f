"""Explains why too few clients took part in a release, and what the operator can change."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import final

from antiphase._errors import Refused
from antiphase._federated import counts_text, remedies

LOG = logging.getLogger("flwr")


@final
@dataclass(frozen=True)
class Shortage:
    """An attempt at a release with too few clients.

    Args:
        release: index of the release.
        separation: minimum distance between two releases that a client takes part in.
        places: number of clients that are needed.
        present: number of clients that checked in, or sent an update if dropouts="replace".
        connected: number of nodes that were connected.
        eligible: number of connected nodes that could be asked.
        asked: number of nodes that were asked.
        pseudonyms: maps each node to the pseudonym in its answer.
        counts: number of replies of each kind, such as "failed" and "declined", since the last release.
    """

    release: int
    separation: int
    places: int
    present: int
    connected: int
    eligible: int
    asked: int
    pseudonyms: dict[int, str]
    counts: dict[str, int]

    def explain(self) -> None:
        """Log what happened and what to change. Raise `Refused` if all nodes share one client directory."""
        LOG.warning(
            "release %d fell short: %d of %d clients; nodes: %d connected, %d asked; replies since the last release: "
            "%s",
            self.release,
            self.present,
            self.places,
            self.connected,
            self.asked,
            counts_text(self.counts),
        )
        for line in self._remedies():
            LOG.warning("  %s", line)
        if len(self.pseudonyms) > 1 and len(set(self.pseudonyms.values())) == 1:
            raise Refused(
                f"Release {self.release} was not made: all {len(self.pseudonyms)} nodes that answered use the same "
                "client directory, so they count as one client.",
                hint="give every client a directory of its own; in a simulation: participation_mod(lambda context: "
                "f\"/path/to/clients/{context.node_config['partition-id']}\")",
            )

    def gave_up(self, attempts: int, what: str) -> Refused:
        """Return the error to raise if a release was not made after several attempts.

        Args:
            attempts: number of consecutive attempts.
            what: what the clients should have done, such as "checked in".
        """
        causes = "; ".join(self._remedies()[:3])
        return Refused(
            f"Release {self.release} was not made: in each of {attempts} attempts, fewer than {self.places} eligible "
            f"clients {what}. Replies: {counts_text(self.counts)}.",
            hint=f"{causes or 'wait for more clients'}; or lower goal, or use when_short='release'",
        )

    def _remedies(self) -> list[str]:
        found, left_out = remedies(self.counts), self.connected - self.eligible
        if left_out:
            found.insert(
                0,
                f"{left_out} connected nodes were not asked: their clients already have a place in this release, took "
                f"part fewer than {self.separation} releases ago, or have used up their participations; connect more "
                "clients, or lower goal or separation",
            )
        return found
