"""Flower's own engines: the simulation on Ray, and a SuperLink with SuperNodes as processes on loopback.

Every process of a test has the test's own FLWR_HOME in its environment: by that it is known, and ended by its id.
"""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

import antiphase as ap
from antiphase.flower import report
from tests.flower.federation import epsilon_by_hand, participation_by_hand, record_by_hand

EXAMPLE = Path(__file__).parents[2] / "examples" / "federated"
BIN = Path(sys.executable).parent
PATIENCE = 400.0

pytestmark = pytest.mark.slow


class Engine:
    """A SuperLink of the test's own, and commands that talk to it."""

    def __init__(self, home: Path, *options: str) -> None:
        self.home, self.port = home, free_port()
        self.app = home / "app"
        self.started: list[subprocess.Popen[bytes]] = []
        shutil.copytree(EXAMPLE, self.app, ignore=shutil.ignore_patterns("__pycache__"))
        settings = (
            f'[superlink]\ndefault = "test"\n[superlink.test]\naddress = "127.0.0.1:{self.port}"\ninsecure = true\n'
        )
        (home / "config.toml").write_text(settings)
        link = ["--insecure", "--host", "127.0.0.1", "--port", str(self.port), *options]
        self.start("flower-superlink", "--disable-runtime-dependency-installation", *link)
        until(lambda: listens(self.port))

    def start(self, command: str, *arguments: str) -> subprocess.Popen[bytes]:
        changed = {"PATH": f"{BIN}:{os.environ['PATH']}", "FLWR_HOME": str(self.home), "FLWR_TELEMETRY_ENABLED": "0"}
        log = (self.home / f"{command}.log").open("ab")
        environment = {**os.environ, **changed, "FLWR_DISABLE_UPDATE_CHECK": "1", "RAY_DISABLE_DOCKER_CPU_WARNING": "1"}
        with log:
            line = [BIN / command, *arguments]
            self.started.append(subprocess.Popen(line, env=environment, stdout=log, stderr=log, cwd=self.home))
        return self.started[-1]

    def run(self, config: str, *options: str) -> subprocess.Popen[bytes]:
        return self.start("flwr", "run", str(self.app), "test", "--stream", "-c", config, *options)

    def processes(self, part: str = "") -> list[int]:
        """Ids of the live processes that this engine started, directly or not, whose command line has `part`."""
        mark, found = f"FLWR_HOME={self.home}".encode(), []
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                variables, line = (folder / "environ").read_bytes().split(b"\0"), (folder / "cmdline").read_bytes()
            except OSError:
                continue  # it has ended
            if mark in variables and part.encode() in line:
                found.append(int(folder.name))
        return found

    def kill(self, part: str = "") -> int:
        pids = self.processes(part)
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return len(pids)

    def log(self) -> str:
        return (self.home / "flwr.log").read_text(errors="replace")[-4000:]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def until(condition, patience=PATIENCE):
    end = time.monotonic() + patience
    while not condition():
        assert time.monotonic() < end, "took too long"
        time.sleep(0.2)


def releases(server: Path) -> int:
    path = server / "clients" / "private" / "ledger.jsonl"
    return path.read_text().count('"kind":"release"') if path.exists() else 0


def ended(process: subprocess.Popen[bytes]) -> None:
    process.wait(timeout=PATIENCE)


def check(server: Path, rounds: int, goal: int, separation: int) -> None:
    record = record_by_hand(server)
    assert [len(present) for present in record] == [goal] * rounds
    gap, count = participation_by_hand(record)
    assert (gap or rounds) >= separation
    found = report(server)
    assert [p.steps for p in found.run.publications] == list(range(1, rounds + 1))
    mechanism = ap.Plan.load(server / "run" / "plan.json").mechanism
    matrix = mechanism.strategy.encoder()[:rounds, :rounds]
    by_hand = epsilon_by_hand(matrix, gap or rounds, count, mechanism.noise_std, found.run.delta)
    assert found.guarantee.value == pytest.approx(by_hand, rel=1e-6)


@pytest.fixture
def engine(tmp_path):
    made = []

    def make(*options):
        made.append(Engine(tmp_path, *options))
        return made[0]

    yield make
    for each in made:
        until(lambda each=each: each.kill() == 0, 60.0)
        for process in each.started:
            process.wait(timeout=60.0)


def test_simulation_with_virtual_clients(engine, tmp_path):
    """`flwr run` on Ray: 200 users, 3 releases of 8; started again, it goes on to 5."""
    simulated = engine("--simulation")
    nodes = ("--federation-config", "num-supernodes=200 client-resources-num-cpus=1")
    config = f'directory="{tmp_path}/d" users=200 goal=8 rounds=5 separation=4'
    ended(simulated.run(f"{config} stop=3", *nodes))
    assert releases(tmp_path / "d" / "server") == 3, simulated.log()
    ended(simulated.run(config, *nodes))
    assert releases(tmp_path / "d" / "server") == 5, simulated.log()
    check(tmp_path / "d" / "server", rounds=5, goal=8, separation=4)


def test_superlink_with_supernodes_that_are_killed(engine, tmp_path):
    """Five SuperNodes; the ServerApp and one SuperNode are killed on the way, and both come back."""
    link, server = engine(), tmp_path / "d" / "server"
    for partition in range(5):
        start_node(link, partition)
    config = f'directory="{tmp_path}/d" users=5 goal=2 rounds=4 separation=2 timeout=200.0'
    first = link.run(config)
    until(lambda: releases(server) >= 1)
    assert link.kill("flwr-serverapp") >= 1
    assert link.kill("partition-id=3") >= 1
    first.kill()
    first.wait()
    start_node(link, 3)  # with a new node id and the same disk
    assert releases(server) < 4, "the kill came too late to show anything"
    second = link.run(config)
    until(lambda: releases(server) == 4)
    ended(second)
    check(server, rounds=4, goal=2, separation=2)


def start_node(link: Engine, partition: int) -> None:
    place = ["--superlink", f"127.0.0.1:{link.port}", "--port", str(free_port())]
    link.start("flower-supernode", "--insecure", *place, "--node-config", f"partition-id={partition} num-partitions=5")
