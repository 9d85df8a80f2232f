"""Too few clients: the server says why, and what to change. One directory for all clients is found out at once."""

import itertools
import logging

import numpy as np
import pytest

import antiphase as ap
from antiphase.flower import report
from tests.flower.federation import (
    SECRET,
    Client,
    FakeGrid,
    blt,
    failed,
    federation,
    model,
    plan_for,
    record_by_hand,
    strategy,
    updates,
)

GOAL = 5
both = pytest.mark.parametrize("dropouts", ["zero", "replace"])


def sharing(folder, nodes, directories=1):
    """Nodes whose clients share a few directories, as where a simulation passes a constant path to the mod."""
    return FakeGrid({100 + i: Client(folder / f"c{i % directories}", u) for i, u in enumerate(updates(nodes))})


@both
@pytest.mark.parametrize("when_short", ["retry", "release"])
def test_one_directory_for_all_clients_is_found_out_at_the_first_release(tmp_path, dropouts, when_short):
    grid = sharing(tmp_path / "c", 8)
    made = strategy(
        plan_for(blt(6), 1), tmp_path / "s", goal=GOAL, attempts=50, dropouts=dropouts, when_short=when_short
    )
    with pytest.raises(ap.Refused, match="all 8 nodes that answered use the same client directory") as error:
        made.start(grid, model(), timeout=0.1)
    assert "partition-id" in error.value.hint
    assert record_by_hand(tmp_path / "s") == []
    assert len(grid.sent) <= 8, "nobody is asked twice"
    result = strategy(plan_for(blt(6), 1), tmp_path / "s", goal=GOAL, dropouts=dropouts, when_short=when_short).start(
        federation(tmp_path / "own", 8), model(), timeout=0.1
    )
    assert np.isfinite(result.arrays.to_numpy_ndarrays()[0]).all()
    assert len(record_by_hand(tmp_path / "s")) == 6


def test_a_goal_of_one_is_found_out_when_the_client_may_not_come_back(tmp_path):
    made = strategy(plan_for(blt(6), 2), tmp_path / "s", goal=1, attempts=50)
    with pytest.raises(ap.Refused, match="all 3 nodes that answered use the same client directory"):
        made.start(sharing(tmp_path / "c", 4), model(), timeout=0.1)
    assert len(record_by_hand(tmp_path / "s")) == 1


@both
def test_nodes_that_share_some_directories_are_named_as_the_cause(tmp_path, dropouts, caplog):
    """Two directories for eight nodes: that may be two clients with several nodes, so the server keeps trying."""
    with caplog.at_level(logging.WARNING, "flwr"), pytest.raises(ap.Refused, match="in each of 2 attempts") as error:
        strategy(plan_for(blt(6), 1), tmp_path / "s", goal=GOAL, dropouts=dropouts).start(
            sharing(tmp_path / "c", 8, directories=2), model(), timeout=0.1
        )
    assert "duplicate 6" in caplog.text
    assert "a directory of its own" in caplog.text
    assert "a directory of its own" in error.value.hint


def test_one_client_that_answers_from_two_nodes_does_not_stop_the_others(tmp_path):
    grid = federation(tmp_path / "c", 6)
    grid.clients[200] = Client(tmp_path / "c" / "c0", updates(1)[0])
    strategy(plan_for(blt(4), 1), tmp_path / "s", goal=GOAL).start(grid, model(), timeout=0.1)
    assert len(record_by_hand(tmp_path / "s")) == 4


class Broken(Client):
    def answer(self, message):
        return [failed(message)]


def test_warnings_have_the_counts_by_cause(tmp_path, caplog):
    grid = FakeGrid({100 + i: Broken(tmp_path / f"c{i}", u) for i, u in enumerate(updates(4))})
    with caplog.at_level(logging.WARNING, "flwr"), pytest.raises(ap.Refused):
        strategy(plan_for(blt(6), 1), tmp_path / "s", goal=3).start(grid, model(), timeout=0.1)
    lines = [record.getMessage() for record in caplog.records if "fell short" in record.getMessage()]
    assert len(lines) == 2
    assert "0 of 3 clients; nodes: 4 connected, 4 asked; replies since the last release: failed 4" in lines[0]
    assert report(tmp_path / "s", secret=SECRET).counts["failed"] == 8
    assert "every client needs participation_mod" in caplog.text


def test_clients_that_must_wait_are_named_as_the_cause(tmp_path, caplog):
    """Four clients, three places, and three releases between two participations: one is left for the second release."""
    with caplog.at_level(logging.WARNING, "flwr"), pytest.raises(ap.Refused) as error:
        strategy(plan_for(blt(6), 3), tmp_path / "s", goal=3).start(federation(tmp_path / "c", 4), model(), timeout=0.1)
    assert "release 1 fell short: 1 of 3 clients; nodes: 4 connected, 1 asked" in caplog.text
    assert "3 connected nodes were not asked" in caplog.text
    assert "fewer than 3 releases ago" in error.value.hint


def test_a_federation_without_nodes_says_so(tmp_path, caplog):
    with caplog.at_level(logging.WARNING, "flwr"), pytest.raises(ap.Refused, match="failed attempts 2"):
        strategy(plan_for(blt(6), 1), tmp_path / "s", goal=3).start(FakeGrid({}), model(), timeout=0.1)
    assert "nodes: 0 connected, 0 asked; replies since the last release: no replies" in caplog.text


def test_every_count_has_a_meaning():
    """Every count that the code can enter is explained."""
    import re
    from pathlib import Path

    import antiphase.flower
    from antiphase._federated import CAUSES as MEANINGS
    from antiphase._federated import DROPPED_OUT

    source = "".join(path.read_text() for path in Path(antiphase.flower.__file__).parent.glob("*.py"))
    entered = set(re.findall(r'counts\["([a-z -]+)"\]', source)) | set(re.findall(r'Rejected\("([a-z-]+)"', source))
    entered |= set(
        itertools.chain(*(re.findall(r'"([a-z-]+)"', line) for line in source.splitlines() if "Refusal =" in line))
    )
    assert entered - set(MEANINGS) == set()
    assert len(entered) >= 15
    assert set(DROPPED_OUT) <= set(MEANINGS)
