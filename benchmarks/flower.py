"""A server round on Flower: 1,000 updates of 6.4 million parameters, beside Flower's own server-side fixed clipping.

Both sides aggregate replies that are in memory already, as they lie there when the network has done its part. Flower's
side needs all of them at once, 25 GB, so both are timed on a few and on some more, in turns: the difference is what an
update takes, the rest happens once, and a round is put together from the two. The last table counts what the server
holds.
"""

from __future__ import annotations

import logging
import os
import statistics
import tempfile
import time
import tracemalloc
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping, FedAvg
from flwr.supercore.task_identity import TaskIdentity

import antiphase as ap
from antiphase.flower._participants import Participants
from antiphase.flower._round import ReplyRules, Round
from antiphase.flower._session import Session
from antiphase.flower._wire import ARRAYS, TAG, Answer, to_array_record, to_record
from benchmarks._measure import print_table, readable, sized

SHAPES = sized(
    {"embedding": (10_000, 500), "lstm": (500, 2_000), "projection": (500, 800)}, {"embedding": (10, 5), "lstm": (5, 2)}
)  # 6.4 million
UPDATES = sized(1000, 10)
FEW, MORE = sized((4, 44), (2, 6))
TURNS = sized(int(os.environ.get("TURNS", "5")), 2)
GOAL_RATIO = 0.5
NODE = 7


def model() -> dict[str, np.ndarray[Any, Any]]:
    return {name: np.zeros(shape, np.float32) for name, shape in SHAPES.items()}


def replies(count: int, tag: bool) -> list[Message]:
    """Replies as a client sends them, to messages that were asked of one node."""
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


def flower_turn(count: int) -> float:
    """Seconds of Flower's own strategy; clipping changes the replies, so they are made anew."""
    strategy = DifferentialPrivacyServerSideFixedClipping(FedAvg(), 1.0, 1.0, count)
    strategy.current_arrays, messages = to_array_record(model()), replies(count, tag=False)
    start = time.perf_counter()
    strategy.aggregate_train(1, messages)
    return time.perf_counter() - start


def our_turn(count: int) -> float:
    """Seconds of a release in the making, without what `release_seconds` counts."""
    messages = replies(count, tag=True)
    current = Round(ReplyRules(0, 1, 1, 1.0, None, False), model(), Participants(), Counter())
    current.asked = {f"m{i}": NODE for i in range(count)}
    start = time.perf_counter()
    for message in messages:
        answer = current.answer(message)
        assert answer is not None
        current.add_reply(message, answer, answer.client)
    assert len(current.clients) == count
    return time.perf_counter() - start


def an_update_and_once(turn: Callable[[int], float]) -> tuple[float, float]:
    """Seconds that each update takes, and seconds of a round beside that."""
    few, more = (statistics.median(turn(count) for _ in range(TURNS)) for count in (FEW, MORE))
    each = (more - few) / (MORE - FEW)
    return each, max(few - FEW * each, 0.0)


def session(directory: Path, strategy: ap.strategies.Strategy) -> Session:
    participation = ap.MinSeparation(4)
    mechanism = ap.Mechanism(strategy, participation, 1.0)
    guarantee = ap.epsilon(mechanism, 1e-6)
    problem = ap.Problem(strategy.steps, ap.Budget(guarantee.value, 1e-6), participation=participation)
    plan = ap.Plan(problem, mechanism, guarantee, error=1.0)
    return Session.open(plan, directory, {"noise_scale": 1.0}, model(), secret=ap.Secret.insecure(0))


def release_seconds(strategy: ap.strategies.Strategy) -> float:
    """Noise, model and both ledgers of a release, on disk."""
    with tempfile.TemporaryDirectory() as folder:
        opened, times = session(Path(folder) / "run", strategy), []
        for _ in range(TURNS):
            start = time.perf_counter()
            noise = opened.noise()
            moved = {n: (v + z / UPDATES) for (n, v), z in zip(opened.state.model.items(), noise, strict=True)}
            opened.release(moved, {}, [f"{i:016x}" for i in range(UPDATES)])
            times.append(time.perf_counter() - start)
        opened.close()
    return statistics.median(times[1:])


def noise_copies(strategy: ap.strategies.Strategy) -> float:
    """Model-sized buffers that live on after a step of the noise, apart from the last step's noise itself."""
    one = sum(value.nbytes for value in model().values())
    with tempfile.TemporaryDirectory() as folder:
        opened = session(Path(folder) / "run", strategy)
        tracemalloc.start()
        opened.noise()
        held, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        opened.close()
    return held / one - 1.0


def main() -> None:
    logging.getLogger("flwr").setLevel(logging.WARNING)
    (ours, before), (theirs, once_theirs) = an_update_and_once(our_turn), an_update_and_once(flower_turn)
    blt = ap.strategies.BLT([0.9999, 0.97, 0.8, 0.3], [0.01, 0.05, 0.1, 0.2], 64)
    once = before + release_seconds(blt)
    parameters = sum(value.size for value in model().values())
    mine, flowers = UPDATES * ours + once, UPDATES * theirs + once_theirs
    print_table(
        f"A round of {UPDATES} updates of {parameters:,} parameters; goal: at most {GOAL_RATIO} of Flower's time",
        ["", "an update", "once", "a round", "ratio"],
        [
            ["antiphase", readable(ours), readable(once), readable(mine), f"{mine / flowers:.3f}"],
            ["Flower's fixed clipping", readable(theirs), readable(once_theirs), readable(flowers), "1"],
        ],
    )
    rows = []
    for name, strategy in {
        "BLT, 4 buffers": blt,
        "Toeplitz, 8 bands": ap.strategies.Toeplitz.square_root(64, 8),
    }.items():
        rows.append([name, f"{strategy.memory_copies}", f"{noise_copies(strategy):.2f}"])
    print_table("Memory of the noise, in copies of the model", ["", "memory_copies", "held"], rows)


if __name__ == "__main__":
    main()
