"""The noise that was added in 500 steps has the covariance that the guarantee assumes."""

from dataclasses import replace

import pytest
import torch

from antiphase.torch import _noise_adder
from antiphase.torch._optimizer import PrivateOptimizer
from tests.torch.statistics import (
    CLIP,
    PLAN,
    added_noise,
    clipped_gradients,
    covariance_deviation,
    is_the_plans,
    scale_deviation,
    wide_data,
    wide_network,
)
from tests.torch.training import HOOKS, epochs_of, private, record, train

pytestmark = pytest.mark.filterwarnings(HOOKS)
BATCH = 4  # 60 examples and 15 steps per epoch


def noise_of(directory, physical=None, **options):
    module, dataset = wide_network(), wide_data()
    clipped = clipped_gradients(module, dataset, CLIP, per_layer="clipping" in options)
    engine, module, optimizer, criterion, loader = private(
        directory, PLAN, module, lr=0.0, momentum=0.0, dataset=dataset, **options
    )
    gradients = record(optimizer)
    train(module, optimizer, criterion, loader, epochs_of(PLAN, loader), physical)
    batches = [engine.noise.batch(step).indices for step in range(PLAN.steps)]
    engine.close()
    divisor = 1 if options.get("loss_reduction") == "sum" else BATCH
    return added_noise(torch.stack(gradients), batches, clipped, divisor)


@pytest.fixture(scope="module")
def flat(tmp_path_factory):
    return noise_of(tmp_path_factory.mktemp("flat"))


CASES = {
    "per layer": (None, {"clipping": "per_layer"}),
    "ghost in pieces": (3, {"grad_sample_mode": "ghost", "loss_reduction": "sum"}),
    "sum": (None, {"loss_reduction": "sum"}),
    "ghost": (None, {"grad_sample_mode": "ghost"}),
    "pieces": (1, {}),
    "functorch": (None, {"grad_sample_mode": "functorch"}),
}
QUICK = ("ghost in pieces",)


@pytest.mark.parametrize(
    ("physical", "options"),
    [pytest.param(*case, id=name, marks=() if name in QUICK else pytest.mark.slow) for name, case in CASES.items()],
)
def test_noise_is_the_plans(tmp_path, physical, options):
    assert is_the_plans(noise_of(tmp_path, physical, **options))


def test_flat_noise_is_the_plans(flat):
    assert is_the_plans(flat)


def test_noise_one_percent_too_small_is_noticed(flat):
    assert scale_deviation(flat * 0.99) > 5
    assert scale_deviation(flat * 1.01) > 5


def test_noise_advanced_with_every_piece_is_noticed(flat):
    """Two pieces a step would use up two steps of noise, and add both or the second."""
    assert covariance_deviation(flat[0::2] + flat[1::2], half_plan()) > 6.5
    assert covariance_deviation(flat[1::2], half_plan()) > 6.5


def half_plan():
    strategy = replace(PLAN.mechanism.strategy, steps=PLAN.steps // 2)
    problem = replace(PLAN.problem, steps=strategy.steps)
    return replace(PLAN, problem=problem, mechanism=replace(PLAN.mechanism, strategy=strategy))


def test_noise_on_the_mean_is_noticed(tmp_path, monkeypatch):
    right = PrivateOptimizer.add_noise

    def on_the_mean(self):
        for total in self._total:
            total.div_(self.expected_batch_size)
        right(self)

    monkeypatch.setattr(PrivateOptimizer, "add_noise", on_the_mean)
    monkeypatch.setattr(PrivateOptimizer, "scale_grad", lambda self: None)
    assert not is_the_plans(noise_of(tmp_path))


@pytest.mark.slow
def test_noise_scaled_before_it_is_added_is_noticed(tmp_path, monkeypatch):
    """The mistake that leaves too little of it: noise divided by the batch size twice."""
    right = _noise_adder.read_noise
    monkeypatch.setattr(_noise_adder, "read_noise", lambda run, step: [part / BATCH for part in right(run, step)])
    assert not is_the_plans(noise_of(tmp_path))
