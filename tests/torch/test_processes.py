"""Two processes train like one: with the same noise and batches. Each rank generates its own half of the noise."""

import subprocess
import sys

import numpy as np
import pytest
import torch

import antiphase as ap
from antiphase._run import Transport, open_shared
from antiphase.torch import NoiseAdder
from antiphase.torch._distributed import TorchDistributed
from antiphase.torch._shards import own_leaves, whole_leaves
from tests.torch import processes, statistics
from tests.torch.training import HOOKS, SECRET, network, plan_for, run

pytestmark = [pytest.mark.filterwarnings(HOOKS), pytest.mark.usefixtures("same_run_id")]


def results(directory, task):
    """Run tests/torch/processes.py, and return the results of each rank."""
    command = [sys.executable, "-W", "ignore", "-m", "tests.torch.processes", str(directory), task]
    subprocess.run(command, check=True, timeout=300)
    return [torch.load(directory / f"results-{rank}.pt") for rank in range(2)]


@pytest.fixture(scope="module")
def together(tmp_path_factory):
    """The results of both ranks. The processes are started once for all tests."""
    return results(tmp_path_factory.mktemp("together"), "short")


@pytest.mark.parametrize("name", processes.SCENARIOS)
def test_equals_one_process(together, tmp_path, name):
    parameters, gradients = processes.alone(tmp_path, name)
    for rank in together:
        found, steps = rank[name]
        assert steps.numpy() == pytest.approx(gradients.numpy(), rel=1e-5, abs=1e-5)
        assert found.numpy() == pytest.approx(parameters.numpy(), rel=1e-5, abs=1e-5)
    assert all(torch.equal(a, b) for a, b in zip(together[0][name], together[1][name], strict=True))


@pytest.mark.parametrize("name", ["lattice", "lattice, empty"])
def test_sums_of_integers_over_two_processes_have_the_same_bits(together, tmp_path, name):
    for found, wanted in zip(together[0][name], processes.alone(tmp_path, name), strict=True):
        assert torch.equal(found, wanted)


def test_a_run_goes_on_with_another_number_of_processes(together, tmp_path):
    parameters, _ = run(tmp_path, plan_for(), network(), momentum=0.0)
    assert together[0]["elastic"].numpy() == pytest.approx(parameters.numpy(), rel=1e-5, abs=1e-5)


@pytest.mark.slow
def test_noise_over_500_steps_is_the_plans(tmp_path):
    plan, secret = statistics.PLAN, SECRET.child("batches", "0" * 32)
    clipped = statistics.clipped_gradients(statistics.wide_network(), statistics.wide_data(), statistics.CLIP)
    sampler = plan.mechanism.participation.sampler(statistics.EXAMPLES, plan.steps, secret)
    batches = [sampler.batch(step).indices for step in range(plan.steps)]
    for gradients in results(tmp_path, "long")[0].values():
        assert statistics.is_the_plans(statistics.added_noise(gradients, batches, clipped, divisor=4))


def test_noise_of_one_rank_only_is_noticed(together):
    noise = together[0]["one rank only"].double().numpy()
    scaled = statistics.STRATEGY.encoder()[: len(noise), : len(noise)] @ noise / (statistics.SIGMA * statistics.CLIP)
    entries = (scaled**2).mean(0)
    assert np.abs(entries[:1000] - 1).max() < 6.5 * np.sqrt(2 / len(noise)) < 6.5 * (1 - entries[1000:].max())
    assert abs((scaled**2).mean() - 1) > 5 * np.sqrt(2 / scaled.size)


@pytest.mark.parametrize("name", processes.DISAGREEMENTS)
def test_ranks_that_disagree_are_refused_all_together(together, name):
    (first, steps), (second, _) = (rank["told"][name] for rank in together)
    if name == "another output":
        assert "replayed with a different output" in first
        assert second.startswith("Rank 0 raised an error: Step 0 was replayed with a different output")
    else:
        assert first == second
        assert "The ranks do not have the same step" in first
    assert steps == 1


def test_gradients_summed_over_the_ranks_before_the_noise(together):
    """If they were summed again after it, every example would count twice, and the noise once."""
    for words, step in (rank["twice"] for rank in together):
        assert "All 2 ranks have the same gradients" in words
        assert step == 1


def test_every_rank_publishes_between_two_passes(together):
    """Also if the next pass begins with steps in which one of the ranks has no examples."""
    (words, steps, sizes), other = (rank["publications"]["pass"] for rank in together)
    assert sizes[4] == 1  # rank 1 has no example there, and rank 0 has one
    assert words is None
    assert steps == [4, 8, 12]
    assert (words, steps, sizes) == other


def test_publications_within_a_pass_are_refused_on_every_rank(together):
    (first, _, _), (second, _, _) = (rank["publications"]["step"] for rank in together)
    assert first == second
    assert "The ranks are about to perform different operations" in first
    assert "publish 'step" in first
    assert "take step" in first


def test_ranks_with_noise_of_two_sources_are_refused(together):
    assert all("same noise source" in rank["source"] for rank in together)


@pytest.mark.parametrize("name", processes.OTHERS)
def test_ranks_with_other_plans_examples_or_options_are_refused(together, name):
    assert all("do not have the same" in (rank["others"][name] or "accepted") for rank in together)


def test_each_rank_keeps_its_share_of_the_noise(together, tmp_path):
    whole = processes.memory(tmp_path)
    shares = [rank["memory"] / whole for rank in together]
    assert max(shares) < 0.55
    assert sum(shares) == pytest.approx(1.0, abs=0.05)


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_slices_are_every_entry_once(size):
    parameters = [torch.zeros(3, 2), torch.zeros(()), torch.zeros(11), torch.zeros(1)]
    counts = {name: np.zeros(leaf.size, int) for name, leaf in whole_leaves(parameters).items()}
    sizes = []
    for rank in range(size):
        leaves = own_leaves(parameters, TorchDistributed(rank, size))
        sizes.append(sum(leaf.size for leaf in leaves.values()))
        for name, leaf in leaves.items():
            counts[name][slice(*leaf.box[0])] += 1
    assert all((count == 1).all() for count in counts.values())
    assert max(sizes) - min(sizes) <= 1


class Second(Transport):
    """A transport for rank 1 of two. Broadcasts return the values of `sent`, and the other rank always agrees."""

    rank, size = 1, 2

    def __init__(self, *sent):
        self.sent = list(sent)

    def broadcast(self, value):
        return self.sent.pop(0)

    def all_gather(self, value):
        return [value, value]


def test_another_secret_is_noticed(tmp_path):
    with NoiseAdder([torch.zeros(4)], plan_for(), tmp_path, secret=SECRET) as noise:
        header, history = noise._run._header, noise._run._journal.history
        introduction = (None, (header, history, SECRET.derive("same secret", noise.run_id)))

        def follower(secret):
            transport = Second(introduction, None, (None, []))
            leaves = whole_leaves([torch.zeros(4)])
            options = {"leaves": leaves, "own_leaves": leaves, "examples": None, "dtype": "float32"}
            return open_shared(plan_for(), tmp_path, transport, secret=secret, **options)

        run = follower(SECRET)
        assert np.array_equal(run._unit_noise(0)[0], noise._run._unit_noise(0)[0])
        with pytest.raises(ap.InvalidArgument, match="differs from the secret of rank 0"):
            follower(ap.Secret.insecure(1))
        with pytest.raises(ap.Refused, match="rank 0"):
            run.report()
