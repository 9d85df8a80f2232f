"""The example on Flower's own engines: the simulation on Ray, and a SuperLink with SuperNodes on loopback."""

from pathlib import Path

import pytest

import antiphase as ap
from antiphase.flower import report
from tests.flower.engine import ended, engines, start_node, until
from tests.flower.federation import epsilon_by_hand, participation_by_hand, record_by_hand

EXAMPLE = Path(__file__).parents[2] / "examples" / "federated"

pytestmark = pytest.mark.slow


def releases(server: Path) -> int:
    path = server / "clients" / "private" / "ledger.jsonl"
    return path.read_text().count('"kind":"release"') if path.exists() else 0


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
    with engines(tmp_path) as make:
        yield lambda *options: make(EXAMPLE, *options)


def test_simulation_with_virtual_clients(engine, tmp_path):
    """`flwr run` on Ray: 200 users, 3 releases of 8; started again, it goes on to 5."""
    simulated = engine("--simulation")
    nodes = ("--federation-config", "num-supernodes=200 client-resources-num-cpus=1")
    config = f'directory="{tmp_path}/d" users=200 goal=8 rounds=5 separation=4'
    simulated.simulate(f"{config} stop=3", *nodes)
    assert releases(tmp_path / "d" / "server") == 3, simulated.log()
    simulated.simulate(config, *nodes)
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
