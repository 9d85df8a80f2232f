"""A federation in memory: a grid with Flower's interface, clients with real mods and files, plans made by hand."""

from __future__ import annotations

import hmac
import itertools
import json
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import scipy.optimize
import scipy.stats
from flwr.app import Array, ArrayRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

import antiphase as ap
from antiphase.flower import DPFTRL, participation_mod
from antiphase.flower._wire import ARRAYS, to_arrays

SECRET = ap.Secret.insecure(5)
SHAPES = {"w": (3, 2), "b": (2,)}
CLIP = 1.0
GRID = 2e-8  # lattices of these plans have grids of at most 2^-32, and updates are truncated to them

Reply = Callable[[Message, Message], list[Message]]


def plan_for(strategy, separation=3, count=None, noise_std=4.0, clip=CLIP, workload=None, unit="user") -> ap.Plan:
    participation = ap.MinSeparation(separation, count)
    mechanism = ap.Mechanism(strategy, participation, noise_std)
    guarantee = ap.epsilon(mechanism, 1e-6)
    budget = ap.Budget(max(8.0, guarantee.value), 1e-6)
    problem = ap.Problem(
        steps=strategy.steps,
        budget=budget,
        participation=participation,
        clip_norm=clip,
        objective="rms",  # stored runs of 0.1.0 have this one, and fingerprints contain it
        unit=unit,
        workload=workload or ap.PrefixSum(),
    )
    return ap.Plan(problem, mechanism, guarantee, error=1.0)


def blt(steps=12) -> ap.strategies.BLT:
    return ap.strategies.BLT([0.9, 0.5], [0.1, 0.2], steps)


def model(dtype="float64") -> ArrayRecord:
    return ArrayRecord([np.zeros(shape, dtype) for shape in SHAPES.values()])


def is_check_in(message: Message) -> bool:
    return message.content["antiphase"]["phase"] == "check-in"


class Client:
    """One device: its directory, its constant update, and what it does to the updates of an honest client."""

    def __init__(self, directory: Path, update: list[np.ndarray], tamper: Reply | None = None, separation: int = 1):
        self.update, self.tamper, self.trained = update, tamper, []
        self._mod = participation_mod(directory, separation)

    def answer(self, message: Message) -> list[Message]:
        context = Context(1, message.metadata.dst_node_id, {}, RecordDict(), {})
        reply = self._mod(message, context, self._train)
        return self.tamper(message, reply) if self.tamper and not is_check_in(message) else [reply]

    def _train(self, message: Message, context: Context) -> Message:
        before = to_arrays(message.content[ARRAYS])
        self.trained.append(message.content["antiphase"]["release"])
        after = [b + u.astype(b.dtype) for b, u in zip(before.values(), self.update, strict=True)]
        record = ArrayRecord(dict(zip(before, (Array(np.asarray(value)) for value in after), strict=True)))
        return Message(RecordDict({"new": record, "m": MetricRecord({"loss": 2.0})}), reply_to=message)


class FakeGrid(Grid):
    """Delivers at once. A client that is None does not answer."""

    def __init__(self, clients: dict[int, Client | None], keys: dict[int, bytes] | None = None):
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1
        self.clients, self.keys = clients, keys or {}
        self.sent: list[Message] = []
        self._inbox: dict[str, list[Message]] = {}

    def set_run(self, run):
        raise NotImplementedError

    @property
    def run(self):
        raise NotImplementedError

    def create_message(self, *args, **named):
        raise NotImplementedError

    def get_node_ids(self) -> Iterable[int]:
        return list(self.clients)

    def get_nodes(self):
        return [NodeInfo(node_id=node, public_key=self.keys.get(node, b"")) for node in self.clients]

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        ids = []
        for message in messages:
            number = f"m{len(self.sent)}"
            message.metadata.__dict__["_message_id"] = number
            self.sent.append(message)
            ids.append(number)
            client = self.clients[message.metadata.dst_node_id]
            self._inbox[number] = client.answer(message) if client else []
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        return [reply for number in message_ids for reply in self._inbox.pop(number, [])]

    def send_and_receive(self, messages, *, timeout=None):
        raise NotImplementedError("the strategy goes on at the goal; it does not wait for all replies")

    def waiting(self, message: Message) -> bool:
        """Whether there is a reply to a message."""
        return bool(self._inbox.get(message.metadata.message_id))

    def tasks(self) -> list[Message]:
        """What was sent to be trained on."""
        return [message for message in self.sent if not is_check_in(message)]

    def broadcast(self) -> dict[int, bytes]:
        """The bytes sent for each release; two different ones for one release would be two releases."""
        found: dict[int, bytes] = {}
        for message in self.tasks():
            release = message.content["antiphase"]["release"]
            data = b"".join(array.data for array in message.content[ARRAYS].values())
            assert found.setdefault(release, data) == data, f"release {release} was broadcast with other bytes"
        return found


def updates(count: int, seed: int = 0, scale: float = 1.0) -> list[list[np.ndarray]]:
    rng = np.random.default_rng(seed)
    return [[scale * rng.standard_normal(shape) for shape in SHAPES.values()] for _ in range(count)]


def clipped(update: list[np.ndarray], clip: float = CLIP) -> list[np.ndarray]:
    """By the definition, in float64."""
    length = np.sqrt(sum((array**2).sum() for array in update))
    return [array * (1.0 if length <= clip else clip / length) for array in update]


def federation(directory: Path, count: int, *, seed: int = 0, scale: float = 1.0, first: int = 100) -> FakeGrid:
    """`count` honest clients, with files in `directory` that outlive the grid, and node ids from `first` on."""
    return FakeGrid({first + i: Client(directory / f"c{i}", u) for i, u in enumerate(updates(count, seed, scale))})


def strategy(plan: ap.Plan, directory: Path, goal: int = 4, **options) -> DPFTRL:
    options = {"wait": 0.0, "attempts": 2, "secret": SECRET, **options}
    return DPFTRL(plan, directory, goal=goal, **options)


def failed(message: Message) -> Message:
    return Message(Error(code=8, reason="crashed"), reply_to=message)


def ledger_entries(directory: Path) -> list[dict]:
    """The private entries of the clients' ledger, read without the library."""
    lines = (directory / "clients" / "private" / "ledger.jsonl").read_text().splitlines()
    return [json.loads(line.rpartition(" ")[0]) for line in lines]


def record_by_hand(directory: Path) -> list[list[str]]:
    """The clients of each release, in order; fails where a release is lost or doubled."""
    releases = [entry for entry in ledger_entries(directory) if entry["kind"] == "release"]
    assert [entry["release"] for entry in releases] == list(range(len(releases)))
    return [entry["clients"] for entry in releases]


def names_by_hand(directory: Path, clients: Path) -> dict[str, int]:
    """The number of the client behind each name of the ledger."""
    run_id = json.loads((directory / "run" / "run.json").read_text())["run_id"]
    key = SECRET.derive("antiphase flower client names", run_id)
    found = {}
    for path in clients.glob("c*/client.json"):
        pseudonym = json.loads(path.read_text())["client"].encode()
        found[hmac.digest(key, pseudonym, "sha256")[:8].hex()] = int(path.parent.name[1:])
    return found


def model_by_hand(
    directory: Path, clients: Path, plan: ap.Plan, goal: int, given: list[list[np.ndarray]], present=None
):
    """Plain federated averaging over the recorded clients, plus the noise that belongs to each release."""
    header = json.loads((directory / "run" / "run.json").read_text())
    run_id, dtype = header["run_id"], header["dtype"]
    names, total = names_by_hand(directory, clients), [np.zeros(shape) for shape in SHAPES.values()]
    leaves = dict(zip(model(), SHAPES.values(), strict=True))
    clip, ran = plan.problem.clip_norm, ap.Plan.load(directory / "run" / "plan.json")
    lattice = ran.mechanism.lattice
    if lattice is None:
        stream = ap.NoiseStream(plan, leaves, SECRET, run_id, dtype=dtype)
    else:
        stream = ap.NoiseStream(ran, leaves, SECRET, run_id)
    for taking_part in record_by_hand(directory) if present is None else present:
        parts = [clipped(given[names[name]], clip) for name in taking_part]
        noise = stream.next()
        noise = [clip * part for part in noise] if lattice is None else lattice.value(noise)
        for i, value in enumerate(noise):
            total[i] += (sum(part[i] for part in parts) + value) / goal
    return total


def participation_by_hand(record: list[list[str]]) -> tuple[int | None, int]:
    """The smallest gap and the largest count of any client."""
    times: dict[str, list[int]] = {}
    for release, present in enumerate(record):
        assert len(set(present)) == len(present)
        for name in present:
            times.setdefault(name, []).append(release)
    gaps = [b - a for steps in times.values() for a, b in itertools.pairwise(steps)]
    return min(gaps, default=None), max(map(len, times.values()))


def epsilon_by_hand(matrix: np.ndarray, separation: int, count: int, noise_std: float, delta: float) -> float:
    """From the definition: all patterns of a non-negative C, then the Gaussian mechanism, by bisection."""
    steps, gram = matrix.shape[1], matrix.T @ matrix
    assert (matrix >= 0).all()
    worst = 0.0
    for size in range(1, count + 1):
        for pattern in itertools.combinations(range(steps), size):
            if all(b - a >= separation for a, b in itertools.pairwise(pattern)):
                worst = max(worst, gram[np.ix_(pattern, pattern)].sum())
    mu = np.sqrt(worst) / noise_std

    def excess(epsilon: float) -> float:
        a, b = mu / 2 - epsilon / mu, -mu / 2 - epsilon / mu
        return scipy.stats.norm.cdf(a) - np.exp(epsilon) * scipy.stats.norm.cdf(b) - delta

    return scipy.optimize.brentq(excess, 0.0, 500.0, xtol=1e-12)
