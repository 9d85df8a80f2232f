"""Error messages about mistakes in models and loops name the parameter or layer and say what to do."""

import warnings

import pytest
import torch
from opacus.grad_sample import GradSampleModule
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

import antiphase as ap
import antiphase.torch
from tests.torch.training import HOOKS, SECRET, data, network, plan_for, private, record, train

pytestmark = [pytest.mark.filterwarnings(HOOKS), pytest.mark.usefixtures("same_run_id")]
BOTH = pytest.mark.parametrize("mode", ["hooks", "ghost"])


def test_opacus_arguments_are_explained_in_one_message(tmp_path):
    model = network()
    optimizer, loader = torch.optim.SGD(model.parameters(), lr=0.1), DataLoader(data(), batch_size=10)
    with pytest.raises(ap.InvalidArgument) as caught:
        antiphase.torch.PrivacyEngine(accountant="prv", secure_mode=True)
    for word in ("accountant", "secure_mode", "directory", "get_epsilon", "AES-256", "PrivacyEngine('run')"):
        assert word in str(caught.value)
    engine = antiphase.torch.PrivacyEngine(tmp_path / "run")
    with pytest.raises(ap.InvalidArgument) as caught:
        engine.make_private(
            module=model, optimizer=optimizer, data_loader=loader, noise_multiplier=1.1, max_grad_norm=1.0
        )
    for word in ("data_loader", "noise_multiplier", "max_grad_norm", "plan=antiphase.plan", "loader.dataset"):
        assert word in str(caught.value)
    with pytest.raises(ap.InvalidArgument) as caught:
        engine.make_private_with_epsilon(
            module=model,
            optimizer=optimizer,
            data_loader=loader,
            target_epsilon=2.0,
            target_delta=1e-5,
            epochs=3,
            max_grad_norm=1.0,
            poisson_sampling=True,
        )
    for word in ("data_loader", "poisson_sampling", "batch_size", "loader.dataset"):
        assert word in str(caught.value)
    assert "target_epsilon" not in str(caught.value)
    with pytest.raises(ap.InvalidArgument, match=r"loader\.dataset"):
        engine.make_private(model, optimizer, loader, plan_for())
    with pytest.raises(AttributeError, match=r"get_epsilon\(delta\)"):
        engine.accountant  # noqa: B018
    with pytest.raises(AttributeError, match=r"no attribute 'unheard_of'$"):
        engine.unheard_of  # noqa: B018
    assert not (tmp_path / "run").exists()


@BOTH
def test_make_private_with_epsilon_makes_the_plan_and_trains(tmp_path, mode):
    options = {"epsilon": 8.0, "delta": 1e-5, "epochs": 2, "batch_size": 12, "families": ["identity", "toeplitz"]}
    model = network()
    with antiphase.torch.PrivacyEngine(tmp_path / "run") as engine:
        made = engine.make_private_with_epsilon(
            model, torch.optim.SGD(model.parameters(), lr=0.1), data(), **options, grad_sample_mode=mode
        )
        criterion, loader = made[2] if mode == "ghost" else nn.CrossEntropyLoss(), made[-1]
        assert (engine.plan.steps, len(loader)) == (8, 4)  # ceil(40 / 12) steps per epoch
        assert engine.plan.guarantee.value <= 8.0
        assert engine.plan.problem.clip_norm == 1.0
        for _ in range(2):
            for x, y in loader:
                made[1].zero_grad()
                criterion(made[0](x), y).backward()
                made[1].step()
        assert engine.step == 8
        assert 0 < engine.get_epsilon(1e-5) <= 8.0
        fingerprint = engine.plan.fingerprint
    model = network()
    with antiphase.torch.PrivacyEngine(tmp_path / "run") as engine:  # the plan in the directory is used again
        options["families"] = ["blt"]
        engine.make_private_with_epsilon(
            model, torch.optim.SGD(model.parameters(), lr=0.1), data(), **options, grad_sample_mode=mode
        )
        assert engine.plan.fingerprint == fingerprint


def test_problem_options_reach_the_plan(tmp_path):
    model = network()
    with antiphase.torch.PrivacyEngine(tmp_path / "run") as engine:
        engine.make_private_with_epsilon(
            model,
            torch.optim.SGD(model.parameters(), lr=0.1),
            data(),
            target_epsilon=8.0,
            target_delta=1e-5,
            epochs=1,
            batch_size=10,
            max_grad_norm=0.5,
            problem={"unit": "user", "participation": ap.FixedEpochs(1, 4)},
            families=["identity"],
        )
        assert (engine.plan.problem.unit, engine.plan.problem.clip_norm) == ("user", 0.5)


class Unused(nn.Module):
    """A model with a layer that is not called, or whose output does not affect the loss."""

    def __init__(self, ran):
        super().__init__()
        self.first, self.spare, self.ran = nn.Linear(6, 3), nn.Linear(6, 3), ran

    def forward(self, x):
        if self.ran:
            self.spare(x)
        return self.first(x)


def ready(path, module=None, mode="hooks", **options):
    engine, module, optimizer, criterion, loader = private(path, plan_for(), module, grad_sample_mode=mode, **options)
    return engine, module, optimizer, criterion, iter(loader)


@BOTH
@pytest.mark.parametrize("ran", [False, True])
def test_a_parameter_that_the_loss_does_not_use_is_named(tmp_path, mode, ran):
    engine, module, optimizer, criterion, batches = ready(tmp_path, Unused(ran), mode)
    x, y = next(batches)
    words = "the loss does not depend on it" if ran else "its layer was not called"

    def step():
        criterion(module(x), y).backward()
        optimizer.step()

    with engine, pytest.raises(ap.Refused, match=rf"'spare\.weight'.*{words}.*: 2"):
        step()


@BOTH
def test_no_backward_pass(tmp_path, mode):
    engine, _, optimizer, _, batches = ready(tmp_path, mode=mode)
    next(batches)
    with engine, pytest.raises(ap.Refused, match="backward was not called"):
        optimizer.step()


def test_two_backward_passes(tmp_path):
    engine, module, _, criterion, batches = ready(tmp_path)
    x, y = next(batches)
    criterion(module(x), y).backward()
    with engine, pytest.raises(ap.Refused, match=r"a second time before optimizer\.step.*'2\.weight'"):
        criterion(module(x), y).backward()


@BOTH
def test_backward_twice_over_one_graph(tmp_path, mode):
    engine, module, optimizer, criterion, batches = ready(tmp_path, mode=mode)
    x, y = next(batches)
    output = module(x)
    loss = nn.functional.cross_entropy(output, y) if mode == "hooks" else criterion(output, y)
    if mode == "ghost":
        loss.loss_per_sample.sum().backward(retain_graph=True)
    else:
        loss.backward(retain_graph=True)
        optimizer.zero_grad()
    with engine, pytest.raises(ap.Refused, match=r"no (recorded )?forward pass"):
        loss.backward()


def test_several_forward_passes_of_which_one_is_in_the_loss(tmp_path):
    engine, module, optimizer, criterion, batches = ready(tmp_path)
    x, y = next(batches)
    module(x)
    criterion(module(x), y).backward()
    with engine, pytest.raises(ap.Refused, match=r"'0\.weight' was called several times.*only some"):
        optimizer.step()


def test_a_second_forward_pass_with_ghost_clipping_names_the_layer(tmp_path):
    engine, module, _, _, batches = ready(tmp_path, mode="ghost")
    x, _ = next(batches)
    module(x)
    with engine, pytest.raises(ap.Refused, match=r"Layer '0' was called a second time.*exactly one call"):
        module(x)


def test_clip_grad_norm_is_explained(tmp_path):
    engine, module, optimizer, criterion, batches = ready(tmp_path / "ghost", mode="ghost")
    x, y = next(batches)
    criterion(module(x), y).backward()
    nn.utils.clip_grad_norm_(module.parameters(), 1e-3)
    with engine, pytest.raises(ap.Refused, match="clip_grad_norm_"):
        optimizer.step()
    gradients = []
    for clipped in (False, True):
        engine, module, optimizer, criterion, batches = ready(tmp_path / str(clipped))
        gradients.append(record(optimizer))
        with engine, warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for _ in range(2):
                optimizer.zero_grad()
                x, y = next(batches)
                criterion(module(x), y).backward()
                if clipped:
                    nn.utils.clip_grad_norm_(module.parameters(), 1e-3)
                optimizer.step()
        found = [str(warning.message) for warning in caught if "clip_grad_norm_" in str(warning.message)]
        assert len(found) == clipped  # once
        assert not found or "'0.weight'" in found[0]


@pytest.mark.parametrize("mode", ["hooks", "functorch", "ghost"])
def test_a_layer_called_by_keyword(tmp_path, mode):
    class Keyword(nn.Module):
        def __init__(self):
            super().__init__()
            self.plain, self.named = network(), network()

        def forward(self, x):
            return self.plain(x) + self.named[2](input=self.named[1](self.named[0](input=x)))

    engine, module, optimizer, criterion, batches = ready(tmp_path, Keyword(), mode, loss_reduction="sum")
    gradients = record(optimizer)
    x, y = next(batches)
    criterion(module(x), y).backward()
    optimizer.step()
    module(x)
    assert torch.isfinite(gradients[0]).all()
    engine.close()


@BOTH
def test_inputs_by_keyword_give_the_same_gradients(tmp_path, mode):
    class Keyword(nn.Module):
        def __init__(self, named):
            super().__init__()
            self.layers, self.named = network(), named

        def forward(self, x):
            for layer in self.layers:
                x = layer(input=x) if self.named else layer(x)
            return x

    sums = []
    for named in (False, True):
        engine, module, optimizer, criterion, batches = ready(tmp_path / str(named), Keyword(named), mode)
        x, y = next(batches)
        criterion(module(x), y).backward()
        sums.append(torch.cat([p.grad.flatten() for p in optimizer.params]))
        engine.close()
    assert torch.equal(*sums)


class Scaled(nn.Module):
    """A custom layer with further inputs, which have default values."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(6))

    def forward(self, x, by=1.0, mask=None):
        return x * self.scale * by if mask is None else x * self.scale * mask


@BOTH
@pytest.mark.parametrize(
    ("given", "match"),
    [({"by": 30.0}, r"'0' \(Scaled\).*inputs that are not tensors \(float\)"), ({"mask": torch.ones(6)}, "2 inputs")],
)
def test_a_layer_of_its_own_with_further_inputs_is_refused_by_name(tmp_path, mode, given, match):
    """Its gradients were computed as if these inputs had their default values."""

    class Model(nn.Sequential):
        def forward(self, x):
            return self[1](self[0](x, **self.given))

    model = Model(Scaled(), nn.Linear(6, 3))
    model.given = {"by": 1.0, "mask": None}
    engine, module, _, criterion, batches = ready(tmp_path, model, mode)
    x, y = next(batches)
    criterion(module(x), y).backward()  # the default values
    model.given = given
    with engine, pytest.raises(ap.Refused, match=match):
        module(x)


@BOTH
def test_layer_norm_without_a_bias(tmp_path, mode):
    module = nn.Sequential(nn.LayerNorm(6, bias=False), nn.Linear(6, 3))
    engine, module, optimizer, criterion, batches = ready(tmp_path, module, mode)
    x, y = next(batches)
    criterion(module(x), y).backward()
    optimizer.step()
    engine.close()


@BOTH
@pytest.mark.parametrize("kind", ["weight_norm", "parametrized", "spectral_norm"])
@pytest.mark.filterwarnings("ignore:.*weight_norm.*is deprecated:FutureWarning")
def test_a_computed_weight_is_refused_by_name(tmp_path, mode, kind):
    layer = nn.Linear(6, 3)
    if kind == "weight_norm":
        layer = nn.utils.weight_norm(layer)
    elif kind == "spectral_norm":
        layer = nn.utils.spectral_norm(layer)
    else:
        layer = nn.utils.parametrizations.weight_norm(layer)
    with pytest.raises(ap.InvalidArgument, match=r"layer '0' \(Linear\) is computed") as caught:
        private(tmp_path / "run", plan_for(), nn.Sequential(layer), grad_sample_mode=mode)
    assert "tensor(" not in str(caught.value)


@BOTH
def test_parameters_that_were_replaced(tmp_path, mode):
    engine, module, _, _, batches = ready(tmp_path, mode=mode)
    module._module.load_state_dict(network(1).state_dict(), assign=True)
    x, _ = next(batches)
    with engine, pytest.raises(ap.Refused, match=r"'weight' of layer '0'.*assign=True|replaced"):
        module(x)


def test_rows_that_are_not_the_examples_name_the_parameter(tmp_path):
    class Positions(nn.Module):
        def __init__(self):
            super().__init__()
            self.places, self.out = nn.Embedding(6, 1), nn.Linear(6, 3)

        def forward(self, x):
            return self.out(x + self.places(torch.arange(6))[:, 0])

    engine, module, optimizer, criterion, batches = ready(tmp_path, Positions())
    x, y = next(batches)
    criterion(module(x), y).backward()
    with engine, pytest.raises(ap.Refused, match=r"'places\.weight'.*(\n.*)*position_ids"):
        optimizer.step()


def test_layers_that_opacus_cannot_train_are_named_with_the_remedy(tmp_path):
    module = nn.Sequential(nn.Flatten(), nn.LSTM(6, 3))
    with pytest.raises(ap.InvalidArgument, match=r"LSTM(.|\n)*ModuleValidator\.fix"):
        private(tmp_path / "run", plan_for(), module)


class ScaledEmbedding(nn.Embedding):
    """An embedding with a constant buffer, as in Gemma."""

    def __init__(self):
        super().__init__(5, 6)
        self.register_buffer("scale", torch.tensor(2.0))

    def forward(self, x):
        return super().forward(x) * self.scale


@pytest.mark.parametrize("mode", ["hooks", "functorch", "ghost"])
def test_a_trained_layer_with_a_buffer_is_named(tmp_path, mode):
    module = nn.Sequential(ScaledEmbedding(), nn.Flatten(), nn.Linear(12, 3))
    words = r"Layer '0' \(ScaledEmbedding\) has both trainable parameters and buffers \('scale'\)"
    with pytest.raises(ap.InvalidArgument, match=words):
        private(tmp_path / "run", plan_for(), module, grad_sample_mode=mode)
    module[0].weight.requires_grad_(False)
    tokens = TensorDataset(torch.randint(0, 5, (40, 2)), torch.arange(40) % 3)
    engine, module, optimizer, criterion, batches = ready(tmp_path / "other", module, mode, dataset=tokens)
    x, y = next(batches)
    criterion(module(x), y).backward()
    optimizer.step()
    engine.close()


class Block(nn.Module):
    """A block of torchvision's ResNet: in-place activations, and an in-place residual."""

    def __init__(self, width):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x):
        identity = x
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        out += identity
        return self.relu(out)


def resnet():
    from opacus.validators import ModuleValidator

    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(inplace=True), Block(4), Block(4),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3),
    )  # fmt: skip
    return ModuleValidator.fix(net)


@pytest.mark.parametrize("mode", ["hooks", "functorch", "ghost"])
def test_a_resnet_with_in_place_operations_has_the_gradients_of_a_loop(tmp_path, mode):
    images = TensorDataset(torch.randn(40, 1, 6, 6), torch.arange(40) % 3)
    reference = resnet().double()
    engine, module, optimizer, criterion, batches = ready(tmp_path, resnet(), mode, dataset=images)
    x, y = next(batches)
    criterion(module(x), y).backward()
    if mode == "ghost":
        found = torch.cat([p.grad.flatten() for p in optimizer.params]).double()
    else:
        rows = torch.cat([p.grad_sample.flatten(1) for p in optimizer.params], 1).double()
        found = (rows * (1 / rows.norm(dim=1, keepdim=True)).clamp(max=1)).sum(0)
    expected = torch.zeros_like(found)
    for one, label in zip(x.double(), y, strict=True):
        loss = functional.cross_entropy(reference(one[None]), label[None])
        gradient = torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(reference.parameters()))])
        expected += gradient * min(1.0, 1.0 / gradient.norm().item())
    assert (found - expected).norm() < 1e-4 * expected.norm()
    optimizer.step()
    engine.close()


class Checkpointed(nn.Module):
    """The layers of `network`, recomputed in the backward pass by activation checkpointing."""

    def __init__(self, reentrant, twice=False):
        super().__init__()
        self.layers, self.norm, self.reentrant, self.twice = network(), nn.LayerNorm(6), reentrant, twice

    def block(self, x):
        return self.layers(self.norm(x))

    def forward(self, x):
        x = self.norm(x) if self.twice else x
        x = x.requires_grad_() if self.reentrant and not x.requires_grad else x
        return checkpoint(self.block, x, use_reentrant=self.reentrant) if self.reentrant is not None else self.block(x)


@pytest.mark.parametrize(("mode", "reentrant"), [("hooks", True), ("hooks", False), ("ghost", False)])
def test_gradient_checkpointing_gives_the_same_gradients(tmp_path, mode, reentrant):
    sums = []
    for how in (None, reentrant):
        engine, module, optimizer, criterion, batches = ready(tmp_path / str(how), Checkpointed(how), mode)
        with engine:
            for _ in range(2):
                optimizer.zero_grad()
                x, y = next(batches)
                criterion(module(x), y).backward()
                if mode == "ghost":
                    sums.append(torch.cat([p.grad.flatten() for p in optimizer.params]))
                else:
                    sums.append(torch.cat([p.grad_sample.flatten(1) for p in optimizer.params], 1).clone())
                optimizer.step()
    assert torch.allclose(sums[0], sums[2], atol=1e-6)


def test_a_layer_inside_and_outside_of_a_reentrant_checkpoint(tmp_path):
    engine, module, _, criterion, batches = ready(tmp_path, Checkpointed(True, twice=True))
    x, y = next(batches)
    with engine, pytest.raises(ap.Refused, match=r"'norm' is used both inside and outside"):
        criterion(module(x), y).backward()


def test_a_reentrant_checkpoint_with_ghost_clipping(tmp_path):
    engine, module, _, criterion, batches = ready(tmp_path, Checkpointed(True), "ghost")
    x, y = next(batches)
    with engine, pytest.raises(ap.Refused, match=r"torch\.utils\.checkpoint"):
        criterion(module(x), y).backward()


SPARSE = plan_for(ap.strategies.Identity(12), ap.Poisson(0.03))


@pytest.mark.parametrize("inner", [False, True])
def test_a_scheduler_counts_steps_without_examples(tmp_path, inner):
    module = network()
    optimizer = torch.optim.SGD(module.parameters(), lr=1.0)
    with antiphase.torch.PrivacyEngine(tmp_path / "run", secret=ap.Secret.insecure(5)) as engine:
        wrapped, made, loader = engine.make_private(module, optimizer, data(), SPARSE)
        iterations, rates = 0, []
        optimizer.register_step_pre_hook(lambda *_: rates.append(optimizer.param_groups[0]["lr"]))
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer if inner else made, step_size=1, gamma=0.5)
        engine.attach_scheduler(scheduler)
        engine.attach_scheduler(scheduler)  # a second time changes nothing
        for _ in range(-(-12 // len(loader))):
            for x, y in loader:
                iterations += 1
                made.zero_grad()
                functional.cross_entropy(wrapped(x), y).backward()
                made.step()
        assert engine.step == 12
        assert iterations < 12
        assert rates == [0.5**k for k in range(12)]


def test_schedulers_that_cannot_be_attached(tmp_path):
    engine, _, optimizer, *_ = private(tmp_path / "run", SPARSE)
    with engine:
        with pytest.raises(ap.InvalidArgument, match="needs a metric"):
            engine.attach_scheduler(torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer))
        other = torch.optim.SGD(network().parameters(), lr=0.1)
        with pytest.raises(ap.InvalidArgument, match="does not belong"):
            engine.attach_scheduler(torch.optim.lr_scheduler.StepLR(other, 1))
    with pytest.raises(ap.Refused, match="make_private first"):
        antiphase.torch.PrivacyEngine(tmp_path / "other").attach_scheduler(None)


class Collection(nn.Module):
    """A layer whose parameter is in a `ParameterDict` or a `ParameterList`."""

    def __init__(self, kind, own):
        super().__init__()
        scale = nn.Parameter(torch.ones(6))
        self.scales = nn.ParameterDict({"first": scale}) if kind == "ParameterDict" else nn.ParameterList([scale])
        self.key = "first" if kind == "ParameterDict" else 0
        if own:
            self.shift = nn.Parameter(torch.zeros(6))

    def forward(self, x):
        return x * self.scales[self.key] + getattr(self, "shift", 0)


@pytest.mark.parametrize("mode", ["hooks", "functorch", "ghost"])
@pytest.mark.parametrize("kind", ["ParameterDict", "ParameterList"])
def test_parameters_in_a_collection(tmp_path, kind, mode):
    """A collection is not called. Inside a layer with a parameter of its own, it is processed with that layer."""
    module = nn.Sequential(Collection(kind, own=False), nn.Linear(6, 3))
    with pytest.raises(ap.InvalidArgument, match=rf"'0\.scales\.\w+' is in a {kind}"):
        private(tmp_path / "alone", plan_for(), module, grad_sample_mode=mode)
    module = nn.Sequential(Collection(kind, own=True), nn.Linear(6, 3))
    engine, module, optimizer, criterion, loader = private(tmp_path / "own", plan_for(), module, grad_sample_mode=mode)
    with engine:
        train(module, optimizer, criterion, loader, 1)
        assert engine.step > 0


@pytest.mark.parametrize("mode", ["hooks", "functorch", "ghost"])
@pytest.mark.parametrize("reused", ["model", "wrapper", "layer", "in Opacus's wrapper"])
def test_layers_with_the_hooks_of_an_earlier_wrapper(tmp_path, reused, mode):
    """Gradients of these layers would be counted twice. After a mean, the first one has the number of examples in it,
    and in "hooks" mode one of 4 examples changed the sum by 1.06 times the clipping norm."""
    model = network()
    if reused == "in Opacus's wrapper":
        wrapper = GradSampleModule(model[0])
    else:
        engine, wrapper, *_ = private(tmp_path / "first", plan_for(), model)
        engine.close()
    parts = {"model": model, "wrapper": wrapper}
    again = parts.get(reused) or nn.Sequential(nn.Sequential(model[0], nn.Tanh()), nn.Linear(5, 3))
    with pytest.raises(ap.InvalidArgument, match="already") as caught:
        private(tmp_path / "second", plan_for(), again, grad_sample_mode=mode, loss_reduction="sum")
    assert "load_state_dict" in str(caught.value)
    assert not (tmp_path / "second").exists()


@pytest.mark.parametrize("mode", ["hooks", "functorch", "ghost"])
def test_frozen_layers_of_an_earlier_run_may_be_used_again(tmp_path, mode):
    model = network()
    engine, *_ = private(tmp_path / "first", plan_for(), model)
    engine.close()
    model[0].requires_grad_(False)
    ends = []
    for name, first in (("again", model[0]), ("new", network()[0].requires_grad_(False))):
        torch.manual_seed(0)
        again = nn.Sequential(first, nn.Tanh(), nn.Linear(5, 3))
        optimizer = torch.optim.SGD(again[2].parameters(), lr=0.1)
        engine = antiphase.torch.PrivacyEngine(tmp_path / name, secret=SECRET)
        with engine:
            criterion = nn.CrossEntropyLoss()
            made = engine.make_private(again, optimizer, data(), plan_for(), grad_sample_mode=mode, criterion=criterion)
            train(made[0], made[1], made[2] if mode == "ghost" else criterion, made[-1], epochs=1)
        ends.append(again[2].weight.detach().clone())
    assert torch.equal(*ends)
