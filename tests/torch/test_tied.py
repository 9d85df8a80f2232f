"""Ghost clipping for an Embedding and a Linear that share a weight, compared with a loop over examples in float64."""

import copy

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import antiphase as ap
from antiphase.torch._criterion import clipping_factors
from antiphase.torch._ghost import embedding_squares, embedding_sums, linear_squares, linear_sums, tied_products
from antiphase.torch.losses import CausalLMLoss
from tests.torch.training import HOOKS, plan_for, private, record

# The second filter is for a warning that Opacus causes with functorch and tokens.
pytestmark = [pytest.mark.filterwarnings(HOOKS, "ignore:In CPU autocast:UserWarning")]
EXAMPLES, LENGTH, WORDS, WIDTH = 40, 6, 11, 8


class Language(nn.Module):
    def __init__(self, bias=False, padding=None):
        super().__init__()
        self.tokens = nn.Embedding(WORDS, WIDTH, padding_idx=padding)
        self.body, self.norm = nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, WORDS, bias=bias)
        self.head.weight = self.tokens.weight

    def forward(self, tokens):
        return self.head(self.norm(torch.tanh(self.body(self.tokens(tokens)))))


class Last(Language):
    """Predicts one token, so that the head has no positions."""

    def forward(self, tokens):
        return super().forward(tokens)[:, -1]


def tokens_and_labels():
    tokens = torch.randint(0, WORDS, (EXAMPLES, LENGTH), generator=torch.Generator().manual_seed(1))
    return tokens, tokens


def loop(module, loss, tokens, labels, clip_norm):
    """Return the norms and the clipped sum of the per-example gradients, one example at a time, in float64."""
    module = copy.deepcopy(module).double()
    norms, total = [], 0.0
    for one, label in zip(tokens, labels, strict=True):
        found = torch.autograd.grad(loss(module(one[None]), label[None]), list(module.parameters()))
        gradient = torch.cat([g.flatten() for g in found])
        norms.append(gradient.norm())
        total = total + gradient * min(1.0, clip_norm / gradient.norm().item())
    return torch.stack(norms), total


@pytest.mark.parametrize("mode", ["hooks", "ghost"])
def test_the_padding_row_is_not_trained(tmp_path, mode):
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Embedding(WORDS, WIDTH, padding_idx=3), nn.Linear(WIDTH, WORDS))
    tokens, labels = tokens_and_labels()
    tokens[:, 0] = 3
    options = {"dataset": TensorDataset(tokens, labels), "criterion": CausalLMLoss(), "grad_sample_mode": mode}
    plan = plan_for(ap.strategies.Identity(4), noise_std=1e-9, clip_norm=0.3)
    engine, module, optimizer, criterion, loader = private(tmp_path, plan, plain, **options)
    criterion = criterion if mode == "ghost" else CausalLMLoss()
    with engine:
        gradients = record(optimizer)
        x, y = next(iter(loader))
        criterion(module(x), y).backward()
        optimizer.step()
        table = gradients[0][: WORDS * WIDTH].view(WORDS, WIDTH)
    assert (x == 3).any()
    assert table[3].abs().max() < 1e-6 < 1e-3 < table[x[x != 3]].abs().max()


@pytest.mark.parametrize("clip_norm", [0.3, 1e3])
@pytest.mark.parametrize(
    ("kind", "options"), [(Language, {}), (Language, {"bias": True}), (Language, {"padding": 3}), (Last, {})]
)
def test_tied_embeddings_have_the_gradients_of_a_loop(tmp_path, kind, options, clip_norm):
    torch.manual_seed(0)
    plain = kind(**options)
    loss = CausalLMLoss() if kind is Language else nn.CrossEntropyLoss()
    tokens, labels = tokens_and_labels()
    labels = labels if kind is Language else labels[:, 0]
    reference = copy.deepcopy(plain)
    engine, module, optimizer, criterion, loader = private(
        tmp_path / "run",
        plan_for(ap.strategies.Identity(4), noise_std=1e-9, clip_norm=clip_norm),
        plain,
        dataset=TensorDataset(tokens, labels),
        criterion=loss,
        grad_sample_mode="ghost",
    )
    with engine:
        gradients = record(optimizer)
        x, y = next(iter(loader))
        criterion(module(x), y).backward()
        norms, total = loop(reference, type(loss)(), x, y, clip_norm)
        torch.testing.assert_close(module.per_sample_gradient_norms.double(), norms, rtol=2e-4, atol=1e-6)
        assert (module.per_sample_gradient_norms.double() >= norms * (1 - 1e-6)).all()
        optimizer.step()
        torch.testing.assert_close(gradients[0].double() * len(x), total, rtol=1e-4, atol=1e-5 * clip_norm)


def test_without_the_product_the_norm_would_be_too_small():
    """The oracle itself: both uses of the weight point the same way."""
    embedding, linear = layers()
    kept = pointing(embedding, linear, sign=1.0)
    squares = [formula(layer, *given) for formula, (layer, *given) in zip(SQUARES, kept, strict=True)]
    apart = sum(squares).sqrt()
    together = (sum(squares) + tied_products(*kept, *squares)).sqrt()
    true = whole(kept).flatten(1).norm(dim=1)
    assert (apart < 0.8 * true).all()
    torch.testing.assert_close(together, true, rtol=1e-3, atol=0.0)


@pytest.mark.parametrize("size", [1.0, 1e4, 1e8])
@pytest.mark.parametrize("clip_norm", [1.0, 1e-3])
def test_uses_that_cancel_are_clipped(size, clip_norm):
    """The gradients of both uses are large and nearly opposite: what is left is rounding, and must be bounded."""
    embedding, linear = layers()
    kept = pointing(embedding, linear, sign=-1.0, size=size)
    squares = [formula(layer, *given) for formula, (layer, *given) in zip(SQUARES, kept, strict=True)]
    norms = (sum(squares) + tied_products(*kept, *squares)).clamp(min=0).sqrt()
    assert (norms >= whole(kept).flatten(1).norm(dim=1) * (1 - 1e-9)).all()
    factors = clipping_factors(norms, clip_norm)
    terms = sum(square.sqrt() for square in squares)
    assert (factors * terms <= 101 * clip_norm).all()  # so that the sum over the batch is not rounded by more
    for example in range(len(norms)):
        alone = torch.zeros_like(factors)
        alone[example] = factors[example]
        sums = [f(*part, alone.to(part[2]))["weight"] for f, part in zip(SUMS, kept, strict=True)]
        assert (sums[0] + sums[1]).double().norm() <= clip_norm * (1 + 1e-3)


class Both(nn.Module):
    """A layer with a token embedding and another parameter. Opacus treats it as one layer."""

    def __init__(self):
        super().__init__()
        self.tokens, self.places = nn.Embedding(WORDS, WIDTH), nn.Parameter(torch.zeros(1, LENGTH, WIDTH))

    def forward(self, tokens):
        return self.tokens(tokens) + self.places[:, : tokens.shape[1]]


class Scaled(nn.Module):
    """A head that contains a linear layer and another parameter."""

    def __init__(self):
        super().__init__()
        self.linear, self.scale = nn.Linear(WIDTH, WORDS, bias=False), nn.Parameter(torch.ones(WORDS))

    def forward(self, x):
        return self.linear(x) * self.scale


def tied_inside(embedding, head):
    layers = nn.Sequential(embedding(), nn.Linear(WIDTH, WIDTH), head())
    inner = getattr(layers[0], "tokens", layers[0])
    getattr(layers[2], "linear", layers[2]).weight = inner.weight
    return layers


EMBEDDINGS = {"plain": lambda: nn.Embedding(WORDS, WIDTH), "inside": Both}
HEADS = {"plain": lambda: nn.Linear(WIDTH, WORDS, bias=False), "inside": Scaled}


@pytest.mark.parametrize(("embedding", "head"), [("inside", "plain"), ("plain", "inside"), ("inside", "inside")])
def test_a_tied_layer_inside_a_layer_with_its_own_parameter_is_refused_by_name(tmp_path, embedding, head):
    """Opacus computes the gradients of the outer layer as a whole, so the product of the two uses is not known."""
    options = {"dataset": TensorDataset(*tokens_and_labels()), "criterion": CausalLMLoss(), "grad_sample_mode": "ghost"}
    module = tied_inside(EMBEDDINGS[embedding], HEADS[head])
    name = "'0' " if embedding == "inside" else "'2' "
    with pytest.raises(ap.InvalidArgument, match=r"shared by several layers: .*inside another layer") as raised:
        private(tmp_path / "early", plan_for(), module, **options)
    assert name.strip() in str(raised.value)


def test_the_step_itself_also_refuses_uses_whose_product_is_not_known(tmp_path, monkeypatch):
    monkeypatch.setattr("antiphase.torch._module._shared", lambda module: {})
    options = {"dataset": TensorDataset(*tokens_and_labels()), "criterion": CausalLMLoss(), "grad_sample_mode": "ghost"}
    module = tied_inside(Both, HEADS["plain"])
    engine, module, _, criterion, loader = private(tmp_path, plan_for(), module, **options)
    x, y = next(iter(loader))
    with engine, pytest.raises(ap.Refused, match="used by several layers"):
        criterion(module(x), y).backward()


class Registered(nn.Module):
    """A model that contains the same projection twice: directly, and inside the layer that `outer` returns."""

    def __init__(self, outer, second):
        super().__init__()
        self.tokens, self.proj = nn.Embedding(WORDS, WIDTH), second()
        self.block, self.head = outer(self.proj), nn.Linear(WIDTH, WORDS)

    def forward(self, tokens):
        return self.head(torch.tanh(self.block(self.tokens(tokens))))


class Around(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner, self.scale = inner, nn.Parameter(torch.ones(WIDTH))

    def forward(self, x):
        return self.inner(x) * self.scale


@pytest.mark.parametrize("mode", ["hooks", "functorch", "ghost"])
def test_a_layer_registered_inside_and_outside_is_refused_by_name(tmp_path, mode):
    module = Registered(Around, lambda: nn.Linear(WIDTH, WIDTH))
    with pytest.raises(ap.InvalidArgument, match=r"'proj' and 'block.inner'"):
        private(tmp_path, plan_for(), module, dataset=TensorDataset(*tokens_and_labels()), grad_sample_mode=mode)


@pytest.mark.parametrize("mode", ["hooks", "functorch"])
def test_weights_shared_inside_one_layer_are_refused_by_name(tmp_path, mode):
    class Whole(Language):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.ones(WORDS))

        def forward(self, tokens):
            return super().forward(tokens) * self.scale

    with pytest.raises(ap.InvalidArgument, match=r"share the trainable weight 'tokens.weight'"):
        private(tmp_path, plan_for(), Whole(), dataset=TensorDataset(*tokens_and_labels()), grad_sample_mode=mode)


@pytest.mark.parametrize(("mode", "kind"), [("functorch", "linear"), ("hooks", "own"), ("ghost", "own")])
def test_a_layer_with_two_names_that_must_be_copied_is_refused(tmp_path, mode, kind):
    inner = nn.Linear(WIDTH, WIDTH)
    module = Registered(nn.Sequential, lambda: Around(inner) if kind == "own" else inner)
    with pytest.raises(ap.InvalidArgument, match=r"'proj' and 'block.0'"):
        private(tmp_path, plan_for(), module, dataset=TensorDataset(*tokens_and_labels()), grad_sample_mode=mode)


@pytest.mark.parametrize("mode", ["hooks", "ghost"])
@pytest.mark.parametrize("kind", ["linear", "norm"])
def test_a_layer_with_two_names_counts_once(tmp_path, kind, mode):
    """Opacus adds hooks for each name."""
    torch.manual_seed(0)
    second = {"linear": lambda: nn.Linear(WIDTH, WIDTH), "norm": lambda: nn.LayerNorm(WIDTH)}[kind]
    plain, clip_norm = Registered(nn.Sequential, second), 0.3
    reference = copy.deepcopy(plain)
    engine, module, optimizer, criterion, loader = private(
        tmp_path / "run",
        plan_for(ap.strategies.Identity(4), noise_std=1e-9, clip_norm=clip_norm),
        plain,
        dataset=TensorDataset(*tokens_and_labels()),
        criterion=CausalLMLoss(),
        grad_sample_mode=mode,
    )
    criterion = criterion if mode == "ghost" else CausalLMLoss()
    with engine:
        gradients = record(optimizer)
        x, y = next(iter(loader))
        criterion(module(x), y).backward()
        _, total = loop(reference, CausalLMLoss(), x, y, clip_norm)
        optimizer.step()
        torch.testing.assert_close(gradients[0].double() * len(x), total, rtol=1e-4, atol=1e-5 * clip_norm)


SQUARES, SUMS = (embedding_squares, linear_squares), (embedding_sums, linear_sums)


def layers():
    torch.manual_seed(0)
    embedding, linear = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WORDS, bias=False)
    linear.weight = embedding.weight
    return embedding, linear


def pointing(embedding, linear, sign, size=1.0):
    """Return inputs and gradients of both layers for which the two parts of the shared gradient point the same way.

    With sign = -1, they point in opposite directions. The head has one position, whose gradient is on one token.
    """
    count = 5
    tokens = torch.arange(count)[:, None].expand(-1, 2).contiguous()
    inputs = torch.randn(count, 1, WIDTH)
    out = torch.zeros(count, 1, WORDS)
    out[torch.arange(count), 0, torch.arange(count)] = size * (1 + torch.rand(count))
    towards = sign * out[torch.arange(count), 0, torch.arange(count)][:, None] * inputs[:, 0]
    share = torch.rand(count, 1)
    gradients = torch.stack([share * towards, (1 - share) * towards], 1)
    return (embedding, tokens, gradients), (linear, inputs, out)


def whole(kept):
    """Return the per-example gradients of the shared weight, in float64."""
    (_, tokens, g_e), (_, inputs, g_l) = kept
    found = torch.einsum("isv,isd->ivd", g_l.double(), inputs.double())
    for i, row in enumerate(tokens):
        found[i].index_add_(0, row, g_e[i].double())
    return found


class Adapter(nn.Module):
    """A frozen tied weight with small trained layers, as with LoRA."""

    def __init__(self):
        super().__init__()
        self.base = Language().requires_grad_(False)
        self.down, self.up = nn.Linear(WIDTH, 2, bias=False), nn.Linear(2, WIDTH, bias=False)

    def forward(self, tokens):
        hidden = self.base.tokens(tokens)
        return self.base.head(hidden + self.up(self.down(hidden)))


def test_a_frozen_tied_weight_is_no_obstacle(tmp_path):
    torch.manual_seed(0)
    plain = Adapter()
    reference = copy.deepcopy(plain)
    engine, module, optimizer, criterion, loader = private(
        tmp_path / "run",
        plan_for(ap.strategies.Identity(4), noise_std=1e-9, clip_norm=0.05),
        plain,
        dataset=TensorDataset(*tokens_and_labels()),
        criterion=CausalLMLoss(),
        grad_sample_mode="ghost",
    )
    with engine:
        x, y = next(iter(loader))
        criterion(module(x), y).backward()
        trained = [p for p in reference.double().parameters() if p.requires_grad]
        total = 0.0
        for one, label in zip(x, y, strict=True):
            found = torch.autograd.grad(CausalLMLoss()(reference(one[None]), label[None]), trained)
            gradient = torch.cat([g.flatten() for g in found])
            total = total + gradient * min(1.0, 0.05 / gradient.norm().item())
        found = torch.cat([p.grad.flatten() for p in optimizer.params]).double()
        torch.testing.assert_close(found, total, rtol=1e-4, atol=1e-6)


def test_other_shared_weights_are_refused_by_name(tmp_path):
    first, second = nn.Linear(6, 6), nn.Linear(6, 6)
    second.weight = first.weight
    module = nn.Sequential(first, second, nn.Linear(6, 3))
    with pytest.raises(ap.InvalidArgument, match=r"'0\.weight' is shared by several layers: '0', '1' \(Linear, Linear"):
        private(tmp_path / "run", plan_for(), module, grad_sample_mode="ghost")
    module.requires_grad_(False)
    module[2].requires_grad_(True)
    private(tmp_path / "run", plan_for(), module, grad_sample_mode="ghost")[0].close()
