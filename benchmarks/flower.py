"""Time of a server round of `antiphase.flower`, compared with Flower's own server-side fixed clipping.

In the first table, a round has 1,000 updates of 6.4 million parameters. Both servers aggregate replies that are already
in memory. Flower's strategy needs all replies at once, which would take 25 GB. So both servers are timed with 4 and
with 44 replies. The difference of these times gives the time per update. The remaining time is a fixed time per round.
The time of a full round is computed from the time per update and the fixed time. Our server is measured with both kinds
of noise: on a lattice (as exact integers), which is the default, and in floating point.

The second table measures full rounds of `DPFTRL`. There are 10,000 registered clients, of which 1,000 check in and
train. Their updates are streamed: each update is created when the server pulls it. A class of this file takes the place
of Flower's grid (its connection to the clients), and the time spent in this class is not counted. Each round runs in a
process of its own. The peak memory of this process is compared with the peak memory for a tenth of the updates.

The third table shows the memory of the noise on the server.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import tempfile
import time
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping, FedAvg
from flwr.supercore.task_identity import TaskIdentity

import antiphase as ap
from antiphase._federated import Participants
from antiphase.flower import DPFTRL
from antiphase.flower._lattice_plan import on_lattice
from antiphase.flower._round import ReplyRules, Round
from antiphase.flower._session import Session
from antiphase.flower._wire import ARRAYS, TAG, Answer, to_array_record, to_record
from benchmarks._measure import print_table, readable, sized

SHAPES = sized(
    {"embedding": (10_000, 500), "lstm": (500, 2_000), "projection": (500, 800)}, {"embedding": (10, 5), "lstm": (5, 2)}
)  # 6.4 million
UPDATES = sized(1000, 10)
CLIENTS = sized(10_000, 100)
FEW, MORE = sized((4, 44), (2, 6))
TURNS = sized(int(os.environ.get("TURNS", "5")), 2)
GOAL_RATIO = 0.5
GOAL_MORE = 2.0  # seconds that a round may take longer on a lattice than in floating point
KINDS = {"lattice": None, "floating point": False}  # kind of noise and the argument `lattice` of DPFTRL
Times = np.ndarray[Any, Any]  # seconds of wall-clock time and of CPU time
BLT = ap.strategies.BLT([0.9999, 0.97, 0.8, 0.3], [0.01, 0.05, 0.1, 0.2], 64)
NODE = 7


def model() -> dict[str, np.ndarray[Any, Any]]:
    return {name: np.zeros(shape, np.float32) for name, shape in SHAPES.items()}


def replies(count: int, tag: bool) -> list[Message]:
    """Return replies of clients to messages that the server sent to one node.

    With `tag`, they have the record that `DPFTRL` needs; otherwise, the metrics that Flower's strategy needs.
    """
    TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1
    made, rng = [], np.random.default_rng(0)
    for i in range(count):
        asked = Message(RecordDict(), NODE, "train")
        asked.metadata.__dict__["_message_id"] = f"m{i}"
        arrays = {name: rng.standard_normal(shape, dtype=np.float32) * 1e-3 for name, shape in SHAPES.items()}
        content = {ARRAYS: to_array_record(arrays)}
        if tag:
            content[TAG] = to_record(Answer(f"client {i}", 0, "update", -1, [], []))
        else:
            content["metrics"] = MetricRecord({"num-examples": 1})
        made.append(Message(RecordDict(content), reply_to=asked))
    return made


def now() -> Times:
    """Return the wall-clock time and the CPU time. The CPU time hardly depends on other load on the machine."""
    return np.array([time.perf_counter(), time.process_time()])


def flower_turn(count: int) -> Times:
    """Return the seconds that Flower's strategy takes to aggregate `count` replies.

    The strategy clips the replies in place, so each call creates new ones.
    """
    strategy = DifferentialPrivacyServerSideFixedClipping(FedAvg(), 1.0, 1.0, count)
    strategy.current_arrays, messages = to_array_record(model()), replies(count, tag=False)
    start = now()
    strategy.aggregate_train(1, messages)
    return now() - start


def our_turn(kind: str, count: int) -> Times:
    """Return the seconds that our server takes to add up `count` replies. `release_seconds` measures the rest."""
    messages, lattice = replies(count, tag=True), plan_of(BLT, kind).mechanism.lattice
    current = Round(ReplyRules(0, 1, 1, 1.0, None, False), model(), Participants(), Counter(), None, lattice)
    current.asked = {f"m{i}": NODE for i in range(count)}
    start = now()
    for message in messages:
        answer = current.answer(message)
        assert answer is not None
        current.add_reply(message, answer, answer.client)
    assert len(current.clients) == count
    return now() - start


def an_update_and_once(turn: Callable[[int], Times]) -> tuple[Times, Times]:
    """Return the seconds per update, and the fixed seconds per round."""
    few, more = (np.median([turn(count) for _ in range(TURNS)], axis=0) for count in (FEW, MORE))
    each = (more - few) / (MORE - FEW)
    return each, np.maximum(few - FEW * each, 0.0)


def session(directory: Path, strategy: ap.strategies.Strategy, kind: str) -> Session:
    plan = plan_of(strategy, kind)
    return Session.open(plan, directory, {"noise_scale": 1.0}, model(), secret=ap.Secret.insecure(0))


def noisy_mean(opened: Session, total: list[np.ndarray[Any, Any]]) -> list[np.ndarray[Any, Any]]:
    """Return the noisy mean update that `DPFTRL` computes from the sum of the updates, for clipping norm 1."""
    lattice = opened.run.plan.mechanism.lattice
    if lattice is not None:
        return [value / UPDATES for value in lattice.value(opened.run.release(opened.state.release, total))]
    parts = zip(total, opened.noise(), strict=True)
    return [(value.astype(noise.dtype) + noise).astype(np.float64) / UPDATES for value, noise in parts]


def release_seconds(strategy: ap.strategies.Strategy, kind: str) -> Times:
    """Return the seconds to add noise to the sum and to write the new model and both ledgers to disk."""
    with tempfile.TemporaryDirectory() as folder:
        opened, times = session(Path(folder) / "run", strategy, kind), []
        total = [np.zeros(shape, np.int64 if kind == "lattice" else np.float64) for shape in SHAPES.values()]
        for _ in range(TURNS):
            start = now()
            mean = noisy_mean(opened, total)
            moved = {n: (v + z).astype(v.dtype) for (n, v), z in zip(opened.state.model.items(), mean, strict=True)}
            opened.release(moved, {}, [f"{i:016x}" for i in range(UPDATES)])
            times.append(now() - start)
        opened.close()
    return np.median(times[1:], axis=0)


def noise_copies(strategy: ap.strategies.Strategy, kind: str) -> float:
    """Return the memory that remains allocated after a step of noise, in model-sized buffers.

    The noise of the step itself is not counted. On a lattice, a buffer has 8 bytes per parameter instead of 4.
    """
    one = sum(value.size for value in model().values()) * (8 if kind == "lattice" else 4)
    with tempfile.TemporaryDirectory() as folder:
        opened = session(Path(folder) / "run", strategy, kind)
        tracemalloc.start()
        opened.noise()
        held, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        opened.close()
    return held / one - 1.0


class StreamingGrid:
    """Takes the place of Flower's grid, with many clients. It creates each reply when the server pulls it."""

    def __init__(self, clients: int) -> None:
        TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1
        self.seconds: Times = np.zeros(2)
        self.nodes = [NodeInfo(node_id=i + 1) for i in range(clients)]
        self._sent: dict[str, Message] = {}
        rng = np.random.default_rng(0)
        arrays = {name: rng.standard_normal(shape, dtype=np.float32) * 1e-3 for name, shape in SHAPES.items()}
        self._update = to_array_record(arrays)

    def get_nodes(self) -> list[NodeInfo]:
        return self.nodes

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        start, ids = now(), []
        for message in messages:
            ids.append(f"m{time.monotonic_ns()}-{message.metadata.dst_node_id}")
            message.metadata.__dict__["_message_id"] = ids[-1]
            self._sent[ids[-1]] = message
        self.seconds += now() - start
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        start = now()
        found = [self._reply(self._sent.pop(number)) for number in message_ids if number in self._sent]
        self.seconds += now() - start
        return found

    def _reply(self, message: Message) -> Message:
        phase, release = message.content[TAG]["phase"], message.content[TAG]["release"]
        status = "ready" if phase == "check-in" else "update"
        content = {TAG: to_record(Answer(f"client {message.metadata.dst_node_id}", release, status, -1, [], []))}
        if phase == "train":
            # Copy the arrays, because every reply from a network has its own memory.
            content[ARRAYS] = ArrayRecord(
                {n: Array(a.dtype, a.shape, a.stype, bytes(memoryview(a.data))) for n, a in self._update.items()}
            )
        return Message(RecordDict(content), reply_to=message)


def plan_of(strategy: ap.strategies.Strategy, kind: str = "floating point") -> ap.Plan:
    participation = ap.MinSeparation(4)
    mechanism = ap.Mechanism(strategy, participation, 1.0)
    guarantee = ap.epsilon(mechanism, 1e-6)
    problem = ap.Problem(strategy.steps, ap.Budget(guarantee.value, 1e-6), participation=participation)
    plan = ap.Plan(problem, mechanism, guarantee, error=1.0)
    parameters = sum(value.size for value in model().values())
    return on_lattice(plan, parameters, UPDATES) if kind == "lattice" else plan


def full_round(updates: int, kind: str) -> tuple[Times, float]:
    """Return the seconds of a full round of `DPFTRL`, without the time of the grid, and the peak memory in bytes."""
    logging.getLogger("flwr").setLevel(logging.ERROR)
    grid, seconds = StreamingGrid(CLIENTS), []
    with tempfile.TemporaryDirectory() as folder:
        server = DPFTRL(
            plan_of(BLT), Path(folder) / "run", goal=updates, secret=ap.Secret.insecure(0), lattice=KINDS[kind]
        )

        def round_ended(releases: int, arrays: Any) -> None:
            seconds.append(now() - grid.seconds)

        server.start(grid, to_array_record(model()), num_rounds=2, evaluate_fn=round_ended)  # type: ignore[arg-type]
    status = Path("/proc/self/status").read_text()
    peak = float(status.partition("VmHWM:")[2].split()[0]) * 1024
    return seconds[2] - seconds[1], peak  # the first round compiles kernels


def in_own_process(updates: int, kind: str) -> tuple[Times, float]:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(full_round, (updates, kind))


def print_scale(flowers: Times) -> None:
    """Print the time and the memory of full rounds. `flowers` is the time that Flower's strategy takes for a round."""
    few, many = max(UPDATES // 10, 1), UPDATES
    one, rows, found = sum(value.nbytes for value in model().values()), [], {}
    for kind in KINDS:
        (_, little), (seconds, peak) = in_own_process(few, kind), in_own_process(many, kind)
        found[kind] = seconds
        rows += [
            [kind, f"{few:,}", "", "", "", "", f"{little / 1e6:,.0f} MB", ""],
            [
                kind,
                f"{many:,}",
                *ratios(seconds, flowers),
                f"{peak / 1e6:,.0f} MB",
                f"{(peak - little) / one:.2f} of {many - few:,}",
            ],
        ]
    print_table(
        f"A streamed round of DPFTRL with {CLIENTS:,} registered clients; goal: at most {GOAL_RATIO} of Flower's time",
        ["noise", "updates", "per round", "ratio", "CPU time", "ratio", "peak memory", "growth in updates"],
        rows,
    )
    print_more("A streamed round", found)


def print_more(what: str, found: dict[str, Times]) -> None:
    """Print how much longer a round takes on a lattice."""
    clock, processor = found["lattice"] - found["floating point"]
    print(f"{what} on a lattice: {clock:+.2f} s, {processor:+.2f} s of CPU time; goal: at most {GOAL_MORE} s more")


def ratios(mine: Times, theirs: Times) -> list[str]:
    """Return texts for wall-clock time, its ratio to `theirs`, CPU time and its ratio to `theirs`."""
    return [text for a, b in zip(mine, theirs, strict=True) for text in (readable(a), f"{a / b:.3f}")]


def main() -> None:
    logging.getLogger("flwr").setLevel(logging.WARNING)
    theirs, once_theirs = an_update_and_once(flower_turn)
    flowers, rows, found = UPDATES * theirs + once_theirs, [], {}
    for kind in KINDS:
        ours, before = an_update_and_once(partial(our_turn, kind))
        once = before + release_seconds(BLT, kind)
        found[kind] = UPDATES * ours + once
        rows.append([f"antiphase, {kind}", readable(ours[0]), readable(once[0]), *ratios(found[kind], flowers)])
    rows.append(["Flower's fixed clipping", readable(theirs[0]), readable(once_theirs[0]), *ratios(flowers, flowers)])
    parameters = sum(value.size for value in model().values())
    print_table(
        f"A round of {UPDATES} updates of {parameters:,} parameters; goal: at most {GOAL_RATIO} of Flower's time",
        ["", "per update", "fixed", "per round", "ratio", "CPU time", "ratio"],
        rows,
    )
    print_more("A round", found)
    print_scale(flowers)
    copies: list[list[str]] = []
    for name, strategy in {
        "BLT, 4 buffers": BLT,
        "Toeplitz, 8 bands": ap.strategies.Toeplitz.square_root(64, 8),
    }.items():
        copies += [[name, kind, f"{strategy.memory_copies}", f"{noise_copies(strategy, kind):.2f}"] for kind in KINDS]
    print_table(
        "Memory of the noise, in copies of the model (of 8 bytes per parameter on a lattice)",
        ["", "noise", "memory_copies", "held"],
        copies,
    )


if __name__ == "__main__":
    main()
