"""Collects the updates of one release: checks, clips and sums replies as they arrive.

A place is the right to take part in the release. With a cohort (the clients that have a place, see `Cohort`), places
are assigned at a check-in, which asks clients before training whether they can take part. Every reply is counted under
a name, which says what happened to the reply:

- No update: "failed" (an error from Flower, a reply that Flower cannot parse, or a task that the mod does not know),
  "declined" (by the client, because of its own record of participations), "unsolicited", "malformed", "other-release",
  "other-name", "false-claim", "duplicate", "early" (the client took part too recently) or "exhausted" (it has used up
  its participations). At check-in, the client gets no place, and another client is asked. For a training task with a
  cohort (`dropouts="zero"`), the client keeps its place and counts as having taken part with a zero update. Without a
  cohort (`dropouts="replace"`), the client has not taken part, and another client is asked. The guarantee then assumes
  that crashes and delays do not depend on the client's data. If an app raises an error, the reply is not in this group,
  because `participation_mod` then sends an update of NaN.
- A participation whose update is replaced by zero: "not-finite", or "too-large" if `zero_above` is set. Both depend on
  the client's data, so the client keeps its place under either `dropouts` rule.
- A participation: "accepted". If the norm of the update is above the clipping norm, the reply also counts as "clipped".
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

from antiphase._federated import Participants
from antiphase._lattice import Lattice, largest_and_norm
from antiphase.flower._clip import add_scaled, clip_factor, largest, norm
from antiphase.flower._cohort import Cohort
from antiphase.flower._wire import METRICS, Answer, Arrays, Malformed, Status, read_answer, read_update

# Clients clip in the model's precision, so the norms of their updates may exceed the clipping norm by this fraction.
CLIENT_ROUNDING = 1e-5


@dataclass(frozen=True)
class ReplyRules:
    """Conditions that a reply must satisfy.

    Args:
        release: index of the release, from 0.
        separation: minimum distance between two releases that a client takes part in.
        limit: maximum number of participations of a client.
        clip_norm: clipping norm of an update.
        zero_above: an update counts as zero if an entry exceeds `zero_above * clip_norm` in absolute value. None for no
            such limit.
        raw_metrics: if True, the clients' metrics are kept.
    """

    release: int
    separation: int
    limit: int
    clip_norm: float
    zero_above: float | None
    raw_metrics: bool


class Rejected(Exception):
    """Raised for a reply that cannot be used. The message is the kind of the reply, such as "duplicate"."""


@final
@dataclass
class Round:
    """Sums the updates of one release. If an attempt gets too few updates, its updates are kept for the next attempt.

    **Guarantee**: each client's update is added to `total` at most once, with norm at most `clip_norm`, whatever the
    client sends. Updates of clients that are not eligible are not added.

    Args:
        rules: conditions that a reply must satisfy.
        model: model that was sent to the clients.
        participants: record of which clients took part in which release so far.
        counts: number of replies of each kind, such as "accepted", "failed" and "declined".
        cohort: clients with a place, if places are fixed before any client trains; None if the first clients to reply
            take part.
        lattice: grid on which updates are summed as exact integers; None to sum them in float64.
        asked: maps each message id to the node that the message was sent to.
        heard: maps each node to the pseudonym in its last valid answer.
        clients: names of the clients whose updates are in the total.
        metrics: metrics of these clients; empty unless `rules.raw_metrics` is True.
    """

    rules: ReplyRules
    model: Arrays
    participants: Participants
    counts: Counter[str]
    cohort: Cohort | None = None
    lattice: Lattice | None = None
    asked: dict[str, int] = field(default_factory=dict)
    heard: dict[int, str] = field(default_factory=dict)
    clients: list[str] = field(default_factory=list)
    metrics: list[MetricRecord] = field(default_factory=list)

    def __post_init__(self) -> None:
        dtype = np.float64 if self.lattice is None else np.int64
        self.total: dict[str, NDArray[Any]] = {name: np.zeros(v.shape, dtype) for name, v in self.model.items()}
        self._answered: set[str] = set()
        self._entered: set[str] = set()
        self._pseudonyms: set[str] = set()  # clients with different names may use the same directory

    def may_enter(self, client: str) -> bool:
        """Return whether this client is eligible for the release and has not taken part in it yet."""
        refusal = self.participants.refusal(client, self.rules.separation, self.rules.limit)
        free = client not in self._entered if self.cohort is None else self.cohort.may_join(client)
        return refusal is None and free

    def answer(self, message: Message) -> Answer | None:
        """Return the answer in a reply, or None if the reply is not a valid first reply to a message that was sent."""
        try:
            return self._answer(message)
        except Rejected as reason:
            self.counts[str(reason)] += 1
            return None

    def check_in(self, node: int, answer: Answer, client: str) -> None:
        """Give a client a place in the cohort, or count the reason why the client gets no place.

        Args:
            node: node that the answer came from.
            answer: answer in the client's reply.
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
        """Add the update of a client to the sum, or count the reason why the update is not added.

        Args:
            message: reply of the client.
            answer: answer in this reply.
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
        if self.lattice is not None:
            self._add_exactly(self.lattice, [update[name] for name in self.total])
            return
        length, clip_norm = norm(update.values()), self.rules.clip_norm
        if not math.isfinite(length):
            self.counts["not-finite"] += 1
            return
        # No entry exceeds the norm, so the largest entry is computed only if the norm exceeds `_zero_above`.
        if length > self._zero_above and largest(update.values()) > self._zero_above:
            self.counts["too-large"] += 1
            return
        self._count_accepted(length)
        add_scaled(self.total, update, clip_factor(length, clip_norm))

    def _add_exactly(self, lattice: Lattice, update: list[NDArray[np.floating]]) -> None:
        size = largest_and_norm(update)
        if not math.isfinite(size[0]):
            self.counts["not-finite"] += 1
        elif size[0] > self._zero_above:
            self.counts["too-large"] += 1
        else:
            self._count_accepted(size[1])
            # If an exception such as KeyboardInterrupt is raised halfway, `self.total` stays empty, so that a sum with
            # only a part of an update cannot be released.
            total, self.total = self.total, {}
            lattice.add_contribution(list(total.values()), update, size)
            self.total = total

    @property
    def _zero_above(self) -> float:
        return math.inf if self.rules.zero_above is None else self.rules.zero_above * self.rules.clip_norm

    def _count_accepted(self, length: float) -> None:
        self.counts["accepted"] += 1
        self.counts["clipped"] += length > self.rules.clip_norm * (1.0 + CLIENT_ROUNDING)


def mean_metrics(records: Sequence[MetricRecord]) -> MetricRecord | None:
    """Return the mean of each metric that is a number in all records, or None if there are no records.

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
