"""The kinds of replies that a federated server counts, each with a meaning and, if possible, a remedy.

A client with a place in a release takes part in it. The server gives out the places when clients check in, before any
of them trains. A task is a message that asks a client to check in or to train. A client's pseudonym is a random
identity that is stored in the client's directory. `participation_mod` is the part of antiphase that runs in a client.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Cause(NamedTuple):
    """Explanation of one kind of reply.

    Args:
        meaning: description of these replies, or of the clients that sent them.
        remedy: what to change if the count is unexpectedly large; empty if nothing needs to be changed.
    """

    meaning: str
    remedy: str = ""


CAUSES = {
    "accepted": Cause("updates that were added to a sum"),
    "clipped": Cause("accepted updates that the server had to clip", "check that these clients run participation_mod"),
    "not-finite": Cause(
        "updates with NaN or infinity, which count as zero",
        "read the client's log: its ClientApp may have raised an error",
    ),
    "too-large": Cause("updates with an entry above zero_above, which count as zero"),
    "silent": Cause(
        "clients that had a place in the release, but did not reply in time; their update counts as zero",
        "check that these clients are running, or raise timeout",
    ),
    "failed": Cause(
        "errors from Flower or from participation_mod",
        "read the logs of the SuperNodes; every client needs participation_mod",
    ),
    "malformed": Cause(
        "replies with unexpected records, names, shapes or dtypes",
        "use the same version of the app and of antiphase on server and clients",
    ),
    "other-release": Cause("replies for a different release"),
    "other-name": Cause(
        "replies from nodes that used a different pseudonym before", "keep the client's directory on a persistent disk"
    ),
    "false-claim": Cause("replies with false claims about earlier participations or tasks"),
    "duplicate": Cause(
        "further replies with the identity of a client that had already replied",
        "give every client a directory of its own; in a simulation, derive it from context.node_config['partition-id']",
    ),
    "unsolicited": Cause("replies that were not requested, were too late, or came in another node's name"),
    "unused": Cause("replies that came after all places were taken"),
    "checked-in": Cause("clients that got a place in the release"),
    "declined": Cause(
        "clients whose own timer did not allow them to take part yet",
        "connect more clients or lower separation; only further releases make these clients eligible again",
    ),
    "early": Cause(
        "clients that took part less than `separation` releases ago",
        "connect more clients or lower separation; only further releases make these clients eligible again",
    ),
    "exhausted": Cause(
        "clients that have used up all their participations", "connect more clients, or plan for more participations"
    ),
    "no-place": Cause("clients that checked in after a restart, but had no place in this release"),
    "failed attempts": Cause("attempts without a release, because too few clients took part"),
}

# Clients that were asked to train, but contributed no update. With dropouts="replace", silent clients are not counted.
DROPPED_OUT = ("silent", "failed", "not-finite", "too-large", "malformed", "other-release", "other-name", "false-claim")


def counts_text(counts: Mapping[str, int]) -> str:
    """Return the number of replies of each kind in one line, the most frequent first.

    >>> counts_text({"early": 1, "declined": 4, "clipped": 0})
    'declined 4, early 1'
    """
    found = sorted(((count, cause) for cause, count in counts.items() if count), key=lambda pair: (-pair[0], pair[1]))
    return ", ".join(f"{cause} {count}" for count, cause in found) or "no replies"


def remedies(counts: Mapping[str, int]) -> list[str]:
    """Return what an operator can do about each kind of reply that has a remedy, the most frequent kind first.

    >>> remedies({"accepted": 3, "duplicate": 4})[0][:45]
    'duplicate 4: further replies with the identit'
    """
    found = sorted(((count, cause) for cause, count in counts.items() if count), key=lambda pair: (-pair[0], pair[1]))
    known = [(cause, count, CAUSES[cause]) for count, cause in found if cause in CAUSES and CAUSES[cause].remedy]
    return [f"{cause} {count}: {meaning.meaning}; {meaning.remedy}" for cause, count, meaning in known]
