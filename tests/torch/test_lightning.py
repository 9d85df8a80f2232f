"""The Lightning callback: same steps as a plain training loop, resuming with the same bits, and what it refuses."""

import logging
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from torch import nn
from torch.utils.data import TensorDataset

import antiphase as ap
from antiphase.torch import NoiseAdder
from antiphase.torch.lightning import PrivateTraining, _check_empty_batches, _step_rates
from tests.torch.training import HOOKS, SECRET, data, network, plan_for, run

# Filters for Lightning's warnings about the number of workers, an existing directory and a deprecated name in PyTorch.
REMARKS = (
    "ignore:The '.*dataloader' does not have many workers",
    "ignore:Checkpoint dir",
    "ignore:Be aware that when using `ckpt_path`",
    "ignore:.*weights_only",
    "ignore:.*LeafSpec:FutureWarning",
)
pytestmark = [pytest.mark.filterwarnings(HOOKS, *REMARKS), pytest.mark.usefixtures("same_run_id")]
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class Classifier(LightningModule):
    def __init__(self, dropout=0.0):
        super().__init__()
        self.net, self.drop = network(), nn.Dropout(dropout)

    def training_step(self, batch, batch_idx):
        loss = nn.functional.cross_entropy(self.drop(self.net(batch[0])), batch[1])
        self.log("loss", loss)
        return {"loss": loss}

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)


class Coupled(Classifier):
    def training_step(self, batch, batch_idx):
        scores = self.net(batch[0])
        return nn.functional.cross_entropy(scores - scores.mean(0), batch[1])


def fit(
    directory,
    module=None,
    plan=None,
    checkpoint=None,
    stop=None,
    privacy=None,
    dataset=None,
    seed=3,
    more=(),
    **options,
):
    module = Classifier() if module is None else module
    extra = (
        [] if stop is None else [ModelCheckpoint(directory / "checkpoints", every_n_train_steps=stop, save_top_k=-1)]
    )
    dataset = data() if dataset is None else dataset
    privacy = {"secret": SECRET, **(privacy or {})}
    with PrivateTraining(plan or plan_for(), directory / "run", dataset, **privacy) as found:
        trainer = Trainer(
            max_epochs=-1,
            callbacks=[found, *extra, *more],
            logger=False,
            enable_checkpointing=stop is not None or any(isinstance(part, ModelCheckpoint) for part in more),
            enable_progress_bar=False,
            enable_model_summary=False,
            accelerator="cpu",
            default_root_dir=directory,
            log_every_n_steps=1,
            **options,
        )
        torch.manual_seed(seed)
        trainer.fit(module, found.loader, ckpt_path=checkpoint)
        return torch.cat([p.detach().reshape(-1) for p in module.parameters()]), trainer, found.report()


def test_the_steps_are_those_of_a_loop(tmp_path):
    wanted, _ = run(tmp_path / "loop", plan_for())
    found, trainer, report = fit(tmp_path / "lightning")
    torch.testing.assert_close(found, wanted)  # the callback starts the backward pass from a sum, the loop from a mean
    assert report.steps_run == 12
    assert float(trainer.callback_metrics["epsilon"]) == pytest.approx(report.guarantee.value, rel=1e-6)


@pytest.mark.filterwarnings("ignore:You're resuming from a checkpoint that ended before the epoch")
def test_resumed_in_the_middle_of_an_epoch(tmp_path):
    steady, *_ = fit(tmp_path / "steady", Classifier(0.3))
    fit(tmp_path / "stopped", Classifier(0.3), stop=6, max_steps=7)
    (stored,) = (tmp_path / "stopped" / "checkpoints").glob("*step=6.ckpt")
    with pytest.raises(ap.Refused, match="ckpt_path"):
        fit(tmp_path / "stopped", Classifier(0.3))
    found, _, report = fit(tmp_path / "stopped", Classifier(0.3), checkpoint=stored)
    assert torch.equal(found, steady)
    assert (report.steps_run, report.rewinds) == (12, 0)


def test_coupled_examples_are_found_before_the_first_step(tmp_path):
    with pytest.raises(ap.Refused, match="depends on the other examples"):
        fit(tmp_path, Coupled())


def test_steps_without_examples_would_be_visible_in_the_log(tmp_path):
    with pytest.raises(ap.InvalidArgument, match="Batches of this plan may be empty"):
        fit(tmp_path, plan=plan_for(ap.strategies.Identity(12), ap.Poisson(0.02), batch_size=1))
    *_, report = fit(tmp_path, plan=plan_for(ap.strategies.Identity(12), ap.Poisson(0.9)))
    assert report.steps_run == 12


@pytest.mark.parametrize(
    ("participation", "refuses"),
    [
        (ap.BallsInBins(1, 12), True),
        (ap.BallsInBins(6, 2), False),
        (ap.CyclicPoisson(2, 0.9), False),
        (ap.CyclicPoisson(4, 0.5), True),
        (ap.PoissonMinSeparation(4, 0.6), True),  # nearly all examples join in the first steps
        (ap.PoissonMinSeparation(4, 0.6, warm_start=True), True),
        (ap.PoissonMinSeparation(2, 0.6, warm_start=True), False),
        (ap.FixedSize(1, 4), False),
        (ap.MinSeparation(12), False),
    ],
)
def test_batches_that_may_be_empty(participation, refuses):
    """100 examples; a chance of 1e-12 is too much."""
    budget, mechanism = SimpleNamespace(delta=1e-6), SimpleNamespace(participation=participation)
    plan = SimpleNamespace(mechanism=mechanism, steps=12, problem=SimpleNamespace(budget=budget))
    with pytest.raises(ap.InvalidArgument, match="may be empty") if refuses else nullcontext():
        _check_empty_batches(plan, 100)


def test_rates_of_a_cold_start():
    participation, steps, examples = ap.PoissonMinSeparation(3, 0.5), 9, 20_000
    sampler = participation.sampler(examples, steps, SECRET)
    found = [int(sampler.batch(t).mask.sum()) / examples for t in range(steps)]
    assert list(_step_rates(participation, steps)) == pytest.approx(found, abs=5 * 0.5 / examples**0.5)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"gradient_clip_val": 1.0}, "clip_norm"),
        ({"accumulate_grad_batches": 2}, "batch_size"),
        ({"precision": "bf16-true"}, "before they are clipped"),
    ],
)
def test_options_that_would_change_the_mechanism(tmp_path, options, words):
    with pytest.raises(ap.InvalidArgument, match=words):
        fit(tmp_path, **options)


def test_ghost_clipping_and_a_loader_without_its_callback_are_refused(tmp_path):
    with pytest.raises(ap.InvalidArgument, match="ghost clipping"):
        fit(tmp_path, privacy={"grad_sample_mode": "ghost"})
    with pytest.raises(ap.Refused, match="callbacks"):
        next(iter(PrivateTraining(plan_for(), tmp_path / "run", data()).loader))


@pytest.mark.filterwarnings("ignore:In CPU autocast:UserWarning")
def test_one_of_many_equal_examples_in_lower_precision(tmp_path, monkeypatch):
    """Rounding errors must not depend on the number of examples: with a mean, the sums differed by 2 clipping norms."""
    sums, right = [], NoiseAdder._add_for_engine

    def add(self):
        sums.append(torch.cat([p.grad.detach().flatten().double() for p in self.parameters]))
        right(self)

    monkeypatch.setattr(NoiseAdder, "_add_for_engine", add)
    x = 3 * torch.randn(1, 20, generator=torch.Generator().manual_seed(4))
    for n in (1024, 1025):
        module = Classifier()
        torch.manual_seed(0)
        module.net = nn.Sequential(nn.Linear(20, 12), nn.GELU(), nn.Linear(12, 10))
        dataset = TensorDataset(x.expand(n, -1), torch.zeros(n, dtype=torch.long))
        plan = plan_for(ap.strategies.Identity(1), ap.EveryStep(), clip_norm=0.5, examples=n, batch_size=n)
        fit(tmp_path / str(n), module, plan, dataset=dataset, precision="bf16-mixed")
    assert (sums[1] - sums[0]).norm() == pytest.approx(0.5, rel=1e-3)


def test_dropout_depends_on_the_secret_and_not_on_the_seed(tmp_path):
    """If a known seed determined the masks, one example would change those of all others."""
    masks = []
    for i, (seed, secret) in enumerate(((3, 1), (7, 1), (3, 2))):
        module, found = Classifier(0.3), []
        module.drop.register_forward_hook(lambda layer, given, output, seen=found: seen.append(output != 0))
        fit(tmp_path / str(i), module, privacy={"secret": ap.Secret.insecure(secret)}, seed=seed, max_steps=7, stop=6)
        masks.append(torch.cat([mask.flatten() for mask in found[-7:]]))
    assert torch.equal(masks[0], masks[1])
    assert 0.3 < (masks[0] != masks[2]).float().mean() < 0.5  # 0.42 for independent masks
    (stored,) = (tmp_path / "0" / "checkpoints").glob("*step=6.ckpt")
    assert set(torch.load(stored, weights_only=False)["callbacks"]["PrivateTraining"]) == {"engine"}


class Scheduled(Classifier):
    """Reduces its learning rate based on a metric. It logs a metric that depends on the data and one that does not."""

    def __init__(self, monitor=None):
        super().__init__()
        self.monitor = monitor

    def training_step(self, batch, batch_idx):
        self.log_dict({"progress": self.global_step}, on_epoch=True)
        return super().training_step(batch, batch_idx)

    def configure_optimizers(self):
        optimizer = super().configure_optimizers()
        if self.monitor is None:
            return optimizer
        scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "monitor": self.monitor}}


@pytest.mark.parametrize("metric", ["loss", "progress"])
@pytest.mark.parametrize("what", ["EarlyStopping", "ModelCheckpoint", "ReduceLROnPlateau"])
def test_choices_by_a_metric_of_the_training_data(tmp_path, what, metric):
    """The guarantee covers no learning rate, last step or checkpoint that depends on the loss, which has no noise."""
    callbacks = {
        "EarlyStopping": lambda: [EarlyStopping(metric, patience=100)],
        "ModelCheckpoint": lambda: [ModelCheckpoint(tmp_path / "checkpoints", monitor=metric)],
        "ReduceLROnPlateau": list,
    }[what]()
    module = Scheduled(metric if what == "ReduceLROnPlateau" else None)
    refused = pytest.raises(ap.InvalidArgument, match=f"{what} monitors 'loss'") if metric == "loss" else nullcontext()
    with refused:
        fit(tmp_path, module, more=callbacks)
