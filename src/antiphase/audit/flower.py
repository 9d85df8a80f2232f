"""Audits of `antiphase.flower`, with canary clients in an in-memory federation and the real server and client code.

release = antiphase.audit.flower.drive(plan, directory, canaries=64, goal=8)
found = antiphase.audit.evaluate(plan, release)
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Array as FlowerArray
from flwr.app import ArrayRecord, Context, Message, RecordDict
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

from antiphase._check import Array
from antiphase._plan import Plan
from antiphase._secret import Secret
from antiphase.audit._release import Release
from antiphase.audit._simulation import coin_generator, fair_coins, released_matrix
from antiphase.flower import DPFTRL, SGD, participation_mod

WEIGHT = 1000.0
CANARY = "canary"


class CanaryClient:
    """A client that sends a known vector as its update. It uses the real client mod and its own directory.

    Args:
        directory: directory of the client.
        update: the client's update of the canary array.
        separation: smallest distance, in releases (new models), between two participations of the client. The mod
            enforces this distance.
    """

    def __init__(self, directory: Path, update: Array, separation: int = 1) -> None:
        self.update, self.trained = update, set[int]()
        self._mod = participation_mod(directory, separation)

    def answer(self, message: Message) -> list[Message]:
        """Return the replies to a message."""
        context = Context(1, message.metadata.dst_node_id, {}, RecordDict(), {})
        return [self._mod(message, context, self._train)]

    def _train(self, message: Message, context: Context) -> Message:
        task: Any = message.content["antiphase"]
        self.trained.add(int(task["release"]))
        records = list(message.content.array_records.values())
        arrays = {name: array.numpy() for name, array in records[0].items()}
        arrays[CANARY] = arrays[CANARY] + self.update.astype(arrays[CANARY].dtype)
        record = ArrayRecord({name: FlowerArray(np.asarray(value)) for name, value in arrays.items()})
        return Message(RecordDict({"new": record}), reply_to=message)


class MemoryGrid(Grid):
    """A Flower grid (transport between server and clients) that delivers messages at once, in the same process."""

    def __init__(self, clients: dict[int, CanaryClient]) -> None:
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1
        self.clients, self._inbox, self._sent = clients, dict[str, list[Message]](), 0

    def set_run(self, run: Any) -> None:
        """Not used."""
        raise NotImplementedError

    @property
    def run(self) -> Any:
        """Not used."""
        raise NotImplementedError

    def create_message(self, *args: Any, **named: Any) -> Any:
        """Not used."""
        raise NotImplementedError

    def get_node_ids(self) -> Iterable[int]:
        """Return the ids of all nodes."""
        return list(self.clients)

    def get_nodes(self) -> Any:
        """Return all nodes."""
        return [NodeInfo(node_id=node) for node in self.clients]

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Deliver messages and keep the replies."""
        ids = []
        for message in messages:
            number = f"m{self._sent}"
            self._sent += 1
            message.metadata.__dict__["_message_id"] = number
            self._inbox[number] = self.clients[message.metadata.dst_node_id].answer(message)
            ids.append(number)
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """Return the replies to these messages, and forget them."""
        return [reply for number in message_ids for reply in self._inbox.pop(number, [])]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        """Not used."""
        raise NotImplementedError


def drive(
    plan: Plan,
    directory: str | Path,
    *,
    canaries: int,
    goal: int,
    quiet: int = 64,
    arrays: dict[str, Array] | None = None,
    secret: Secret | None = None,
    strategy: Callable[..., DPFTRL] = DPFTRL,
    options: dict[str, Any] | None = None,
) -> Release:
    """Run a federation of canary clients with the real server, and return what it released.

    The released sums are the differences between consecutive models that the server broadcasts, times `goal`.

    Args:
        plan: plan with `MinSeparation` participation.
        directory: directory for server and clients; must be empty.
        canaries: number of clients, each a canary.
        goal: number of clients in each release.
        quiet: number of entries of the canary array that no canary uses.
        arrays: arrays of your own model, which are trained together with the canary array.
        secret: secret of the run; None for a fresh one.
        strategy: server strategy.
        options: other options of the strategy.
    """
    start = time.perf_counter()
    secret = Secret.generate() if secret is None else secret
    present = fair_coins(canaries, coin_generator(secret, "flower"))
    clip, width, place = plan.problem.clip_norm, canaries + quiet, Path(directory)
    clients = {}
    for i in range(canaries):
        update = np.zeros(width)
        update[i] = WEIGHT * clip * present[i]
        clients[100 + i] = CanaryClient(place / "clients" / f"c{i}", update)
    models: list[Array] = []
    named = {**(arrays or {}), CANARY: np.zeros(width)}
    initial = ArrayRecord({name: FlowerArray(np.asarray(value)) for name, value in named.items()})
    server = strategy(
        plan,
        place / "server",
        goal=goal,
        optimizer=SGD(),
        **{"wait": 0.0, "attempts": 2, "secret": secret, **(options or {})},
    )

    def keep(release: int, record: ArrayRecord) -> None:
        models.append(np.asarray(record[CANARY].numpy(), np.float64))

    server.start(MemoryGrid(clients), initial, evaluate_fn=keep)
    part = np.zeros((plan.steps, canaries), dtype=np.bool_)
    for i, client in enumerate(clients.values()):
        part[sorted(client.trained), i] = True
    released = released_matrix(list(goal * np.diff(np.stack(models), axis=0)), clip)
    return Release(
        released[:, :canaries],
        present,
        part,
        released[:, canaries:],
        source="antiphase.flower",
        seconds=time.perf_counter() - start,
        single_run=True,
    )
