"""Ways in which earlier versions did not clip a contribution, or took a step without noise."""

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import TensorDataset

import antiphase as ap
import antiphase.torch
from tests.torch.training import HOOKS, SECRET, data, plan_for, private

pytestmark = [pytest.mark.filterwarnings(HOOKS)]


class IgnoresReduction(nn.Module):
    reduction = "mean"

    def forward(self, output, target):
        return functional.cross_entropy(output, target)


def engine_for(directory, module, dataset, **options):
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    engine = antiphase.torch.PrivacyEngine(directory, secret=SECRET)
    return engine, engine.make_private(module, optimizer, dataset, plan_for(), **options)


def numbers():
    inputs, _ = data().tensors
    return TensorDataset(inputs, torch.ones(len(inputs), 1))


@pytest.mark.parametrize("criterion", [IgnoresReduction(), nn.MSELoss(), nn.BCEWithLogitsLoss()])
def test_a_ghost_loss_that_is_not_one_number_an_example(tmp_path, criterion):
    classes = isinstance(criterion, IgnoresReduction)
    dataset = data() if classes else numbers()
    width = dataset.tensors[0].shape[1]
    module = nn.Linear(width, int(data().tensors[1].max()) + 1 if classes else 1)
    engine, made = engine_for(tmp_path, module, dataset, criterion=criterion, grad_sample_mode="ghost")
    module, _, private_criterion, loader = made
    inputs, target = next(iter(loader))
    with pytest.raises(ap.Refused, match="cannot be clipped"):
        private_criterion(module(inputs), target).backward()
    engine.close()


def test_gradients_beside_the_clipped_ones(tmp_path):
    engine, module, optimizer, criterion, loader = private(tmp_path, plan_for(), grad_sample_mode="ghost")
    inputs, target = next(iter(loader))
    output = module(inputs)
    with pytest.raises(ap.Refused, match="not clipped"):
        criterion(output, target) + output.pow(2).mean()
    (0.5 * criterion(output, target)).backward()
    functional.cross_entropy(module(inputs), target).backward()
    with pytest.raises(ap.Refused, match="not clipped"):
        optimizer.step()
    engine.close()


class Tied(nn.Module):
    class Head(nn.Module):
        def __init__(self, weight):
            super().__init__()
            self.weight = weight

        def forward(self, hidden):
            return functional.linear(hidden, self.weight)

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(10, 4)
        self.head = self.Head(self.embedding.weight)

    def forward(self, tokens):
        return self.head(self.embedding(tokens).mean(1))


def test_tied_weights_and_layers_that_mix_examples(tmp_path):
    width = data().tensors[0].shape[1]
    tokens = TensorDataset(torch.zeros(len(data()), 5, dtype=torch.long), torch.zeros(len(data()), dtype=torch.long))
    with pytest.raises(ap.InvalidArgument, match="several layers"):
        engine_for(tmp_path / "tied", Tied(), tokens, grad_sample_mode="ghost")
    mixing = nn.Sequential(nn.BatchNorm1d(width, affine=False), nn.Linear(width, 2))
    with pytest.raises(ap.InvalidArgument, match="mixes the examples"):
        engine_for(tmp_path / "mixing", mixing, data())
    renormed = nn.Sequential(nn.Embedding(10, 4, max_norm=1.0), nn.Flatten(), nn.Linear(20, 2))
    with pytest.raises(ap.InvalidArgument, match="max_norm"):
        engine_for(tmp_path / "renormed", renormed, tokens)


@pytest.mark.parametrize("mode", ["hooks", "functorch", "ew"])
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_an_example_without_a_finite_gradient_counts_as_zero(tmp_path, mode, bad):
    dataset = data()
    dataset.tensors[0][:] = bad
    engine, module, optimizer, criterion, loader = private(tmp_path, plan_for(), dataset=dataset, grad_sample_mode=mode)
    inputs, target = next(iter(loader))
    criterion(module(inputs), target).backward()
    optimizer.step()
    assert all(torch.isfinite(p).all() for p in module.parameters())
    engine.close()


def test_the_raw_optimizer_takes_no_step(tmp_path):
    module = nn.Linear(data().tensors[0].shape[1], 2)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    with antiphase.torch.PrivacyEngine(tmp_path, secret=SECRET) as engine:
        engine.make_private(module, optimizer, data(), plan_for())
        with pytest.raises(ap.Refused, match="without noise"):
            optimizer.step()


def test_a_parameter_that_grew_is_noticed(tmp_path):
    weight = torch.zeros(3, requires_grad=True)
    with antiphase.torch.NoiseAdder([weight], plan_for(), tmp_path, secret=SECRET) as noise:
        weight.data = torch.zeros(6)
        weight.grad = torch.zeros(6)
        with pytest.raises(ap.Refused, match="size or dtype of a parameter changed"):
            noise.add()


@pytest.mark.parametrize("mode", ["hooks", "functorch", "ghost"])
def test_inputs_of_an_earlier_batch_are_not_used_in_evaluation_mode(tmp_path, mode):
    """A forward pass without backward leaves its inputs behind; in evaluation mode no others are recorded."""
    engine, module, optimizer, criterion, loader = private(tmp_path, plan_for(), grad_sample_mode=mode)
    batches = iter(loader)
    inputs, target = next(batches)
    optimizer.zero_grad()
    criterion(module(inputs), target).backward()
    optimizer.step()
    module(inputs)
    module.eval()
    inputs, target = next(batches)
    optimizer.zero_grad()
    with pytest.raises(ap.Refused, match=r"model\.train"):
        criterion(module(inputs), target).backward()
    assert engine.step == 1
    engine.close()


class Centres(nn.Module):
    reduction = "sum"

    def __init__(self):
        super().__init__()
        self.centres = nn.Parameter(torch.zeros(3, 3))

    def forward(self, output, target):
        return (output - self.centres[target]).square().sum(1)


def test_a_criterion_with_trained_parameters_is_refused(tmp_path):
    with pytest.raises(ap.InvalidArgument, match="'centres'"):
        private(tmp_path / "run", plan_for(), criterion=Centres(), grad_sample_mode="ghost", loss_reduction="sum")
    criterion = Centres().requires_grad_(False)
    engine, *_ = private(
        tmp_path / "other", plan_for(), criterion=criterion, grad_sample_mode="ghost", loss_reduction="sum"
    )
    engine.close()


@pytest.mark.parametrize("mode", ["hooks", "ghost"])
def test_the_update_after_one_that_raised_is_recorded_first(tmp_path, mode):
    """A hook for logging fails once; the next update is interrupted right after it changed the parameters."""
    engine, module, optimizer, criterion, loader = private(tmp_path, plan_for(), grad_sample_mode=mode)
    weights, seen = optimizer.params[0], []

    def fail(*_):
        if engine.step == 2:
            raise RuntimeError("the logger is gone")

    def recorded(*_):
        seen.append((engine.step, not torch.equal(before, weights)))

    optimizer.original_optimizer.register_step_pre_hook(fail)
    optimizer.original_optimizer.register_step_post_hook(recorded)
    with engine:
        for step, (inputs, target) in zip(range(4), loader, strict=False):
            before = weights.detach().clone()
            optimizer.zero_grad()
            criterion(module(inputs), target).backward()
            if step == 1:
                with pytest.raises(RuntimeError, match="logger"):
                    optimizer.step()
            else:
                optimizer.step()
    assert seen == [(1, True), (3, True), (4, True)]
