"""`check_independence` finds models and losses that couple examples, and accepts all others."""

from contextlib import nullcontext

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import antiphase as ap
import antiphase.torch
from antiphase.torch.losses import CausalLMLoss, TokenLoss
from tests.torch.training import HOOKS, plan_for, private

# The second filter is for a warning that Opacus causes with functorch and an embedding.
pytestmark = [pytest.mark.filterwarnings(HOOKS), pytest.mark.filterwarnings("ignore:In CPU autocast:UserWarning")]
EXAMPLES, LENGTH, WORDS, WIDTH = 40, 6, 11, 8


class Language(nn.Module):
    """A small next-token model; subclasses couple examples."""

    def __init__(self, vocabulary=WORDS):
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, WIDTH)
        self.positions = nn.Embedding(LENGTH, WIDTH)
        self.drop = nn.Dropout(0.3)
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, vocabulary)

    def forward(self, tokens):
        hidden = self.tokens(tokens) + self.positions(self.places(tokens))
        hidden = nn.functional.dropout(self.norm(self.drop(hidden)), 0.2, self.training)
        return self.head(self.mix(hidden))

    def places(self, tokens):
        return torch.arange(tokens.shape[1]).expand(len(tokens), -1)

    def mix(self, hidden):
        return hidden


class LookedUpOnce(Language):
    """Looks up the positions once for all examples, as T5 does.

    The result has one row for each of the 6 positions. With 6 examples, this number looks right by chance.
    """

    def forward(self, tokens):
        positions = self.positions(torch.arange(tokens.shape[1]))
        hidden = self.tokens(tokens) + positions[None]
        return self.head(self.norm(hidden))


class Centred(nn.Module):
    def forward(self, hidden):
        return hidden - hidden.mean(0, keepdim=True)


class BatchStatistics(Language):
    def __init__(self):
        super().__init__()
        self.centre = Centred()

    def mix(self, hidden):
        return self.centre(hidden)


class Attention(nn.Module):
    def forward(self, hidden):
        scores = torch.einsum("itd,jtd->tij", hidden, hidden).softmax(2)
        return torch.einsum("tij,jtd->itd", scores, hidden)


class AcrossExamples(BatchStatistics):
    def __init__(self):
        super().__init__()
        self.centre = Attention()


class Mixup(Language):
    def mix(self, hidden):
        if not self.training:
            return hidden
        return 0.7 * hidden + 0.3 * hidden[torch.randperm(len(hidden))]


class Scale(nn.Module):
    def forward(self, hidden):
        return hidden / hidden.norm()


class GlobalNorm(BatchStatistics):
    def __init__(self):
        super().__init__()
        self.centre = Scale()


def token_mean(output, labels):
    return nn.functional.cross_entropy(output[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), ignore_index=-100)


def token_sum_over_longest(output, labels):
    lengths = (labels != -100).sum(1)
    return CausalLMLoss("sum")(output, labels) / lengths.max()


def contrastive(output, labels):
    pooled = output.mean(1)
    return nn.functional.cross_entropy(pooled @ pooled.T, torch.arange(len(pooled)))


def hardest(output, labels):
    return CausalLMLoss("none")(output, labels).max()


def weighted_by_class(output, labels):
    counts = torch.bincount(labels[:, 0].clamp(min=0), minlength=WORDS).float()
    return (CausalLMLoss("none")(output, labels) / counts[labels[:, 0]]).mean()


def variance(output, labels):
    return CausalLMLoss()(output, labels) + output.mean((1, 2)).var()


def pairwise(output, labels):
    score = output.mean((1, 2))
    return nn.functional.softplus(score[1:] - score[:-1]).sum() / len(score)


def normalised(output, labels):
    losses = CausalLMLoss("none")(output, labels)
    return (losses.softmax(0).detach() * losses).sum()


class PerExample:
    """A criterion for ghost clipping whose losses are coupled between examples by the function `couple`."""

    def __init__(self, couple):
        self.reduction, self.couple = "mean", couple

    def __call__(self, output, labels):
        losses = self.couple(CausalLMLoss("none")(output, labels), output, labels)
        return losses if self.reduction == "none" else losses.mean()


GHOST_LOSSES = {
    "token mean": lambda losses, output, labels: losses * (labels != -100).sum(1) / (labels != -100).sum(),
    "softmax weights": lambda losses, output, labels: losses * losses.softmax(0).detach(),
    "centred": lambda losses, output, labels: (losses - losses.mean()).square(),
    "rolled": lambda losses, output, labels: losses * losses.roll(1),
}
LOSSES = [token_mean, token_sum_over_longest, contrastive, hardest, weighted_by_class, variance, pairwise, normalised]
MODES = ["hooks", "functorch"]


def batch_of(examples=EXAMPLES):
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(0, WORDS, (examples, LENGTH), generator=generator)
    labels = tokens.clone()
    lengths = torch.randint(2, LENGTH + 1, (examples,), generator=generator)
    labels[torch.arange(LENGTH) >= lengths[:, None]] = -100
    return tokens, labels


def engine_for(path, module, mode="hooks", **options):
    torch.manual_seed(0)
    dataset = TensorDataset(*batch_of())
    return private(path, plan_for(), module=module, dataset=dataset, grad_sample_mode=mode, **options)


def some(count=8):
    return tuple(part[:count] for part in batch_of())


def check(path, module, loss, mode="hooks", batch=None):
    engine, model, *_ = engine_for(path, module, mode)
    with engine:
        engine.check_independence(lambda batch: loss(model(batch[0]), batch[1]), some() if batch is None else batch)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("loss", [CausalLMLoss(), TokenLoss(), CausalLMLoss(label_smoothing=0.1)])
def test_a_loss_per_example_passes(tmp_path, mode, loss):
    check(tmp_path / "run", Language(), loss, mode)


@pytest.mark.parametrize("criterion", [CausalLMLoss(), TokenLoss()])
def test_a_loss_per_example_passes_with_ghost_clipping(tmp_path, criterion):
    engine, model, _, loss, _ = engine_for(tmp_path / "run", Language(), "ghost", criterion=criterion)
    with engine:
        engine.check_independence(lambda batch: loss(model(batch[0]), batch[1]), some())


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.__name__)
def test_a_loss_that_couples_examples_is_found(tmp_path, mode, loss):
    with pytest.raises(ap.Refused, match="The loss of an example depends on the other examples"):
        check(tmp_path / "run", Language(), loss, mode)


@pytest.mark.parametrize("name", GHOST_LOSSES)
def test_a_loss_that_couples_examples_is_found_with_ghost_clipping(tmp_path, name):
    criterion = PerExample(GHOST_LOSSES[name])
    engine, model, _, loss, _ = engine_for(tmp_path / "run", Language(), "ghost", criterion=criterion)
    with engine, pytest.raises(ap.Refused, match="The loss of an example depends on the other examples"):
        engine.check_independence(lambda batch: loss(model(batch[0]), batch[1]), some())


@pytest.mark.parametrize("mode", [*MODES, "ghost"])
@pytest.mark.parametrize("module", [BatchStatistics, AcrossExamples, GlobalNorm], ids=lambda kind: kind.__name__)
def test_a_layer_that_mixes_examples_is_named(tmp_path, mode, module):
    engine, model, _, loss, _ = engine_for(tmp_path / "run", module(), mode, criterion=CausalLMLoss())
    loss = loss if mode == "ghost" else CausalLMLoss()
    with engine, pytest.raises(ap.Refused, match=r"Layer '.*centre' .* mixes the examples"):
        engine.check_independence(lambda batch: loss(model(batch[0]), batch[1]), some())


@pytest.mark.parametrize("mode", ["hooks", "ghost"])
def test_mixup_is_found(tmp_path, mode):
    engine, model, _, loss, _ = engine_for(tmp_path / "run", Mixup(), mode, criterion=CausalLMLoss())
    loss = loss if mode == "ghost" else CausalLMLoss()
    with engine, pytest.raises(ap.Refused, match="randomness other than dropout"):
        engine.check_independence(lambda batch: loss(model(batch[0]), batch[1]), some())


@pytest.mark.parametrize("mode", ["hooks", "ghost"])
def test_a_table_looked_up_once_is_found_even_if_its_rows_match_the_batch(tmp_path, mode):
    engine, model, _, loss, _ = engine_for(tmp_path / "run", LookedUpOnce(), mode, criterion=CausalLMLoss())
    loss = loss if mode == "ghost" else CausalLMLoss()
    with engine, pytest.raises(ap.Refused, match=r"one row per example|first dimension"):
        engine.check_independence(lambda batch: loss(model(batch[0]), batch[1]), some(LENGTH))


@pytest.mark.usefixtures("same_run_id")
@pytest.mark.parametrize("mode", ["hooks", "functorch", "ghost"])
def test_the_check_leaves_no_trace(tmp_path, mode):
    """Training after it, with its dropout and noise, ends with the same bits as without it."""
    ends = []
    for checked in (False, True):
        torch.manual_seed(0)
        module = Language()
        engine, model, optimizer, loss, loader = engine_for(
            tmp_path / f"{mode}-{checked}", module, mode, criterion=CausalLMLoss()
        )
        loss = loss if mode == "ghost" else CausalLMLoss()
        torch.manual_seed(7)
        with engine:
            for step, batch in enumerate(loader):
                if checked and step in (0, 2):
                    engine.check_independence(lambda b, model=model, loss=loss: loss(model(b[0]), b[1]), batch)
                optimizer.zero_grad()
                loss(model(batch[0]), batch[1]).backward()
                optimizer.step()
        ends.append([p.detach().clone() for p in module.parameters()])
    assert all(map(torch.equal, *ends))
    assert not torch.equal(ends[0][0], Language().tokens.weight)


def test_the_losses_are_means_within_each_example():
    logits, (_, labels) = torch.randn(8, LENGTH, WORDS, dtype=torch.float64), some()
    for loss, shift in ((CausalLMLoss, 1), (TokenLoss, 0)):
        by_hand = []
        for row, wanted in zip(logits, labels, strict=True):
            after = wanted[shift:]
            kept = after != -100
            scores = row[: LENGTH - shift].log_softmax(1)[kept]
            by_hand.append(-scores.gather(1, after[kept][:, None]).mean())
        by_hand = torch.stack(by_hand)
        torch.testing.assert_close(loss("none")(logits, labels).double(), by_hand, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(loss("mean")(logits, labels).double(), by_hand.mean(), rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(loss("sum")(logits, labels).double(), by_hand.sum(), rtol=1e-5, atol=1e-5)


def test_an_example_without_tokens_has_loss_zero():
    labels = torch.full((2, LENGTH), -100)
    assert TokenLoss("none")(torch.randn(2, LENGTH, WORDS), labels).tolist() == [0.0, 0.0]


def test_wrong_shapes_are_refused_with_a_hint():
    with pytest.raises(ap.InvalidArgument, match="CrossEntropyLoss"):
        CausalLMLoss()(torch.randn(2, 3), torch.zeros(2))


@pytest.mark.parametrize("mode", ["hooks", "ghost"])
@pytest.mark.parametrize("scale", [1.0, 1e3, 1e6])
def test_one_long_gradient_does_not_hide_a_coupling(tmp_path, scale, mode):
    """Class weights from the batch; the only example of its class has by far the longest gradient."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        x, y, module = torch.randn(16, 6), torch.randint(0, 3, (16,)), nn.Linear(6, 4, bias=False)
    x[5] *= scale
    y[5] = 3

    class Weighted(nn.Module):
        reduction = "mean"

        def forward(self, outputs, labels):
            weights = 1 / torch.bincount(labels, minlength=4).clamp(min=1).float()
            each = nn.functional.cross_entropy(outputs, labels, reduction="none") * weights[labels]
            return each if self.reduction == "none" else each.mean()

    dataset, plan = TensorDataset(x, y), plan_for(examples=16)
    engine, model, _, criterion, _ = private(
        tmp_path, plan, module, dataset=dataset, criterion=Weighted(), grad_sample_mode=mode
    )
    criterion = criterion if mode == "ghost" else Weighted()
    with engine:
        with pytest.raises(ap.Refused, match="depends on the other examples"):
            engine.check_independence(lambda batch: criterion(model(batch[0]), batch[1]), (x, y))
        if mode == "hooks":
            engine.check_independence(lambda batch: nn.functional.cross_entropy(model(batch[0]), batch[1]), (x, y))


@pytest.mark.parametrize("mode", ["hooks", "ghost"])
def test_an_example_whose_gradient_is_not_finite(tmp_path, mode):
    """With hooks it counts as zero, so it is left out; with ghost clipping it is refused, with the same words."""
    engine, model, _, criterion, _ = private(tmp_path, plan_for(), grad_sample_mode=mode)
    x, y = torch.randn(8, 6), torch.randint(0, 3, (8,))
    x[2, 1] = float("inf")
    with engine, pytest.raises(ap.Refused, match="is not finite") if mode == "ghost" else nullcontext():
        engine.check_independence(lambda batch: criterion(model(batch[0]), batch[1]), (x, y))


def test_a_batch_without_gradients_is_not_checked(tmp_path):
    engine, model, _, _, _ = private(tmp_path, plan_for())
    with engine, pytest.raises(ap.Refused, match="Fewer than two examples"):
        engine.check_independence(lambda batch: (model(batch) * torch.tensor([0.0])).mean(), torch.randn(8, 6))


def test_two_coupled_examples_of_many_are_found(tmp_path):
    """Every two examples are in different parts of at least one split."""
    missed = []
    for seed in range(6):
        first, second = torch.randperm(64, generator=torch.Generator().manual_seed(seed))[:2].tolist()
        x = torch.randn(64, 6, generator=torch.Generator().manual_seed(seed))
        x = torch.cat([x, torch.arange(64.0)[:, None]], 1)
        engine, model, _, _, _ = private(tmp_path / str(seed), plan_for())

        def loss(batch, model=model, first=first, second=second):
            out = model(batch[:, :6]).square().sum(1)
            pair = [(batch[:, 6] == i).any() for i in (first, second)]
            return (out * torch.where((batch[:, 6] == first) & pair[1], 2.0, 1.0)).mean()

        with engine:
            try:
                engine.check_independence(loss, x)
                missed.append(seed)
            except ap.Refused:
                pass
    assert not missed


def test_a_single_example_cannot_be_checked(tmp_path):
    with pytest.raises(ap.InvalidArgument, match="two or more examples"):
        check(tmp_path / "run", Language(), CausalLMLoss(), batch=some(1))


class Gain(nn.Module):
    def __init__(self):
        super().__init__()
        self.gain = nn.Parameter(torch.tensor(2.0))

    def forward(self, x):
        return self.gain * x


@pytest.mark.parametrize("mode", ["hooks", "functorch", "ghost"])
def test_parameters_without_dimensions(tmp_path, mode):
    module = nn.Sequential(nn.Linear(6, 3), Gain())
    engine, module, _, criterion, loader = private(tmp_path, plan_for(), module, grad_sample_mode=mode)
    with engine:
        engine.check_independence(lambda b: criterion(module(b[0]), b[1]), next(iter(loader)))


@pytest.mark.parametrize(("reduction", "given"), [("sum", "mean"), ("mean", "sum")])
def test_a_reduction_that_is_not_the_one_of_the_loss(tmp_path, reduction, given):
    """The gradients would be multiplied or divided by the number of examples."""
    engine, module, _, _, loader = private(tmp_path, plan_for(), loss_reduction=given)
    criterion = nn.CrossEntropyLoss(reduction=reduction)
    with engine, pytest.raises(ap.Refused, match="depends on the other examples"):
        engine.check_independence(lambda b: criterion(module(b[0]), b[1]), next(iter(loader)))
