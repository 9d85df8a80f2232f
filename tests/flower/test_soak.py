"""A long run in which clients drop out at random and server and nodes are killed: nothing is lost.

A short version runs with the integrations. `make test-all` runs 2,000 rounds.
"""

import bisect
import fcntl
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter, defaultdict
from pathlib import Path

import numpy as np
import pytest

from antiphase._federated import read_state
from antiphase.flower import report
from tests.flower.federation import GRID, SECRET, blt, model_by_hand, names_by_hand, plan_for, record_by_hand, updates
from tests.flower.kills import KILLED, Flaky, dying, ended, forked, serve_all

CLIENTS, GOAL, SEPARATION = 60, 3, 12
NODE_KILLS = 0.03  # share of the tasks at which the node is killed by the operating system


class Killed(Flaky):
    """A node that drops out like a flaky one, and whose process is killed at times, at any durable operation."""

    def answer(self, message):
        if self._rng.random() >= NODE_KILLS:
            return super().answer(message)
        at = self._rng.randrange(1, 12)
        code = ended(forked(lambda: (dying(at), super(Flaky, self).answer(message))))
        assert code in (0, KILLED)
        with (self.folder / "node-kills").open("a") as file:
            file.write(f"{code}\n")
        return []  # the reply died with the process


def serve(folder, seed, plan):
    Killed.folder = folder
    sizes = {"goal": GOAL, "clients": CLIENTS, "timeout": 0.005, "attempts": 10_000}
    serve_all(folder, seed, plan=plan, flaky=True, client=Killed, **sizes)


def wait_for_lock(directory):
    """Wait for the nodes that outlive their server: forked from it, they share its lock until they end."""
    if directory.exists():
        descriptor = os.open(directory, os.O_RDONLY)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        os.close(descriptor)


def soaked(folder, rounds, operations):
    """Serve to the end through many kills; how many times the server was killed, from outside and at an operation."""
    plan, rng, kills = plan_for(blt(rounds), SEPARATION, noise_std=40.0), random.Random(rounds), Counter()
    for seed in range(100_000):
        if rng.random() < 0.25:
            pid = forked(lambda seed=seed: serve(folder, seed, plan))
            time.sleep(rng.random() * 2.0)
            os.kill(pid, signal.SIGKILL)
            code = ended(pid)
            wait_for_lock(folder / "s")
        else:
            at = rng.randrange(1, operations)
            code = ended(forked(lambda seed=seed, at=at: (dying(at), serve(folder, seed, plan))))
        if code == 0:
            return plan, kills
        assert code in (KILLED, -signal.SIGKILL), "the server failed by itself"
        kills[code] += 1
    raise AssertionError("no end")


def contributions(folder, record):
    """The clients whose reply reached the process that made the release; the others count as zero.

    That process is the last one that was started before the release was made.
    """
    names = {number: name for name, number in names_by_hand(folder / "s", folder / "c").items()}
    starts, pids, heard, sent = [], [], defaultdict(list), {}
    for line in (folder / "network").read_text().splitlines():
        pid, release, content = json.loads(line)
        if content == "start":
            starts.append(release)
            pids.append(pid)
        elif isinstance(content, int):
            heard[pid, release].append(names[content])
        else:
            assert sent.setdefault(release, content) == content, f"release {release} was broadcast with other bytes"
    assert starts == sorted(starts), "a release was lost"
    found = [heard[pids[bisect.bisect_right(starts, release) - 1], release] for release in range(len(record))]
    for release, present in enumerate(record):
        assert set(found[release]) <= set(present)
    return found


def check(folder, rounds, operations):
    plan, kills = soaked(folder, rounds, operations)
    record = record_by_hand(folder / "s")
    assert [len(present) for present in record] == [GOAL] * rounds, "a release is missing, or has the wrong size"
    expected = model_by_hand(folder / "s", folder / "c", plan, GOAL, updates(CLIENTS), contributions(folder, record))
    for found, wanted in zip(read_state(folder / "s").model.values(), expected, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-7, atol=GRID)
    SECRET.save(folder / "secret")
    script = Path(__file__).with_name("audit.py")
    audit = subprocess.run(
        [sys.executable, "-I", script, folder / "s", folder / "secret"], capture_output=True, text=True, check=True
    )
    by_hand, found = json.loads(audit.stdout), report(folder / "s", secret=SECRET)
    assert by_hand["releases"] == found.run.steps_run == rounds
    assert by_hand["clients"] == found.clients == len({client for present in record for client in present})
    assert found.achieved.separation == by_hand["separation"] >= SEPARATION
    assert found.achieved.max_participations == by_hand["participations"]
    assert found.guarantee.value == pytest.approx(by_hand["epsilon"], rel=1e-6)
    assert by_hand["epsilon of the densest client"] <= found.guarantee.value * (1 + 1e-9)
    assert sum(times * clients for times, clients in found.participations.items()) == GOAL * rounds
    assert found.counts["silent"] > rounds // 10
    node_kills = Counter((folder / "node-kills").read_text().split())
    return kills, node_kills, found


def test_a_short_soak(tmp_path):
    kills, node_kills, _ = check(tmp_path, rounds=60, operations=500)
    assert kills[KILLED] >= 3
    assert node_kills[str(KILLED)] >= 1


@pytest.mark.slow
def test_two_thousand_rounds(tmp_path):
    kills, node_kills, found = check(tmp_path, rounds=2000, operations=3000)
    assert found.clients == CLIENTS
    assert kills[KILLED] >= 20
    assert kills[-signal.SIGKILL] >= 3
    assert node_kills[str(KILLED)] >= 100
    print(f"server killed {kills}, nodes {node_kills}, epsilon {found.guarantee.value:.4f}, {found.counts}")


def test_the_audit_finds_what_was_changed(tmp_path):
    """It is no audit if it accepts everything: entries that are edited, cut off, or of another run."""
    from tests.flower.audit import audit
    from tests.flower.federation import federation, model, strategy

    for name in ("s", "other"):
        made = strategy(plan_for(blt(5), 2), tmp_path / name, goal=2, secret=None)
        made.start(federation(tmp_path / f"clients of {name}", 6), model(), timeout=0.1)
    assert audit(tmp_path / "s", tmp_path / "s" / "secret")["releases"] == 5
    with pytest.raises(AssertionError, match="heads"):
        audit(tmp_path / "s", tmp_path / "other" / "secret")
    path = tmp_path / "s" / "clients" / "private" / "ledger.jsonl"
    whole = path.read_bytes()
    for changed in (whole[:-200], whole.replace(b'"release":3', b'"release":4', 1)):
        path.write_bytes(changed)
        with pytest.raises(AssertionError, match="entries are missing"):
            audit(tmp_path / "s", tmp_path / "s" / "secret")
