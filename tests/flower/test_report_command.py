"""`antiphase report` and `antiphase verify` on a server's directory: the same facts in every format, no identities."""

import itertools
import json
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from html.parser import HTMLParser

import pytest

import antiphase as ap
from antiphase.flower import report
from tests.flower.federation import (
    Client,
    FakeGrid,
    blt,
    epsilon_by_hand,
    federation,
    ledger_entries,
    model,
    participation_by_hand,
    plan_for,
    record_by_hand,
    strategy,
    updates,
)
from tests.report.cases import command
from tests.stored.test_stored import copied, stored

STEPS, GOAL, SEPARATION, CLIENTS = 9, 3, 2, 8
DIES = 2  # the client that never sends an update


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """Nine releases; one client checks in and then says nothing; the directory keeps its own secret."""
    folder = tmp_path_factory.mktemp("served")
    clients = {
        100 + i: Client(folder / "c" / f"c{i}", u, tamper=(lambda message, reply: []) if i == DIES else None)
        for i, u in enumerate(updates(CLIENTS))
    }
    made = strategy(plan_for(blt(STEPS), SEPARATION), folder / "s", goal=GOAL, secret=None)
    made.start(FakeGrid(clients), model(), timeout=0.05)
    return folder


class Page(HTMLParser):
    """The sections and the tables of a page."""

    def __init__(self, text):
        super().__init__()
        self.sections, self.tables, self._tags = [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self._tags.append(tag)
        if tag == "section":
            self.sections.append(dict(attributes)["aria-labelledby"])
        if tag == "table":
            self.tables.append([])
        if tag == "tr" and self.tables:
            self.tables[-1].append([])
        if tag in ("td", "th"):
            self.tables[-1][-1].append("")

    def handle_endtag(self, tag):
        self._tags.append(f"/{tag}")

    def handle_data(self, data):
        if self._tags and self._tags[-1] in ("td", "th"):
            self.tables[-1][-1][-1] += data

    def table(self, *columns):
        return next(rows[1:] for rows in self.tables if rows[0] == list(columns))


def page_of(folder, *options):
    result = command("report", folder / "s", "--output", folder / "page.html", *options)
    assert result.exit_code == 0, result.stderr
    return (folder / "page.html").read_text()


def data_of(folder, *options):
    result = command("report", folder / "s", "--format", "json", *options)
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


def by_hand(folder):
    """Clients by number of participations, participations by gap, and epsilon, from the lines of the ledger."""
    record, times = record_by_hand(folder / "s"), {}
    for release, names in enumerate(record):
        for name in names:
            times.setdefault(name, []).append(release)
    gaps = Counter(b - a for steps in times.values() for a, b in itertools.pairwise(steps))
    gap, count = participation_by_hand(record)
    epsilon = epsilon_by_hand(blt(STEPS).encoder(), gap, count, 4.0, 1e-6)
    return Counter(len(steps) for steps in times.values()), gaps, epsilon


def test_json_has_what_the_ledger_says(served):
    data, (clients, gaps, epsilon) = data_of(served), by_hand(served)
    found = data["federated"]
    assert dict(found["clients_by_participations"]) == clients
    assert dict(found["participations_by_separation"]) == gaps
    assert found["clients_by_release"] == [GOAL] * STEPS
    assert data["guarantee"]["epsilon"] == pytest.approx(epsilon, rel=1e-6)
    enforced = epsilon_by_hand(blt(STEPS).encoder(), SEPARATION, 5, 4.0, 1e-6)
    assert found["epsilon_enforced"] == pytest.approx(enforced, rel=1e-6)
    entries = [entry for entry in ledger_entries(served / "s") if entry["kind"] == "release"]
    assert found["not_private"]["counts_by_release"] == [entry["counts"] for entry in entries]
    silent = sum(entry["counts"].get("silent", 0) for entry in entries)
    assert found["not_private"]["counts"]["silent"] == silent > 0


def test_the_page_has_releases_participations_and_drop_outs(served):
    page, (clients, gaps, epsilon) = Page(page_of(served)), by_hand(served)
    assert [s for s in page.sections if s in ("ran", "participation", "replies")] == ["ran", "participation", "replies"]
    assert {int(a): int(b) for a, b in page.table("participations", "clients")} == clients
    assert {int(a): int(b) for a, b in page.table("releases apart", "participations")} == gaps
    ran = {row[0]: row[1:] for row in page.table("", "planned", "ran")}
    assert ran["releases"] == [str(STEPS), str(STEPS)]
    assert ran["clients that took part"][1] == str(sum(clients.values()))
    stated = ran["epsilon at delta 1e-06, achieved participation"][1]
    assert float(stated.split()[0]) == pytest.approx(epsilon, abs=1e-3)
    replies = {row[0]: row[1:] for row in page.table("cause", "replies", "in releases", "meaning")}
    assert int(replies["silent"][0]) == report(served / "s").counts["silent"]
    assert "did not reply" in replies["silent"][2]


def test_no_identity_is_in_any_format(served):
    texts = [page_of(served), json.dumps(data_of(served)), command("report", served / "s", "--format", "md").stdout]
    names = {name for names in record_by_hand(served / "s") for name in names}
    pseudonyms = {json.loads(path.read_text())["client"] for path in (served / "c").glob("*/client.json")}
    assert len(names) == len(pseudonyms) == CLIENTS
    for text in texts:
        assert not any(name in text for name in names | pseudonyms)


@pytest.mark.parametrize("output", ["html", "md", "json"])
def test_counts_are_announced_and_can_be_left_out(served, output):
    options = ("--format", output, "--output", served / "out")
    for public in (False, True):
        assert command("report", served / "s", *options, *(["--public"] if public else [])).exit_code == 0
        text = (served / "out").read_text()
        assert ("no noise was added to them" in text) != public
        assert bool(re.search(r"\bsilent\b|\baccepted\b|checked-in", text)) != public
        assert "participations" in text


def test_markdown_has_the_statement(served):
    text = command("report", served / "s", "--format", "md").stdout
    for words in ("central", "Dropouts", "## Releases and participations", "## Drop-outs", "enforced by the server"):
        assert words in text


def test_devices_of_a_user(served, tmp_path):
    (clients, gaps, _), data = by_hand(served), data_of(served, "--devices-per-user", "3")
    group = epsilon_by_hand(blt(STEPS).encoder(), min(gaps), max(clients), 4.0 / 3, 1e-6)
    assert data["federated"]["epsilon_group"] == pytest.approx(group, rel=1e-6)
    plan_for(blt(3)).save(tmp_path / "plan.json")
    assert (
        "not the directory of a federated server"
        in command("report", tmp_path / "plan.json", "--devices-per-user", "3").stderr
    )


def test_verify_states_what_was_checked(served):
    result = command("verify", served / "s", "--json")
    assert result.exit_code == 0, result.stderr
    [facts] = json.loads(result.stdout)
    _, _, epsilon = by_hand(served)
    assert facts["verified"] is True
    assert facts["releases"] == f"{STEPS} of {STEPS}"
    assert facts["epsilon of what ran, achieved participation"] == pytest.approx(epsilon, rel=1e-6)
    assert facts["clients"] == CLIENTS
    assert f"{len(ledger_entries(served / 's'))} private entries" in facts["ledger"]
    assert "participation achieved" in command("verify", served / "s").stdout


def flip(path, at):
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


BROKEN = {
    "clients' ledger edited": lambda d: flip(d / "clients/private/ledger.jsonl", 400),
    "clients' ledger cut": lambda d: os.truncate(d / "clients/private/ledger.jsonl", 500),
    "run's ledger edited": lambda d: flip(d / "run/public/ledger.jsonl", 400),
    "state edited": lambda d: flip(d / "state.npz", (d / "state.npz").stat().st_size // 3),
    "state gone": lambda d: (d / "state.npz").unlink(),
    "secret gone": lambda d: (d / "secret").unlink(),
    "heads gone": lambda d: (d / "clients/private/heads").unlink(),
    "run gone": lambda d: shutil.rmtree(d / "run"),
}


@pytest.mark.parametrize("word", ["report", "verify"])
@pytest.mark.parametrize("case", BROKEN)
def test_a_directory_that_is_not_whole_and_authentic_is_refused(served, tmp_path, word, case):
    directory = shutil.copytree(served / "s", tmp_path / "s")
    BROKEN[case](directory)
    options = ("--output", tmp_path / "page.html") if word == "report" else ()
    result = command(word, directory, *options)
    assert result.exit_code == 1, case
    assert not (tmp_path / "page.html").exists()
    assert "hint:" in result.stderr


def test_an_older_state_file_is_refused(tmp_path):
    made = strategy(plan_for(blt(4), 1), tmp_path / "s", goal=2, secret=None)
    made.start(federation(tmp_path / "c", 4), model(), num_rounds=1)
    shutil.copy(tmp_path / "s" / "state.npz", tmp_path / "old")
    made.start(federation(tmp_path / "c", 4), model(), num_rounds=3)
    shutil.copy(tmp_path / "old", tmp_path / "s" / "state.npz")
    result = command("verify", tmp_path / "s")
    assert result.exit_code == 1
    assert "state file has 1 releases" in result.stderr


def test_nothing_is_changed_and_a_running_server_can_be_reported_on(tmp_path):
    made, seen = strategy(plan_for(blt(4), 1), tmp_path / "s", goal=2, secret=None), []

    def files():
        return {p: (p.read_bytes(), p.stat().st_mtime_ns) for p in (tmp_path / "s").rglob("*") if p.is_file()}

    def look(releases, arrays):
        before = files()
        for word in ("report", "verify"):
            options = ("--output", tmp_path / "page.html") if word == "report" else ()
            assert command(word, tmp_path / "s", *options).exit_code == 0
        assert files() == before
        seen.append(report(tmp_path / "s").run.steps_run)

    made.start(federation(tmp_path / "c", 4), model(), evaluate_fn=look)
    assert seen == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("word", ["report", "verify"])
def test_no_guarantee_for_a_simulation_with_scaled_noise(tmp_path, word):
    made = strategy(plan_for(blt(3), 1), tmp_path / "s", goal=100, simulated_goal=2, secret=None)
    made.start(federation(tmp_path / "c", 4), model())
    options = ("--format", "json") if word == "report" else ("--json",)
    text = command(word, tmp_path / "s", *options).stdout
    data = json.loads(text)
    if word == "report":
        assert data["guarantee"] is None
        assert data["headline"] == "No guarantee is stated for this run; the remarks say why."
        assert not {"delta", "steps"} & set(data["charts"])
        assert data["changes"] == []
    else:
        assert data[0]["epsilon of what ran, achieved participation"] is None
    assert "not private, and no guarantee can be stated" in text


def test_flower_need_not_be_installed(tmp_path):
    """A half-finished run of version 0.1.0, read in a process that cannot import flwr."""
    directory = copied(stored("0.1.0") / "frameworks" / "flower", tmp_path / "old") / "s"
    code = (
        "import sys; sys.modules['flwr'] = None\n"
        "from pathlib import Path\n"
        "import antiphase as ap\n"
        "from antiphase._report import gather, html, read\n"
        f"source = read(Path({str(directory)!r}), ap.Secret.insecure(5))\n"
        "print(len(html(gather(source))), source.federated.run.steps_run, source.federated.dropouts)\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    size, releases, dropouts = result.stdout.split()
    assert int(size) > 20_000
    assert (releases, dropouts) == ("3", "replace")


def test_a_record_that_breaks_the_rules_is_refused(served, tmp_path, monkeypatch):
    """As if the server had let a client in too soon: nothing is stated, whatever the ledger's codes say."""
    import antiphase._federated.reading as reading

    apart = ap.MinSeparation(SEPARATION + 1)
    monkeypatch.setattr(ap.MinSeparation, "spacing", lambda self, steps: apart.separation)
    gap, _ = participation_by_hand(record_by_hand(served / "s"))
    assert gap == SEPARATION
    with pytest.raises(ap.Corrupted, match="breaks the rules"):
        reading.read_federated(served / "s")
