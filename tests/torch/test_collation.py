"""Batches that mix examples before the model sees them, and parameters that change within a step."""

import copy
import random

import numpy as np
import pytest
import torch
from lightning.pytorch import LightningModule, Trainer
from opacus.utils.fsdp_utils import FSDP2Wrapper
from torch import nn
from torch.utils.data import Dataset, default_collate
from transformers import BertForSequenceClassification, TrainingArguments

import antiphase as ap
import antiphase.torch
from antiphase.torch._collation import check_collation, loader_of
from antiphase.torch.huggingface import PrivateTrainer
from antiphase.torch.lightning import PrivateTraining
from tests.torch.test_lightning import REMARKS, Classifier
from tests.torch.training import HOOKS, SECRET, data, local, network, plan_for, private, train
from tests.torch.transformer_models import QUIET, Sentences, model_of

pytestmark = [pytest.mark.filterwarnings(HOOKS, *REMARKS), pytest.mark.usefixtures("same_run_id")]
MIXED = "Collating a batch mixes its examples"


def mixed(batch, order):
    return [0.5 * batch[0] + 0.5 * batch[0][order], batch[1]]


def mixup(items):
    batch = default_collate(items)
    return mixed(batch, torch.randperm(len(batch[0])))


def numpy_mixup(items):
    batch = default_collate(items)
    return mixed(batch, np.random.permutation(len(batch[0])))  # noqa: NPY002


def python_mixup(items):
    batch = default_collate(items)
    order = list(range(len(batch[0])))
    random.shuffle(order)
    return mixed(batch, order) if random.random() < 0.7 else batch


def centred(items):
    x, y = default_collate(items)
    return x - x.mean(0) + 1e-3 * torch.randn_like(x), y


def jittered(items):
    x, y = default_collate(items)
    return x + torch.randn_like(x), y


class WithGenerator:
    """A collate function with its own generator, as those with a seed have."""

    def __init__(self, mixes):
        self.generator, self.mixes = torch.Generator().manual_seed(0), mixes

    def __call__(self, items):
        x, y = default_collate(items)
        if self.mixes:
            return mixed((x, y), torch.randperm(len(x), generator=self.generator))
        return x + torch.randn(x.shape, generator=self.generator), y


class BatchTransform(Dataset):
    """Reads several items at a time, as datasets with a batch transform do."""

    def __init__(self, dataset, transform):
        self.dataset, self.transform = dataset, transform

    def __len__(self):
        return len(self.dataset)

    def __getitem__(self, index):
        return self.dataset[index]

    def __getitems__(self, indices):
        return self.transform([self.dataset[i] for i in indices])


def subtract_mean(items):
    x = torch.stack([item[0] for item in items])
    return [(row, item[1]) for row, item in zip(x - x.mean(0), items, strict=True)]


@pytest.mark.parametrize("collate", [mixup, numpy_mixup, python_mixup, centred, WithGenerator(True)])
def test_collators_that_mix_examples(collate):
    with pytest.raises(ap.Refused, match=MIXED):
        check_collation(loader_of(data(), collate), list(range(8)))


@pytest.mark.parametrize("collate", [default_collate, jittered, WithGenerator(False)])
def test_collators_that_do_not(collate):
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].copy()  # noqa: NPY002
    check_collation(loader_of(data(), collate), list(range(8)))
    assert torch.equal(torch.get_rng_state(), states[0])
    assert random.getstate() == states[1]
    assert np.array_equal(np.random.get_state()[1], states[2])  # noqa: NPY002


def test_a_batch_transform_that_mixes_examples():
    check_collation(loader_of(BatchTransform(data(), list), default_collate), list(range(8)))
    with pytest.raises(ap.Refused, match=MIXED):
        check_collation(loader_of(BatchTransform(data(), subtract_mean), default_collate), list(range(8)))


def test_random_numbers_that_no_seed_repeats():
    generator = np.random.default_rng(0)

    def collate(items):
        x, y = default_collate(items)
        return x + torch.as_tensor(generator.normal(size=x.shape)), y

    with pytest.raises(ap.Refused, match="even with the same seeds"):
        check_collation(loader_of(data(), collate), list(range(8)))


def test_check_independence_collates(tmp_path):
    options = {"loader_options": {"collate_fn": mixup}}
    engine, module, _, criterion, loader = private(tmp_path, plan_for(), **options)
    batch = next(iter(loader))
    with engine, pytest.raises(ap.Refused, match=MIXED):
        engine.check_independence(lambda b: criterion(module(b[0]), b[1]), batch)


class Embedded(nn.Module):
    """A collate function for sentences that permutes the attention masks of the examples at random."""

    def __call__(self, examples):
        batch = default_collate(examples)
        batch["attention_mask"] = batch["attention_mask"][torch.randperm(len(examples))]
        return batch


def test_the_trainer_checks_random_collators(tmp_path):
    model = model_of("bert")
    assert isinstance(model, BertForSequenceClassification)
    with PrivateTrainer(
        model,
        TrainingArguments(tmp_path / "out", per_device_train_batch_size=8, **QUIET),
        train_dataset=Sentences("bert"),
        data_collator=Embedded().__call__,
        plan=plan_for(batch_size=10),
        run_directory=tmp_path / "run",
        secret=SECRET,
    ) as trainer:
        with pytest.raises(ap.Refused, match=MIXED):
            trainer.train()
        assert trainer.engine.step == 0


class After(Classifier):
    def on_after_batch_transfer(self, batch, dataloader_idx):
        return mixed(batch, torch.randperm(len(batch[0]))) if self.training else batch


class Before(Classifier):
    def on_before_batch_transfer(self, batch, dataloader_idx):
        return [batch[0] - batch[0].mean(0), batch[1]]


class Start(Classifier):
    def on_train_batch_start(self, batch, batch_idx):
        batch[0].sub_(batch[0].mean(0))


class Harmless(Classifier):
    def on_train_batch_start(self, batch, batch_idx):
        self.log("rows", 1.0)

    def on_after_batch_transfer(self, batch, dataloader_idx):
        return [2 * batch[0], batch[1]]


@pytest.mark.parametrize(
    ("kind", "message"), [(After, MIXED), (Before, MIXED), (Start, "on_train_batch_start of Start"), (Harmless, None)]
)
def test_hooks_of_lightning_that_change_batches(tmp_path, kind, message):
    module: LightningModule = kind()
    with PrivateTraining(plan_for(), tmp_path, data(), secret=SECRET) as privacy:
        quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
        trainer = Trainer(max_epochs=-1, callbacks=[privacy], accelerator="cpu", enable_model_summary=False, **quiet)
        if message is None:
            trainer.fit(module, privacy.loader)
            assert privacy.engine.step == privacy.plan.steps
        else:
            with pytest.raises(ap.Refused, match=message):
                trainer.fit(module, privacy.loader)
            assert privacy.engine.step == 0


class FromFirstBatch(nn.Module):
    """Sets its parameters from the first batch, as ActNorm does."""

    def __init__(self):
        super().__init__()
        self.scale, self.last, self.is_ready = nn.Linear(6, 6), nn.Linear(6, 3), False

    def forward(self, x):
        if not self.is_ready:
            self.scale.bias.data.copy_(-x.mean(0))
            self.is_ready = True
        return self.last(self.scale(x))


@pytest.mark.parametrize("mode", ["hooks", "ghost"])
def test_a_layer_that_is_initialized_from_the_first_batch(tmp_path, mode):
    engine, module, _, criterion, loader = private(tmp_path, plan_for(), FromFirstBatch(), grad_sample_mode=mode)
    batch = next(iter(loader))
    with engine, pytest.raises(ap.Refused, match=r"changes the parameter '_module.scale.bias'"):
        engine.check_independence(lambda b: criterion(module(b[0]), b[1]), batch)


def updated_by_hand(module, optimizer, criterion, x, y):
    criterion(module(x), y).backward()
    with torch.no_grad():
        for p in module.parameters():
            p.sub_(0.1 * p.grad)


def sharpness_aware(module, optimizer, criterion, x, y):
    criterion(module(x), y).backward()
    before = copy.deepcopy([p.detach() for p in module.parameters()])
    with torch.no_grad():
        for p in module.parameters():
            p.add_(0.05 * p.grad / p.grad.norm())
    optimizer.zero_grad()
    criterion(module(x), y).backward()
    with torch.no_grad():
        for p, old in zip(module.parameters(), before, strict=True):
            p.copy_(old)


def updated_through_data(module, optimizer, criterion, x, y):
    """Change a parameter through `data`, which does not increase PyTorch's version counter.

    Some optimizers change parameters in this way during the backward pass.
    """
    criterion(module(x), y).backward()
    parameter = list(module.parameters())[-1]
    parameter.data[-1] += 1e-3


@pytest.mark.parametrize("mode", ["hooks", "functorch", "ghost"])
@pytest.mark.parametrize("act", [updated_by_hand, updated_through_data, sharpness_aware])
def test_parameters_that_change_within_a_step(tmp_path, mode, act):
    engine, module, optimizer, criterion, loader = private(tmp_path, plan_for(), grad_sample_mode=mode)
    x, y = next(iter(loader))
    optimizer.zero_grad()
    act(module, optimizer, criterion, x, y)
    with engine:
        with pytest.raises(ap.Refused, match="The parameters were changed while the gradients of step 0"):
            optimizer.step()
        assert engine.step == 0


class Statistics(nn.Module):
    """Stores a running mean of its inputs, in one of several ways, and does not use it."""

    def __init__(self, how):
        super().__init__()
        self.how, self.last = how, nn.Linear(6, 3)
        self.register_buffer("mean", torch.zeros(6), persistent=how != "cache")
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))
        self.frozen = nn.ParameterList([nn.Parameter(torch.zeros(6), requires_grad=False)])

    def forward(self, x):
        self.calls += 1
        new = 0.999 * self.mean + 0.001 * x.mean(0)
        if self.how == "replaced":
            self.mean = new
        elif self.how == "frozen parameter":
            self.frozen[0].copy_(new)
        elif self.how == "data":
            self.mean.data.mul_(0.999).add_(x.mean(0), alpha=0.001)  # PyTorch does not count this change
        elif self.how != "calls":
            self.mean.copy_(new)
        return self.last(x)


FORBIDDEN = {"changed": "'mean'", "replaced": "'mean'", "data": "'mean'", "frozen parameter": "'frozen.0'"}


@pytest.mark.parametrize("mode", ["hooks", "ghost"])
@pytest.mark.parametrize("how", [*FORBIDDEN, "cache", "calls"])
def test_statistics_that_the_model_keeps(tmp_path, mode, how):
    """A checkpoint would contain them, without noise."""
    module = nn.Sequential()
    module.append(Statistics(how))
    engine, module, optimizer, criterion, loader = private(tmp_path, plan_for(), module, grad_sample_mode=mode)
    x, y = next(iter(loader))
    with engine:
        optimizer.zero_grad()
        criterion(module(x), y).backward()
        if how not in FORBIDDEN:
            optimizer.step()
        else:
            with pytest.raises(ap.Refused, match=f"^'0.{FORBIDDEN[how][1:]}, which is not trained, was changed"):
                optimizer.step()
        assert engine.step == (how not in FORBIDDEN)


@pytest.mark.parametrize("mode", ["hooks", "ghost"])
@pytest.mark.parametrize("how", ["changed", "replaced", "cache"])
def test_buffers_that_are_computed_from_the_data(tmp_path, mode, how):
    engine, module, _, criterion, loader = private(tmp_path, plan_for(), Statistics(how), grad_sample_mode=mode)
    batch = next(iter(loader))
    kept = {name: value.clone() for name, value in module.state_dict().items()}
    with engine, pytest.raises(ap.Refused, match=r"computes the buffer 'mean' from the data"):
        engine.check_independence(lambda b: criterion(module(b[0]), b[1]), batch)
    assert all(torch.equal(value, kept[name]) for name, value in module.state_dict().items())


def test_buffers_that_count_calls(tmp_path):
    engine, module, _, criterion, loader = private(tmp_path, plan_for(), Statistics("calls"))
    with engine:
        engine.check_independence(lambda b: criterion(module(b[0]), b[1]), next(iter(loader)))


@pytest.mark.filterwarnings("ignore:FSDP2-wrapped module:UserWarning")
@pytest.mark.usefixtures("one_process")
@pytest.mark.parametrize("mode", ["hooks", "functorch", "ew", "ghost", "ghost_fsdp"])
@pytest.mark.parametrize("when", ["before the step", "after the step"])
def test_a_second_optimizer_of_the_same_parameters(tmp_path, mode, when):
    """Also with gradients of a backward pass of its own, after the private step."""
    module = FSDP2Wrapper(network()) if "fsdp" in mode else network()
    engine, module, optimizer, criterion, loader = private(tmp_path, plan_for(), module, grad_sample_mode=mode)
    other = torch.optim.Adam(list(module.parameters())[:1])
    x, y = next(iter(loader))
    with engine:
        if when == "after the step":
            optimizer.zero_grad()
            criterion(module(x), y).backward()
            optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        other.step()  # does nothing, since there is no gradient
        criterion(module(x), y).backward()
        before = [local(p) for p in module.parameters()]
        if any(p.grad is not None for p in module.parameters()):  # not so with "ew"
            with pytest.raises(ap.Refused, match=r"Another optimizer \(Adam\)"):
                other.step()
        assert all(torch.equal(local(p), old) for p, old in zip(module.parameters(), before, strict=True))
    other.step()  # on public data, for example


class Nested(torch.optim.SGD):
    """Takes a step of another optimizer of the same parameters, as Lookahead and others do."""

    def __init__(self, *given, **named):
        super().__init__(*given, **named)
        self.inner = torch.optim.SGD(*given, **named)

    def step(self, closure=None):
        return self.inner.step(closure)


def test_an_optimizer_that_uses_another_one(tmp_path):
    ends = []
    for kind in (torch.optim.SGD, Nested):
        module = network()
        engine = antiphase.torch.PrivacyEngine(tmp_path / kind.__name__, secret=SECRET)
        made = engine.make_private(module, kind(list(module.parameters()), lr=0.1), data(), plan_for())
        with engine:
            train(*made[:2], nn.CrossEntropyLoss(), made[2], 1)
        ends.append(torch.cat([p.detach().reshape(-1) for p in module.parameters()]))
    assert torch.equal(*ends)


def test_parameters_may_change_between_steps(tmp_path):
    engine, module, optimizer, criterion, loader = private(tmp_path, plan_for())
    with engine:
        for x, y in loader:
            optimizer.zero_grad()
            criterion(module(x), y).backward()
            optimizer.step()
            with torch.no_grad():
                for p in module.parameters():
                    p.clamp_(-1, 1)
        assert engine.step > 1
