"""The current release: replies are checked, clipped and summed as they arrive.

Every reply is counted by what happened to it:

- No contribution: "failed" (an error from Flower, a reply that Flower cannot parse, or a task that the mod does not
  know), "declined" (by the client's timer), "unsolicited", "malformed", "other-release", "other-name", "false-claim",
  "duplicate", "early", "exhausted". At check-in the client gets no place, and another one is asked. For a training task
  with a cohort (`dropouts="zero"`), the client keeps its place and has taken part with a zero update. Without a cohort
  (`dropouts="replace"`) it has not taken part, and another client is asked; this assumes that its data did not get it
  killed or make it too slow. An app that raises is not in this group: `participation_mod` sends NaN for it.
- A participation with a contribution of zero: "not-finite", and "too-large" if `zero_above` is set. These depend on the
  client's data, so the client keeps its place with either rule.
- A participation: "accepted". Those with a norm above the clipping norm also count as "clipped".
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, final

import numpy as np
from flwr.app import Message, MetricRecord
from numpy.typing import NDArray

from antiphase.flower._clip import add_scaled, clip_factor, largest, norm
from antiphase.flower._cohort import Cohort
from antiphase.flower._participants import Participants
from antiphase.flower._wire import METRICS, Answer, Arrays, Malformed, Status, read_answer, read_update

CLIENT_ROUNDING = 1e-5  # clients clip in the model's precision, so their norms may exceed the limit by this factor


@dataclass(frozen=True)
class ReplyRules:
    """What a reply must satisfy.

    Args:
        release: index of the release.
        separation: minimum distance between two releases of a client.
        limit: maximum number of participations of a client.
        clip_norm: clipping norm of an update.
        zero_above: largest entry of an update, in clipping norms; larger updates count as zero. None clips them.
        raw_metrics: whether metrics are kept.
    """

    release: int
    separation: int
    limit: int
    clip_norm: float
    zero_above: float | None
    raw_metrics: bool


class Rejected(Exception):
    """The reply is not a participation; the text is what it counts as."""


@final
@dataclass
class Round:
    """Sums the updates of one release. Updates of an attempt that fell short are kept for the next attempt.

    **Guarantee**: each client enters `total` at most once, with norm at most `clip_norm`, whatever it sends. A client
    that is not eligible does not enter at all.

    Args:
        rules: what a reply must satisfy.
        model: the model that was broadcast.
        participants: record of all releases so far.
        counts: counts of what happened to replies.
        cohort: the clients with a place, if they are fixed before anybody trains; None if the first to reply take part.
        asked: the node that each message went to.
        clients: names of the clients whose updates are in the total.
        metrics: metrics of these clients, if `rules.raw_metrics`.
    """

    rules: ReplyRules
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
        self._pseudonyms: set[str] = set()  # nodes with different keys may share a disk

    def may_enter(self, client: str) -> bool:
        """Return whether this client could still enter the release."""
        refusal = self.participants.refusal(client, self.rules.separation, self.rules.limit)
        free = client not in self._entered if self.cohort is None else self.cohort.may_join(client)
        return refusal is None and free

    def answer(self, message: Message) -> Answer | None:
        """Return the answer in a reply to one of our messages; otherwise count the reply and return None."""
        try:
            return self._answer(message)
        except Rejected as reason:
            self.counts[str(reason)] += 1
            return None

    def check_in(self, node: int, answer: Answer, client: str) -> None:
        """Give a client a place in the cohort, or count why it gets none.

        Args:
            node: node that the answer came from.
            answer: result of `answer` for its message.
            client: name of the client in the ledger.
        """
        assert self.cohort is not None
        try:
            self._check(answer, client, "ready")
        except Rejected as reason:
            self.counts[str(reason)] += 1
            return
        refusal = self.cohort.check_in(node, client, answer.client)
        self.counts["checked-in" if refusal is None else refusal] += 1

    def add_reply(self, message: Message, answer: Answer, client: str) -> None:
        """Add the update of a client, or count why it is not added.

        Args:
            message: the reply.
            answer: result of `answer` for the reply.
            client: name of the client in the ledger.
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
        if self.rules.raw_metrics and metrics is not None:
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
        if answer.release != self.rules.release:
            raise Rejected("other-release")
        if client in self._entered or answer.client in self._pseudonyms:
            raise Rejected("duplicate")
        refusal = self.participants.refusal(client, self.rules.separation, self.rules.limit)
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
        length, clip_norm = norm(update.values()), self.rules.clip_norm
        if not math.isfinite(length):
            self.counts["not-finite"] += 1
            return
        # No entry exceeds the norm, so most updates need no second pass.
        limit = math.inf if self.rules.zero_above is None else self.rules.zero_above * clip_norm
        if length > limit and largest(update.values()) > limit:
            self.counts["too-large"] += 1
            return
        self.counts["accepted"] += 1
        self.counts["clipped"] += length > clip_norm * (1.0 + CLIENT_ROUNDING)
        add_scaled(self.total, update, clip_factor(length, clip_norm))


def mean_metrics(records: Sequence[MetricRecord]) -> MetricRecord | None:
    """Return the mean of each number that all records have; None without records.

    **Guarantee**: none. These numbers are not differentially private.

    >>> dict(mean_metrics([MetricRecord({"loss": 1.0}), MetricRecord({"loss": 2.0, "steps": 7})]))
    {'loss': 1.5}
    """
    if not records:
        return None
    shared = set.intersection(*(set(record) for record in records))
    means: dict[str, Any] = {}
    for name in sorted(shared):
        values = [value for record in records if isinstance(value := record[name], (int, float))]
        if len(values) == len(records):
            means[name] = sum(values) / len(values)
    return MetricRecord(means)
