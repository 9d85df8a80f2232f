"""One release in the making: replies are checked, clipped and added up as they come.

What is wrong with a reply decides what it counts as:

- no contribution: "failed" (an error from Flower, a reply that Flower cannot read, or a task that the mod does not
  know), "declined" (its timer), "unsolicited", "malformed", "other-release", "other-name", "false-claim", "duplicate",
  "early", "exhausted". At check-in the client gets no place, and another one is asked. In reply to a task to train,
  with a cohort (`dropouts="zero"`), the place stays taken and the client has taken part with a zero update. Without a
  cohort (`dropouts="replace"`) it has not taken part, and another client is asked: that its data did not get it killed
  or make it too slow is then an assumption. An app that raises does not get here, `participation_mod` sends NaN for it.
- a participation with a contribution of zero: "not-finite", and "too-large" where large updates are zeroed. These
  depend on the client's data, so the place stays taken in any case.
- a participation: "accepted", of which "clipped" had a larger norm than the server allows.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import final

import numpy as np
from flwr.app import Message, MetricRecord
from numpy.typing import NDArray

from antiphase.flower._clip import add_scaled, clip_factor, largest, norm
from antiphase.flower._cohort import Cohort
from antiphase.flower._participants import Participants
from antiphase.flower._wire import METRICS, Answer, Arrays, Malformed, Status, read_answer, read_update

SLACK = 1e-5  # a client clips in the model's precision: a norm this little over the limit is no sign of anything


@dataclass(frozen=True)
class Terms:
    """What a reply must satisfy.

    Args:
        release: the index of the release.
        separation, limit: of participations.
        clip_norm: of an update.
        zero_above: the largest entry an update may have, in clipping norms; None to clip whatever comes.
        raw_metrics: whether metrics are kept.
    """

    release: int
    separation: int
    limit: int
    clip_norm: float
    zero_above: float | None
    raw_metrics: bool


class Rejected(Exception):
    """A reply that is no participation; the text is what it counts as."""


@final
@dataclass
class Round:
    """Sums the updates of one release; what came in an attempt that was too short is kept for the next one.

    **Guarantee**: each client enters `total` at most once, with norm at most `clip_norm`, whatever it sends; a client
    that may not take part yet does not enter at all.

    Args:
        terms: what a reply must satisfy.
        model: as it was broadcast.
        participants: of all releases so far.
        counts: what happened to replies.
        cohort: who has a place, where that is fixed before anybody trains; None where whoever replies takes a place.
        asked: the node that each message went to.
        clients: the names of those whose updates are in the total.
        metrics: of these clients, where they are wanted.
    """

    terms: Terms
    model: Arrays
    participants: Participants
    counts: Counter[str]
    cohort: Cohort | None = None
    asked: dict[str, int] = field(default_factory=dict)
    clients: list[str] = field(default_factory=list)
    metrics: list[MetricRecord] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.total: dict[str, NDArray[np.float64]] = {name: np.zeros(v.shape) for name, v in self.model.items()}
        self._answered: set[str] = set()
        self._entered: set[str] = set()
        self._pseudonyms: set[str] = set()  # where keys count, two nodes may still share one disk

    def may_enter(self, client: str) -> bool:
        """Whether it makes sense to ask this client."""
        refusal = self.participants.refusal(client, self.terms.separation, self.terms.limit)
        free = client not in self._entered if self.cohort is None else self.cohort.may_join(client)
        return refusal is None and free

    def answer(self, message: Message) -> Answer | None:
        """What the client says, where the message is one that was asked for; otherwise it is counted."""
        try:
            return self._answer(message)
        except Rejected as reason:
            self.counts[str(reason)] += 1
            return None

    def check_in(self, node: int, answer: Answer, client: str) -> None:
        """Give a client its place in the cohort, or count why not.

        Args:
            node: that the answer came from.
            answer: what `answer` gave for its message.
            client: its name in the ledger.
        """
        assert self.cohort is not None
        try:
            self._check(answer, client, "ready")
        except Rejected as reason:
            self.counts[str(reason)] += 1
            return
        refusal = self.cohort.check_in(node, client, answer.client)
        self.counts["checked-in" if refusal is None else refusal] += 1

    def take(self, message: Message, answer: Answer, client: str) -> None:
        """Add the update of a client, or count why not.

        Args:
            message: the reply.
            answer: what `answer` gave for it.
            client: its name in the ledger.
        """
        try:
            self._check(answer, client, "update")
            self._check_place(message.metadata.src_node_id, answer, client)
            update = self._read(message)
        except Rejected as reason:
            self.counts[str(reason)] += 1
            return
        self._entered.add(client)
        self._pseudonyms.add(answer.client)
        self.clients.append(client)
        self._add(update)
        metrics = message.content.metric_records.get(METRICS)
        if self.terms.raw_metrics and metrics is not None:
            self.metrics.append(metrics)

    def _answer(self, message: Message) -> Answer:
        if message.has_error():
            raise Rejected("failed")
        source = message.metadata.reply_to_message_id
        if self.asked.get(source) != message.metadata.src_node_id:
            raise Rejected("unsolicited")
        if source in self._answered:
            raise Rejected("duplicate")
        self._answered.add(source)
        try:
            return read_answer(message.content)
        except Malformed as error:
            raise Rejected("malformed") from error

    def _check(self, answer: Answer, client: str, status: Status) -> None:
        if answer.status != status:
            raise Rejected("declined" if answer.status == "declined" else "malformed")
        if answer.release != self.terms.release:
            raise Rejected("other-release")
        if client in self._entered or answer.client in self._pseudonyms:
            raise Rejected("duplicate")
        refusal = self.participants.refusal(client, self.terms.separation, self.terms.limit)
        if refusal is not None:
            raise Rejected(refusal)

    def _check_place(self, node: int, answer: Answer, client: str) -> None:
        if self.cohort is not None and not self.cohort.has(node, client, answer.client):
            raise Rejected("other-name")

    def _read(self, message: Message) -> Arrays:
        try:
            return read_update(message.content, self.model)
        except Malformed as error:
            raise Rejected("malformed") from error

    def _add(self, update: Mapping[str, NDArray[np.floating]]) -> None:
        length, clip_norm = norm(update.values()), self.terms.clip_norm
        if not math.isfinite(length):
            self.counts["not-finite"] += 1
            return
        # No entry exceeds the norm, so most updates need no second look.
        limit = math.inf if self.terms.zero_above is None else self.terms.zero_above * clip_norm
        if length > limit and largest(update.values()) > limit:
            self.counts["too-large"] += 1
            return
        self.counts["accepted"] += 1
        self.counts["clipped"] += length > clip_norm * (1.0 + SLACK)
        add_scaled(self.total, update, clip_factor(length, clip_norm))
