"""Training with Accelerate: same bits as without it, and what is refused.

test_transformers_clipped_sum.py checks the gradients.
"""

import pytest
import torch
from accelerate import Accelerator
from accelerate.optimizer import AcceleratedOptimizer
from accelerate.state import AcceleratorState, PartialState
from torch import nn

import antiphase as ap
import antiphase.torch
from tests.torch.training import HOOKS, SECRET, data, lattice_plan_for, network, plan_for, private, run

pytestmark = pytest.mark.filterwarnings(HOOKS)


def loop(model, optimizer, loader, accelerator, engine, epochs=3):
    for _ in range(epochs):
        for x, y in loader:
            with accelerator.accumulate(model):
                optimizer.zero_grad()
                accelerator.backward(nn.functional.cross_entropy(model(x), y))
                optimizer.step()
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()])


@pytest.mark.usefixtures("same_run_id")
@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("plan", [plan_for(), lattice_plan_for()], ids=["float", "lattice"])
def test_the_same_bits_as_without_accelerate(tmp_path, workers, plan):
    wanted, _ = run(tmp_path / "loop", plan)
    options = {"loader_options": {"num_workers": workers}}
    engine, model, optimizer, _, loader = private(tmp_path / "run", plan, **options)
    accelerator = Accelerator(cpu=True)
    model, optimizer, prepared = accelerator.prepare(model, optimizer, loader)
    assert prepared is loader
    with engine:
        assert torch.equal(loop(model, optimizer, prepared, accelerator, engine), wanted)
        assert engine.report().steps_run == 12


@pytest.mark.usefixtures("same_run_id")
@pytest.mark.parametrize("mode", ["hooks", "ghost"])
def test_bf16_before_and_after(tmp_path, mode):
    """Accelerate wraps the forward method of the model in autocast."""
    ends = []
    for when in ("before", "after"):
        AcceleratorState._reset_state(True)
        accelerator, module, seen = Accelerator(cpu=True, mixed_precision="bf16"), network(), set()
        module[0].register_forward_hook(lambda layer, given, output, seen=seen: seen.add(output.dtype))
        module = accelerator.prepare(module) if when == "before" else module
        engine, model, optimizer, criterion, loader = private(
            tmp_path / when, plan_for(), module, grad_sample_mode=mode, loss_reduction="sum"
        )
        if when == "after":
            model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
        with engine:
            x, y = next(iter(loader))
            optimizer.zero_grad()
            accelerator.backward(criterion(model(x), y))
            optimizer.step()
        assert seen == {torch.bfloat16}
        ends.append(torch.cat([p.detach().reshape(-1) for p in model.parameters()]))
    AcceleratorState._reset_state(True)  # the other tests use full precision
    torch.testing.assert_close(*ends)


def test_a_batch_that_is_skipped_is_refused(tmp_path):
    engine, model, optimizer, _, loader = private(tmp_path / "run", plan_for())
    accelerator = Accelerator(cpu=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    with engine, pytest.raises(ap.Refused, match="step 0 was not taken"):
        for _ in loader:
            pass


def test_gradients_accumulated_by_accelerate_are_refused(tmp_path):
    engine, model, optimizer, _, loader = private(tmp_path / "run", plan_for())
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    with engine, pytest.raises(ap.Refused, match=r"step 0 was not taken|one backward pass"):
        loop(model, optimizer, loader, accelerator, engine)


def test_a_scaled_loss_is_refused(tmp_path):
    accelerator = Accelerator(cpu=True)
    module = network()
    optimizer = accelerator.prepare(torch.optim.SGD(module.parameters(), lr=0.1))
    assert isinstance(optimizer, AcceleratedOptimizer)
    optimizer.scaler = torch.amp.GradScaler("cpu")
    with pytest.raises(ap.InvalidArgument, match="bf16"):
        antiphase.torch.PrivacyEngine(tmp_path / "run", secret=SECRET).make_private(
            module, optimizer, data(), plan_for()
        )


def test_several_processes_are_refused(tmp_path, monkeypatch):
    engine, *_, loader = private(tmp_path / "run", plan_for())
    accelerator = Accelerator(cpu=True)
    monkeypatch.setitem(PartialState._shared_state, "num_processes", 2)
    with engine, pytest.raises(ap.Refused, match="2 processes"):
        accelerator.prepare(loader)
