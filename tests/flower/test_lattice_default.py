"""New runs are on a lattice by default: exact integers, the epsilon of the given plan, and what happens where not."""

import json
import logging
import math
import shutil
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
import scipy.optimize
import scipy.stats
from flwr.app import ArrayRecord

import antiphase as ap
from antiphase._federated import read_state
from antiphase.flower import SGD, report
from antiphase.flower._lattice_plan import on_lattice
from antiphase.flower._wire import ARRAYS, to_arrays
from tests.flower import kills
from tests.flower.federation import (
    SECRET,
    SHAPES,
    Client,
    FakeGrid,
    blt,
    failed,
    federation,
    ledger_entries,
    model,
    model_by_hand,
    names_by_hand,
    plan_for,
    record_by_hand,
    strategy,
    updates,
)
from tests.flower.kills import KILLED, dying, ended, forked

GOAL, ENTRIES = 4, 8
TREE = ap.strategies.Tree(8)
UNEVEN = ap.strategies.Banded([[1.0, 0.4], [0.8, 0.5], [0.9, 0.4], [1.0, 0.0]])


def header(directory):
    return json.loads((directory / "run" / "run.json").read_text())


def plan_of(directory):
    return ap.Plan.load(directory / "run" / "plan.json")


class Recording(SGD):
    """Keeps the mean updates that the server passes to its optimizer."""

    def step(self, release, model, update, state):
        self.seen.append({name: value.copy() for name, value in update.items()})
        return super().step(release, model, update, state)


def recording():
    made = object.__new__(Recording)
    SGD.__init__(made)
    object.__setattr__(made, "seen", [])
    return made


def in_integers(update, lattice, places):
    """The released integers: exact, since the number of places is a power of two and they have less than 53 bits."""
    found = [Fraction(float(x)) * places / Fraction(2) ** lattice.exponent for v in update for x in np.ravel(v)]
    assert all(x.denominator == 1 for x in found)
    return [int(x) for x in found]


def truncated(update, lattice):
    """Truncated towards zero in rational numbers; for updates that need no clipping."""
    units = [Fraction(float(x)) / Fraction(2) ** lattice.exponent for v in update for x in np.ravel(v)]
    found = [math.floor(x) if x >= 0 else math.ceil(x) for x in units]
    assert sum(x * x for x in found) <= lattice.norm**2
    return found


class Watched(Client):
    """Keeps the updates that it sends, by release."""

    def __init__(self, *args, **named):
        super().__init__(*args, **named)
        self.sent = {}
        self.tamper = self._keep

    def _keep(self, message, reply):
        self.sent[message.content["antiphase"]["release"]] = list(to_arrays(reply.content[ARRAYS]).values())
        return [reply]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    "chosen",
    [blt(), ap.strategies.Toeplitz([1.0, 0.5, 0.3], 12), ap.strategies.Toeplitz([2.0, 0.7], 12)],
    ids=["blt", "toeplitz", "other diagonal"],
)
def test_releases_are_exact_integer_sums_and_the_integers_of_the_noise(tmp_path, chosen, dtype):
    plan, seen = plan_for(chosen), recording()
    watched = {i: Watched(tmp_path / "clients" / f"c{i}", u) for i, u in enumerate(updates(13, scale=0.1))}
    strategy(plan, tmp_path / "server", optimizer=seen).start(FakeGrid(watched), model(dtype))
    ran, directory = plan_of(tmp_path / "server"), tmp_path / "server"
    lattice, names = ran.mechanism.lattice, names_by_hand(directory, tmp_path / "clients")
    stream = ap.NoiseStream(ran, dict(zip(model(), SHAPES.values(), strict=True)), SECRET, header(directory)["run_id"])
    assert header(directory)["dtype"] == "int64"
    assert lattice.entries == ENTRIES
    for release, present in enumerate(record_by_hand(directory)):
        wanted = [int(x) for part in stream.next() for x in np.ravel(part)]
        for name in present:
            part = truncated(watched[names[name]].sent[release], lattice)
            wanted = [a + b for a, b in zip(wanted, part, strict=True)]
        assert in_integers(seen.seen[release].values(), lattice, GOAL) == wanted
    assert release == plan.steps - 1


def delta_of(mu, epsilon):
    a, b = mu / 2 - epsilon / mu, -mu / 2 - epsilon / mu
    return scipy.stats.norm.cdf(a) - np.exp(epsilon) * scipy.stats.norm.cdf(b)


def epsilon_of_lattice(plan, separation, count, factor, rows):
    """From the theorem: ||C dx|| over all patterns of the rounded C, plus K sqrt(d R) units, over an integer sigma."""
    lattice, steps = plan.mechanism.lattice, plan.steps
    gram = (c := plan.mechanism.strategy.encoder()).T @ c
    patterns = [list(range(first, steps, separation))[:count] for first in range(steps)]  # C is decreasing
    worst = max(math.sqrt(gram[np.ix_(p, p)].sum()) for p in patterns)
    sigma = math.ceil(Fraction(plan.mechanism.noise_std) * lattice.norm)
    mu = (worst * lattice.norm + factor * math.sqrt(lattice.entries * rows)) / sigma
    return scipy.optimize.brentq(lambda epsilon: delta_of(mu, epsilon) - 1e-6, 0.0, 500.0, xtol=1e-12)


@pytest.mark.parametrize("parameters", [ENTRIES, 6_400_000])
@pytest.mark.parametrize(
    ("chosen", "factor", "rows"),
    [
        (ap.strategies.Toeplitz([2.0, 0.9, 0.5], 12), 1.0, 4 * 2),
        (ap.strategies.Identity(12), 1.0, 0),
        (blt(), None, 11),
    ],
)
def test_epsilon_is_that_of_the_given_plan_and_of_the_theorem(parameters, chosen, factor, rows):
    plan = plan_for(chosen)
    ran = on_lattice(plan, parameters, GOAL)
    strategy, lattice = ran.mechanism.strategy, ran.mechanism.lattice
    assert lattice.entries == parameters
    if factor is None:
        weight = sum(abs(s) * min(12, 1 / (1 - d)) for s, d in zip(strategy.scale, strategy.decay, strict=True))
        factor = 1.0 + weight * 2.0**-lattice.fraction_bits
    by_hand = epsilon_of_lattice(ran, 3, 4, factor, rows)
    assert by_hand <= ran.guarantee.value <= by_hand * (1 + 1e-7)
    assert plan.guarantee.value * (1 - 1e-7) <= ran.guarantee.value <= plan.guarantee.value
    # What the rounding costs: with the noise of the given plan, epsilon would be too large.
    diagonal = chosen.encoder()[0, 0]
    plain = plan.mechanism.noise_std / diagonal
    assert plain < ran.mechanism.noise_std < plain * (1 + 1e-5)
    assert ran.problem == replace(plan.problem, lattice=True, parameters=parameters)


def test_the_report_says_which_kind_of_noise_ran(tmp_path):
    strategy(plan_for(blt(3)), tmp_path / "exact").start(federation(tmp_path / "a", 13), model())
    found = report(tmp_path / "exact", secret=SECRET)
    assert found.exact
    assert found.no_lattice == ""
    assert "Arithmetic: lattice noise. Noise and sums are exact integers" in found.statement
    assert found.run.guarantee.value <= plan_for(blt(3)).guarantee.value
    server = strategy(plan_for(blt(3)), tmp_path / "rounded", lattice=False)
    server.start(federation(tmp_path / "b", 13), model())
    found = report(tmp_path / "rounded", secret=SECRET)
    assert not found.exact
    assert "does not cover what the exact bits of a model may reveal" in found.statement
    assert "not on a lattice: the server was started with lattice=False." in found.statement
    assert server.plan.mechanism.lattice is None


@pytest.mark.parametrize(
    ("chosen", "why"),
    [(TREE, "There is no lattice noise for this Tree"), (UNEVEN, "Lattice noise needs a C with ones on its diagonal")],
)
def test_a_strategy_without_lattice_noise_falls_back_and_says_so(tmp_path, caplog, chosen, why):
    plan = plan_for(chosen, separation=2)
    with caplog.at_level(logging.INFO, "flwr"):
        result = strategy(plan, tmp_path / "s").start(federation(tmp_path / "c", 13), model())
    assert f"floating point, so the exact bits of models are not covered. {why}" in caplog.text
    assert "Noise: floating point" in caplog.text
    assert header(tmp_path / "s")["dtype"] == "float64"
    found = report(tmp_path / "s", secret=SECRET)
    assert not found.exact
    assert f"not on a lattice: {why}" in found.statement
    expected = model_by_hand(tmp_path / "s", tmp_path / "c", plan, GOAL, updates(13))
    for made, wanted in zip(result.arrays.to_numpy_ndarrays(), expected, strict=True):
        np.testing.assert_allclose(made, wanted, rtol=1e-7, atol=1e-9)
    # The reason is recorded once; a restarted server does not repeat it, and does not take it for another setting.
    strategy(plan, tmp_path / "s").start(federation(tmp_path / "c", 13), model())
    assert [entry["kind"] for entry in ledger_entries(tmp_path / "s")].count("open") == 1


def test_what_cannot_be_exact_is_refused_by_name_if_it_was_asked_for(tmp_path):
    with pytest.raises(ap.NotProved, match="no lattice noise for this Tree"):
        strategy(plan_for(TREE, separation=2), tmp_path / "s", lattice=True)
    wide = plan_for(blt(), clip=1e250)
    with pytest.raises(ap.NotProved, match=r"clipping norms above 1e[+]200"):
        strategy(wide, tmp_path / "s", lattice=True).start(federation(tmp_path / "c", 13), model())
    assert not (tmp_path / "s").exists()
    strategy(wide, tmp_path / "s").start(federation(tmp_path / "c", 13), model(), num_rounds=1)
    assert header(tmp_path / "s")["dtype"] == "float64"
    exact = on_lattice(plan_for(blt()), ENTRIES, GOAL)
    with pytest.raises(ap.InvalidArgument, match="lattice=False, but the plan has a lattice"):
        strategy(exact, tmp_path / "t", lattice=False)
    with pytest.raises(ap.InvalidArgument, match="True, False or None"):
        strategy(plan_for(blt()), tmp_path / "t", lattice="yes")


def test_sums_that_may_not_fit_are_not_made_on_a_lattice():
    with pytest.raises(ap.NotProved, match="may not fit"):
        on_lattice(plan_for(blt()), ENTRIES, 1 << 40)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_run_that_began_in_floating_point_stays_there(tmp_path, dtype):
    """The second process is one of a version that would begin a new run on a lattice."""
    plan, directory = plan_for(blt()), tmp_path / "s"
    strategy(plan, directory, lattice=False).start(federation(tmp_path / "c", 13), model(dtype), num_rounds=5)
    shutil.copytree(directory, tmp_path / "copy")
    for place, options in ((directory, {}), (tmp_path / "copy", {"lattice": False})):
        clients = tmp_path / f"clients-{place.name}"
        shutil.copytree(tmp_path / "c", clients)
        result = strategy(plan, place, **options).start(federation(clients, 13), model(dtype))
        assert header(place)["dtype"] == dtype
        expected = model_by_hand(place, clients, plan, GOAL, updates(13))
        for made, wanted in zip(result.arrays.to_numpy_ndarrays(), expected, strict=True):
            np.testing.assert_allclose(made, wanted, rtol=1e-4, atol=1e-4 if dtype == "float32" else 1e-9)
    with pytest.raises(ap.InvalidArgument, match=r"lattice=True, but the run in this directory .* in floating point"):
        strategy(plan, directory, lattice=True).start(federation(tmp_path / "c", 13), model(dtype))


def test_a_run_on_a_lattice_stays_there(tmp_path):
    plan, directory = plan_for(blt()), tmp_path / "s"
    strategy(plan, directory).start(federation(tmp_path / "c", 13), model(), num_rounds=2)
    stored = (directory / "run" / "plan.json").read_bytes()
    strategy(plan, directory).start(federation(tmp_path / "c", 13), model(), num_rounds=4)
    strategy(plan, directory, lattice=True).start(federation(tmp_path / "c", 13), model(), num_rounds=5)
    strategy(plan_of(directory), directory).start(federation(tmp_path / "c", 13), model(), num_rounds=6)  # its own plan
    assert (directory / "run" / "plan.json").read_bytes() == stored
    with pytest.raises(ap.InvalidArgument, match=r"lattice=False, but the run in this directory .* on a lattice"):
        strategy(plan, directory, lattice=False).start(federation(tmp_path / "c", 13), model())
    for other in (
        plan_for(blt(), noise_std=4.0 * (1 + 1e-6)),
        plan_for(blt(), noise_std=8.0),
        plan_for(ap.strategies.BLT([0.9, 0.5], [0.1, 0.2 + 1e-6], 12)),
        plan_for(blt(), separation=4),
        plan_for(blt(), unit="device"),
    ):
        with pytest.raises(ap.InvalidArgument, match="created for a different plan"):
            strategy(other, directory).start(federation(tmp_path / "c", 13), model())
    # Another machine may compute another last bit of the sensitivity: the run goes on with its own noise.
    near = plan_for(blt(), noise_std=np.nextafter(4.0, 5.0))
    strategy(near, directory).start(federation(tmp_path / "c", 13), model(), num_rounds=7)
    assert (directory / "run" / "plan.json").read_bytes() == stored


def test_a_run_on_a_lattice_is_extended_twice(tmp_path):
    plan, directory = plan_for(blt(4)), tmp_path / "s"
    strategy(plan, directory).start(federation(tmp_path / "c", 13), model(), num_rounds=3)
    noise = plan_of(directory).mechanism.noise_std
    for steps in (7, 9):
        strategy(plan.extend(steps), directory).start(federation(tmp_path / "c", 13), model(), num_rounds=steps - 1)
        ran = plan_of(directory)
        assert ran.steps == steps
        assert ran.mechanism.noise_std == noise
    result = strategy(plan.extend(9), directory).start(federation(tmp_path / "c", 13), model())
    expected = model_by_hand(directory, tmp_path / "c", plan.extend(9), GOAL, updates(13))
    for made, wanted in zip(result.arrays.to_numpy_ndarrays(), expected, strict=True):
        np.testing.assert_allclose(made, wanted, rtol=1e-7, atol=1e-7)
    with pytest.raises(ap.InvalidArgument, match=r"created for a different plan|not an extension"):
        strategy(plan_for(blt(4), noise_std=5.0).extend(12), directory).start(federation(tmp_path / "c", 13), model())


def test_a_smaller_separation_costs_no_more_than_in_floating_point(tmp_path):
    plan = plan_for(ap.strategies.Toeplitz([1.0, 0.5, 0.3], 12), separation=4, count=3)
    exact = strategy(plan, tmp_path / "s", separation=1)
    exact.start(federation(tmp_path / "c", 40), model())
    rounded = strategy(plan, tmp_path / "t", separation=1, lattice=False)
    assert exact.plan.mechanism.lattice is not None
    assert exact.plan.guarantee.value <= rounded.plan.guarantee.value
    planned = replace(exact.plan.mechanism, participation=plan.mechanism.participation)
    assert ap.epsilon(planned, 1e-6).value <= plan.guarantee.value
    found = report(tmp_path / "s", secret=SECRET)
    assert found.run.guarantee.value == pytest.approx(exact.plan.guarantee.value, rel=1e-9)


def test_a_simulation_scales_lattice_noise(tmp_path):
    plan = plan_for(blt(3), separation=1)
    small = strategy(plan, tmp_path / "s", goal=40, simulated_goal=4)
    small.start(federation(tmp_path / "c", 4), model())
    full = on_lattice(plan, ENTRIES, 4).mechanism.noise_std
    assert plan_of(tmp_path / "s").mechanism.noise_std == pytest.approx(full / 10, rel=1e-12)
    assert report(tmp_path / "s", secret=SECRET).guarantee is None


def test_dropouts_add_nothing_to_the_integers(tmp_path):
    """Half of the cohort fails, is silent or sends garbage: the release has the integers of the others."""
    plan, seen = plan_for(ap.strategies.Identity(1), separation=1), recording()
    given = updates(4, scale=0.1)
    watched = {0: Watched(tmp_path / "c0", given[0]), 1: Watched(tmp_path / "c1", given[1])}
    fails = Client(tmp_path / "c2", given[2], tamper=lambda message, reply: [failed(message)])
    silent = Client(tmp_path / "c3", given[3], tamper=lambda message, reply: [])
    grid = FakeGrid({**watched, 2: fails, 3: silent})
    strategy(plan, tmp_path / "s", optimizer=seen).start(grid, model(), timeout=0.1)
    ran = plan_of(tmp_path / "s")
    stream = ap.NoiseStream(
        ran, dict(zip(model(), SHAPES.values(), strict=True)), SECRET, header(tmp_path / "s")["run_id"]
    )
    wanted = [int(x) for part in stream.next() for x in np.ravel(part)]
    for client in watched.values():
        wanted = [a + b for a, b in zip(wanted, truncated(client.sent[0], ran.mechanism.lattice), strict=True)]
    assert in_integers(seen.seen[0].values(), ran.mechanism.lattice, 4) == wanted
    assert len(record_by_hand(tmp_path / "s")[0]) == 4


STEPS, CLIENTS = 4, 12
KILL_PLAN = plan_for(blt(STEPS))


def halfway(count, seed=0, scale=1.0):
    """Updates halfway between grid points, so that the rounding of the client's subtraction does not matter."""
    rng, lattice = np.random.default_rng(7), on_lattice(KILL_PLAN, ENTRIES, GOAL).mechanism.lattice
    whole = [[rng.integers(0, lattice.norm // 8, shape) for shape in SHAPES.values()] for _ in range(count)]
    return [[lattice.grid * (part + 0.5) for part in update] for update in whole]


def exact_model(folder):
    """The model's bits: integer sums of the recorded clients plus the noise, and one float operation per release."""
    directory, ran = folder / "s", plan_of(folder / "s")
    lattice, names = ran.mechanism.lattice, names_by_hand(directory, folder / "c")
    leaves = dict(zip(model(), SHAPES.values(), strict=True))
    stream = ap.NoiseStream(ran, leaves, SECRET, header(directory)["run_id"])
    total, given = [np.zeros(shape) for shape in SHAPES.values()], halfway(CLIENTS)
    for present in record_by_hand(directory):
        released = stream.next()
        for name in present:
            parts = [np.floor(part / lattice.grid).astype(np.int64) for part in given[names[name]]]
            released = [a + b for a, b in zip(released, parts, strict=True)]
        total = [a + lattice.grid * b.astype(np.float64) / GOAL for a, b in zip(total, released, strict=True)]
    return total


def kill_points(rng):
    return [1, *sorted(rng.choice(np.arange(2, 90), 7, replace=False).tolist())]


@pytest.mark.parametrize("at", kill_points(np.random.default_rng(5)))
def test_a_killed_server_continues_with_the_same_bits(tmp_path, monkeypatch, at):
    monkeypatch.setattr(kills, "updates", halfway)
    options = {"plan": KILL_PLAN, "goal": GOAL, "clients": CLIENTS, "flaky": False}
    assert ended(forked(lambda: (dying(at), kills.serve_all(tmp_path, at, **options)))) in (0, KILLED)
    assert ended(forked(lambda: kills.serve_all(tmp_path, at + 1, **options))) == 0
    for found, wanted in zip(read_state(tmp_path / "s").model.values(), exact_model(tmp_path), strict=True):
        assert found.tobytes() == wanted.tobytes()
    assert report(tmp_path / "s", secret=SECRET).exact


def test_models_of_other_dtypes_are_refused(tmp_path):
    for dtype in ("float16", "int64"):
        start = ArrayRecord([np.zeros(shape, dtype) for shape in SHAPES.values()])
        with pytest.raises(ap.InvalidArgument, match="must be float32 or float64"):
            strategy(plan_for(blt()), tmp_path / "s").start(federation(tmp_path / "c", 13), start)
