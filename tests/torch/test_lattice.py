"""Lattice noise in PyTorch: contributions, sums and releases are exactly the integers of the privacy proof.

The expected values come from rational arithmetic and from the public noise stream. Most tests use the model `Given`,
for which the gradient of an example is the example itself.
"""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.utils.data import Dataset, TensorDataset

import antiphase as ap
import antiphase.torch
from antiphase._report.reading import ReportSource
from antiphase._report.statement import statement
from antiphase.strategies import BLT, BandedInverse, Identity, Stamped, Toeplitz
from antiphase.torch._lattice import LatticeClipping, set_released
from antiphase.torch._noise_adder import NoiseAdder
from tests.torch import statistics
from tests.torch.training import (
    EXAMPLES,
    HOOKS,
    SECRET,
    STEPS,
    data,
    epochs_of,
    lattice_plan_for,
    network,
    private,
    record,
    run,
    train,
)

pytestmark = [pytest.mark.filterwarnings(HOOKS), pytest.mark.usefixtures("same_run_id")]
WIDTH = 10
CLIP = 0.7


class Given(nn.Module):
    """A linear model with 6 and 4 weights. The gradient of an example for the loss `total` is the example itself."""

    def __init__(self, dtype):
        super().__init__()
        self.first, self.second = nn.Linear(6, 1, bias=False), nn.Linear(4, 1, bias=False)
        self.to(dtype)

    def forward(self, x):
        return self.first(x[:, :6]) + self.second(x[:, 6:])


def total(output, *_):
    return output.sum()


def given_plan(strategy=None, **options):
    strategy = Toeplitz([1.0, 0.5, 0.25], STEPS) if strategy is None else strategy
    return lattice_plan_for(strategy, WIDTH, clip_norm=CLIP, **options)


def by_hand(example, lattice):
    """Return the contribution of an example in exact arithmetic: S g / max(|g|, S), truncated towards zero.

    Here g is the example in units of the lattice, and S is the largest norm on the lattice.
    """
    numbers = [float(x) for x in example]
    if not all(map(math.isfinite, numbers)):
        return [0] * len(numbers)
    units = [Fraction(x) / Fraction(2) ** lattice.exponent for x in numbers]
    square = sum(x * x for x in units)
    if square <= lattice.norm**2:
        return [math.trunc(x) for x in units]
    return [(1 if x > 0 else -1) * math.isqrt(math.floor(x * x * lattice.norm**2 / square)) for x in units]


def integers(tensors):
    return [int(x) for tensor in tensors for x in tensor.reshape(-1)]


def watch(monkeypatch):
    """Return two lists that will receive all contributions, and the sums of each step before noise is added."""
    contributions, sums = [], []
    take, release = LatticeClipping.take, NoiseAdder._release_for_engine

    def taken(self):
        found = take(self)
        contributions.append(integers(found.sums))
        return found

    def released(self, given, lattice):
        sums.append(integers(given))
        release(self, given, lattice)

    monkeypatch.setattr(LatticeClipping, "take", taken)
    monkeypatch.setattr(NoiseAdder, "_release_for_engine", released)
    return contributions, sums


def rows_of_every_kind(dtype):
    """Return rows with norms that are small, large, extreme, equal to the clipping norm, or not finite."""
    random = np.random.default_rng(3)
    rows = [scale * random.standard_normal(WIDTH) for scale in (0.01, 0.1, 0.2, 0.3, 1.0, 50.0, 1e30, 1e-30, 1e-12)]
    rows += [random.standard_normal(WIDTH) * 10.0 ** random.uniform(-4, 4, WIDTH) for _ in range(12)]
    rows += [np.zeros(WIDTH), np.eye(WIDTH)[3] * CLIP, -np.eye(WIDTH)[8] * CLIP * 1.01, np.full(WIDTH, CLIP / 10**0.5)]
    rows += [np.where(np.arange(WIDTH) == 7, bad, 0.1) for bad in (np.nan, np.inf, -np.inf)]
    largest, smallest = torch.finfo(dtype).max, torch.finfo(dtype).tiny
    rows += [np.full(WIDTH, largest), np.full(WIDTH, smallest)]
    rows += [random.standard_normal(WIDTH) * 0.2 for _ in range(EXAMPLES - len(rows))]
    return torch.tensor(np.array(rows)).to(dtype)


def given_data(rows):
    return TensorDataset(rows, torch.zeros(len(rows)))


def contributions_of(tmp_path, monkeypatch, rows, plan, **options):
    """Train, and return the contribution of each row by its index, the sums of the steps, and their batches."""
    made, sums = watch(monkeypatch)
    engine, module, optimizer, _, loader = private(
        tmp_path, plan, Given(rows.dtype), lr=0.0, dataset=given_data(rows), loss_reduction="sum", **options
    )
    train(module, optimizer, total, loader, epochs_of(plan, loader))
    batches = [engine.noise.batch(t).indices[engine.noise.batch(t).mask].tolist() for t in range(plan.steps)]
    engine.close()
    order = [i for batch in batches for i in batch]
    assert len(order) == len(made)
    return dict(zip(order, made, strict=True)), sums, batches


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_contributions_and_sums_are_those_of_exact_arithmetic(tmp_path, monkeypatch, dtype):
    rows, plan = rows_of_every_kind(dtype), given_plan()
    lattice = plan.mechanism.lattice
    made, sums, batches = contributions_of(tmp_path, monkeypatch, rows, plan)
    assert sorted(made) == list(range(EXAMPLES))
    for i, found in made.items():
        wanted = by_hand(rows[i], lattice)
        assert sum(x * x for x in found) <= lattice.norm**2
        is_clipped = sum(x * x for x in wanted) > (0.999 * lattice.norm) ** 2
        # The clipping factor of a long gradient is a float64, so that an entry may be one unit shorter.
        assert max(abs(a - b) for a, b in zip(found, wanted, strict=True)) <= (1 if is_clipped else 0), i
    for found, batch in zip(sums, batches, strict=True):
        assert found == [sum(column) for column in zip(*(made[i] for i in batch), strict=True)]


def rows_on_the_limit(lattice, count):
    """Return points of the lattice whose squared norms slightly exceed S^2, but are at most S^2 in float64."""
    random, rows = np.random.default_rng(1), []
    while len(rows) < count:
        row = [int(x) for x in random.integers(0, lattice.norm // 4, WIDTH)]
        rest = lattice.norm**2 - sum(x * x for x in row[:-3])
        for place in (-3, -2):
            row[place] = math.isqrt(rest)
            rest -= row[place] ** 2
        row[-1] = math.isqrt(rest) + 1
        if float(np.linalg.norm(np.array(row, dtype=np.float64))) <= lattice.norm:
            rows.append([math.ldexp(x, lattice.exponent) for x in row])
    return torch.tensor(rows, dtype=torch.float64)


def long_rows(made, lattice):
    return [i for i, found in made.items() if sum(x * x for x in found) > lattice.norm**2]


def test_norms_that_floating_point_takes_for_right_are_shrunk(tmp_path, monkeypatch):
    plan = given_plan()
    lattice = plan.mechanism.lattice
    rows = rows_on_the_limit(lattice, EXAMPLES)
    made, _, _ = contributions_of(tmp_path, monkeypatch, rows, plan)
    assert not long_rows(made, lattice)
    assert all(sum(x * x for x in found) > 0.999999 * lattice.norm**2 for found in made.values())


def test_a_norm_that_is_not_checked_is_noticed(tmp_path, monkeypatch):
    """The same rows, with contributions whose norm was computed in float64."""

    def unchecked(self, arrays):
        given = [np.asarray(array, np.float64) for array in arrays]
        norm = math.sqrt(sum(float((array**2).sum()) for array in given))
        factor = min(1 / self.grid, self.norm / norm)
        return [np.trunc(array * factor).astype(np.int64) for array in given]

    monkeypatch.setattr(ap.Lattice, "contribution", unchecked)
    plan = given_plan()
    lattice = plan.mechanism.lattice
    made, _, _ = contributions_of(tmp_path, monkeypatch, rows_on_the_limit(lattice, EXAMPLES), plan)
    assert len(long_rows(made, lattice)) > EXAMPLES / 2


def test_per_layer_norms_are_clipped_too(tmp_path, monkeypatch):
    rows, plan = rows_of_every_kind(torch.float32), given_plan()
    lattice, norms = plan.mechanism.lattice, [0.6 * CLIP, 0.8 * CLIP]
    made, _, _ = contributions_of(tmp_path, monkeypatch, rows, plan, clipping="per_layer", clip_norms=norms)
    for i, found in made.items():
        assert sum(x * x for x in found) <= lattice.norm**2
        for part, row, norm in ((found[:6], rows[i, :6], norms[0]), (found[6:], rows[i, 6:], norms[1])):
            length = math.sqrt(sum(x * x for x in part)) * lattice.grid
            assert length <= norm * (1 + 1e-9)
            if rows[i].isfinite().all():
                assert length == pytest.approx(min(norm, float(row.double().norm())), rel=1e-4, abs=1e-9)
            else:
                assert length == 0.0


STRATEGIES = [
    Identity(STEPS),
    Toeplitz([1.0, 0.5, 0.25], STEPS),
    BLT([0.9, 0.5], [0.3, 0.2], STEPS),
    BandedInverse.square_root(3, STEPS),
    Stamped(Toeplitz([1.0, 0.5], 4), 3),
]


@pytest.mark.parametrize(
    ("strategy", "options"),
    [*((s, {}) for s in STRATEGIES), (STRATEGIES[0], {"participation": ap.Poisson(0.03)})],
    ids=["identity", "toeplitz", "blt", "banded inverse", "stamped", "empty batches"],
)
@pytest.mark.parametrize("physical", [None, 4])
def test_releases_are_exact_sums_plus_the_integers_of_the_noise_stream(tmp_path, strategy, options, physical):
    """In float64, gradients hold the released integers exactly; no example is long enough to be clipped."""
    plan = given_plan(strategy, **options)
    lattice = plan.mechanism.lattice
    rows = torch.tensor(np.random.default_rng(0).standard_normal((EXAMPLES, WIDTH)) * 0.05)
    assert float(rows.norm(dim=1).max()) < CLIP
    engine, module, optimizer, _, loader = private(
        tmp_path, plan, Given(torch.float64), dataset=given_data(rows), loss_reduction="sum"
    )
    gradients = record(optimizer)
    train(module, optimizer, total, loader, epochs_of(plan, loader), physical)
    assert len(gradients) == plan.steps
    stream = ap.NoiseStream(plan, {"0": (6,), "1": (4,)}, SECRET, engine.noise.run_id)
    sizes = []
    for step, gradient in enumerate(gradients):
        indices, mask = engine.noise.batch(step)
        noise = [int(x) for part in stream.next() for x in part]
        parts = [by_hand(rows[i], lattice) for i in indices[mask]]
        wanted = [sum(column) + n for *column, n in zip(*parts, noise, strict=True)]
        assert [Fraction(float(x)) / Fraction(2) ** lattice.exponent for x in gradient] == wanted
        sizes.append(len(parts))
    assert (0 in sizes) == ("participation" in options)
    report = engine.report()
    assert (report.steps_run, report.rewinds) == (plan.steps, 0)
    assert report.guarantee.value <= plan.guarantee.value
    engine.close()
    assert "made in exact integers" in str(dict(statement(ReportSource(plan, report))))


def test_the_contribution_of_an_example_depends_on_no_other(tmp_path, monkeypatch):
    """If an example is replaced, only its own contribution changes, and the sum by at most twice the norm."""
    plan, before = lattice_plan_for(participation=ap.MinSeparation(2)), data()
    lattice = plan.mechanism.lattice
    x, y = (t.clone() for t in before.tensors)
    x *= torch.logspace(-3, 3, EXAMPLES)[:, None]
    made, sums, batches = {}, {}, {}
    smaller = lattice_plan_for(participation=ap.MinSeparation(10))
    for name, wanted in (("before", plan), ("after", plan), ("smaller", smaller)):
        points = x.clone()
        if name == "after":
            points[3] = -1e4
        with monkeypatch.context() as patch:
            contributions, totals = watch(patch)
            engine, module, optimizer, criterion, loader = private(
                tmp_path / name, wanted, lr=0.0, dataset=TensorDataset(points, y)
            )
            train(module, optimizer, criterion, loader, 1)
            found = [engine.noise.batch(t) for t in range(len(loader))]
            engine.close()
        batches[name] = [indices[mask].tolist() for indices, mask in found]
        order = [i for batch in batches[name] for i in batch]
        made[name], sums[name] = dict(zip(order, contributions, strict=True)), totals
    assert len(batches["before"][0]) == 20
    assert len(batches["smaller"][0]) == 4
    assert {i: c for i, c in made["before"].items() if i != 3} == {i: c for i, c in made["after"].items() if i != 3}
    assert made["before"] == made["smaller"]  # the size of the batch changes nothing either
    longest = max(sum(c * c for c in found) for found in made["before"].values())
    assert 0.999999 * lattice.norm**2 < longest <= lattice.norm**2  # the limit is reached
    for a, b, batch in zip(sums["before"], sums["after"], batches["before"], strict=True):
        difference = [p - q for p, q in zip(a, b, strict=True)]
        assert any(difference) == (3 in batch)
        assert sum(d * d for d in difference) <= 4 * lattice.norm**2
        without = [p - q for p, q in zip(a, made["before"][batch[0]], strict=True)]
        assert without == [sum(c) for c in zip(*(made["before"][i] for i in batch[1:]), strict=True)]


class Lengths(Dataset):
    """A dataset of rows of several lengths, drawn from the global random generator, which all examples share."""

    def __init__(self, lengths):
        self.lengths = lengths

    def __len__(self):
        return len(self.lengths)

    def __getitem__(self, i):
        return torch.rand(self.lengths[i]), torch.zeros(())


class Masks(nn.Module):
    """A model in which the gradient of an example is its dropout mask.

    The length of an example determines how many random numbers its dropout draws.
    """

    def __init__(self):
        super().__init__()
        self.drop, self.last = nn.Dropout(0.5), nn.Linear(53, 1, bias=False)

    def forward(self, x):
        return self.last(self.drop(torch.ones(len(x), x.shape[1], 53))[:, 0] * (1.0 + x[:, :1]))


@pytest.mark.parametrize("workers", [0, 1])
def test_the_random_numbers_of_an_example_depend_on_no_other(tmp_path, monkeypatch, workers):
    """Even with a known seed. If an example gets shorter, so that it takes fewer numbers, only its own masks change."""
    plan = lattice_plan_for(participation=ap.MinSeparation(2), clip_norm=0.02)
    lengths, made, sums = [20] * EXAMPLES, {}, {}
    if workers:  # its items would take the numbers of a process that loads several examples
        monkeypatch.setattr(Lengths, "__getitem__", lambda self, i: (torch.ones(self.lengths[i]), torch.zeros(())))
    for name in ("before", "after", "again"):
        with monkeypatch.context() as patch:
            contributions, totals = watch(patch)
            engine, module, optimizer, _, loader = private(
                tmp_path / name,
                plan,
                Masks(),
                lr=0.0,
                dataset=Lengths(lengths),
                loader_options={"num_workers": workers},
            )
            torch.manual_seed(len(made) // 2)  # the same for the first two
            train(module, optimizer, total, loader, 2)
            batches = [engine.noise.batch(t) for t in range(2 * len(loader))]
            engine.close()
        order = [(t, int(i)) for t, (indices, mask) in enumerate(batches) for i in indices[mask]]
        made[name], sums[name] = dict(zip(order, contributions, strict=True)), totals
        victim = order[0][1]
        lengths[victim] = 7
    others = {name: {key: c for key, c in found.items() if key[1] != victim} for name, found in made.items()}
    assert others["before"] == others["after"]
    assert made["after"] == made["again"]  # the seed of the program does not matter
    assert made["before"][order[0]] != made["before"][order[1]]
    assert len({tuple(c) for c in made["before"].values()}) == len(order)  # every example and step has its own mask
    limit = 4 * plan.mechanism.lattice.norm**2
    for a, b in zip(sums["before"], sums["after"], strict=True):
        assert sum((p - q) ** 2 for p, q in zip(a, b, strict=True)) <= limit


class Annealed(nn.Module):
    """A model with a temperature or a counter that each forward pass may change."""

    def __init__(self, how):
        super().__init__()
        self.register_buffer("temperature", torch.ones(()), persistent=how != "not stored")
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))
        self.register_buffer("first", None)
        self.inner, self.how = network(), how

    def forward(self, x):
        if self.training and self.how in ("in place", "not stored"):
            self.temperature.mul_(0.9)
        elif self.training and self.how == "data":
            self.temperature.data.mul_(0.9)
        elif self.training and self.how == "replaced":
            self.temperature = self.temperature * 0.9
        elif self.training and self.how == "integers":
            self.count += 1
        elif self.training and self.how == "created" and self.first is None:
            self.first = x.mean().detach()
        return self.inner(x) * self.temperature * 0.9**self.count * (1 if self.first is None else self.first)


@pytest.mark.parametrize("how", ["in place", "data", "replaced", "not stored", "integers", "created"])
def test_a_state_that_every_pass_changes_is_refused(tmp_path, how):
    """Otherwise, equal examples would have different contributions, depending on their places in the batch."""
    engine, module, optimizer, criterion, loader = private(tmp_path, lattice_plan_for(), Annealed(how))
    name = {"integers": "count", "created": "first"}.get(how, "temperature")
    with pytest.raises(ap.Refused, match=rf"^'{name}', which is not trained, was changed .* of step 0"):
        train(module, optimizer, criterion, loader, 1)
    engine.close()


def test_a_state_that_changes_between_steps_is_allowed(tmp_path):
    plan = lattice_plan_for()
    engine, module, optimizer, criterion, loader = private(tmp_path, plan, Annealed(None))
    steps = record(optimizer)
    optimizer.original_optimizer.register_step_post_hook(lambda *_: module._module.temperature.mul_(0.9))
    train(module, optimizer, criterion, loader, epochs_of(plan, loader))
    assert len(steps) == plan.steps
    engine.close()


@pytest.fixture(scope="module")
def noise(tmp_path_factory):
    """The noise of 500 steps, extracted from the gradients that the inner optimizer received."""
    module, dataset, plain = statistics.wide_network(), statistics.wide_data(), statistics.PLAN
    plan = lattice_plan_for(
        statistics.STRATEGY,
        1323,
        participation=plain.mechanism.participation,
        noise_std=statistics.SIGMA,
        clip_norm=statistics.CLIP,
        examples=statistics.EXAMPLES,
    )
    clipped = statistics.clipped_gradients(module, dataset, statistics.CLIP)
    engine, module, optimizer, criterion, loader = private(
        tmp_path_factory.mktemp("noise"), plan, module, lr=0.0, momentum=0.0, dataset=dataset
    )
    gradients = record(optimizer)
    train(module, optimizer, criterion, loader, epochs_of(plan, loader))
    batches = [engine.noise.batch(step).indices for step in range(plan.steps)]
    engine.close()
    return statistics.added_noise(torch.stack(gradients), batches, clipped, divisor=4)


def test_the_noise_is_the_plans(noise):
    """The strategy with rounded coefficients is the plan's up to 2^-40."""
    assert statistics.is_the_plans(noise)


def test_noise_one_percent_too_small_is_noticed(noise):
    assert statistics.scale_deviation(0.99 * noise) > 5
    assert statistics.scale_deviation(1.01 * noise) > 5


@pytest.mark.parametrize("mode", ["functorch", "ew"])
def test_all_ways_to_compute_gradients_have_the_same_releases(tmp_path, mode):
    plan = lattice_plan_for()
    _, wanted = run(tmp_path / "hooks", plan)
    _, found = run(tmp_path / mode, plan, grad_sample_mode=mode)
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("workers", [0, 1])
def test_stopped_in_the_middle_of_a_batch(tmp_path, workers):
    plan, options = lattice_plan_for(), {"loader_options": {"num_workers": workers}}
    steady, _ = run(tmp_path / "steady", plan)
    engine, module, optimizer, criterion, loader = private(tmp_path / "run", plan, **options)
    for seen, (x, y) in enumerate(loader):
        assert len(x) == 1
        optimizer.zero_grad()
        criterion(module(x), y).backward()
        optimizer.step()
        if seen == 33:  # ten examples a step: the sum of step 3 has four
            break
    assert engine.step == 3
    stored = {"model": module.state_dict(), "optimizer": optimizer.state_dict(), "privacy": engine.state_dict()}
    torch.save(stored, tmp_path / "checkpoint.pt")
    engine.close()
    engine, module, optimizer, criterion, loader = private(tmp_path / "run", plan, **options)
    stored = torch.load(tmp_path / "checkpoint.pt")
    module.load_state_dict(stored["model"])
    optimizer.load_state_dict(stored["optimizer"])
    engine.load_state_dict(stored["privacy"])
    train(module, optimizer, criterion, loader, 3)
    assert torch.equal(torch.cat([p.detach().reshape(-1) for p in optimizer.params]), steady)
    assert engine.report().rewinds == 0
    engine.close()


def test_autocast(tmp_path, monkeypatch):
    plan = lattice_plan_for()
    made, _ = watch(monkeypatch)
    engine, module, optimizer, criterion, loader = private(tmp_path, plan)
    for x, y in loader:
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = criterion(module(x), y)
        loss.backward()
        optimizer.step()
    engine.close()
    assert len(made) == EXAMPLES
    assert all(0 < sum(c * c for c in found) <= plan.mechanism.lattice.norm**2 for found in made)


def test_several_rows_of_a_user_are_one_contribution(tmp_path, monkeypatch):
    plan = given_plan(unit="user")
    rows = torch.tensor(np.random.default_rng(5).standard_normal((EXAMPLES, 3, WIDTH)) * 0.01)
    made, _ = watch(monkeypatch)
    engine, module, optimizer, _, loader = private(
        tmp_path, plan, Given(torch.float64), dataset=given_data(rows), loss_reduction="sum", rows_per_example=3
    )
    first = engine.noise.batch(0).indices.tolist()
    for x, _ in loader:
        optimizer.zero_grad()
        module(x.flatten(0, 1)).sum().backward()
        optimizer.step()
    engine.close()
    for i, found in zip(first, made, strict=False):
        wanted = by_hand(rows[i].sum(0), plan.mechanism.lattice)
        assert max(abs(a - b) for a, b in zip(found, wanted, strict=True)) <= 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_released_integers_are_converted_once(dtype):
    lattice = ap.Lattice(-40, 1 << 40, 4)
    p = torch.zeros(2, 2, dtype=dtype)
    numbers = [(1 << 60) + 1, -(1 << 52) - 1, 3, -(1 << 24) - 1]
    set_released([p], [torch.tensor(numbers)], lattice)
    wanted = [np.float64(n) * 2.0**-40 for n in numbers]
    assert p.grad.reshape(-1).tolist() == torch.tensor(wanted, dtype=torch.float64).to(dtype).tolist()


def refused(directory, words, plan=None, source="host", module=None, **options):
    module = network() if module is None else module
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    engine = antiphase.torch.PrivacyEngine(directory, secret=SECRET, source=source)
    with pytest.raises((ap.Refused, ap.InvalidArgument), match=words) as caught:
        engine.make_private(module, optimizer, data(), lattice_plan_for() if plan is None else plan, **options)
    assert not directory.exists()  # nothing was written
    return caught.value


def test_what_is_not_exact_is_refused(tmp_path):
    error = refused(tmp_path / "ghost", "lattice.*[Gg]host clipping", grad_sample_mode="ghost")
    assert "grad_sample_mode='hooks'" in str(error)
    refused(tmp_path / "device", "made on the host", source="device")
    refused(tmp_path / "large", "accounts for 52 parameters", plan=lattice_plan_for(parameters=52))
    with pytest.raises(ap.Refused, match="NoiseAdder adds noise to sums in floating point"):
        antiphase.torch.NoiseAdder([torch.zeros(3)], lattice_plan_for(), tmp_path / "adder")
    assert not (tmp_path / "adder").exists()


@pytest.mark.usefixtures("one_process")
def test_sharded_models_are_refused(tmp_path):
    refused(tmp_path / "run", "fully_shard", module=fully_shard(network()), grad_sample_mode="ghost_fsdp")


def test_lightning_is_refused(tmp_path):
    lightning = pytest.importorskip("antiphase.torch.lightning")
    with pytest.raises(ap.Refused, match="reveal the sizes of the batches"):
        lightning.PrivateTraining(lattice_plan_for(), tmp_path, data())


def test_a_pass_of_several_examples_is_refused(tmp_path):
    engine, module, optimizer, criterion, loader = private(tmp_path, lattice_plan_for())
    x, y = next(iter(loader))
    criterion(module(torch.cat([x, x])), torch.cat([y, y])).backward()
    with engine, pytest.raises(ap.Refused, match="one example at a time"):
        optimizer.step()


def test_an_example_that_is_added_twice_is_refused(tmp_path):
    engine, module, optimizer, criterion, loader = private(tmp_path, lattice_plan_for())
    with engine, pytest.raises(ap.Refused, match="added twice"):
        train(module, optimizer, criterion, [next(iter(loader))] * 2, 1)


def test_an_example_that_is_skipped_is_refused(tmp_path):
    engine, module, optimizer, criterion, loader = private(tmp_path, lattice_plan_for())
    others = (item for seen, item in enumerate(loader) if seen != 4)
    with engine, pytest.raises(ap.Refused, match="step 0 was not taken"):
        train(module, optimizer, criterion, others, 1)


def test_a_plan_for_epsilon_knows_the_number_of_parameters(tmp_path):
    module = network()
    module[0].bias.requires_grad_(False)
    engine = antiphase.torch.PrivacyEngine(tmp_path, secret=SECRET)
    with engine:
        engine.make_private_with_epsilon(
            module,
            torch.optim.SGD(module.parameters(), lr=0.1),
            data(),
            epsilon=4.0,
            delta=1e-6,
            epochs=1,
            batch_size=10,
            families=["toeplitz"],
            problem={"lattice": True, "participation": ap.MinSeparation(4), "objective": "rms"},
        )
        assert engine.plan.mechanism.lattice.entries == 48
        assert engine.plan.guarantee.value <= 4.0
