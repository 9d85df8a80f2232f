"""Servers and clients that are killed: child processes that serve, and that end right before a durable operation."""

import itertools
import json
import os
import random
import traceback

from antiphase._federated import read_state
from tests.flower.federation import Client, FakeGrid, is_check_in, model, strategy, updates

DURABLE = ("replace", "fsync", "write", "ftruncate")
KILLED = 9


class Flaky(Client):
    """Dies at times: before it trains, or after its timer is on disk and before its reply is out."""

    def __init__(self, *args, rng, **named):
        super().__init__(*args, **named)
        self._rng = rng

    def answer(self, message):
        fate = self._rng.random()
        if fate < 0.15:
            return []
        replies = super().answer(message)
        return [] if fate < 0.3 else replies


def serve_all(folder, seed, *, flaky, plan, goal, clients, client=Flaky, timeout=0.1, **options):
    """Train to the end from where the directory stands; what is sent goes to a file, as the network saw it."""
    rng = random.Random(seed)
    nodes = rng.sample(range(10_000), clients)  # new at every start
    numbers = dict(zip(nodes, range(clients), strict=True))
    made = (client, {"rng": rng}) if flaky else (Client, {})
    given = zip(nodes, updates(clients), itertools.count())
    grid = FakeGrid({node: made[0](folder / "c" / f"c{i}", update, **made[1]) for node, update, i in given})
    send = grid.push_messages

    def write(release, content):
        with (folder / "network").open("a") as file:
            file.write(json.dumps([os.getpid(), release, content]) + "\n")

    def release_of(message):
        return message.content["antiphase"]["release"]

    def push(messages):
        for message in messages:
            if not is_check_in(message):
                write(release_of(message), [array.numpy().tolist() for array in message.content["arrays"].values()])
        ids = send(messages)
        for message in messages:
            if not is_check_in(message) and grid.waiting(message):
                write(release_of(message), numbers[message.metadata.dst_node_id])
        return ids

    grid.push_messages = push
    stands = read_state(folder / "s")
    write(0 if stands is None else stands.release, "start")
    options = {"attempts": 20, **options}
    strategy(plan, folder / "s", goal=goal, **options).start(grid, model(), timeout=timeout)


def forked(work):
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            work()
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    return pid


def ended(pid):
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def dying(at):
    """End this process right before its at-th durable operation, which is right after the one before it.

    Gives the counter of operations.
    """
    count = itertools.count(1)
    for name in DURABLE:
        original = getattr(os, name)

        def operation(*args, original=original, **named):
            if next(count) == at:
                os._exit(KILLED)
            return original(*args, **named)

        setattr(os, name, operation)
    return count
