"""Two ways to make a step cheaper do not change the result.

They are noise that is computed in the background, and ghost clipping that leaves out gradients it would drop.
"""

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import antiphase as ap
import antiphase.torch
from antiphase.torch._ghost import GhostGradients
from tests.torch.training import (
    EXAMPLES,
    HOOKS,
    SECRET,
    STEPS,
    data,
    epochs_of,
    network,
    plan_for,
    private,
    record,
    train,
)

pytestmark = [pytest.mark.filterwarnings(HOOKS), pytest.mark.usefixtures("same_run_id")]


def conv():
    return nn.Sequential(nn.Unflatten(1, (1, 6)), nn.Conv1d(1, 3, 2), nn.Flatten(), nn.Linear(15, 3, bias=False))


def without_bias():
    return nn.Sequential(nn.Linear(6, 5, bias=False), nn.Tanh(), nn.LayerNorm(5), nn.Linear(5, 3))


def frozen_bias():
    module = network()
    module[0].bias.requires_grad_(False)
    return module


MODELS = {"linear": network, "convolution": conv, "without bias": without_bias, "frozen bias": frozen_bias}


def engine_with(directory, background):
    return antiphase.torch.PrivacyEngine(directory, secret=SECRET, background_noise=background)


@pytest.mark.parametrize("mode", ["hooks", "ghost"])
@pytest.mark.parametrize("strategy", ["blt", "toeplitz"])
def test_training_is_bit_identical_with_and_without_the_background_thread(tmp_path, mode, strategy, monkeypatch):
    made = {"blt": None, "toeplitz": ap.strategies.Toeplitz.square_root(STEPS, 4)}[strategy]
    plan, started, results = plan_for(made), [], {}
    start = ap.NoiseStream._start_ahead
    monkeypatch.setattr(ap.NoiseStream, "_start_ahead", lambda self: (started.append(self.step), start(self)))
    for background in (True, False):
        started.clear()
        module = network()
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
        engine = engine_with(tmp_path / str(background), background)
        made = engine.make_private(module, optimizer, data(), plan, grad_sample_mode=mode)
        criterion = made[2] if mode == "ghost" else nn.CrossEntropyLoss()
        steps = record(made[1])
        train(made[0], made[1], criterion, made[-1], epochs_of(plan, made[-1]))
        engine.close()
        results[background] = torch.stack(steps), [p.detach().clone() for p in module.parameters()]
        assert started == (list(range(1, STEPS)) if background else [])
    assert torch.equal(results[True][0], results[False][0])
    assert all(map(torch.equal, results[True][1], results[False][1]))


def test_each_step_gets_its_own_noise_from_the_background(tmp_path):
    """Fails if the noise of another step is added."""
    plan, weight = plan_for(), torch.zeros(7, requires_grad=True)
    with antiphase.torch.NoiseAdder([weight], plan, tmp_path, examples=EXAMPLES, secret=SECRET) as noise:
        stream = ap.NoiseStream(plan, [(7,)], SECRET, noise.run_id)
        for _ in range(STEPS):
            noise.batch()
            weight.grad = torch.zeros(7)
            noise.add()
            assert torch.equal(weight.grad, torch.from_numpy(stream.next()[0]))
            noise.commit()
        assert noise.report().rewinds == 0


@pytest.mark.parametrize("background", [True, False])
def test_a_checkpoint_made_before_the_step_resumes_with_the_same_noise(tmp_path, background):
    """The batch was drawn and its noise is being computed when the checkpoint is made."""
    plan, weight = plan_for(), torch.zeros(7, requires_grad=True)
    options = {"examples": EXAMPLES, "secret": SECRET, "background_noise": background}
    with antiphase.torch.NoiseAdder([weight], plan, tmp_path, **options) as noise:
        stream = ap.NoiseStream(plan, [(7,)], SECRET, noise.run_id)
        for _ in range(4):
            noise.batch()
            weight.grad = torch.zeros(7)
            noise.add()
            noise.commit()
            stream.next()
        noise.batch()
        state = noise.state_dict()
    with antiphase.torch.NoiseAdder([weight], plan, tmp_path, **options) as noise:
        noise.load_state_dict(state)
        for _ in range(4, STEPS):
            noise.batch()
            weight.grad = torch.zeros(7)
            noise.add()
            assert torch.equal(weight.grad, torch.from_numpy(stream.next()[0]))
            noise.commit()
        assert noise.report().rewinds == 0


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("needs_input", [False, True])
def test_leaving_out_dropped_gradients_changes_no_bit(tmp_path, monkeypatch, name, needs_input):
    x, y = data().tensors
    sums = []
    for directory in ("some", "all"):
        if directory == "all":
            monkeypatch.setattr(GhostGradients, "needed_gradients", lambda self, leaves: None)
        with torch.random.fork_rng():
            torch.manual_seed(1)
            module = MODELS[name]()
        _, module, optimizer, criterion, loader = private(
            tmp_path / directory, plan_for(clip_norm=0.1), module, grad_sample_mode="ghost"
        )
        next(iter(loader))
        criterion(module(x.clone().requires_grad_(needs_input)), y).backward()
        sums.append([p.grad for p in optimizer.params])
    assert all(map(torch.equal, *sums))
    assert any(total.abs().max() > 0 for total in sums[0])


def test_only_weights_with_a_bias_are_left_out(tmp_path):
    """Through the bias, the backward pass reaches the same node, so that the hook of the layer runs."""
    for name, wanted in [
        ("linear", {"0.bias", "2.bias"}),
        ("without bias", {"0.weight", "2.weight", "2.bias", "3.bias"}),
    ]:
        module = MODELS[name]()
        names = {id(p): key for key, p in module.named_parameters()}
        wrapped = private(tmp_path / name, plan_for(), module, grad_sample_mode="ghost")[1]
        leaves = list(module.parameters())
        assert {names[id(p)] for p in wrapped.ghost_gradients.needed_gradients(leaves)} == wanted
        assert wrapped.ghost_gradients.needed_gradients([*leaves, torch.zeros(1)]) is None


@pytest.mark.parametrize("clipping", ["flat", "per_layer"])
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf"), 1e30])
def test_one_bad_entry_drops_the_example_from_every_tensor(tmp_path, clipping, bad):
    """Also an entry whose square is not finite. The sum is then that of the other examples."""
    sums = []
    for with_bad in (True, False):
        dataset = TensorDataset(*data().tensors)
        _, module, optimizer, criterion, loader = private(
            tmp_path / str(with_bad), plan_for(clip_norm=0.1), dataset=dataset, clipping=clipping
        )
        x, y = next(iter(loader))
        criterion(module(x), y).backward()
        for i, p in enumerate(optimizer.params):
            if with_bad and i == 1:
                p.grad_sample[2, 0] = bad
            if not with_bad:
                p.grad_sample[2] = 0.0
        sums.append(optimizer._clipping.take().sums)
    for a, b in zip(*sums, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0)
