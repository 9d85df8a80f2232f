"""The random numbers of a step are derived from the run's secret, not from seeds that others may know."""

import random

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import Dataset

import antiphase as ap
import antiphase.torch
from antiphase.torch._random_state import seed_generators
from tests.torch.training import HOOKS, plan_for

pytestmark = [pytest.mark.filterwarnings(HOOKS), pytest.mark.usefixtures("same_run_id")]


class Augmented(Dataset):
    """A dataset whose inputs are random numbers from the three global generators."""

    def __len__(self):
        return 40

    def __getitem__(self, index):
        return torch.tensor([*torch.rand(2), random.random(), np.random.rand()])  # noqa: NPY002


class Noisy(nn.Module):
    """A model that stores the random numbers that each forward pass draws."""

    def __init__(self):
        super().__init__()
        self.layer, self.drawn = nn.Linear(4, 1), []

    def forward(self, x):
        self.drawn.append(torch.rand(4))
        return self.layer(x)


def outside():
    """Return what the global generators would draw next, without changing their state."""
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()  # noqa: NPY002
    found = random.random(), float(np.random.rand()), float(torch.rand(()))  # noqa: NPY002
    random.setstate(states[0])
    np.random.set_state(states[1])  # noqa: NPY002
    torch.set_rng_state(states[2])
    return found


def seed_all(seed):
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002
    torch.manual_seed(seed)


def numbers(directory, seed, secret, *, workers=0, stop=None):
    """Train, and return the inputs and the numbers that the forward passes drew.

    `seed` seeds the public generators, and `secret` is the secret of the run.
    """
    seed_all(seed)
    model = Noisy()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    seed_all(seed)
    before, inputs = outside(), []
    with antiphase.torch.PrivacyEngine(directory, secret=ap.Secret.insecure(secret)) as engine:
        options = {"num_workers": workers, "generator": torch.Generator().manual_seed(seed)}
        wrapped, optimizer, loader = engine.make_private(
            model, optimizer, Augmented(), plan_for(), loader_options=options
        )
        for step, x in enumerate(loader):
            inputs.append(x)
            optimizer.zero_grad()
            wrapped(x).mean().backward()
            if step == stop:
                break
            optimizer.step()
            assert outside() == before
    assert outside() == before
    return torch.cat(inputs), torch.stack(model.drawn)


@pytest.mark.parametrize("workers", [0, 2])
def test_numbers_of_a_step_depend_on_the_secret_alone(tmp_path, workers):
    first = numbers(tmp_path / "first", 0, 1, workers=workers)
    other_seed = numbers(tmp_path / "seed", 7, 1, workers=workers)
    other_secret = numbers(tmp_path / "secret", 0, 2, workers=workers)
    for found, again, other in zip(first, other_seed, other_secret, strict=True):
        assert torch.equal(found, again)
        assert not torch.isclose(found, other).all(-1).any()
        assert len(torch.unique(found, dim=0)) == len(found)  # every example and every step has its own


def test_generators_are_restored_if_a_pass_ends_in_the_middle_of_a_step(tmp_path):
    numbers(tmp_path, 0, 1, stop=2)


def test_an_old_iterator_does_not_restore_the_generators_in_a_later_step(tmp_path):
    model = Noisy()
    engine = antiphase.torch.PrivacyEngine(tmp_path, secret=ap.Secret.insecure(1))
    _, _, loader = engine.make_private(model, torch.optim.SGD(model.parameters(), lr=0.1), Augmented(), plan_for())
    old, public = iter(loader), outside()
    next(old)
    new = iter(loader)
    next(new)
    inside = outside()
    del old
    assert outside() == inside
    del new
    assert outside() == public
    engine.close()


def test_the_state_of_the_generator_has_more_than_32_bits():
    """`torch.manual_seed` uses 32 bits, which can be guessed. The words are those of a Mersenne Twister."""
    state = torch.get_rng_state()
    with torch.random.fork_rng():
        words = []
        for key in (b"a" * 32, b"b" * 32):
            seed_generators(key)
            words.append(torch.get_rng_state().view(torch.int64)[3:627].numpy())
            assert (words[-1] >= 0).all()
            assert (words[-1] < 2**32).all()
            assert not np.array_equal(words[-1], np.random.RandomState(words[-1][0]).get_state()[1])
            twister = np.random.RandomState()
            twister.set_state(("MT19937", words[-1].astype(np.uint32), 624))
            expected = twister.randint(0, 2**32, 2000, dtype=np.uint32) % 2**31
            assert np.array_equal(torch.randint(0, 2**31, (1000,)).numpy(), expected[1::2])  # two words each
    assert not np.array_equal(*words)
    assert torch.equal(torch.get_rng_state(), state)


def test_seeds_inside_the_loop_are_refused(tmp_path):
    """With a known seed, one example changes the dropout of all others."""
    model = Noisy()
    engine = antiphase.torch.PrivacyEngine(tmp_path, secret=ap.Secret.insecure(1))
    made = engine.make_private(model, torch.optim.SGD(model.parameters(), lr=0.1), Augmented(), plan_for())
    wrapped, optimizer, loader = made
    with engine:
        for step, x in enumerate(loader):
            optimizer.zero_grad()
            with torch.random.fork_rng():  # restored, as torch.utils.checkpoint does
                torch.manual_seed(0)
            if step == 2:
                torch.manual_seed(step)
            wrapped(x).mean().backward()
            if step < 2:
                optimizer.step()
                torch.manual_seed(step)
                continue
            with pytest.raises(ap.Refused, match="seeded after the batch was loaded"):
                optimizer.step()
            break
        assert engine.step == 2


class Seeded(Augmented):
    """A dataset that seeds the generators to draw the same numbers twice, as some do for an image and its mask."""

    def __getitem__(self, index):
        seed_all(index)
        first = super().__getitem__(index)
        seed_all(index)
        assert torch.equal(first, super().__getitem__(index))
        return torch.zeros(4)


def noisy_collate(rows):
    return torch.stack(rows) + torch.tensor([*torch.rand(2), random.random(), np.random.rand()])  # noqa: NPY002


def seeded_collate(rows):
    torch.manual_seed(0)
    return noisy_collate(rows)


def seeded_run(directory, secret, collate=noisy_collate):
    """Train, and return the numbers that the collate function and the model drew in each step."""
    model, added = Noisy(), []
    with antiphase.torch.PrivacyEngine(directory, secret=ap.Secret.insecure(secret)) as engine:
        wrapped, optimizer, loader = engine.make_private(
            model,
            torch.optim.SGD(model.parameters(), lr=0.1),
            Seeded(),
            plan_for(),
            loader_options={"collate_fn": collate},
        )
        for x in loader:
            added.append(x[0])
            optimizer.zero_grad()
            wrapped(x).mean().backward()
            optimizer.step()
    return torch.stack(added), torch.stack(model.drawn)


def test_seeds_of_the_data_set_reach_neither_the_collator_nor_the_model(tmp_path):
    """Such seeds are allowed: the numbers of an example then depend on no other example."""
    first, other = (seeded_run(tmp_path / str(secret), secret) for secret in (1, 2))
    for drawn, again in zip(first, other, strict=True):
        assert not torch.isclose(drawn, again).any()
        assert len(torch.unique(drawn, dim=0)) == len(drawn)


def test_a_collator_that_seeds_the_generator_is_refused(tmp_path):
    with pytest.raises(ap.Refused, match="seeded after the batch was loaded"):
        seeded_run(tmp_path, 1, seeded_collate)


def known_seed(worker):
    seed_all(worker)


def test_known_seeds_of_workers_have_no_effect(tmp_path):
    """If they had, one example would change the numbers of all later ones."""
    drawn = []
    for secret in (1, 2):
        model = Noisy()
        engine = antiphase.torch.PrivacyEngine(tmp_path / str(secret), secret=ap.Secret.insecure(secret))
        options = {"num_workers": 1, "worker_init_fn": known_seed}
        made = engine.make_private(
            model, torch.optim.SGD(model.parameters(), lr=0.1), Augmented(), plan_for(), loader_options=options
        )
        with engine:
            drawn.append(next(iter(made[-1])))
    assert not torch.isclose(*drawn).any()


@pytest.mark.parametrize("last", [0, 1])
def test_overlapping_steps_of_two_runs(tmp_path, last):
    """Both draw from secrets, and afterwards the generators are where they were."""
    found = []
    for secret in (1, 2):
        model = Noisy()
        engine = antiphase.torch.PrivacyEngine(tmp_path / str(secret), secret=ap.Secret.insecure(secret))
        options = {"generator": torch.Generator().manual_seed(0)}
        made = engine.make_private(
            model, torch.optim.SGD(model.parameters(), lr=0.1), Augmented(), plan_for(), loader_options=options
        )
        found.append((engine, model, *made))
    torch.manual_seed(0)
    before, order = outside(), (1 - last, last)
    for batches in zip(found[0][-1], found[1][-1], strict=True):
        for i in order:
            _, _, wrapped, optimizer, _ = found[i]
            optimizer.zero_grad()
            wrapped(batches[i]).mean().backward()
            optimizer.step()
        assert outside() == before
    drawn = torch.stack(found[0][1].drawn + found[1][1].drawn)
    torch.manual_seed(0)
    public = torch.rand(1000)
    assert not torch.isin(drawn, public).any()
    assert len(torch.unique(drawn, dim=0)) == len(drawn)
    for engine, *_ in found:
        engine.close()
