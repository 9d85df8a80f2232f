"""For every kind of layer, the contribution of one example never exceeds the clipping norm.

The contribution is the difference between the sum with this example and the sum without it.
"""

import copy
from functools import partial

import pytest
import torch
from opacus.layers import DPLSTM
from opacus.utils.fsdp_utils import FSDP2Wrapper
from torch import nn
from torch.nn import functional
from torch.nn.utils.rnn import pack_padded_sequence
from torch.utils.checkpoint import checkpoint
from torch.utils.data import TensorDataset

import antiphase as ap
from tests.torch.training import HOOKS, local, plan_for, private, record

pytestmark = [pytest.mark.filterwarnings(HOOKS), pytest.mark.usefixtures("same_run_id")]
EXAMPLES = 4


def numbers(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(6))


class Model(nn.Module):
    """A model that consists of layers and a function `use`, which computes the output from them and the inputs."""

    def __init__(self, use, *layers):
        super().__init__()
        self.layers, self.use = nn.ModuleList(layers), use

    def forward(self, *inputs):
        return self.use(*self.layers, *inputs)


class Loss(nn.Module):
    """A loss that is so steep that every example is clipped."""

    reduction = "sum"

    def forward(self, output, target):
        losses = 100 * (output.flatten(1).sum(1) - 10 * target).square()
        return losses if self.reduction == "none" else losses.sum()


class Linear(Loss):
    """A loss whose gradient does not depend on the output."""

    def forward(self, output, target):
        losses = output.flatten(1).sum(1)
        return losses if self.reduction == "none" else losses.sum()


def the_sum(directory, make, tensors, mode, loss=None, **options):
    """Return the sum of the clipped gradients of all examples. The noise is negligible."""
    plan = plan_for(ap.strategies.Identity(2), ap.EveryStep(), noise_std=1e-9, examples=len(tensors[0]))
    with torch.random.fork_rng():
        torch.manual_seed(0)
        module = make()
    options = {"dataset": TensorDataset(*tensors), "loss_reduction": "sum", "grad_sample_mode": mode, **options}
    loss = loss or Loss()
    if "ghost" in mode:
        options["criterion"] = loss
    engine, module, optimizer, criterion, loader = private(directory, plan, module, lr=0.0, **options)
    criterion = criterion if "ghost" in mode else loss
    try:
        *inputs, target = next(iter(loader))
        criterion(module(*inputs), target).backward()
        optimizer.step()
        return torch.cat([local(p.grad).reshape(-1).double() for p in optimizer.params])
    finally:
        engine.close()


def contributions(directory, make, tensors, mode, **options):
    """Return the norms of the contributions of all examples."""
    tensors = (*tensors, torch.arange(1.0, 1 + len(tensors[0])))
    whole = the_sum(directory / "all", make, tensors, mode, **options)
    found = []
    for left_out in range(len(tensors[0])):
        rest = [i for i in range(len(tensors[0])) if i != left_out]
        found.append(whole - the_sum(directory / str(left_out), make, [t[rest] for t in tensors], mode, **options))
    return torch.stack(found).norm(dim=1)


def assert_all_clipped(directory, make, tensors, mode, **options):
    """Assert that all contributions have a norm equal to the clipping norm, and not less."""
    assert contributions(directory, make, tensors, mode, **options).numpy() == pytest.approx(1.0, rel=2e-3)


def images():
    return numbers(EXAMPLES, 3, 6, 6)


LAYOUTS = {
    "as it is": lambda x: x,
    "channels last": lambda x: x.contiguous(memory_format=torch.channels_last),
    "batch last": lambda x: x.permute(1, 2, 3, 0).contiguous().permute(3, 0, 1, 2),
}


@pytest.mark.parametrize("mode", ["hooks", "ghost"])
@pytest.mark.parametrize("padding", [0, 1])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_convolutions_whatever_the_order_in_memory(tmp_path, layout, padding, mode):
    def use(conv, x):
        return conv(LAYOUTS[layout](x)).mean((2, 3))

    assert_all_clipped(tmp_path, lambda: Model(use, nn.Conv2d(3, 4, 3, padding=padding)), [images()], mode)


@pytest.mark.parametrize("mode", ["hooks", "functorch", "ew", "ghost"])
def test_instance_norm_before_positions_first(tmp_path, mode):
    """On a CPU, PyTorch mixes the examples if the gradient of the output has this order in memory."""

    def use(layers, x):
        return layers(x).flatten(2).permute(2, 0, 1).contiguous().tanh().square().mean(0)

    def layers():
        return nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.InstanceNorm2d(4, affine=True))

    assert_all_clipped(tmp_path, lambda: Model(use, layers()), [images()], mode)


def one_pixel(conv, x):
    last = x.mean((2, 3)).as_strided((len(x), 3, 1, 1), (3, 1, 3, 3))  # in either order
    return conv(last).flatten(1)


CASES = {
    "one pixel": (one_pixel, lambda: nn.Conv2d(3, 4, 3, padding=1)),
    "positions": (lambda table, x: table(torch.arange(6).expand(len(x), -1)) * x[:, 0], lambda: nn.Embedding(6, 6)),
    "one matrix more": (lambda linear, x: linear(x.reshape(-1, 2, 2, 27)).mean((1, 2)), lambda: nn.Linear(27, 3)),
    "transposed convolution": (lambda conv, x: conv(x).mean((2, 3)), lambda: nn.ConvTranspose2d(3, 4, 3, stride=2)),
    "PReLU": (lambda relu, x: relu(x).mean((2, 3)), nn.PReLU),
    "group norm": (lambda norm, x: norm(x).square().mean((2, 3)), lambda: nn.GroupNorm(3, 3)),
    "layer norm, twice": (lambda norm, x: norm(norm(x).square()).square().mean(2), lambda: nn.LayerNorm((6, 6))),
    "strides": (
        lambda conv, x: conv(x).mean((2, 3)),
        lambda: nn.Conv2d(3, 6, (3, 2), stride=(2, 3), padding=(1, 2), groups=3),
    ),
    "dilated": (lambda conv, x: conv(x.flatten(2)).mean(2), lambda: nn.Conv1d(3, 6, 4, padding="same", dilation=2)),
}


@pytest.mark.parametrize("mode", ["hooks", "ghost"])
@pytest.mark.parametrize("case", CASES)
def test_layers(tmp_path, case, mode):
    use, layer = CASES[case]
    assert_all_clipped(tmp_path, lambda: Model(use, layer()), [images()], mode)


CANCELLING = {
    "linear": (lambda linear, x, *_: linear(x), lambda: nn.Linear(3, 4, bias=False)),
    "bias": (lambda linear, _, x, by: linear(x) * by, lambda: nn.Linear(3, 4)),
    "convolution": (lambda conv, x, *_: conv(x.mT), lambda: nn.Conv1d(3, 4, 1, bias=False)),
    "two dimensions": (lambda conv, x, *_: conv(x.mT.unflatten(2, (8, 16))), lambda: nn.Conv2d(3, 4, 1, bias=False)),
    "table": (lambda table, _, x, by: table((3 * x[..., 0].abs()).long() % 3) * by, lambda: nn.Embedding(3, 2)),
    "layer norm": (lambda norm, _, x, by: norm(x) * by, lambda: nn.LayerNorm(3)),
    "group norm": (lambda norm, _, x, by: norm(x.mT) * by.mT, lambda: nn.GroupNorm(1, 3)),
}


@pytest.mark.parametrize("case", CANCELLING)
def test_positions_that_cancel_do_not_make_a_long_gradient_short(tmp_path, case):
    """Norms and sums are rounded differently, in units of single positions: contributions were up to 150,000."""
    generator = torch.Generator().manual_seed(0)
    there, half = 1e10 * torch.randn(6, 64, 3, generator=generator), torch.randn(6, 64, 3, generator=generator)
    back, factors = -there[:, torch.randperm(64, generator=generator)], there[..., :1]
    tensors = [torch.cat([there, back], 1), torch.cat([half, half], 1), torch.cat([factors, -factors], 1)]
    use, layer = CANCELLING[case]
    found = contributions(tmp_path, lambda: Model(use, layer()), tensors, "ghost", loss=Linear())
    assert found.max() <= 1 + 1e-4


class Factor(nn.Module):
    """A layer with one parameter of the given shape, by which it multiplies its input."""

    def __init__(self, *shape):
        super().__init__()
        self.factor, self.by = nn.Parameter(torch.full(shape, 1.5)), 1.0

    def forward(self, x, by=1.0):
        return x * self.factor * self.by * by


@pytest.mark.parametrize("clipping", ["flat", "per_layer"])
@pytest.mark.parametrize("mode", ["hooks", "functorch", "ghost"])
def test_a_parameter_that_is_a_single_number(tmp_path, mode, clipping):
    if (mode, clipping) == ("ghost", "per_layer"):
        return  # there is no such thing
    model = lambda: Model(lambda factor, linear, x: linear(factor(x)), Factor(), nn.Linear(3, 2))  # noqa: E731
    assert_all_clipped(tmp_path, model, [numbers(EXAMPLES, 3)], mode, clipping=clipping)


def attribute(factor, x):
    factor.by = 30.0  # after Opacus has made its copy
    return factor(x)


def outside(factor, x):
    return factor(x) + 30 * factor.factor * x


@pytest.mark.parametrize("mode", ["hooks", "ghost"])
@pytest.mark.parametrize("use", [attribute, outside])
def test_gradients_of_a_copy_of_the_layer(tmp_path, use, mode):
    """Opacus has no formula, and differentiates a copy: with ghost clipping, contributions were 30 times the norm."""
    assert_all_clipped(tmp_path, lambda: Model(use, Factor()), [numbers(EXAMPLES, 3)], mode)


@pytest.mark.usefixtures("one_process")
def test_sharded_layers_too(tmp_path):
    """Classes of their own, with the same formulas."""

    def use(conv, linear, x):
        return linear(conv(LAYOUTS["channels last"](x)).flatten(2)).mean(1)

    def model(*more):
        return FSDP2Wrapper(Model(use, nn.Conv2d(3, 4, 3), nn.Linear(16, 2), *more))

    assert_all_clipped(tmp_path / "known", model, [images()], "ghost_fsdp")
    with pytest.raises(ap.InvalidArgument, match="no formula for Factor"):
        the_sum(tmp_path / "own", lambda: model(Factor(1)), [images(), torch.ones(EXAMPLES)], "ghost_fsdp")


@pytest.mark.parametrize("mode", ["hooks", "ghost"])
def test_gradients_divided_by_how_often_a_row_is_used(tmp_path, mode):
    """One example with all rows, which has no gradient of its own, would take most of that of all others away."""
    rows = 20
    tokens = torch.full((rows + 1, 100), rows)
    tokens[:rows, 0] = torch.arange(rows)
    tokens[rows] = torch.arange(100) % rows
    weight = torch.tensor([1.0] * rows + [0.0])

    def use(embedding, x, weight):
        return (embedding(x) * (x != rows)[..., None]).sum(1) * weight[:, None]

    def model():
        return Model(use, nn.Embedding(rows + 1, 2, scale_grad_by_freq=True))

    if mode == "ghost":
        with pytest.raises(ap.InvalidArgument, match="scale_grad_by_freq"):
            contributions(tmp_path, model, [tokens, weight], mode)
    else:
        assert contributions(tmp_path, model, [tokens, weight], mode).max() <= 1 + 1e-3


class Recurrent(nn.Module):
    def __init__(self, enforce_sorted):
        super().__init__()
        self.first, self.recurrent, self.last = nn.Linear(3, 4), DPLSTM(4, 4, batch_first=True), nn.Linear(4, 2)
        self.enforce_sorted = enforce_sorted

    def forward(self, x, lengths, factors):
        packed = pack_padded_sequence(self.first(x), lengths, batch_first=True, enforce_sorted=self.enforce_sorted)
        return self.last(self.recurrent(packed)[1][0][-1]) * factors[:, None]


@pytest.mark.parametrize("mode", ["hooks", "functorch"])
def test_sequences_that_a_layer_sorts_by_itself(tmp_path, mode):
    """Rows of the recurrent layer were other examples than those of the linear ones: contributions of 2.1."""
    lengths, factors = torch.tensor([2, 4, 1, 3]), torch.tensor([1.0, 30.0, 0.1, 5.0])
    tensors = [numbers(EXAMPLES, 4, 3), lengths, factors]
    with pytest.raises(ap.Refused, match="the examples are in a different order"):
        contributions(tmp_path / "sorted inside", lambda: Recurrent(False), tensors, mode)
    order = lengths.argsort(descending=True)
    tensors = [t[order] for t in tensors]
    for enforce in (True, False):
        assert_all_clipped(tmp_path / f"sorted {enforce}", lambda enforce=enforce: Recurrent(enforce), tensors, mode)


SOME = torch.tensor([False, False, True, True])


def and_some(layer, x, some):
    """Apply the layer to all examples, and a second time to some of them."""
    again = torch.zeros(len(x), 3)
    if some.any():
        again = again.masked_scatter(some[:, None].expand(-1, 3), outputs(layer, x[some].flip(1)))
    return outputs(layer, x) * torch.tensor([1.0, 2.0, 3.0]) + 5 * again


def outputs(layer, x):
    return layer(input=x)[1][0][-1] if isinstance(layer, DPLSTM) else layer(x).mean(1)


@pytest.mark.parametrize("mode", ["hooks", "functorch", "ghost"])
@pytest.mark.parametrize("kind", [nn.Linear, nn.LayerNorm, DPLSTM])
def test_layers_that_some_of_the_examples_go_through_twice(tmp_path, kind, mode):
    """Their rows were added to those of the first examples, and each was in two of them: contributions of 1.9."""
    if mode == "ghost" and kind is not nn.LayerNorm:
        return  # refused for what is used twice
    layer = {
        nn.Linear: lambda: nn.Linear(3, 3),
        nn.LayerNorm: lambda: nn.LayerNorm(3),
        DPLSTM: lambda: DPLSTM(3, 3, batch_first=True),
    }[kind]
    with pytest.raises(ap.Refused, match="different numbers of rows"):
        contributions(tmp_path / "some", lambda: Model(and_some, layer()), [numbers(EXAMPLES, 5, 3), SOME], mode)
    assert_all_clipped(tmp_path / "all", lambda: Model(and_some, layer()), [numbers(EXAMPLES, 5, 3), SOME | True], mode)


def test_weights_used_again_where_the_graph_does_not_show_it(tmp_path):
    def model(reentrant):
        def use(linear, x):
            def twice(x):
                return functional.linear(linear(x), 30 * linear.weight)

            return checkpoint(twice, x.requires_grad_(), use_reentrant=reentrant)

        return Model(use, nn.Linear(3, 3, bias=False))

    for reentrant, words in ((True, "cannot check which"), (False, "outside its layer")):
        with pytest.raises(ap.Refused, match=words):
            contributions(tmp_path / words[:3], partial(model, reentrant), [numbers(EXAMPLES, 3)], "ghost")


@pytest.mark.parametrize("mode", ["hooks", "ghost"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_gradients_of_parameters_changed_on_their_way(tmp_path, mode, when):
    def model():
        made = Model(lambda linear, x: linear(x), nn.Linear(3, 2))
        weight = made.layers[0].weight
        if when == "before":
            weight.register_hook(lambda g: 10 * g)
        else:
            weight.register_post_accumulate_grad_hook(lambda p: setattr(p, "grad", 10 * p.grad))
        return made

    if mode == "ghost":
        with pytest.raises(ap.Refused, match="has a hook"):
            contributions(tmp_path, model, [numbers(EXAMPLES, 3)], mode)
    else:
        assert_all_clipped(tmp_path, model, [numbers(EXAMPLES, 3)], mode)


@pytest.mark.parametrize("mode", ["hooks", "ghost"])
def test_gradients_of_activations_changed_on_their_way(tmp_path, mode):
    def use(first, second, x):
        hidden = first(x)
        if hidden.requires_grad:  # not where the whole model is copied
            hidden.register_hook(lambda g: 10 * g)
        return second(hidden)

    assert_all_clipped(tmp_path, lambda: Model(use, nn.Linear(3, 3), nn.Linear(3, 2)), [numbers(EXAMPLES, 3)], mode)


IN_PLACE = {
    "added": lambda h, x: h.add_(x),
    "activation": lambda h, x: h.relu_(),
    "part": lambda h, x: h[:, 0].mul_(2.0),
    "filled": lambda h, x: h.masked_fill_(x > 1, 0.0),
}


@pytest.mark.parametrize("before", [False, True])
@pytest.mark.parametrize("change", IN_PLACE)
@pytest.mark.parametrize("shape", [(3,), (4, 3)], ids=str)
@pytest.mark.parametrize("mode", ["hooks", "ghost"])
def test_outputs_changed_in_place(tmp_path, mode, shape, change, before):
    """The output is used after the change, and perhaps before it."""

    class Changed(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 2)

        def forward(self, x):
            hidden = self.first(x)
            earlier = torch.tanh(hidden) if before else 0.0
            IN_PLACE[change](hidden, x)
            return self.second(earlier + hidden).view(len(x), -1, 2).mean(1)

    with torch.random.fork_rng():
        torch.manual_seed(0)
        plain, x = Changed(), numbers(EXAMPLES, *shape)
    reference, y = copy.deepcopy(plain).double(), torch.arange(EXAMPLES) % 2
    options = {"dataset": TensorDataset(x, y), "grad_sample_mode": mode, "loss_reduction": "sum"}
    identity, every = ap.strategies.Identity(2), ap.EveryStep()
    plan = plan_for(identity, every, noise_std=1e-9, clip_norm=0.3, examples=EXAMPLES)
    engine, module, optimizer, criterion, loader = private(tmp_path, plan, plain, **options)
    with engine:
        gradients = record(optimizer)
        a, b = next(iter(loader))
        criterion(module(a), b).backward()
        optimizer.step()
    total = 0.0
    for one, label in zip(a.double(), b, strict=True):
        loss = functional.cross_entropy(reference(one[None]), label[None])
        gradient = torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(reference.parameters()))])
        total = total + gradient * min(1.0, 0.3 / gradient.norm().item())
    torch.testing.assert_close(gradients[0].double(), total, rtol=1e-4, atol=1e-5)


def test_checkpoints_of_activations_are_possible_as_the_hint_says(tmp_path):
    def use(first, second, x):
        return checkpoint(second, first(x), use_reentrant=True)

    assert_all_clipped(tmp_path, lambda: Model(use, nn.Linear(3, 3), nn.Linear(3, 2)), [numbers(EXAMPLES, 3)], "hooks")


@pytest.mark.parametrize("way", ["of old", "of one backend"])
def test_matrix_products_of_lower_precision(tmp_path, way):
    backend, before = torch.backends.mkldnn.matmul, torch.backends.mkldnn.matmul.fp32_precision
    try:
        if way == "of old":
            torch.set_float32_matmul_precision("high")
        else:
            backend.fp32_precision = "tf32"
        model, tensors = lambda: Model(lambda linear, x: linear(x), nn.Linear(3, 2)), [numbers(EXAMPLES, 3)]
        assert_all_clipped(tmp_path / "hooks", model, tensors, "hooks")
        with pytest.raises(ap.Refused, match="lower precision"):
            contributions(tmp_path / "ghost", model, tensors, "ghost")
    finally:
        backend.fp32_precision = before
        torch.set_float32_matmul_precision("highest")


def offsets_of(bag, tokens):
    return bag(tokens.flatten(), tokens.shape[1] * torch.arange(len(tokens)))


TOKENS = torch.tensor([[1, 1, 2], [0, 3, 3], [4, 4, 4], [2, 0, 1]])
IMAGES = {1: numbers(EXAMPLES, 2, 6), 2: numbers(EXAMPLES, 2, 5, 6), 3: numbers(EXAMPLES, 2, 4, 5, 4)}
CONVOLUTIONS = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
# name -> (layer, how it is used, input)
GRADIENTS = {
    **{
        f"bag, {mode}, {how}, {padding}": (
            partial(nn.EmbeddingBag, 5, 3, mode=mode, padding_idx=padding),
            offsets_of if how == "offsets" else lambda bag, tokens: bag(tokens),
            TOKENS,
        )
        for mode in ("sum", "mean")
        for how in ("offsets", "rows")
        for padding in (None, 0)
    },
    **{
        f"convolution {d}, {padding}, {mode}": (
            partial(CONVOLUTIONS[d], 2, 4, 3, padding=padding, padding_mode=mode, groups=2),
            lambda convolution, x: convolution(x),
            IMAGES[d],
        )
        for d, padding in ((1, 2), (2, (1, 2)), (3, 1), (2, "same"))
        for mode in ("zeros", "circular", "reflect", "replicate")
    },
}


@pytest.mark.parametrize("name", GRADIENTS)
def test_the_gradients_are_those_of_autograd(tmp_path, name):
    """Repeated tokens count as often as they occur, and convolutions pad as they say."""
    make, use, inputs = GRADIENTS[name]
    model, weights, wanted = Model(use, make()), numbers(EXAMPLES), []
    alone = copy.deepcopy(model).double()

    def losses(output, weights):
        return (output.flatten(1).square().sum(1) + output.flatten(1).sum(1) * weights).sum()

    for i in range(EXAMPLES):
        alone.zero_grad()
        one = inputs[i : i + 1]
        losses(alone(one.double() if one.is_floating_point() else one), weights[i]).backward()
        wanted.append([p.grad.clone() for p in alone.parameters()])
    engine, model, optimizer, _, _ = private(tmp_path, plan_for(), model, loss_reduction="sum")
    with engine:
        losses(model(inputs), weights).backward()
        for p, rows in zip(optimizer.params, zip(*wanted, strict=True), strict=True):
            torch.testing.assert_close(p.grad_sample.double(), torch.stack(rows), rtol=1e-4, atol=1e-4)


def test_a_bag_that_takes_the_largest_is_refused(tmp_path):
    model = Model(offsets_of, nn.EmbeddingBag(5, 3, mode="max"))
    engine, model, *_ = private(tmp_path, plan_for(), model)
    with engine, pytest.raises(ap.Refused, match="mode='max'"):
        model(TOKENS).sum().backward()


def weighted_rows(bag, tokens):
    return bag(tokens, per_sample_weights=0.5 * torch.ones(tokens.shape))


def weighted_offsets(bag, tokens):
    """Use the bag with one token per example, weights and offsets."""
    return bag(tokens[:, 0], torch.arange(len(tokens)), 0.5 * torch.ones(len(tokens)))


def last_offset(bag, tokens):
    return bag(tokens.flatten(), tokens.shape[1] * torch.arange(len(tokens) + 1))


@pytest.mark.parametrize("use", [weighted_rows, weighted_offsets, last_offset])
def test_bags_with_weights_or_a_last_offset_are_refused(tmp_path, use):
    """Weights would be ignored in the gradients."""
    model = Model(use, nn.EmbeddingBag(5, 3, mode="sum", include_last_offset=use is last_offset))
    engine, model, *_ = private(tmp_path, plan_for(), model)
    with engine, pytest.raises(ap.Refused, match="per_sample_weights, or has include_last_offset"):
        model(TOKENS).sum().backward()


@pytest.mark.filterwarnings("ignore:In CPU autocast")  # Opacus computes copies of layers under autocast to int64
@pytest.mark.parametrize("mode", ["hooks", "functorch"])
@pytest.mark.parametrize("is_first", [True, False])
def test_a_shared_table_that_another_layer_looks_up_once(tmp_path, is_first, mode):
    """The gradient of the lookup, a sum over the examples, would be added to the gradient of the first example."""

    def use(tables, x):
        parts = [lambda: tables[0](x).mean(1), lambda: tables[1](torch.arange(2)[None]).mean(1)]
        found = [part() for part in (parts if is_first else parts[::-1])]
        return found[0] + found[1]

    tables = nn.ModuleList([nn.Embedding(5, 3), nn.Embedding(5, 3)])
    tables[1].weight = tables[0].weight
    engine, model, *_ = private(tmp_path, plan_for(), Model(use, tables), grad_sample_mode=mode)
    with engine, pytest.raises(ap.Refused, match="is shared by layers that were called with different"):
        model(TOKENS).sum().backward()


def test_stored_gradients_share_no_memory_with_those_of_autograd(tmp_path):
    """With a sum of losses, the gradients of the bias are those of the output, which a hook may change in place."""
    model = Model(lambda norm, x: norm(x), nn.LayerNorm(4))
    engine, model, optimizer, _, _ = private(tmp_path, plan_for(), model, loss_reduction="sum")
    with engine:
        output = model(numbers(EXAMPLES, 4))
        output.register_hook(torch.Tensor.zero_)
        output.square().sum().backward()
        torch.testing.assert_close(optimizer.params[-1].grad_sample, 2 * output.detach())


@pytest.mark.parametrize("times", [1, 2, 3])
def test_a_layer_used_several_times(tmp_path, times):
    """The gradients of all uses are added. Those of the last use, which come first, are stored without a copy."""

    def use(layer, x):
        for _ in range(times):
            x = layer(x)
        return x

    model, inputs, wanted = Model(use, nn.LayerNorm(3)), numbers(EXAMPLES, 3), []
    alone = copy.deepcopy(model).double()
    for i in range(EXAMPLES):
        alone.zero_grad()
        (alone(inputs[i : i + 1].double()) ** 3).sum().backward()
        wanted.append([p.grad.clone() for p in alone.parameters()])
    engine, model, optimizer, _, _ = private(tmp_path, plan_for(), model, loss_reduction="sum")
    with engine:
        (model(inputs) ** 3).sum().backward()
        for p, rows in zip(optimizer.params, zip(*wanted, strict=True), strict=True):
            torch.testing.assert_close(p.grad_sample.double(), torch.stack(rows), rtol=1e-4, atol=1e-5)
