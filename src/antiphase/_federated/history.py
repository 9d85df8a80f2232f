"""State of a federated run, read from the private part of the clients' ledger: who took part in which release."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Literal, final, get_args

from antiphase._errors import Corrupted
from antiphase._federated.participants import Participants
from antiphase._ledger import Entry

Dropouts = Literal["zero", "replace"]
# Name of the setting that says why a run has no lattice, that is, why its sums and noise are not exact integers on a
# grid. Older versions did not record this setting.
NO_LATTICE = "no_lattice"


@dataclass(frozen=True)
class ReleaseRecord:
    """What the ledger says about one release, without the names of its clients.

    Args:
        clients: number of clients that took part, including those whose update counted as zero.
        counts: number of replies of each kind (see `causes.py`). The numbers depend on the clients' data, and the
            guarantee does not cover them.
    """

    clients: int
    counts: dict[str, int]


@final
@dataclass
class FederatedHistory:
    """The state of a federated run after all entries of the clients' ledger so far.

    **Guarantee**: `apply` raises `Corrupted` for an entry that cannot follow the entries before it. Examples are a
    release that is not the next one, a client that takes part twice in a release, and participants that differ from the
    cohort. The cohort is the set of clients that the server chose for a release before any of them trained.

    Args:
        settings: settings that the run was started with; empty before the first entry.
        participants: who took part, and when.
        releases: one record for each release.
        nonces: for each release, the nonce (the random part) of its rollback token. The server sends this token with
            every task of the release (see `rollback_tokens.py`).
        cohort: names of the clients in the cohort of the next release; None until the server has chosen them.
        nodes: Flower's ids of the nodes from which these clients answered.
        totals: number of replies of each kind in the whole run.
        forgotten: release for which a client returned an authentic rollback token that is not in the ledger; None if
            no client has returned such a token.
        needs_code: True if the state file must have an authentication code.
    """

    settings: Entry = field(default_factory=dict)
    participants: Participants = field(default_factory=Participants)
    releases: list[ReleaseRecord] = field(default_factory=list)
    nonces: dict[int, str] = field(default_factory=dict)
    cohort: list[str] | None = None
    nodes: list[int] = field(default_factory=list)
    totals: Counter[str] = field(default_factory=Counter)
    forgotten: int | None = None
    needs_code: bool = False

    @property
    def dropouts(self) -> Dropouts:
        """Rule for clients that drop out. A ledger without a rule is from an older version, which used "replace"."""
        found: Dropouts = self.settings.get("dropouts", "replace")
        return found

    @property
    def no_lattice(self) -> str:
        """Reason why the run has no lattice; empty if it has a lattice, or if an older version recorded no reason."""
        return str(self.settings.get(NO_LATTICE, ""))

    def apply(self, entry: Entry) -> None:
        """Update the state with the next entry of the ledger."""
        match entry:
            case {"kind": "open"} if not self.settings and entry.get("dropouts", "replace") in get_args(Dropouts):
                self.settings = dict(entry)
            case {"kind": "release", "release": int(release), "clients": [*clients], "counts": dict()} if (
                self.settings and release == self.participants.releases and self._may_take_part(clients)
            ):
                self.participants.add_release(clients)
                self.cohort, self.nodes = None, []
                self.releases.append(ReleaseRecord(len(clients), dict(entry["counts"])))
                self.totals.update(entry["counts"])
            case {"kind": "mark", "release": int(release), "nonce": str(nonce)} if (  # a rollback token
                self.settings and release == self.participants.releases and release not in self.nonces
            ):
                self.nonces[release] = nonce
            case {"kind": "cohort", "release": int(release), "clients": [*clients], "nodes": [*nodes]} if (
                self.dropouts == "zero"
                and release == self.participants.releases
                and self.cohort is None
                and len(set(clients)) == len(clients)
            ):
                self.cohort, self.nodes = clients, nodes
            case {"kind": "state code"} if self.settings and not self.needs_code:  # from now on, files need a code
                self.needs_code = True
            case {"kind": "forgotten", "release": int(release)} if self.settings:
                self.forgotten = release
            case {"kind": "counts", "counts": dict()} if self.settings:  # written if a server stops between releases
                self.totals.update(entry["counts"])
            case _:
                raise Corrupted(
                    f"The clients' ledger has an entry that cannot follow the entries before it: {str(entry)[:200]}.",
                    hint="if a different version wrote the ledger, use that version",
                )

    def _may_take_part(self, clients: list[str]) -> bool:
        """Return whether `clients` can be the participants of the next release.

        There must be no duplicates. With dropouts="zero", `clients` must be exactly the cohort.
        """
        if self.dropouts == "zero" and (self.cohort is None or sorted(clients) != sorted(self.cohort)):
            return False
        return len(set(clients)) == len(clients)
