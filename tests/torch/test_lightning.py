"""The Lightning callback: same steps as a loop of one's own, resumed with the same bits, and what it refuses."""

import logging
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn

import antiphase as ap
from antiphase.torch.lightning import PrivateTraining, _check_empty_batches, _step_rates
from tests.torch.training import HOOKS, SECRET, data, network, plan_for, run

# Lightning's remarks on the number of workers, the directory that exists and a name that PyTorch has deprecated.
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


def fit(directory, module=None, plan=None, checkpoint=None, stop=None, privacy=None, **options):
    module = Classifier() if module is None else module
    extra = (
        [] if stop is None else [ModelCheckpoint(directory / "checkpoints", every_n_train_steps=stop, save_top_k=-1)]
    )
    with PrivateTraining(plan or plan_for(), directory / "run", data(), secret=SECRET, **(privacy or {})) as found:
        trainer = Trainer(
            max_epochs=-1,
            callbacks=[found, *extra],
            logger=False,
            enable_checkpointing=stop is not None,
            enable_progress_bar=False,
            enable_model_summary=False,
            accelerator="cpu",
            default_root_dir=directory,
            log_every_n_steps=1,
            **options,
        )
        torch.manual_seed(3)
        trainer.fit(module, found.loader, ckpt_path=checkpoint)
        return torch.cat([p.detach().reshape(-1) for p in module.parameters()]), trainer, found.report()


def test_the_steps_are_those_of_a_loop(tmp_path):
    wanted, _ = run(tmp_path / "loop", plan_for())
    found, trainer, report = fit(tmp_path / "lightning")
    assert torch.equal(found, wanted)
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
